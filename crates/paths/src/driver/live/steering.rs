//! Joins, suspensions, ends: what the policy can do with a connection.

use super::*;

#[test]
fn a_connection_is_joined_suspended_resumed_and_left() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.opened(0);
        assert_eq!((first.link, first.initial, first.backup), (Some(FIRST), true, false));
        assert!(first.rtt.is_some());
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(conn, SECOND, &[]);
        assert!(!second.initial && !second.backup && second.rtt.is_some(), "{second:?}");
        driver.sees("bytes over the joined subflow", conn, second.id, |seen| seen.received.bytes() > 100_000);

        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: second.id, backup: true }), None);
        stands_still(&driver, conn, second.id, first.id);
        assert!(driver.looks(conn, &[second.id])[&second.id].backup);

        // The third state: the first subflow rests, the second carries.
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: first.id, backup: true }), None);
        stands_still(&driver, conn, first.id, second.id);
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: first.id, backup: false }), None);

        assert_eq!(driver.commands(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.down(second.id), CloseReason::Closed);
        assert_eq!(
            driver.commands(conn, Command::SetBackup { subflow: second.id, backup: true }),
            Some(CommandError::NoSubflow)
        );
        // Again, at once as a backup, under the same id.
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: true }), None);
        let again = driver.up(conn, SECOND, &[second.id]);
        assert!(again.backup);
        // And a second one over a link that has one: how a path is probed.
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: true }), None);
        let probe = driver.up(conn, SECOND, &[second.id, again.id]);
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: again.id }), None);
        assert!(driver.looks(conn, &[probe.id]).contains_key(&probe.id));
        // The first one ends and comes back under id 0.
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: probe.id, backup: false }), None);
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: first.id }), None);
        assert_eq!(driver.commands(conn, Command::Join { link: FIRST, backup: false }), None);
        let back = driver.up(conn, FIRST, &[first.id]);
        assert!(back.initial, "the first address has id 0");
        let before = read.load(Ordering::Relaxed);
        driver.sees("bytes over the first link again", conn, back.id, |seen| seen.received.bytes() > 100_000);
        grows(&read, before);
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.connections.len(), snapshot.connections[0].subflows.len()), (1, 2));
        assert_eq!(snapshot.totals.refused, 0, "what came too late is no refusal");
        let told = &snapshot.connections[0];
        assert!(told.subflows.iter().all(|sub| !sub.initial), "the one that came back is not the first: {told:?}");
        // Two letters went over the first subflow, which has gone.
        assert_eq!(told.sent.bytes(), 2);
        let over_links: u64 = told.subflows.iter().map(|sub| sub.counters.received.bytes()).sum();
        assert!(told.received.bytes() >= before && over_links < told.received.bytes(), "{told:?}");
        let (to, answer) = oneshot::channel();
        driver.control.blocking_send(Ask::Explain(conn, to)).unwrap();
        let said: Vec<String> = answer.blocking_recv().unwrap().unwrap().1.into_iter().map(|d| d.what).collect();
        for expected in [
            "suspend another interface: not done, as the subflow has ended, or is only just there",
            "join over c2 a second time: it is silent, and an answer shows that it works",
            "end the older subflow over c2",
        ] {
            assert!(said.iter().any(|line| line == expected), "{expected}: {said:?}");
        }
        driver.stop();
    });
}

#[test]
fn the_end_of_a_download_arrives_though_the_first_subflow_is_destroyed() {
    between_two_networks(|server| {
        for link in [1, 2] {
            let slow = format!("qdisc replace dev s{link} root tbf rate 1mbit burst 10k limit 30k");
            server
                .run(|| {
                    run("tc", &slow);
                    Ok(())
                })
                .unwrap();
        }
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let mut client = Client::greet(address);
        let (conn, first) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(conn, SECOND, &[]);
        client.0.write_all(b"e").unwrap();
        let mut reader = client.0.try_clone().unwrap();
        // Without the abort nothing comes for twenty seconds.
        reader.set_read_timeout(Some(PATIENCE / 2)).unwrap();
        let read = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        // The server has written everything and closed its direction; both subflows carry.
        for id in [first.id, second.id] {
            driver.sees("bytes over both", conn, id, |seen| seen.received.bytes() > 10_000);
        }
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: first.id }), None);
        assert_eq!(read.join().unwrap().unwrap(), ENDING as u64);
        driver.stop();
    });
}

#[test]
fn a_link_that_goes_down_leaves_the_connection_on_the_other() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: true }), None);
        let second = driver.up(conn, SECOND, &[]);
        ip("link set c1 down");
        driver.hears("the link is down", |heard| heard.contains(&Input::LinkDown { link: FIRST }).then_some(()));
        // This is what a policy says then: the server need not find out by itself.
        assert_eq!(driver.commands(conn, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.commands(conn, Command::Destroy { subflow: first.id }), None);
        let before = read.load(Ordering::Relaxed);
        driver.sees("the other link carries", conn, second.id, |seen| seen.received.bytes() > 500_000);
        grows(&read, before);
        assert_eq!(
            driver.commands(conn, Command::Join { link: FIRST, backup: false }),
            Some(CommandError::NoAddress),
            "a link that is down is not joined"
        );
        ip("link set c1 up");
        driver.hears("the link is up again", |heard| {
            let ups = heard.iter().filter(|input| **input == Input::LinkUp { link: FIRST }).count();
            (ups >= 2).then_some(())
        });
        driver.stop();
    });
}

#[test]
fn a_subflow_from_an_address_that_is_gone_is_ended() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(conn, SECOND, &[]);
        ip("address add 10.2.0.77/24 dev c2");
        ip("address del 10.2.0.2/24 dev c2");
        // The new address was a secondary of the old one's network, and goes with it.
        ip("address replace 10.2.0.77/24 dev c2");
        assert_eq!(driver.down(second.id), CloseReason::Unreachable);
        ip("route replace default via 10.2.0.1 dev c2 metric 200");
        ip("route replace default via 10.2.0.1 dev c2 table 2");
        ip("rule add from 10.2.0.77 table 2");
        let again = driver_joins(&mut driver, conn);
        driver.sees("bytes from the new address", conn, again.id, |seen| seen.received.bytes() > 50_000);
        driver.stop();
    });
}

/// Joins over the second link as soon as the driver knows an address there.
fn driver_joins(driver: &mut Running, conn: ConnId) -> EstablishedSubflow {
    let started = Clock::now();
    let known: Vec<SubflowId> = driver.hears("subflows", |heard| {
        let ids = heard.iter().filter_map(|input| match input {
            Input::SubflowUp { subflow, .. } => Some(subflow.id),
            _ => None,
        });
        Some(ids.collect())
    });
    while driver.commands(conn, Command::Join { link: SECOND, backup: false }).is_some() {
        assert!(started.elapsed() < PATIENCE, "the link has no address");
        thread::sleep(Duration::from_millis(20));
    }
    driver.up(conn, SECOND, &known)
}

#[test]
fn ipv6_and_mapped_ipv4_connections_are_joined_alike() {
    between_two_networks(|server| {
        let six = serve(server, "[fd00:9::1]:5001");
        let four = serve(server, "10.9.0.1:5001");
        let mapped: SocketAddr = format!("[::ffff:10.9.0.1]:{}", four.port()).parse().unwrap();
        let mut driver = Running::start(Mode::Userspace);
        for (known, address) in [six, mapped].into_iter().enumerate() {
            let (_client, _) = Client::download(address);
            let (conn, first) = driver.opened(known);
            assert_eq!(first.link, Some(FIRST));
            assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None, "{address}");
            let second = driver.up(conn, SECOND, &[]);
            driver.sees("bytes over both", conn, second.id, |seen| seen.received.bytes() > 100_000);
            assert_eq!(driver.commands(conn, Command::SetBackup { subflow: first.id, backup: true }), None);
            stands_still(&driver, conn, first.id, second.id);
            // The first subflow's socket is one of IPv6 also where its addresses are those of IPv4.
            assert_eq!(driver.commands(conn, Command::Destroy { subflow: first.id }), None, "{address}");
            assert_eq!(driver.down(first.id), CloseReason::Closed);
            assert_eq!(driver.commands(conn, Command::Join { link: FIRST, backup: false }), None, "{address}");
            let again = driver.up(conn, FIRST, &[first.id]);
            driver.sees("bytes over the first link", conn, again.id, |seen| seen.received.bytes() > 100_000);
        }
        driver.stop();
    });
}

#[test]
fn a_link_with_ipv6_alone_is_joined_if_the_server_announces_such_an_address_and_the_socket_is_for_both() {
    between_two_networks(|server| {
        let four = serve(server, "10.9.0.1:5001");
        serve(server, "[fd00:9::1]:5001");
        ip("address del 10.2.0.2/24 dev c2");
        let mapped: SocketAddr = format!("[::ffff:10.9.0.1]:{}", four.port()).parse().unwrap();
        let mut driver = Running::start(Mode::Userspace);
        let join = Command::Join { link: SECOND, backup: false };
        let of_ipv4_alone = Some(CommandError::SocketFamily(IpFamily::V6));
        for (known, (address, refused)) in [(four, of_ipv4_alone), (mapped, None)].into_iter().enumerate() {
            let (_client, _) = Client::download(address);
            let (conn, _) = driver.opened(known);
            assert_eq!(driver.commands(conn, join), Some(CommandError::NotAnnounced(IpFamily::V6)));
            on(server, "mptcp endpoint add fd00:9::1 signal");
            driver
                .hears("the announcement", |heard| heard.contains(&Input::AddressAnnounced { conn }).then_some(()));
            assert_eq!(driver.commands(conn, join), refused, "{address}");
            if refused.is_none() {
                let second = driver.up(conn, SECOND, &[]);
                driver.sees("bytes over IPv6", conn, second.id, |seen| seen.received.bytes() > 100_000);
            }
            on(server, "mptcp endpoint flush");
        }
        driver.stop();
    });
}

#[test]
fn a_server_that_refuses_a_join_ends_the_subflow_and_not_the_connection() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        on(server, "mptcp limits set subflows 0");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.opened(0);
        assert_eq!(driver.commands(conn, Command::Join { link: SECOND, backup: false }), None);
        let second = driver.up(conn, SECOND, &[]);
        assert_eq!(driver.down(second.id), CloseReason::Reset);
        let before = read.load(Ordering::Relaxed);
        driver.sees("the first carries on", conn, first.id, |seen| seen.received.bytes() > before + 100_000);
        driver.stop();
    });
}

#[test]
fn a_server_that_denies_its_first_address_is_joined_where_it_announced_another() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        server
            .run(|| {
                std::fs::write("/proc/sys/net/mptcp/allow_join_initial_addr_port", "0")?;
                ip("address add 10.9.0.2/32 dev lo");
                Ok(())
            })
            .unwrap();
        let mut driver = Running::start(Mode::Userspace);
        // It answers once it listens to events. The server's wish is known of connections that begin after that.
        driver.snapshot();
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.opened(0);
        driver.hears("the server's wish", |heard| {
            heard.contains(&Input::Opened { conn, adopted: false, deny_join_id0: true }).then_some(())
        });
        let join = Command::Join { link: SECOND, backup: false };
        assert_eq!(driver.commands(conn, join), Some(CommandError::NoAddress));
        // The listener of the new address is the kernel's own.
        on(server, "mptcp endpoint add 10.9.0.2 signal port 5002");
        driver.hears("the announcement", |heard| heard.contains(&Input::AddressAnnounced { conn }).then_some(()));
        assert_eq!(driver.commands(conn, join), None);
        let second = driver.up(conn, SECOND, &[]);
        driver.sees("bytes over the announced address", conn, second.id, |seen| seen.received.bytes() > 50_000);
        let snapshot = driver.snapshot();
        let remotes: Vec<String> = snapshot.connections[0].subflows.iter().map(|s| s.remote.to_string()).collect();
        assert_eq!(remotes, ["10.9.0.1:5001", "10.9.0.2:5002"]);
        driver.stop();
    });
}

#[test]
fn links_that_come_to_lie_below_a_vpn_are_down_until_it_ends() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.opened(0);
        let Ok(vpn) = marline_sys::tun::Tun::create("tun0") else {
            eprintln!("skipped: needs /dev/net/tun");
            return;
        };
        ip("address add 10.8.0.2/24 dev tun0");
        ip("link set tun0 up");
        // As OpenVPN does it.
        ip("route add 0.0.0.0/1 dev tun0");
        ip("route add 128.0.0.0/1 dev tun0");
        let turned = |link, wanted: fn(LinkId) -> Input, times| {
            driver.hears("a turn of the link", |heard| {
                (heard.iter().filter(|input| **input == wanted(link)).count() == times).then_some(())
            });
        };
        for link in [FIRST, SECOND] {
            turned(link, |link| Input::LinkDown { link }, 1);
        }
        let join = Command::Join { link: SECOND, backup: false };
        let command = CommandId(77);
        driver.say(Output::Command { id: command, conn, command: join });
        let refused = driver.hears("an answer", |heard| {
            heard.iter().find_map(|input| match input {
                Input::CommandDone { command: of, error: refused } if *of == command => Some(*refused),
                _ => None,
            })
        });
        assert_eq!(refused, Some(CommandError::NoAddress), "nothing goes beside the VPN");
        drop(vpn);
        for link in [FIRST, SECOND] {
            turned(link, |link| Input::LinkUp { link }, 2);
        }
        assert_eq!(driver.commands(conn, join), None);
        driver.up(conn, SECOND, &[]);
        driver.stop();
    });
}

#[test]
fn a_link_can_be_left_and_taken_up_again_for_ever() {
    between_two_networks(|server| {
        let address = serve(server, "10.9.0.1:5001");
        let mut driver = Running::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, first) = driver.opened(0);
        let mut known = vec![first.id];
        // On a busy machine the kernel sometimes ends a subflow right after its handshake.
        let mut refused = 0;
        for (link, mut last) in [(SECOND, None), (FIRST, Some(first.id))] {
            let mut cycles = 0;
            while cycles < CYCLES {
                if let Some(last) = last {
                    assert_eq!(driver.commands(conn, Command::Destroy { subflow: last }), None, "{cycles}");
                    driver.down(last);
                }
                assert_eq!(driver.commands(conn, Command::Join { link, backup: false }), None, "{cycles}");
                let again = driver.up(conn, link, &known).id;
                known.push(again);
                if driver.brings(conn, again, 100_000) {
                    (cycles, last) = (cycles + 1, Some(again));
                } else {
                    (refused, last) = (refused + 1, None);
                    assert!(refused < 4, "{cycles} over {link:?}");
                }
            }
        }
        driver.stop();
    });
}

/// chosen: more than its server has room for at once, many times over. Sixty were seen to be as good.
const CYCLES: usize = 20;
