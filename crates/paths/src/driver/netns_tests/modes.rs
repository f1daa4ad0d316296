//! Other modes of the driver, servers without MPTCP, and the decision log.

use std::io::BufRead;
use std::net::TcpListener;

use marline_core::decision_log::Record;
use marline_core::wire::netlink::mptcp::Endpoint;

use super::super::super::{Management, PathsRecord};
use super::*;

/// Addresses of the kernel's endpoints.
fn pm_endpoints() -> Vec<String> {
    let output = Process::new("ip").args(["mptcp", "endpoint", "show"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn endpoints_affect_all_connections_and_are_removed_at_the_end() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::KernelPm);
        let (_one, _) = Client::download(address);
        let (aggregate, first) = driver.wait_for_connection(0);
        assert_eq!(aggregate, ConnId(0));
        let (_two, _) = Client::download(address);
        assert_eq!(driver.execute(aggregate, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(aggregate, SECOND_LINK, &[]);
        driver.wait_for_counters("bytes over both", aggregate, second.id, |counters| {
            counters.received.bytes() > 200_000
        });
        let snapshot = driver.snapshot();
        let subflows: usize = snapshot.connections.iter().map(|conn| conn.subflows.len()).sum();
        assert_eq!((snapshot.connections.len(), subflows), (2, 4), "{snapshot:?}");
        assert!(snapshot.connections.iter().all(|conn| conn.management == Management::KernelPm));

        assert_eq!(driver.execute(aggregate, Command::SetBackup { subflow: second.id, backup: true }), None);
        wait_until_idle(&driver, aggregate, second.id, first.id);
        assert_eq!(driver.execute(aggregate, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.execute(aggregate, Command::SetBackup { subflow: first.id, backup: true }), None);
        wait_until_idle(&driver, aggregate, first.id, second.id);
        assert_eq!(driver.execute(aggregate, Command::SetBackup { subflow: first.id, backup: false }), None);
        assert_eq!(driver.execute(aggregate, Command::Destroy { subflow: second.id }), None);
        driver.wait_for_subflow_end(second.id);
        assert!(!pm_endpoints().contains(&"10.2.0.2".to_owned()), "{:?}", pm_endpoints());
        driver.stop();
        assert_eq!(pm_endpoints(), [""; 0]);
    });
}

#[test]
fn endpoints_of_a_crashed_run_remain_while_a_connection_uses_them() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let run_dir = tempfile::tempdir().unwrap();
        // A run that had joined the second link and was killed.
        let mut crashed = host_config(run_dir.path());
        crashed.apply(Mode::KernelPm).unwrap();
        let second = Endpoint::for_subflows("10.2.0.2".parse().unwrap(), 0, false);
        crashed.record_endpoints(&[second], &[]).unwrap();
        crashed.kill();
        let has_endpoint = || pm_endpoints().contains(&"10.2.0.2".to_owned());
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow");
        let (client, _) = Client::download(address);
        let mut driver = RunningDriver::in_run_dir(Mode::KernelPm, run_dir.path().to_owned());
        let (conn, _) = driver.wait_for_connection(0);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        assert!(has_endpoint(), "{:?}", pm_endpoints());
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: second.id, backup: true }), None);
        drop(client);
        driver.wait_for_input("the end", |inputs| inputs.contains(&Input::Closed { conn }).then_some(()));
        assert!(
            !has_endpoint(),
            "without a connection only the initial link has an endpoint: {:?}",
            pm_endpoints()
        );
        // Endpoints on marline's addresses are removed at the end.
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow");
        driver.stop();
        assert_eq!(pm_endpoints(), [""; 0]);
        assert_eq!(std::fs::read_dir(run_dir.path()).unwrap().count(), 0, "the undo log is removed");
    });
}

/// Bytes received over the second link.
fn second_link_bytes(driver: &RunningDriver) -> u64 {
    let snapshot = driver.snapshot();
    let subflows = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
    subflows.filter(|sub| sub.link == Some(SECOND_LINK)).map(|sub| sub.counters.received.bytes()).sum()
}

/// Waits until the only real subflow from this address is a backup, or is no backup any more.
fn wait_for_backup(driver: &RunningDriver, conn: ConnId, address: &str, is_backup: bool) {
    let started = Clock::now();
    loop {
        driver.push_output(Output::Poll { conn });
        let snapshot = driver.snapshot();
        let subflows = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
        let backups: Vec<bool> =
            subflows.filter(|sub| sub.local.ip().to_string() == address).map(|sub| sub.counters.backup).collect();
        if backups == [is_backup] {
            return;
        }
        assert!(started.elapsed() < TIMEOUT, "{address}: {backups:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_subflow_whose_endpoint_must_stay_is_suspended_instead_of_ended() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        // An endpoint of another program, with which the kernel joins at once.
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow id 7");
        ip("mptcp limits set subflow 2");
        let mut driver = RunningDriver::start(Mode::KernelPm);
        let started = Clock::now();
        while !pm_endpoints().contains(&"10.1.0.2".to_owned()) {
            // An endpoint that is added during a connection would create a second subflow over its link.
            assert!(started.elapsed() < TIMEOUT, "{:?}", pm_endpoints());
            thread::sleep(Duration::from_millis(5));
        }
        let (_client, _) = Client::download(address);
        let (aggregate, first) = driver.wait_for_connection(0);
        let second = driver.wait_for_subflow(aggregate, SECOND_LINK, &[]);
        driver.wait_for_counters("bytes", aggregate, second.id, |counters| counters.received.bytes() > 100_000);
        assert_eq!(driver.execute(aggregate, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.wait_for_subflow_end(second.id), CloseReason::Closed);
        wait_for_backup(&driver, aggregate, "10.2.0.2", true);
        assert!(pm_endpoints().contains(&"10.2.0.2".to_owned()), "{:?}", pm_endpoints());
        // A join resumes the same subflow under another id.
        let before = second_link_bytes(&driver);
        assert!(before > 0);
        assert_eq!(driver.execute(aggregate, Command::Join { link: SECOND_LINK, backup: false }), None);
        let rejoined = driver.wait_for_subflow(aggregate, SECOND_LINK, &[second.id]);
        wait_for_backup(&driver, aggregate, "10.2.0.2", false);
        let received = driver.poll_counters(aggregate, &[rejoined.id])[&rejoined.id].received.bytes();
        assert!(received + before <= second_link_bytes(&driver), "its counters start at zero: {received} {before}");
        // A second subflow over the same link is impossible, and a request for it must not suspend the first.
        let second_join = driver.execute(aggregate, Command::Join { link: SECOND_LINK, backup: true });
        assert_eq!(second_join, Some(CommandError::NotYet));
        assert_eq!(driver.execute(aggregate, Command::Destroy { subflow: first.id }), None);
        assert_eq!(driver.wait_for_subflow_end(first.id), CloseReason::Closed);
        let (reply_tx, reply_rx) = oneshot::channel();
        let conn = driver.snapshot().connections[0].id;
        driver.queries.blocking_send(DriverQuery::Explain(conn, reply_tx)).unwrap();
        let (connection, decisions) = reply_rx.blocking_recv().unwrap().unwrap();
        let texts: Vec<&str> = decisions.iter().map(|decision| decision.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "end the subflow over c2: its endpoint must stay, so it is suspended instead",
                "join over c2",
                "end the subflow over c1: its endpoint must stay, so it is suspended instead",
            ]
        );
        assert_eq!(connection.reason, "", "a command does not set the reason");
        wait_for_backup(&driver, aggregate, "10.1.0.2", true);
        assert!(rejoined.id != second.id);
        assert_eq!(driver.snapshot().totals.refused, 0);
        driver.stop();
        assert_eq!(pm_endpoints(), ["10.2.0.2"]);
    });
}

#[test]
fn endpoints_follow_addresses_of_the_other_family() {
    with_two_networks(|server| {
        let address = start_server(server, "[fd00:9::1]:5001");
        ip("address del fd00:2::2/64 dev c2");
        let mut driver = RunningDriver::start(Mode::KernelPm);
        let (_client, _) = Client::download(address);
        let (aggregate, _) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(aggregate, Command::Join { link: SECOND_LINK, backup: true }), None);
        let has_endpoint = |address: &str| pm_endpoints().iter().any(|endpoint| endpoint == address);
        assert!(has_endpoint("10.2.0.2") && !has_endpoint("fd00:2::2"), "{:?}", pm_endpoints());
        let wait_for_endpoint = |is_present: bool| {
            let started = Clock::now();
            while has_endpoint("fd00:2::2") != is_present {
                assert!(started.elapsed() < TIMEOUT, "{:?}", pm_endpoints());
                thread::sleep(Duration::from_millis(20));
            }
        };
        ip("address add fd00:2::2/64 dev c2 nodad");
        wait_for_endpoint(true);
        // The priority of the link applies to this address as well.
        let second = driver.wait_for_subflow(aggregate, SECOND_LINK, &[]);
        assert!(second.backup, "{second:?}");
        ip("address del fd00:2::2/64 dev c2");
        wait_for_endpoint(false);
        assert!(has_endpoint("10.2.0.2"), "{:?}", pm_endpoints());
        driver.stop();
        assert_eq!(pm_endpoints(), [""; 0]);
    });
}

#[test]
fn a_dry_run_observes_everything_and_changes_nothing() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::DryRun);
        let (_client, _) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        driver.wait_for_counters("bytes", conn, first.id, |counters| counters.received.bytes() > 100_000);
        let refused = driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false });
        assert_eq!(refused, Some(CommandError::NotPermitted));
        let (reply_tx, reply_rx) = oneshot::channel();
        driver.queries.blocking_send(DriverQuery::Explain(conn, reply_tx)).unwrap();
        let (connection, decisions) = reply_rx.blocking_recv().unwrap().unwrap();
        assert_eq!((connection.management, connection.subflows.len()), (Management::DryRun, 1));
        assert_eq!(decisions.iter().map(|d| d.text.as_str()).collect::<Vec<_>>(), ["would join over c2"]);
        driver.stop();
    });
}

#[test]
fn a_connection_to_a_server_without_mptcp_is_only_counted() {
    with_two_networks(|server| {
        let listener = server.run(|| TcpListener::bind("10.9.0.1:5001")).unwrap();
        let address = listener.local_addr().unwrap();
        let driver = RunningDriver::start(Mode::Userspace);
        let _client = Client::connect(address);
        let started = Clock::now();
        loop {
            let totals = driver.snapshot().totals;
            if (totals.fallen_back, totals.plain_now) == (1, 1) {
                break;
            }
            assert!(started.elapsed() < TIMEOUT, "{totals:?}");
            thread::sleep(Duration::from_millis(50));
        }
        let opened = driver.wait_for_input("what was opened", |inputs| {
            Some(inputs.iter().filter(|input| matches!(input, Input::Opened { .. })).count())
        });
        assert_eq!(opened, 0);
        driver.stop();
    });
}

#[test]
fn a_connection_that_falls_back_later_ends_for_the_policy_and_continues() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let driver = RunningDriver::start(Mode::Userspace);
        let mut client = Client::connect_established(address);
        client.0.set_read_timeout(Some(TIMEOUT)).unwrap();
        let (conn, _) = driver.wait_for_connection(0);
        // From now on a middlebox removes MPTCP's option from packets of the server.
        let nft = |arguments: &str| {
            let result = server.run(|| Process::new("nft").args(arguments.split_whitespace()).output());
            result.is_ok_and(|output| output.status.success())
        };
        let rules = [
            "add table inet way",
            "add chain inet way out { type filter hook output priority 0 ; }",
            "add rule inet way out tcp sport 5001 reset tcp option mptcp",
        ];
        if !rules.iter().all(|rule| nft(rule)) {
            eprintln!("skipped: needs the program nft, and a kernel that takes TCP's options out (Linux 5.18)");
            return;
        }
        let mut exchange = || {
            client.0.write_all(b"h").unwrap();
            client.0.read_exact(&mut [0]).unwrap();
        };
        exchange();
        driver.wait_for_input("the end", |inputs| inputs.contains(&Input::Closed { conn }).then_some(()));
        exchange();
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.connections.len(), snapshot.totals.fallen_back), (0, 1));
        driver.stop();
    });
}

#[test]
fn a_modem_that_is_plugged_in_again_continues_its_totals() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let read_ifindex = || std::fs::read_to_string("/sys/class/net/c2/ifindex").unwrap();
        let download = |driver: &mut RunningDriver, known: usize| {
            let (client, _) = Client::download(address);
            let (conn, _) = driver.wait_for_connection(known);
            // Its default route follows its address after a moment.
            let mut join = || driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false });
            let mut refused = join();
            for _ in 0..100 {
                if refused != Some(CommandError::NoAddress) {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
                refused = join();
            }
            assert_eq!(refused, None);
            let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
            driver.wait_for_counters("bytes over it", conn, second.id, |counters| {
                counters.received.bytes() > 2_000_000
            });
            client
        };
        let client = download(&mut driver, 0);
        let before = read_ifindex();
        ip("link del c2");
        driver.wait_for_input("the end of the link", |inputs| {
            inputs.contains(&Input::LinkDown { link: SECOND_LINK }).then_some(())
        });
        drop(client);
        add_veth(server, 2);
        assert_ne!(read_ifindex(), before);
        driver.wait_for_input("the link again", |inputs| {
            let ups = inputs.iter().filter(|input| **input == Input::LinkUp { link: SECOND_LINK });
            (ups.count() >= 2).then_some(())
        });
        let _client = download(&mut driver, 1);
        // Traffic of the first interface is in the totals; their later increase passed the second.
        let counters_around_up = |inputs: &[Input]| {
            let up = inputs.iter().rposition(|input| *input == Input::LinkUp { link: SECOND_LINK }).unwrap();
            let received_counters = |inputs: &[Input]| -> Vec<u64> {
                let received_counters = inputs.iter().filter_map(|input| match input {
                    Input::InterfaceCounters { link: SECOND_LINK, received, .. } => Some(received.bytes()),
                    _ => None,
                });
                received_counters.collect()
            };
            (received_counters(&inputs[..up]).last().copied().unwrap_or(0), received_counters(&inputs[up..]))
        };
        let increase = driver.wait_for_input("what passed it", |inputs| {
            let (before, since) = counters_around_up(inputs);
            let increase = since.last()?.checked_sub(before).expect("sums never fall");
            (increase > 500_000).then_some(increase)
        });
        let rx_bytes = std::fs::read_to_string("/sys/class/net/c2/statistics/rx_bytes").unwrap();
        assert!(increase <= rx_bytes.trim().parse().unwrap(), "{increase} of {rx_bytes}");
        driver.wait_for_input("order", |inputs| counters_around_up(inputs).1.is_sorted().then_some(()));
        driver.stop();
    });
}

#[test]
fn connections_over_no_link_and_server_connections_are_ignored() {
    with_two_networks(|server| {
        let driver = RunningDriver::start(Mode::Userspace);
        // Over the loopback, which is no link: both sides are this host.
        let address: SocketAddr = "127.0.0.1:5009".parse().unwrap();
        let listener = mptcp_socket(address);
        listener.bind(&address.into()).unwrap();
        listener.listen(4).unwrap();
        let echo = thread::spawn(move || {
            let (peer, _) = listener.accept().unwrap();
            let mut peer: TcpStream = peer.into();
            peer.read_exact(&mut [0]).unwrap();
            peer.write_all(b"k").unwrap();
        });
        let _inside = Client::connect_established(address);
        echo.join().unwrap();
        // A managed connection proves that the earlier events were processed.
        let server_address = start_server(server, "10.9.0.1:5001");
        let _ours = Client::connect_established(server_address);
        let (conn, _) = driver.wait_for_connection(0);
        let connections = driver.snapshot().connections;
        assert_eq!(connections.iter().map(|c| c.id).collect::<Vec<_>>(), [conn]);
        driver.stop();
    });
}

#[test]
fn the_log_contains_configuration_inputs_and_outputs() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let temp_dir = tempfile::tempdir().unwrap();
        let path = temp_dir.path().join("paths.log");
        let mut driver =
            RunningDriver::with_rcvbuf(Mode::Userspace, super::super::EVENT_RCVBUF, Some(path.clone()));
        let _client = Client::connect_established(address);
        let (conn, _) = driver.wait_for_connection(0);
        driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true });
        let machine = driver.machine.clone();
        driver.stop();
        let file = std::io::BufReader::new(std::fs::File::open(path).unwrap());
        let records: Vec<PathsRecord> =
            file.lines().map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert!(matches!(&records[0], Record::Start { config, .. } if config.links.len() == 2));
        let inputs: Vec<Input> = records
            .iter()
            .filter_map(|record| match record {
                Record::In { input, .. } => Some(input.clone()),
                _ => None,
            })
            .collect();
        assert_eq!(inputs, machine.0.lock().unwrap().inputs);
        assert_eq!(records.iter().filter(|record| matches!(record, Record::Out { .. })).count(), 1);
    });
}
