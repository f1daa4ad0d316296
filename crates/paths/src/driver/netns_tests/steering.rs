//! Joins, suspensions and ends of subflows: all actions of a policy on a connection.

use super::*;

#[test]
fn subflows_join_suspend_resume_and_end() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        assert_eq!((first.link, first.initial, first.backup), (Some(FIRST_LINK), true, false));
        assert!(first.rtt.is_some());
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        assert!(!second.initial && !second.backup && second.rtt.is_some(), "{second:?}");
        driver.wait_for_counters("bytes over the joined subflow", conn, second.id, |counters| {
            counters.received.bytes() > 100_000
        });

        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: second.id, backup: true }), None);
        wait_until_idle(&driver, conn, second.id, first.id);
        assert!(driver.poll_counters(conn, &[second.id])[&second.id].backup);

        // The first subflow is suspended, and the second carries the data.
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: first.id, backup: true }), None);
        wait_until_idle(&driver, conn, first.id, second.id);
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: first.id, backup: false }), None);

        assert_eq!(driver.execute(conn, Command::Destroy { subflow: second.id }), None);
        assert_eq!(driver.wait_for_subflow_end(second.id), CloseReason::Closed);
        assert_eq!(
            driver.execute(conn, Command::SetBackup { subflow: second.id, backup: true }),
            Some(CommandError::NoSubflow)
        );
        // Again, at once as a backup, under the same id.
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }), None);
        let rejoined = driver.wait_for_subflow(conn, SECOND_LINK, &[second.id]);
        assert!(rejoined.backup);
        // A second subflow over the same link, as a path is probed.
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }), None);
        let probe = driver.wait_for_subflow(conn, SECOND_LINK, &[second.id, rejoined.id]);
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: rejoined.id }), None);
        assert!(driver.poll_counters(conn, &[probe.id]).contains_key(&probe.id));
        // The first subflow ends and joins again under id 0.
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: probe.id, backup: false }), None);
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: first.id }), None);
        assert_eq!(driver.execute(conn, Command::Join { link: FIRST_LINK, backup: false }), None);
        let returned = driver.wait_for_subflow(conn, FIRST_LINK, &[first.id]);
        assert!(returned.initial, "the first address has id 0");
        let before = read.load(Ordering::Relaxed);
        driver.wait_for_counters("bytes over the first link again", conn, returned.id, |counters| {
            counters.received.bytes() > 100_000
        });
        wait_for_progress(&read, before);
        let snapshot = driver.snapshot();
        assert_eq!((snapshot.connections.len(), snapshot.connections[0].subflows.len()), (1, 2));
        assert_eq!(snapshot.totals.refused, 0, "a late command does not count as refused");
        let connection = &snapshot.connections[0];
        assert!(
            connection.subflows.iter().all(|sub| !sub.initial),
            "the one that came back is not the first: {connection:?}"
        );
        // Two bytes went over the first subflow, which has ended.
        assert_eq!(connection.sent.bytes(), 2);
        let over_links: u64 = connection.subflows.iter().map(|sub| sub.counters.received.bytes()).sum();
        assert!(
            connection.received.bytes() >= before && over_links < connection.received.bytes(),
            "{connection:?}"
        );
        let (reply_tx, reply_rx) = oneshot::channel();
        driver.queries.blocking_send(DriverQuery::Explain(conn, reply_tx)).unwrap();
        let texts: Vec<String> = reply_rx.blocking_recv().unwrap().unwrap().1.into_iter().map(|d| d.text).collect();
        for expected in [
            "suspend another interface: not done, as the subflow has ended, or has only just joined",
            "join over c2 a second time, as a probe: its subflow is stalled",
            "end the older subflow over c2",
        ] {
            assert!(texts.iter().any(|line| line == expected), "{expected}: {texts:?}");
        }
        driver.stop();
    });
}

#[test]
fn a_download_completes_although_the_first_subflow_is_destroyed() {
    with_two_networks(|server| {
        for link in [1, 2] {
            let qdisc = format!("qdisc replace dev s{link} root tbf rate 1mbit burst 10k limit 30k");
            server
                .run(|| {
                    run_command("tc", &qdisc);
                    Ok(())
                })
                .unwrap();
        }
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let mut client = Client::connect_established(address);
        let (conn, first) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        client.0.write_all(b"e").unwrap();
        let mut reader = client.0.try_clone().unwrap();
        // Without the abort no data arrives for twenty seconds.
        reader.set_read_timeout(Some(TIMEOUT / 2)).unwrap();
        let read = thread::spawn(move || std::io::copy(&mut reader, &mut std::io::sink()));
        // The server has written everything and closed its direction; both subflows carry data.
        for id in [first.id, second.id] {
            driver.wait_for_counters("bytes over both", conn, id, |counters| counters.received.bytes() > 10_000);
        }
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: first.id }), None);
        assert_eq!(read.join().unwrap().unwrap(), FINITE_RESPONSE_LEN as u64);
        driver.stop();
    });
}

#[test]
fn a_connection_continues_over_the_other_link_when_one_goes_down() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: true }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        ip("link set c1 down");
        driver.wait_for_input("the link is down", |inputs| {
            inputs.contains(&Input::LinkDown { link: FIRST_LINK }).then_some(())
        });
        // A policy destroys the subflow then, so the server need not detect the outage by itself.
        assert_eq!(driver.execute(conn, Command::SetBackup { subflow: second.id, backup: false }), None);
        assert_eq!(driver.execute(conn, Command::Destroy { subflow: first.id }), None);
        let before = read.load(Ordering::Relaxed);
        driver.wait_for_counters("the other link carries", conn, second.id, |counters| {
            counters.received.bytes() > 500_000
        });
        wait_for_progress(&read, before);
        assert_eq!(
            driver.execute(conn, Command::Join { link: FIRST_LINK, backup: false }),
            Some(CommandError::NoAddress),
            "a link that is down is not joined"
        );
        ip("link set c1 up");
        driver.wait_for_input("the link is up again", |inputs| {
            let ups = inputs.iter().filter(|input| **input == Input::LinkUp { link: FIRST_LINK }).count();
            (ups >= 2).then_some(())
        });
        driver.stop();
    });
}

#[test]
fn a_subflow_from_a_lost_address_is_ended() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        ip("address add 10.2.0.77/24 dev c2");
        ip("address del 10.2.0.2/24 dev c2");
        // The new address was a secondary of the old one's subnet, and is removed with it.
        ip("address replace 10.2.0.77/24 dev c2");
        assert_eq!(driver.wait_for_subflow_end(second.id), CloseReason::Unreachable);
        ip("route replace default via 10.2.0.1 dev c2 metric 200");
        ip("route replace default via 10.2.0.1 dev c2 table 2");
        ip("rule add from 10.2.0.77 table 2");
        let rejoined = join_second_link(&mut driver, conn);
        driver.wait_for_counters("bytes from the new address", conn, rejoined.id, |counters| {
            counters.received.bytes() > 50_000
        });
        driver.stop();
    });
}

/// Joins over the second link as soon as the driver knows an address there.
fn join_second_link(driver: &mut RunningDriver, conn: ConnId) -> EstablishedSubflow {
    let started = Clock::now();
    let known: Vec<SubflowId> = driver.wait_for_input("subflows", |inputs| {
        let ids = inputs.iter().filter_map(|input| match input {
            Input::SubflowUp { subflow, .. } => Some(subflow.id),
            _ => None,
        });
        Some(ids.collect())
    });
    while driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }).is_some() {
        assert!(started.elapsed() < TIMEOUT, "the link has no address");
        thread::sleep(Duration::from_millis(20));
    }
    driver.wait_for_subflow(conn, SECOND_LINK, &known)
}

#[test]
fn ipv6_and_mapped_ipv4_connections_are_joined_alike() {
    with_two_networks(|server| {
        let server_v6 = start_server(server, "[fd00:9::1]:5001");
        let server_v4 = start_server(server, "10.9.0.1:5001");
        let mapped: SocketAddr = format!("[::ffff:10.9.0.1]:{}", server_v4.port()).parse().unwrap();
        let mut driver = RunningDriver::start(Mode::Userspace);
        for (index, address) in [server_v6, mapped].into_iter().enumerate() {
            let (_client, _) = Client::download(address);
            let (conn, first) = driver.wait_for_connection(index);
            assert_eq!(first.link, Some(FIRST_LINK));
            assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None, "{address}");
            let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
            driver.wait_for_counters("bytes over both", conn, second.id, |counters| {
                counters.received.bytes() > 100_000
            });
            assert_eq!(driver.execute(conn, Command::SetBackup { subflow: first.id, backup: true }), None);
            wait_until_idle(&driver, conn, first.id, second.id);
            // The first subflow's socket is an IPv6 socket, even with IPv4 addresses.
            assert_eq!(driver.execute(conn, Command::Destroy { subflow: first.id }), None, "{address}");
            assert_eq!(driver.wait_for_subflow_end(first.id), CloseReason::Closed);
            assert_eq!(driver.execute(conn, Command::Join { link: FIRST_LINK, backup: false }), None, "{address}");
            let rejoined = driver.wait_for_subflow(conn, FIRST_LINK, &[first.id]);
            driver.wait_for_counters("bytes over the first link", conn, rejoined.id, |counters| {
                counters.received.bytes() > 100_000
            });
        }
        driver.stop();
    });
}

#[test]
fn an_ipv6_only_link_is_joined_if_server_and_socket_support_ipv6() {
    with_two_networks(|server| {
        let server_v4 = start_server(server, "10.9.0.1:5001");
        start_server(server, "[fd00:9::1]:5001");
        ip("address del 10.2.0.2/24 dev c2");
        let mapped: SocketAddr = format!("[::ffff:10.9.0.1]:{}", server_v4.port()).parse().unwrap();
        let mut driver = RunningDriver::start(Mode::Userspace);
        let join = Command::Join { link: SECOND_LINK, backup: false };
        let ipv4_only_error = Some(CommandError::SocketFamily(IpFamily::V6));
        for (index, (address, refused)) in [(server_v4, ipv4_only_error), (mapped, None)].into_iter().enumerate() {
            let (_client, _) = Client::download(address);
            let (conn, _) = driver.wait_for_connection(index);
            assert_eq!(driver.execute(conn, join), Some(CommandError::NotAnnounced(IpFamily::V6)));
            ip_in(server, "mptcp endpoint add fd00:9::1 signal");
            driver.wait_for_input("the announcement", |inputs| {
                inputs.contains(&Input::AddressAnnounced { conn }).then_some(())
            });
            assert_eq!(driver.execute(conn, join), refused, "{address}");
            if refused.is_none() {
                let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
                driver.wait_for_counters("bytes over IPv6", conn, second.id, |counters| {
                    counters.received.bytes() > 100_000
                });
            }
            ip_in(server, "mptcp endpoint flush");
        }
        driver.stop();
    });
}

#[test]
fn a_server_that_refuses_a_join_ends_the_subflow_and_not_the_connection() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        ip_in(server, "mptcp limits set subflows 0");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, read) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        assert_eq!(driver.execute(conn, Command::Join { link: SECOND_LINK, backup: false }), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        assert_eq!(driver.wait_for_subflow_end(second.id), CloseReason::Reset);
        let before = read.load(Ordering::Relaxed);
        driver.wait_for_counters("the first carries on", conn, first.id, |counters| {
            counters.received.bytes() > before + 100_000
        });
        driver.stop();
    });
}

#[test]
fn a_server_that_denies_its_first_address_is_joined_where_it_announced_another() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        server
            .run(|| {
                std::fs::write("/proc/sys/net/mptcp/allow_join_initial_addr_port", "0")?;
                ip("address add 10.9.0.2/32 dev lo");
                Ok(())
            })
            .unwrap();
        let mut driver = RunningDriver::start(Mode::Userspace);
        // The server's flag applies to connections that begin after its event subscription.
        driver.snapshot();
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.wait_for_connection(0);
        driver.wait_for_input("the server's wish", |inputs| {
            inputs.contains(&Input::Opened { conn, adopted: false, deny_join_id0: true }).then_some(())
        });
        let join = Command::Join { link: SECOND_LINK, backup: false };
        assert_eq!(driver.execute(conn, join), Some(CommandError::NoAddress));
        // The listener of the new address is the kernel's own.
        ip_in(server, "mptcp endpoint add 10.9.0.2 signal port 5002");
        driver.wait_for_input("the announcement", |inputs| {
            inputs.contains(&Input::AddressAnnounced { conn }).then_some(())
        });
        assert_eq!(driver.execute(conn, join), None);
        let second = driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        driver.wait_for_counters("bytes over the announced address", conn, second.id, |counters| {
            counters.received.bytes() > 50_000
        });
        let snapshot = driver.snapshot();
        let remotes: Vec<String> = snapshot.connections[0].subflows.iter().map(|s| s.remote.to_string()).collect();
        assert_eq!(remotes, ["10.9.0.1:5001", "10.9.0.2:5002"]);
        driver.stop();
    });
}

#[test]
fn links_below_a_new_vpn_are_down_until_it_ends() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, _) = driver.wait_for_connection(0);
        let Ok(vpn) = marline_sys::tun::Tun::create("tun0") else {
            eprintln!("skipped: needs /dev/net/tun");
            return;
        };
        ip("address add 10.8.0.2/24 dev tun0");
        ip("link set tun0 up");
        // Two half default routes, as OpenVPN sets them.
        ip("route add 0.0.0.0/1 dev tun0");
        ip("route add 128.0.0.0/1 dev tun0");
        let wait_for_transitions = |link, input_of: fn(LinkId) -> Input, times| {
            driver.wait_for_input("a transition of the link", |inputs| {
                (inputs.iter().filter(|input| **input == input_of(link)).count() == times).then_some(())
            });
        };
        for link in [FIRST_LINK, SECOND_LINK] {
            wait_for_transitions(link, |link| Input::LinkDown { link }, 1);
        }
        let join = Command::Join { link: SECOND_LINK, backup: false };
        let command = CommandId(77);
        driver.push_output(Output::Command { id: command, conn, command: join });
        let refused = driver.wait_for_input("the result of the command", |inputs| {
            inputs.iter().find_map(|input| match input {
                Input::CommandDone { command: other, error: refused } if *other == command => Some(*refused),
                _ => None,
            })
        });
        assert_eq!(refused, Some(CommandError::NoAddress), "no traffic bypasses the VPN");
        drop(vpn);
        for link in [FIRST_LINK, SECOND_LINK] {
            wait_for_transitions(link, |link| Input::LinkUp { link }, 2);
        }
        assert_eq!(driver.execute(conn, join), None);
        driver.wait_for_subflow(conn, SECOND_LINK, &[]);
        driver.stop();
    });
}

#[test]
fn a_link_can_be_left_and_joined_any_number_of_times() {
    with_two_networks(|server| {
        let address = start_server(server, "10.9.0.1:5001");
        let mut driver = RunningDriver::start(Mode::Userspace);
        let (_client, _) = Client::download(address);
        let (conn, first) = driver.wait_for_connection(0);
        let mut known = vec![first.id];
        // On a busy machine the kernel sometimes closes a subflow right after its handshake.
        let mut refused_count = 0;
        for (link, mut last) in [(SECOND_LINK, None), (FIRST_LINK, Some(first.id))] {
            let mut cycles = 0;
            while cycles < CYCLES {
                if let Some(last) = last {
                    assert_eq!(driver.execute(conn, Command::Destroy { subflow: last }), None, "{cycles}");
                    driver.wait_for_subflow_end(last);
                }
                assert_eq!(driver.execute(conn, Command::Join { link, backup: false }), None, "{cycles}");
                let rejoined = driver.wait_for_subflow(conn, link, &known).id;
                known.push(rejoined);
                if driver.has_received(conn, rejoined, 100_000) {
                    (cycles, last) = (cycles + 1, Some(rejoined));
                } else {
                    (refused_count, last) = (refused_count + 1, None);
                    assert!(refused_count < 4, "{cycles} over {link:?}");
                }
            }
        }
        driver.stop();
    });
}

/// Our choice: many times the server's limit of concurrent subflows. Sixty cycles were seen to succeed.
const CYCLES: usize = 20;
