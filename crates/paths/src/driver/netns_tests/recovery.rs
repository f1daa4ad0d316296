//! Recovery of state after a restart and after lost events, and connections that cannot be managed.

use super::super::super::Management;
use super::super::super::kernel::{SockDiag, SocketReply, SubflowQuery};
use super::*;

#[test]
fn running_connections_are_adopted_with_their_subflows_and_priorities() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }), None);
        driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        driver.stop();

        let mut driver = RunningDriver::start(Mode::Userspace);
        let (adopted, first) = driver.wait_for_connection(0);
        assert_eq!(adopted, conn);
        driver.wait_for_input("that it is adopted", |inputs| {
            inputs.contains(&Input::Opened { conn, adopted: true, deny_join_id0: false }).then_some(())
        });
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        assert_eq!((first.link, first.initial, first.backup), (Some(FIRST_LINK), true, false));
        assert_eq!((second.initial, second.backup), (false, true));
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let rejoined = driver.wait_for_subflow(conn, SECOND_LINK, &[second.id]);
        driver.wait_for_counters("bytes over the new subflow", conn, rejoined.id, |counters| {
            counters.received.bytes() > 100_000
        });
        driver.stop();
    });
}

#[test]
fn lost_events_are_recovered_by_a_dump() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        // Buffer for one event: the two of a new connection do not fit.
        let driver = RunningDriver::with_rcvbuf(Mode::Userspace, 0, None);
        // The driver cannot read events while its machine is locked.
        let lock = driver.machine.0.lock().unwrap();
        let clients: Vec<Client> = (0..40).map(|_| Client::connect_established(address)).collect();
        drop(lock);
        let opened = |count: usize| {
            driver.wait_for_input("all connections", |inputs| {
                let opened = inputs.iter().filter(|input| matches!(input, Input::Opened { .. })).count();
                let subflows = inputs.iter().filter(|input| matches!(input, Input::SubflowUp { .. })).count();
                (opened == count && subflows == count).then_some(())
            });
        };
        opened(40);
        let first = driver.wait_for_connection(0).0;
        assert!(driver.poll_counters(first, &[]).is_empty());
        assert!(driver.snapshot().totals.resyncs > 0, "no event was lost, so the test proves nothing");
        drop(clients);
        driver.wait_for_input("that all are closed", |inputs| {
            (inputs.iter().filter(|input| matches!(input, Input::Closed { .. })).count() == 40).then_some(())
        });
        assert_eq!(driver.snapshot().connections, []);
        driver.stop();
    });
}

#[test]
fn a_socket_is_aborted_and_the_kernel_confirms_it() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let driver = RunningDriver::start(Mode::Userspace);
        let client = Client::connect_established(address);
        let (_, first) = driver.wait_for_connection(0);
        let query = SubflowQuery { local: client.0.local_addr().unwrap(), remote: address, interface: 0 };
        let sockets = SockDiag::open().unwrap();
        // Twice: the second time there is no socket. Without a reply this would be an error.
        sockets.abort(&[query]).unwrap();
        sockets.abort(&[query]).unwrap();
        let mut reply = SocketReply::Unknown;
        sockets.query_subflows(&[query], |_, received| reply = received).unwrap();
        assert_eq!(reply, SocketReply::Gone);
        driver.wait_for_subflow_end(first.id);
        drop(client);
        driver.stop();
    });
}

#[test]
fn existing_sockets_are_found_by_exact_queries() {
    with_two_networks(|server| {
        for address in ["10.9.0.1:5001", "[fd00:9::1]:5002"] {
            let address = start_server(server, address);
            let driver = RunningDriver::start(Mode::Userspace);
            let client = Client::connect_established(address);
            let (conn, _) = driver.wait_for_connection(0);
            let sockets = SockDiag::open().unwrap();
            let query_connection = || {
                let mut reply = SocketReply::Unknown;
                sockets.query_connections(&[conn.0], |_, received| reply = received).unwrap();
                reply
            };
            let found = query_connection();
            let found = found.socket().unwrap();
            let connection = found.mptcp_info.unwrap();
            assert_eq!((found.remote, connection.token, connection.is_fallback), (address, conn.0, false));
            assert!(found.inode != 0 && found.is_open());
            drop(client);
            driver.wait_for_input("the end", |inputs| inputs.contains(&Input::Closed { conn }).then_some(()));
            assert!(
                query_connection().socket().is_none_or(|remaining| remaining.inode == 0 || !remaining.is_open())
            );
            driver.stop();
        }
    });
}

#[test]
fn a_changed_path_manager_is_restored_when_a_command_is_refused() {
    with_two_networks(|server| {
        const SETTING: &str = "/proc/sys/net/mptcp/path_manager";
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let mut clients = Vec::new();
        loop {
            std::fs::write(SETTING, "kernel").unwrap();
            clients.push(Client::connect_established(address));
            let (conn, _) = driver.wait_for_connection(clients.len() - 1);
            // The check of each second may have been faster.
            if driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true })
                == Some(CommandError::NoConnection)
            {
                break;
            }
            assert!(clients.len() < 50, "no command is refused");
        }
        assert_eq!(std::fs::read_to_string(SETTING).unwrap().trim(), "userspace");
        clients.push(Client::connect_established(address));
        let (conn, _) = driver.wait_for_connection(clients.len() - 1);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }), None);
        driver.stop();
    });
}

#[test]
fn a_socket_older_than_the_switch_is_reported_as_unmanaged() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        std::fs::write("/proc/sys/net/mptcp/path_manager", "kernel").unwrap();
        let _old = Client::connect_established(address);
        let driver = RunningDriver::start(Mode::Userspace);
        let _new = Client::connect_established(address);
        let (conn, _) = driver.wait_for_connection(0);
        let snapshot = driver.snapshot();
        let count_managed =
            |management: Management| snapshot.connections.iter().filter(|c| c.management == management).count();
        assert_eq!(
            (
                count_managed(Management::Userspace),
                count_managed(Management::PredatesSwitch),
                snapshot.totals.unmanaged
            ),
            (1, 1, 1)
        );
        let opened = driver.wait_for_input("what was opened", |inputs| {
            Some(inputs.iter().filter(|input| matches!(input, Input::Opened { .. })).cloned().collect::<Vec<_>>())
        });
        assert_eq!(opened, [Input::Opened { conn, adopted: false, deny_join_id0: false }]);
        driver.stop();
    });
}

#[test]
fn an_unanswered_join_is_given_up() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.wait_for_connection(0);
        // A neighbor entry with a wrong link-layer address: packets leave, and no reply arrives.
        ip("neigh replace 10.2.0.1 lladdr 02:00:00:00:00:99 dev c2 nud permanent");
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let syn_sent_count = || {
            let output = Process::new("ss").args(["-tn", "state", "syn-sent"]).output().unwrap();
            String::from_utf8_lossy(&output.stdout).matches("10.9.0.1").count()
        };
        assert_eq!(syn_sent_count(), 1);
        let started = Clock::now();
        while syn_sent_count() > 0 {
            assert!(started.elapsed() < TIMEOUT, "the SYN is still being sent");
            thread::sleep(Duration::from_millis(50));
        }
        driver.stop();
    });
}

#[test]
fn a_half_closed_connection_refuses_one_destroy_and_all_joins() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (client, read) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        driver.wait_for_counters("bytes", conn, second.id, |counters| counters.received.bytes() > 100_000);
        // The client has closed its direction; the download continues.
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        let before = read.load(Ordering::Relaxed);
        wait_for_progress(&read, before + 100_000);
        assert_eq!(
            driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }),
            Some(CommandError::HalfClosed)
        );
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: second.id }), Some(CommandError::HalfClosed));
        driver.wait_for_counters("bytes after the refusal", conn, second.id, |counters| {
            counters.received.bytes() > 200_000
        });
        // The policy knows now that the connection is half-closed, as for an exhausted budget.
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.wait_for_subflow_end(second.id), CloseReason::Closed);
        driver.wait_for_counters("bytes over the first", conn, first.id, |counters| {
            counters.received.bytes() > 100_000
        });
        driver.stop();
    });
}
