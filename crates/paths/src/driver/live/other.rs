//! The other modes, servers without MPTCP, and the log.

use std::io::BufRead;
use std::net::TcpListener;

use marline_core::decision_log::Record;
use marline_core::wire::netlink::mptcp::Endpoint;

use super::super::super::{Managed, PathsRecord};
use super::*;

/// The addresses of the kernel's endpoints.
fn endpoints() -> Vec<String> {
    let list = Process::new("ip").args(["mptcp", "endpoint", "show"]).output().unwrap();
    let text = String::from_utf8_lossy(&list.stdout).into_owned();
    text.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
}

#[test]
fn endpoints_steer_all_connections_at_once_and_are_removed_at_the_end() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::KernelPm);
        let (_one, _) = Client::download(address);
        let (host, first) = driver.opened(0);
        assert_eq!(host, ConnId(0));
        let (_two, _) = Client::download(address);
        assert_eq!(driver.commands(host, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(host, SECOND, &[]);
        driver.sees("bytes over both", host, second.id, |seen| seen.received.bytes() > 200_000);
        let snapshot = driver.snapshot();
        let subflows: usize = snapshot.connections.iter().map(|conn| conn.subflows.len()).sum();
        assert_eq!((snapshot.connections.len(), subflows), (2, 4), "{snapshot:?}");
        assert!(snapshot.connections.iter().all(|conn| conn.managed == Managed::Together));

        assert_eq!(driver.commands(host, Command::SetBackup { subflow: second.id, backup: true }), None);
        stands_still(&driver, host, second.id, first.id);
        assert_eq!(driver.commands(host, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.commands(host, Command::SetBackup { subflow: first.id, backup: true }), None);
        stands_still(&driver, host, first.id, second.id);
        assert_eq!(driver.commands(host, Command::SetBackup { subflow: first.id, backup: false }), None);
        assert_eq!(driver.commands(host, Command::Destroy { subflow: second.id }), None);
        driver.down(second.id);
        assert!(!endpoints().contains(&"10.2.0.2".to_owned()), "{:?}", endpoints());
        driver.stop();
        assert_eq!(endpoints(), [""; 0]);
    });
}

#[test]
fn endpoints_of_a_run_that_crashed_go_on_while_a_connection_uses_them() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let run_dir = tempfile::tempdir().unwrap();
        // A run that had joined the second link, and was killed.
        let mut crashed = host(run_dir.path());
        crashed.lay(Mode::KernelPm).unwrap();
        let second = Endpoint::for_subflows("10.2.0.2".parse().unwrap(), 0, false);
        crashed.note_endpoints(&[second], &[]).unwrap();
        crashed.kill();
        let is_there = || endpoints().contains(&"10.2.0.2".to_owned());
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow");
        let (client, _) = Client::download(address);
        let mut driver = Running::after(Mode::KernelPm, run_dir.path().to_owned());
        let (conn, _) = driver.opened(0);
        let second = driver.up(conn, SECOND, &[]);
        assert!(is_there(), "{:?}", endpoints());
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: second.id, backup: true }), None);
        drop(client);
        driver.hears("the end", |heard| heard.contains(&Input::Closed { conn }).then_some(()));
        assert!(!is_there(), "without a connection there is the first link's alone: {:?}", endpoints());
        // Whatever is on an address of ours at the end goes.
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow");
        driver.stop();
        assert_eq!(endpoints(), [""; 0]);
        assert_eq!(std::fs::read_dir(run_dir.path()).unwrap().count(), 0, "the ledger is gone");
    });
}

/// What has come over the second link.
fn over_second(driver: &Running) -> u64 {
    let snapshot = driver.snapshot();
    let all = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
    all.filter(|sub| sub.link == Some(SECOND)).map(|sub| sub.counters.received.bytes()).sum()
}

/// Waits until the one real subflow from this address is a backup, or none any more.
fn is_backup(driver: &Running, conn: ConnId, address: &str, wanted: bool) {
    let started = Clock::now();
    loop {
        driver.say(Output::Poll { conn });
        let snapshot = driver.snapshot();
        let all = snapshot.connections.iter().flat_map(|conn| &conn.subflows);
        let there: Vec<bool> =
            all.filter(|sub| sub.local.ip().to_string() == address).map(|sub| sub.counters.backup).collect();
        if there == [wanted] {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{address}: {there:?}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_subflow_whose_endpoint_stays_is_ended_by_suspending_it() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        // Somebody else's, with which the kernel joins at once.
        ip("mptcp endpoint add 10.2.0.2 dev c2 subflow id 7");
        ip("mptcp limits set subflow 2");
        let mut driver = Running::start(Mode::KernelPm);
        let started = Clock::now();
        while !endpoints().contains(&"10.1.0.2".to_owned()) {
            // One that comes while a connection runs would make a second subflow over its link.
            assert!(started.elapsed() < PATIENCE, "{:?}", endpoints());
            thread::sleep(Duration::from_millis(5));
        }
        let (_client, _) = Client::download(address);
        let (host, first) = driver.opened(0);
        let second = driver.up(host, SECOND, &[]);
        driver.sees("bytes", host, second.id, |seen| seen.received.bytes() > 100_000);
        assert_eq!(driver.commands(host, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.down(second.id), CloseReason::Closed);
        is_backup(&driver, host, "10.2.0.2", true);
        assert!(endpoints().contains(&"10.2.0.2".to_owned()), "{:?}", endpoints());
        // A join takes up the same subflow, under another number.
        let before = over_second(&driver);
        assert!(before > 0);
        assert_eq!(driver.commands(host, Command::Join { link: SECOND, backup: false }), None);
        let again = driver.up(host, SECOND, &[second.id]);
        is_backup(&driver, host, "10.2.0.2", false);
        let seen = driver.looks(host, &[again.id])[&again.id].received.bytes();
        assert!(seen + before <= over_second(&driver), "it begins at zero: {seen} {before}");
        // A second one over the same link there is not; whoever asks for it must not suspend the first.
        let proof = driver.commands(host, Command::Join { link: SECOND, backup: true });
        assert_eq!(proof, Some(CommandError::NotYet));
        assert_eq!(driver.commands(host, Command::Destroy { subflow: first.id }), None);
        assert_eq!(driver.down(first.id), CloseReason::Closed);
        let (to, answer) = oneshot::channel();
        let conn = driver.snapshot().connections[0].conn;
        driver.control.blocking_send(Ask::Explain(conn, to)).unwrap();
        let (connection, decisions) = answer.blocking_recv().unwrap().unwrap();
        let said: Vec<&str> = decisions.iter().map(|decision| decision.what.as_str()).collect();
        assert_eq!(
            said,
            [
                "end the subflow over c2: its endpoint stays, so it is suspended",
                "join over c2",
                "end the subflow over c1: its endpoint stays, so it is suspended",
            ]
        );
        assert_eq!(connection.reason, "", "a command is no reason");
        is_backup(&driver, host, "10.1.0.2", true);
        assert!(again.id != second.id);
        assert_eq!(driver.snapshot().totals.refused, 0);
        driver.stop();
        assert_eq!(endpoints(), ["10.2.0.2"]);
    });
}

#[test]
fn an_address_of_the_other_family_gets_its_endpoint_and_loses_it_with_the_address() {
    between_two_networks(|server| {
        let address = serve(server, "[fd00:9::1]:5001");
        ip("address del fd00:2::2/64 dev c2");
        let mut driver = Running::start(Mode::KernelPm);
        let (_client, _) = Client::download(address);
        let (host, _) = driver.opened(0);
        assert_eq!(driver.commands(host, Command::Join { link: SECOND, backup: true }), None);
        let has = |address: &str| endpoints().iter().any(|endpoint| endpoint == address);
        assert!(has("10.2.0.2") && !has("fd00:2::2"), "{:?}", endpoints());
        let turns_to = |wanted: bool| {
            let started = Clock::now();
            while has("fd00:2::2") != wanted {
                assert!(started.elapsed() < PATIENCE, "{:?}", endpoints());
                thread::sleep(Duration::from_millis(20));
            }
        };
        ip("address add fd00:2::2/64 dev c2 nodad");
        turns_to(true);
        // What was said of the link counts for this address, too.
        let second = driver.up(host, SECOND, &[]);
        assert!(second.backup, "{second:?}");
        ip("address del fd00:2::2/64 dev c2");
        turns_to(false);
        assert!(has("10.2.0.2"), "{:?}", endpoints());
        driver.stop();
        assert_eq!(endpoints(), [""; 0]);
    });
}

#[test]
fn a_dry_run_sees_all_and_does_nothing() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::DryRun);
        let (_client, _) = Client::download(address);
        let (conn, first) = driver.opened(0);
        driver.sees("bytes", conn, first.id, |seen| seen.received.bytes() > 100_000);
        let refused = driver.commands(conn, Command::Join { link: SECOND, backup: false });
        assert_eq!(refused, Some(CommandError::NotPermitted));
        let (to, answer) = oneshot::channel();
        driver.control.blocking_send(Ask::Explain(conn, to)).unwrap();
        let (connection, decisions) = answer.blocking_recv().unwrap().unwrap();
        assert_eq!((connection.managed, connection.subflows.len()), (Managed::No, 1));
        assert_eq!(decisions.iter().map(|d| d.what.as_str()).collect::<Vec<_>>(), ["would join over c2"]);
        driver.stop();
    });
}

#[test]
fn a_connection_to_a_server_without_mptcp_is_counted_and_not_told_of() {
    between_two_networks(|server| {
        let listener = server.run(|| TcpListener::bind("10.9.0.1:5001")).unwrap();
        let address = listener.local_addr().unwrap();
        let driver = Running::start(Mode::Userspace);
        let _client = Client::connect(address);
        let started = Clock::now();
        loop {
            let totals = driver.snapshot().totals;
            if (totals.fell_back, totals.plain_now) == (1, 1) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{totals:?}");
            thread::sleep(Duration::from_millis(50));
        }
        let opened = driver.hears("what was opened", |heard| {
            Some(heard.iter().filter(|input| matches!(input, Input::Opened { .. })).count())
        });
        assert_eq!(opened, 0);
        driver.stop();
    });
}

#[test]
fn a_connection_that_becomes_plain_tcp_in_mid_flight_is_over_for_the_policy_and_goes_on() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let driver = Running::start(Mode::Userspace);
        let mut client = Client::greet(address);
        client.0.set_read_timeout(Some(PATIENCE)).unwrap();
        let (conn, _) = driver.opened(0);
        // From now on somebody on the way takes MPTCP's option out of what the server sends.
        let strip = |words: &str| {
            let done = server.run(|| Process::new("nft").args(words.split_whitespace()).output());
            done.is_ok_and(|output| output.status.success())
        };
        let rules = [
            "add table inet way",
            "add chain inet way out { type filter hook output priority 0 ; }",
            "add rule inet way out tcp sport 5001 reset tcp option mptcp",
        ];
        if !rules.iter().all(|rule| strip(rule)) {
            eprintln!("skipped: needs the program nft, and a kernel that takes TCP's options out (Linux 5.18)");
            return;
        }
        let mut asks = || {
            client.0.write_all(b"h").unwrap();
            client.0.read_exact(&mut [0]).unwrap();
        };
        asks();
        driver.hears("the end", |heard| heard.contains(&Input::Closed { conn }).then_some(()));
        asks();
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.connections.len(), snapshot.totals.fell_back), (0, 1));
        driver.stop();
    });
}

#[test]
fn a_modem_that_is_plugged_in_again_is_counted_anew() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let number = || std::fs::read_to_string("/sys/class/net/c2/ifindex").unwrap();
        let download = |driver: &mut Running, known: usize| {
            let (client, _) = Client::download(address);
            let (conn, _) = driver.opened(known);
            // Its default route comes a moment after its address.
            let mut join = || driver.commands(conn, Command::Join { link: SECOND, backup: false });
            let mut refused = join();
            for _ in 0..100 {
                if refused != Some(CommandError::NoAddress) {
                    break;
                }
                thread::sleep(Duration::from_millis(50));
                refused = join();
            }
            assert_eq!(refused, None);
            let second = driver.up(conn, SECOND, &[]);
            driver.sees("bytes over it", conn, second.id, |seen| seen.received.bytes() > 2_000_000);
            client
        };
        let client = download(&mut driver, 0);
        let before = number();
        ip("link del c2");
        driver
            .hears("the end of the link", |heard| heard.contains(&Input::LinkDown { link: SECOND }).then_some(()));
        drop(client);
        plug(server, 2);
        assert_ne!(number(), before);
        driver.hears("the link again", |heard| {
            let ups = heard.iter().filter(|input| **input == Input::LinkUp { link: SECOND });
            (ups.count() >= 2).then_some(())
        });
        let _client = download(&mut driver, 1);
        // What passed the first interface is in the sums; what they grow by afterwards passed the second.
        let counted = |heard: &[Input]| {
            let up = heard.iter().rposition(|input| *input == Input::LinkUp { link: SECOND }).unwrap();
            let counts = |heard: &[Input]| -> Vec<u64> {
                let counts = heard.iter().filter_map(|input| match input {
                    Input::InterfaceCounters { link: SECOND, received, .. } => Some(received.bytes()),
                    _ => None,
                });
                counts.collect()
            };
            (counts(&heard[..up]).last().copied().unwrap_or(0), counts(&heard[up..]))
        };
        let grown = driver.hears("what passed it", |heard| {
            let (before, since) = counted(heard);
            let grown = since.last()?.checked_sub(before).expect("sums never fall");
            (grown > 500_000).then_some(grown)
        });
        let passed = std::fs::read_to_string("/sys/class/net/c2/statistics/rx_bytes").unwrap();
        assert!(grown <= passed.trim().parse().unwrap(), "{grown} of {passed}");
        driver.hears("order", |heard| counted(heard).1.is_sorted().then_some(()));
        driver.stop();
    });
}

#[test]
fn what_goes_over_no_link_and_what_this_host_serves_is_left_alone() {
    between_two_networks(|server| {
        let driver = Running::start(Mode::Userspace);
        // Over the loopback, which is none of the links: both sides are this host.
        let address: SocketAddr = "127.0.0.1:5009".parse().unwrap();
        let listener = mptcp(address);
        listener.bind(&address.into()).unwrap();
        listener.listen(4).unwrap();
        let echo = thread::spawn(move || {
            let (peer, _) = listener.accept().unwrap();
            let mut peer: TcpStream = peer.into();
            peer.read_exact(&mut [0]).unwrap();
            peer.write_all(b"k").unwrap();
        });
        let _inside = Client::greet(address);
        echo.join().unwrap();
        // One that is ours shows that the events of the others have passed.
        let there = serve(server, "10.9.0.1:5001");
        let _ours = Client::greet(there);
        let (conn, _) = driver.opened(0);
        let connections = driver.snapshot().connections;
        assert_eq!(connections.iter().map(|c| c.conn).collect::<Vec<_>>(), [conn]);
        driver.stop();
    });
}

#[test]
fn the_log_holds_the_configuration_every_input_and_every_output() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("paths.log");
        let mut driver = Running::with(Mode::Userspace, super::super::ROOM, Some(path.clone()));
        let _client = Client::greet(address);
        let (conn, _) = driver.opened(0);
        driver.commands(conn, Command::Join { link: SECOND, backup: true });
        let heard = driver.script.clone();
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
        assert_eq!(inputs, heard.0.lock().unwrap().heard);
        assert_eq!(records.iter().filter(|record| matches!(record, Record::Out { .. })).count(), 1);
    });
}
