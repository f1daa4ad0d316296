//! Tests of the driver on a real kernel, in a network namespace; the other end of each link is the file of a TUN
//! device.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::process::Command;
use std::time::{Duration, Instant};

use marline_core::accel::{
    Accelerator, AddressFamilies, CaptureLevel, Config, Mechanism, Mechanisms, SecondaryLink,
};
use marline_core::link::LinkId;
use marline_core::units::Bitrate;
use marline_core::wire::netlink::messages;
use marline_core::wire::packet::{
    Flags, FourTuple, IcmpEcho, IcmpUnreachable, IpParams, NewSegment, OptionList, Packet, Segment, Seq, TcpOption,
};
use marline_net::links::list_interfaces;
use marline_net::recorded_machine::RecordedMachine;
use marline_net::testing::{cable, in_a_network, ip};
use marline_sys::netlink::RouteSocket;
use marline_sys::tun::Tun;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use socket2::{Domain, Socket, Type};

use super::{Engine, EngineConfig, FlowFilter, LinkArg, control, resolve_links, restore};
use crate::bpf::redirect::BpfRedirect;
use crate::capture::Capture;
use crate::driver::{Driver, NETLINK_GROUPS};
use crate::gateway_probe::GatewayProber;
use crate::iptables::{self, Rules};
use crate::nfqueue::QueueNumbers;
use crate::raw_socket::{LocalInjector, RawSocket};

/// A link whose other end is controlled by the test. Strict reverse-path filters are on.
struct Line {
    tun: Tun,
    index: u32,
}

impl Line {
    fn new(name: &str, v4: &str, v6: &str, metric: u32) -> Self {
        for filter in ["all", "default"] {
            std::fs::write(format!("/proc/sys/net/ipv4/conf/{filter}/rp_filter"), "1").unwrap();
        }
        let tun = Tun::create(name).unwrap();
        ip(&format!("link set {name} up"));
        ip(&format!("address add {v4} dev {name}"));
        ip(&format!("address add {v6} dev {name} nodad"));
        ip(&format!("route add default dev {name} metric {metric}"));
        ip(&format!("-6 route add default dev {name} metric {metric}"));
        Self { tun, index: list_interfaces().unwrap().by_name(name).unwrap().index }
    }

    /// The next packet that leaves and is wanted, within ten seconds: a busy machine may need some.
    fn next(&self, wanted: impl Fn(&Packet<'_>) -> bool) -> Option<Vec<u8>> {
        self.next_within(Duration::from_secs(10), wanted)
    }

    fn next_within(&self, time: Duration, wanted: impl Fn(&Packet<'_>) -> bool) -> Option<Vec<u8>> {
        let begun = Instant::now();
        let mut bytes = vec![0; 65_536];
        while begun.elapsed() < time {
            match self.tun.receive(&mut bytes) {
                Ok(length) => {
                    if Packet::parse(&bytes[..length]).is_ok_and(|packet| wanted(&packet)) {
                        return Some(bytes[..length].to_vec());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&self.tun),
                Err(error) => panic!("{error}"),
            }
        }
        None
    }

    /// The next TCP segment for this server.
    fn segment(&self, server: SocketAddr) -> Option<Vec<u8>> {
        self.next(is_for(server))
    }

    /// Whether no TCP segment leaves for this server within a second.
    fn is_silent(&self, server: SocketAddr) -> bool {
        self.next_within(Duration::from_secs(1), is_for(server)).is_none()
    }
}

fn is_for(server: SocketAddr) -> impl Fn(&Packet<'_>) -> bool {
    move |packet| Segment::of(*packet).is_ok_and(|segment| segment.four_tuple().destination() == server)
}

fn wait(on: impl AsFd) {
    let _ = poll(&mut [PollFd::new(&on, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 20_000_000 }));
}

/// A connection of the local stack, and the state of its server.
struct Session {
    stream: TcpStream,
    /// From the server to this host.
    flow: FourTuple,
    /// The server's next sequence number, and below what it has received.
    next: Seq,
    received: Seq,
}

/// Connects to a server that the test plays.
fn connect(line: &Line, server: SocketAddr, device: Option<&str>) -> Session {
    let socket = Socket::new(Domain::for_address(server), Type::STREAM, None).unwrap();
    if let Some(device) = device {
        marline_sys::device::bind_to_device(&socket, device).unwrap();
    }
    socket.set_nonblocking(true).unwrap();
    let _ = socket.connect(&server.into());
    let is_first = |packet: &Packet<'_>| {
        Segment::of(*packet).is_ok_and(|s| s.four_tuple().destination() == server && s.flags().contains(Flags::SYN))
    };
    let syn = line.next(is_first).unwrap();
    let syn = Segment::of(Packet::parse(&syn).unwrap()).unwrap();
    let (flow, received) = (syn.four_tuple().reversed(), syn.seq().plus(1));
    let mut options = OptionList::default();
    options.push(&TcpOption::SackPermitted);
    let answer = NewSegment {
        flags: Flags::SYN | Flags::ACK,
        options,
        ..NewSegment::data(&flow, Seq::new(1000), received, 60_000, None, &[])
    };
    let answer = answer.emit().unwrap();
    // Repeated, as by a server: on a busy machine the queue of a link that has just come up may drop the first packets.
    let is_acknowledged = (0..20).any(|_| {
        line.tun.send(&answer).unwrap();
        line.next_within(Duration::from_millis(500), is_for(server)).is_some()
    });
    assert!(is_acknowledged, "the connection is acknowledged");
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    Session { stream: socket.into(), flow, next: Seq::new(1001), received }
}

impl Session {
    fn data(&self, payload: &[u8]) -> Vec<u8> {
        NewSegment::data(&self.flow, self.next, self.received, 60_000, None, payload).emit().unwrap()
    }

    fn read_text(&mut self) -> String {
        let mut bytes = [0; 100];
        self.stream.read(&mut bytes).map_or_else(
            |error| error.kind().to_string(),
            |length| String::from_utf8_lossy(&bytes[..length]).into_owned(),
        )
    }
}

const SERVERS: [&str; 2] = ["198.51.100.1:443", "[2001:db8:9::1]:443"];

fn server(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

#[test]
fn a_socket_accepts_an_injected_segment_and_acknowledges_it_to_the_server() {
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let injector = LocalInjector::open().unwrap();
        for (address, device) in SERVERS.into_iter().flat_map(|address| [(address, None), (address, Some("wlan0"))])
        {
            let mut session = connect(&line, server(address), device);
            injector.inject(&session.data(b"injected data")).unwrap();
            assert_eq!(session.read_text(), "injected data", "{address} {device:?}");
            let answer = line.segment(server(address)).unwrap();
            let answer = Segment::of(Packet::parse(&answer).unwrap()).unwrap();
            assert_eq!(
                (answer.four_tuple(), answer.ack()),
                (session.flow.reversed(), Some(Seq::new(1001 + 13))),
                "{address}"
            );
        }
    });
}

#[test]
fn the_local_stack_retransmits_sooner_after_unreachable_messages() {
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let injector = LocalInjector::open().unwrap();
        for address in SERVERS {
            let mut session = connect(&line, server(address), None);
            session.stream.write_all(b"a request").unwrap();
            // It is retransmitted after 0.2, 0.4 and 0.8 s; the next time would be after 1.6 s.
            for _ in 0..4 {
                assert!(line.segment(server(address)).is_some());
            }
            let message = IcmpUnreachable { four_tuple: session.flow.reversed(), seq: session.received };
            for _ in 0..4 {
                injector.inject(&message.emit(IpParams::default())).unwrap();
            }
            let again = line.next_within(Duration::from_secs(1), is_for(server(address))).expect("before 1.6 s");
            assert_eq!(Segment::of(Packet::parse(&again).unwrap()).unwrap().payload(), b"a request", "{address}");
        }
    });
}

#[test]
fn a_raw_packet_leaves_over_its_link_whatever_the_routes() {
    in_a_network(|| {
        let wlan = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let wwan = Line::new("wwan0", "10.2.0.2/24", "fd00:2::2/64", 200);
        for (source, address) in [("10.1.0.2:5000", SERVERS[0]), ("[fd00:1::2]:5000", SERVERS[1])] {
            let flow = FourTuple::new(source.parse().unwrap(), server(address)).unwrap();
            let packet = NewSegment::data(&flow, Seq::new(7), Seq::new(9), 100, None, b"x").emit().unwrap();
            RawSocket::open(Some("wwan0")).unwrap().send(&packet).unwrap();
            let packet = wwan.segment(server(address)).unwrap();
            let segment = Segment::of(Packet::parse(&packet).unwrap()).unwrap();
            assert_eq!((segment.four_tuple(), segment.payload()), (flow, &b"x"[..]));
            assert!(wlan.is_silent(server(address)));
        }
        let error = RawSocket::open(None).unwrap().send(b"no packet").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    });
}

#[test]
fn only_valid_replies_of_a_gateway_are_accepted() {
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        for gateway in ["10.1.0.1", "fd00:1::1"] {
            let gateway: IpAddr = gateway.parse().unwrap();
            let mut prober = GatewayProber::open("wlan0", line.index, gateway).unwrap();
            prober.probe(7).unwrap();
            let question = line
                .next(|packet| {
                    packet.addrs().destination() == gateway
                        && IcmpEcho::of(*packet).is_ok_and(|echo| !echo.is_reply)
                })
                .unwrap();
            let question = Packet::parse(&question).unwrap();
            let pair = question.addrs().reversed();
            let echo = IcmpEcho { is_reply: true, ..IcmpEcho::of(question).unwrap() };
            let wrong = [
                IcmpEcho { id: echo.id ^ 1, ..echo }.emit(&pair, IpParams::default()),
                IcmpEcho { data: b"other", ..echo }.emit(&pair, IpParams::default()),
                IcmpEcho { is_reply: false, ..echo }.emit(&pair, IpParams::default()),
            ];
            for packet in wrong {
                line.tun.send(&packet.unwrap()).unwrap();
            }
            assert!(prober.take_replies().is_empty());
            line.tun.send(&echo.emit(&pair, IpParams::default()).unwrap()).unwrap();
            // The kernel may deliver the wrong packets only now.
            let mut answers = Vec::new();
            for _ in 0..250 {
                wait(&prober);
                answers.extend(prober.take_replies());
                if !answers.is_empty() {
                    break;
                }
            }
            assert_eq!(answers, [7], "{gateway}");
        }
    });
}

#[test]
fn a_link_in_another_network_probes_the_new_gateway_unless_one_was_set() {
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        ip("route add default via 10.1.0.1 dev wlan0 metric 50");
        let config = || Config::new(LinkId(0), None);
        let driver = |gateway: Option<IpAddr>| {
            let wanted = [LinkArg { name: "wlan0".into(), gateway }];
            let machine = RecordedMachine::new(Accelerator::new(config()), config(), None).unwrap();
            Driver::new(machine, None, resolve_links(&list_interfaces().unwrap(), &wanted).unwrap(), None).unwrap()
        };
        let mut both = [driver(None), driver(Some("10.1.0.1".parse().unwrap()))];
        let probed = |driver: &Driver| {
            let _ = driver.links[0].prober.probe(7);
            let packet = line.next(|packet| IcmpEcho::of(*packet).is_ok_and(|echo| !echo.is_reply))?;
            let pair = Packet::parse(&packet).unwrap().addrs();
            Some(format!("{} {}", pair.source(), pair.destination()))
        };
        assert_eq!(
            both.each_ref().map(probed),
            [Some("10.1.0.2 10.1.0.1".into()), Some("10.1.0.2 10.1.0.1".into())]
        );
        let monitor = RouteSocket::listen(NETLINK_GROUPS).unwrap();
        ip("address del 10.1.0.2/24 dev wlan0");
        ip("address add 10.9.0.2/24 dev wlan0");
        ip("route add default via 10.9.0.1 dev wlan0 metric 50");
        while let Ok(bytes) = monitor.next_event() {
            messages(&bytes).for_each(|message| both.iter_mut().for_each(|driver| driver.on_event(&message)));
        }
        assert_eq!(
            both.each_ref().map(probed),
            [Some("10.9.0.2 10.9.0.1".into()), Some("10.9.0.2 10.1.0.1".into())]
        );
    });
}

#[test]
fn capture_shows_arrivals_and_only_those_departures_that_are_not_queued() {
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        for address in SERVERS {
            let mut session = connect(&line, server(address), None);
            let mut capture = Capture::open("wlan0", line.index, CaptureLevel::Headers).unwrap().unwrap();
            line.tun.send(&session.data(&[7; 1000])).unwrap();
            assert!(line.segment(server(address)).is_some(), "an ACK is sent");
            session.stream.write_all(&[8; 500]).unwrap();
            assert!(line.segment(server(address)).is_some(), "and data");
            RawSocket::open(Some("wlan0"))
                .unwrap()
                .send(
                    &NewSegment::data(&session.flow.reversed(), Seq::new(0), Seq::new(0), 9, None, &[9; 300])
                        .emit()
                        .unwrap(),
                )
                .unwrap();
            assert!(line.segment(server(address)).is_some(), "and a packet of the accelerator");
            assert!(capture.receive().unwrap());
            let header = if server(address).is_ipv4() { 40 } else { 60 };
            let seen: Vec<(usize, u32)> =
                capture.packets().map(|(packet, length, _)| (packet.len(), length)).collect();
            assert_eq!(seen, [(160, header + 1000), (160, header + 500)], "{address}");
            assert!(!capture.receive().unwrap());
            assert_eq!(capture.drops(), 0);
            capture.set_level(CaptureLevel::Full).unwrap();
            session.next = session.next.plus(1000);
            line.tun.send(&session.data(&[7; 1000])).unwrap();
            assert!(capture.receive().unwrap());
            assert_eq!(
                capture.packets().map(|(packet, _, _)| packet.len()).collect::<Vec<_>>(),
                [1000 + header as usize]
            );
            capture.close_in_background();
        }
        assert!(Capture::open("wlan0", line.index, CaptureLevel::None).unwrap().is_none());
    });
}

/// Whether rules can be set here; otherwise the reason is printed.
fn has_rules() -> bool {
    let is_available = Command::new("iptables").arg("--version").output().is_ok();
    if !is_available {
        eprintln!("skipped: needs the program iptables");
    }
    is_available
}

fn setup(flows: &str) -> EngineConfig {
    let gateway = Some("10.1.0.1".parse().unwrap());
    let wanted = [LinkArg { name: "wlan0".into(), gateway }];
    let links = resolve_links(&list_interfaces().unwrap(), &wanted).unwrap();
    let flows: FlowFilter = flows.parse().unwrap();
    EngineConfig {
        config: Config::new(LinkId(0), None),
        links,
        flow_filter: flows,
        trace: None,
        pending_file: None,
        fetch_commands: None,
    }
}

fn rule_count() -> usize {
    let count = |program: &str| {
        let listed = Command::new(program).args(["-t", "mangle", "-S"]).output().unwrap();
        String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.contains("marline")).count()
    };
    count("iptables") + count("ip6tables")
}

fn status(engine: &Engine) -> super::status::Status {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(engine.handle().status()).unwrap()
}

#[test]
fn small_packets_of_filtered_flows_are_queued_and_rules_are_removed_at_the_end() {
    if !has_rules() {
        return;
    }
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let engine = Engine::start(setup("port 443")).unwrap();
        assert_eq!(rule_count(), 12);
        let mut session = connect(&line, server(SERVERS[0]), None);
        let _v6 = connect(&line, server(SERVERS[1]), None);
        assert_eq!(status(&engine).counts.queued, 6, "of both: SYN, SYN-ACK, ACK");
        let _other = connect(&line, server("198.51.100.1:80"), None);
        session.stream.write_all(&[1; 400]).unwrap();
        assert!(line.segment(server(SERVERS[0])).is_some());
        let counts = status(&engine).counts;
        assert_eq!((counts.queued, counts.rewritten, counts.suppressed, counts.sent), (6, 0, 0, 0));
        let acknowledged = session.received.plus(400);
        let to = session.flow;
        let ack = NewSegment::data(&to, session.next, acknowledged, 60_000, None, &[]).emit().unwrap();
        line.tun.send(&ack).unwrap();
        let carries =
            NewSegment::data(&to, session.next, acknowledged, 60_000, None, b"a packet that carries something");
        let carries = NewSegment { flags: Flags::ACK | Flags::PSH, ..carries };
        line.tun.send(&carries.emit().unwrap()).unwrap();
        assert_eq!(session.read_text(), "a packet that carries something");
        // The packet behind it is not held, and may arrive first.
        let mut counts = status(&engine).counts;
        for _ in 0..100 {
            if counts.incoming == 3 {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            counts = status(&engine).counts;
        }
        assert_eq!((counts.incoming, counts.rewritten), (3, 0), "of arrivals, only ACKs");
        let second = Engine::start(setup("port 443")).unwrap_err().to_string();
        assert!(second.contains("another `marline accel` serves it already"), "{second}");
        assert_eq!(rule_count(), 12, "and the first one continues");
        drop(engine);
        assert_eq!(rule_count(), 0);
    });
}

#[test]
fn rules_of_a_killed_run_let_packets_pass_and_are_removed() {
    if !has_rules() {
        return;
    }
    in_a_network(|| {
        let line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        // Its queue has ended with it.
        std::mem::forget(
            Rules::set("wlan0", &FlowFilter::default(), QueueNumbers { outgoing: 27_906, incoming: Some(28_162) })
                .unwrap(),
        );
        std::mem::forget(
            Rules::set("wwan0", &FlowFilter::default(), QueueNumbers { outgoing: 27_907, incoming: None }).unwrap(),
        );
        drop(connect(&line, server(SERVERS[0]), None));
        let engine = Engine::start(setup("tcp")).unwrap();
        assert_eq!(iptables::orphaned_devices(), ["wwan0"], "a run removes orphaned rules of its own link first");
        assert_eq!(restore().unwrap(), ["wwan0"]);
        assert_eq!(rule_count(), 12, "rules in use remain");
        drop(engine);
        assert_eq!((rule_count(), restore().unwrap()), (0, Vec::new()));
    });
}

#[test]
fn acks_of_a_busy_flow_are_redirected_to_the_second_link_and_those_with_holes_are_not() {
    in_a_network(|| {
        let wlan = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let wwan = Line::new("wwan0", "10.2.0.2/24", "fd00:2::2/64", 200);
        let wanted = [("wlan0", "10.1.0.1"), ("wwan0", "10.2.0.1")]
            .map(|(name, gateway)| LinkArg { name: name.into(), gateway: Some(gateway.parse().unwrap()) });
        let links = resolve_links(&list_interfaces().unwrap(), &wanted).unwrap();
        let up = Bitrate::from_mbps(100);
        let mut redirect = match BpfRedirect::attach(&links[0], &links[1], up) {
            Err(error)
                if error.to_string().contains("the kernel refuses it")
                    || error.to_string().contains("not attached") =>
            {
                return eprintln!("skipped: {error}");
            }
            redirect => redirect.unwrap(),
        };
        cable("eth0", "10.3.0.2/24");
        let eth = super::AccelLink {
            name: "eth0".into(),
            index: list_interfaces().unwrap().by_name("eth0").unwrap().index,
            ..links[1].clone()
        };
        let error = BpfRedirect::attach(&links[0], &eth, up).unwrap_err().to_string();
        assert!(error.contains("link eth0: it has neighbours"), "{error}");
        for (address, families) in SERVERS.into_iter().zip([AddressFamilies::V4, AddressFamilies::V6]) {
            let to = server(address);
            redirect.set_families(Some(families)).unwrap();
            let before = redirect.counters();
            // ACKs of the local stack: everything is in order, and fast.
            let mut session = connect(&wlan, to, None);
            let mut send = |bytes: usize, skipped: u32| {
                wlan.tun.send(&session.data(&vec![7; bytes])).unwrap();
                session.next = session.next.plus(bytes as u32 + skipped);
                let mut sink = [0; 65_536];
                if skipped == 0 {
                    let _ = session.stream.read(&mut sink);
                }
            };
            (0..60).for_each(|_| send(1400, 0));
            std::thread::sleep(Duration::from_millis(150));
            (0..60).for_each(|_| send(1400, 0));
            assert!(wwan.segment(to).is_some(), "{address}: over the second link, with its source address");
            let busy = redirect.counters();
            assert!(busy.redirected > before.redirected && busy.holes == before.holes, "{address}: {busy:?}");
            // A hole: ACKs that report it stay on the primary link, and so do later ones.
            send(1400, 100);
            (0..20).for_each(|_| send(1400, 100));
            let holes = redirect.counters();
            assert!(holes.holes > busy.holes, "{address}: {holes:?}");
            (0..5).for_each(|_| send(1400, 100));
            assert_eq!(redirect.counters().redirected, holes.redirected, "{address}");
        }
        // The data is retransmitted, as if the second link's provider dropped the ACKs; no other flow is redirected
        // meanwhile.
        let to = server(SERVERS[0]);
        let mut session = connect(&wlan, to, None);
        let mut redirects = |families: AddressFamilies, pause: Duration| {
            redirect.set_families(Some(families)).unwrap();
            std::thread::sleep(pause);
            let before = redirect.counters().redirected;
            for pause in [Duration::from_millis(150), Duration::ZERO] {
                for _ in 0..60 {
                    wlan.tun.send(&session.data(&[7; 1400])).unwrap();
                    session.next = session.next.plus(1400);
                    let _ = session.stream.read(&mut [0; 65_536]);
                }
                std::thread::sleep(pause);
            }
            let acked_seq = session.next.plus(0_u32.wrapping_sub(1400));
            let again = NewSegment::data(&session.flow, acked_seq, session.received, 60_000, None, &[7; 1400]);
            wlan.tun.send(&again.emit().unwrap()).unwrap();
            redirect.counters().redirected > before
        };
        assert!(
            !redirects(AddressFamilies::V6, Duration::ZERO),
            "the second link does not have this address family"
        );
        assert!(redirects(AddressFamilies::V4, Duration::from_millis(1200)));
        let begun = Instant::now();
        let is_redirected = redirects(AddressFamilies::V4, Duration::from_millis(1100));
        assert!(!is_redirected || begun.elapsed() > Duration::from_millis(1900), "twice as long as for a hole");
        assert!(redirects(AddressFamilies::V4, Duration::from_millis(2200)));
        drop(redirect);
        let mut session = connect(&wlan, server(SERVERS[0]), None);
        while wwan.next(|_| true).is_some() {}
        wlan.tun.send(&session.data(b"x")).unwrap();
        assert_eq!(session.read_text(), "x");
        assert!(wlan.segment(server(SERVERS[0])).is_some(), "without the process ACKs leave unchanged");
    });
}

#[test]
fn acks_between_links_with_neighbors_are_redirected_to_the_second_router() {
    in_a_network(|| {
        for (name, n) in [("eth0", 1), ("eth1", 2)] {
            cable(name, &format!("10.{n}.0.2/24"));
            ip(&format!("link set {name}x address 02:00:00:00:00:0{n}"));
            ip(&format!("address add fd00:{n}::2/64 dev {name} nodad"));
            for (family, router) in [("-4", format!("10.{n}.0.1")), ("-6", format!("fd00:{n}::1"))] {
                ip(&format!("{family} route add default via {router} dev {name} metric {n}00"));
                ip(&format!("{family} neighbour add {router} lladdr 02:00:00:00:00:0{n} dev {name}"));
            }
        }
        let wanted = ["eth0", "eth1"].map(|name| LinkArg { name: name.into(), gateway: None });
        let survey = list_interfaces().unwrap();
        let links = resolve_links(&survey, &wanted).unwrap();
        let mut redirect = match BpfRedirect::attach(&links[0], &links[1], Bitrate::from_mbps(100)) {
            Err(error) => return eprintln!("skipped: {error}"),
            Ok(redirect) => redirect,
        };
        redirect.set_families(Some(links[1].families)).unwrap();
        let index = survey.by_name("eth1x").unwrap().index;
        let mut peer = Capture::open("eth1x", index, CaptureLevel::Headers).unwrap().unwrap();
        let primary = RawSocket::open(Some("eth0")).unwrap();
        for (from, to) in [("10.1.0.2:4000", SERVERS[0]), ("[fd00:1::2]:4000", SERVERS[1])] {
            let flow = FourTuple::new(server(from), server(to)).unwrap();
            let mut ack_count = 0;
            for n in 0..60 {
                let ack = NewSegment::data(&flow, Seq::new(7), Seq::new(1000 + n * 28_960), 500, None, &[]);
                primary.send(&ack.emit().unwrap()).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                while peer.receive().unwrap() {
                    let is_ack =
                        |packet: &[u8]| Segment::parse_head(packet).is_ok_and(|ack| ack.four_tuple() == flow);
                    ack_count += peer.packets().filter(|(packet, ..)| is_ack(packet)).count();
                }
            }
            assert!(ack_count >= 10, "{to}: {ack_count}");
        }
    });
}

#[test]
fn the_bpf_driver_follows_changes_of_links() {
    in_a_network(|| {
        let wlan = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let wwan = Line::new("wwan0", "10.2.0.2/24", "fd00:2::2/64", 200);
        ip("route add default via 10.2.0.1 dev wwan0 metric 150");
        let wanted = [("wlan0", Some("10.1.0.1".parse().unwrap())), ("wwan0", None)]
            .map(|(name, gateway)| LinkArg { name: name.into(), gateway });
        let secondary = SecondaryLink { up: Some(Bitrate::from_mbps(1)), ..SecondaryLink::new(LinkId(1)) };
        let config = Config {
            mechanisms: Mechanisms::of(&[Mechanism::AckOffload]),
            secondary_links: vec![secondary],
            ..Config::new(LinkId(0), None)
        };
        let links = resolve_links(&list_interfaces().unwrap(), &wanted).unwrap();
        let again = EngineConfig { links: links.clone(), ..setup("tcp") };
        let setup = EngineConfig { config, links, ..setup("tcp") };
        let engine = Engine::start(setup).unwrap();
        if status(&engine).driver != "bpf" {
            return eprintln!("skipped: the kernel does not redirect ACKs");
        }
        let probe = |line: &Line, gateway: &str| {
            let gateway: IpAddr = gateway.parse().unwrap();
            let is_question = |packet: &Packet<'_>| {
                packet.addrs().destination() == gateway && IcmpEcho::of(*packet).is_ok_and(|echo| !echo.is_reply)
            };
            (0..10).find_map(|_| line.next(is_question)).expect("the gateway is probed")
        };
        probe(&wwan, "10.2.0.1");
        let again = Engine::start(EngineConfig { flow_filter: "port 80".parse().unwrap(), ..again }).unwrap_err();
        assert_eq!(
            again.to_string(),
            super::AccelError::already_running("wlan0").to_string(),
            "although it has no rules"
        );
        ip("address del 10.2.0.2/24 dev wwan0");
        ip("address add 10.9.0.2/24 dev wwan0");
        ip("route add default via 10.9.0.1 dev wwan0 metric 150");
        probe(&wwan, "10.9.0.1");
        assert!(status(&engine).links[1].down);
        // A modem that is plugged in again is another interface.
        drop(wwan);
        let _other = Line::new("other0", "10.3.0.2/24", "fd00:3::2/64", 300);
        let wwan = Line::new("wwan0", "10.8.0.2/24", "fd00:2::2/64", 200);
        ip("route add default via 10.8.0.1 dev wwan0 metric 150");
        let begun = Instant::now();
        let answer = || {
            assert!(begun.elapsed() < Duration::from_secs(20), "the driver follows the link");
            let question = probe(&wwan, "10.8.0.1");
            let question = Packet::parse(&question).unwrap();
            let echo = IcmpEcho { is_reply: true, ..IcmpEcho::of(question).unwrap() };
            wwan.tun.send(&echo.emit(&question.addrs().reversed(), IpParams::default()).unwrap()).unwrap();
        };
        while status(&engine).links[1].down {
            answer();
        }
        drop(wlan);
        let wlan = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        let before = status(&engine).counts.captured;
        while status(&engine).counts.captured == before {
            answer();
            connect(&wlan, server(SERVERS[0]), None);
        }
    });
}

#[test]
fn unusable_links_are_refused_in_one_line() {
    in_a_network(|| {
        let _line = Line::new("wlan0", "10.1.0.2/24", "fd00:1::2/64", 100);
        ip("link add off0 type veth peer name off0x");
        cable("eth0", "10.7.0.2/24");
        let refused = |names: &[&str]| {
            let wanted: Vec<LinkArg> =
                names.iter().map(|name| LinkArg { name: (*name).into(), gateway: None }).collect();
            resolve_links(&list_interfaces().unwrap(), &wanted).unwrap_err().to_string()
        };
        for (names, expected) in [
            (&["wlan0", "wlan0"][..], "link wlan0: it is named twice"),
            (&["wlan1"], "link wlan1: no such interface"),
            (&["lo"], "link lo: it is the loopback"),
            (&["off0"], "link off0: it is down"),
            (&["eth0"], "link eth0: it has no gateway, as no default route leads over it"),
            (
                &["wlan0"],
                "link wlan0: its default route names no gateway, and 10.1.0.1, the likeliest, does not answer",
            ),
        ] {
            let line = refused(names);
            assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
        }
    });
}

#[test]
fn a_socket_file_names_its_link() {
    let temp_dir = tempfile::tempdir().unwrap();
    for name in ["accel-wwan0.sock", "accel-wlan0.sock", "paths.sock", "accel-x.lock"] {
        std::fs::write(temp_dir.path().join(name), "").unwrap();
    }
    assert_eq!(control::primaries(temp_dir.path()), ["wlan0", "wwan0"]);
    assert_eq!(control::socket(temp_dir.path(), "wlan0"), temp_dir.path().join("accel-wlan0.sock"));
}
