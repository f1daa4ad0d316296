//! What is found again: after a restart, after lost events, and what cannot be steered.

use super::super::super::Managed;
use super::super::super::kernel::{Answer, Asked, Sockets};
use super::*;

#[test]
fn running_connections_are_adopted_with_their_subflows_and_priorities() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: true }), None);
        driver.up(conn, SECOND, &[]);
        driver.stop();

        let mut driver = Running::start(Mode::Userspace);
        let (adopted, first) = driver.opened(0);
        assert_eq!(adopted, conn);
        driver.hears("that it is adopted", |heard| {
            heard.contains(&Input::Opened { conn, adopted: true, deny_join_id0: false }).then_some(())
        });
        let second = driver.up(conn, SECOND, &[]);
        assert_eq!((first.link, first.initial, first.backup), (Some(FIRST), true, false));
        assert_eq!((second.initial, second.backup), (false, true));
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let again = driver.up(conn, SECOND, &[second.id]);
        driver.sees("bytes over the new subflow", conn, again.id, |seen| seen.received.bytes() > 100_000);
        driver.stop();
    });
}

#[test]
fn lost_events_are_made_up_for_by_a_dump() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        // Room for one event: the two of a new connection do not fit.
        let driver = Running::with(Mode::Userspace, 0, None);
        // The driver cannot read while its machine does not answer.
        let machine = driver.script.0.lock().unwrap();
        let clients: Vec<Client> = (0..40).map(|_| Client::greet(address)).collect();
        drop(machine);
        let opened = |count: usize| {
            driver.hears("all connections", |heard| {
                let opened = heard.iter().filter(|input| matches!(input, Input::Opened { .. })).count();
                let subflows = heard.iter().filter(|input| matches!(input, Input::SubflowUp { .. })).count();
                (opened == count && subflows == count).then_some(())
            });
        };
        opened(40);
        let first = driver.opened(0).0;
        assert!(driver.looks(first, &[]).is_empty());
        assert!(driver.snapshot().totals.resynchronised > 0, "nothing was lost: the test shows nothing");
        drop(clients);
        driver.hears("that all are closed", |heard| {
            (heard.iter().filter(|input| matches!(input, Input::Closed { .. })).count() == 40).then_some(())
        });
        assert_eq!(driver.snapshot().connections, []);
        driver.stop();
    });
}

#[test]
fn a_socket_is_aborted_and_the_kernel_says_so() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let driver = Running::start(Mode::Userspace);
        let client = Client::greet(address);
        let (_, first) = driver.opened(0);
        let asked = Asked { local: client.0.local_addr().unwrap(), remote: address, link: 0 };
        let sockets = Sockets::open().unwrap();
        // Twice: there is none to abort then. Without an answer this would be an error.
        sockets.abort(&[asked]).unwrap();
        sockets.abort(&[asked]).unwrap();
        let mut answer = Answer::Unknown;
        sockets.look(&[asked], |_, said| answer = said).unwrap();
        assert_eq!(answer, Answer::Gone);
        driver.down(first.id);
        drop(client);
        driver.stop();
    });
}

#[test]
fn what_the_kernel_has_is_found_by_an_exact_question() {
    between_two_networks(|server| {
        for address in ["10.9.0.1:5001", "[fd00:9::1]:5002"] {
            let address = serve(server, address);
            let driver = Running::start(Mode::Userspace);
            let client = Client::greet(address);
            let (conn, _) = driver.opened(0);
            let sockets = Sockets::open().unwrap();
            let asks = || {
                let mut answer = Answer::Unknown;
                sockets.look_at_connections(&[conn.0], |_, said| answer = said).unwrap();
                answer
            };
            let found = asks();
            let found = found.there().unwrap();
            let connection = found.mptcp_info.unwrap();
            assert_eq!((found.remote, connection.token, connection.is_fallback), (address, conn.0, false));
            assert!(found.inode != 0 && found.is_open());
            drop(client);
            driver.hears("the end", |heard| heard.contains(&Input::Closed { conn }).then_some(()));
            assert!(asks().there().is_none_or(|left| left.inode == 0 || !left.is_open()));
            driver.stop();
        }
    });
}

#[test]
fn a_path_manager_that_somebody_switched_over_is_put_back_when_a_command_is_refused_for_it() {
    between_two_networks(|server| {
        const SETTING: &str = "/proc/sys/net/mptcp/path_manager";
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let mut clients = Vec::new();
        loop {
            std::fs::write(SETTING, "kernel").unwrap();
            clients.push(Client::greet(address));
            let (conn, _) = driver.opened(clients.len() - 1);
            // The round of every second may have been faster.
            if driver.commands(conn, Command::Join { link: SECOND, backup: true })
                == Some(CommandError::NoConnection)
            {
                break;
            }
            assert!(clients.len() < 50, "no command is refused");
        }
        assert_eq!(std::fs::read_to_string(SETTING).unwrap().trim(), "userspace");
        clients.push(Client::greet(address));
        let (conn, _) = driver.opened(clients.len() - 1);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: true }), None);
        driver.stop();
    });
}

#[test]
fn a_socket_older_than_the_path_manager_is_told_and_left_alone() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        std::fs::write("/proc/sys/net/mptcp/path_manager", "kernel").unwrap();
        let _old = Client::greet(address);
        let driver = Running::start(Mode::Userspace);
        let _new = Client::greet(address);
        let (conn, _) = driver.opened(0);
        let snapshot = driver.snapshot();
        let managed = |of: Managed| snapshot.connections.iter().filter(|c| c.managed == of).count();
        assert_eq!((managed(Managed::Yes), managed(Managed::Older), snapshot.totals.unmanaged), (1, 1, 1));
        let opened = driver.hears("what was opened", |heard| {
            Some(heard.iter().filter(|input| matches!(input, Input::Opened { .. })).cloned().collect::<Vec<_>>())
        });
        assert_eq!(opened, [Input::Opened { conn, adopted: false, deny_join_id0: false }]);
        driver.stop();
    });
}

#[test]
fn a_join_without_an_answer_is_given_up() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.opened(0);
        // A neighbour that is somebody else: all looks well, and nothing comes back.
        ip("neigh replace 10.2.0.1 lladdr 02:00:00:00:00:99 dev c2 nud permanent");
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let waiting = || {
            let list = Process::new("ss").args(["-tn", "state", "syn-sent"]).output().unwrap();
            String::from_utf8_lossy(&list.stdout).matches("10.9.0.1").count()
        };
        assert_eq!(waiting(), 1);
        let started = Clock::now();
        while waiting() > 0 {
            assert!(started.elapsed() < PATIENCE, "the SYN is still being sent");
            thread::sleep(Duration::from_millis(50));
        }
        driver.stop();
    });
}

#[test]
fn the_end_of_a_subflow_of_a_half_closed_connection_is_refused_once_and_joins_always() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (client, read) = Client::download(address);
        let (conn, first) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(conn, SECOND, &[]);
        driver.sees("bytes", conn, second.id, |seen| seen.received.bytes() > 100_000);
        // The client sends nothing more; the download goes on.
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        let before = read.load(Ordering::Relaxed);
        grows(&read, before + 100_000);
        assert_eq!(
            driver.commands(conn, Command::Join { link: SECOND, backup: true }),
            Some(CommandError::HalfClosed)
        );
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: second.id }), Some(CommandError::HalfClosed));
        driver.sees("bytes after the refusal", conn, second.id, |seen| seen.received.bytes() > 200_000);
        // The policy knows it now, as for a spent budget.
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.down(second.id), CloseReason::Closed);
        driver.sees("bytes over the first", conn, first.id, |seen| seen.received.bytes() > 100_000);
        driver.stop();
    });
}
