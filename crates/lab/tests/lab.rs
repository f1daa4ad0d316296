//! The lab with real namespaces, kernel TCP, nginx and curl: which bytes arrive, with which exit codes commands end, and that nothing is
//! left behind.
//!
//! No measured time decides: bytes, counters, order and exit codes do. Tests that the machine does not permit, or
//! whose programs are missing, are skipped with the reason.

#![allow(clippy::unwrap_used, reason = "a test without the standard harness is not known as one to clippy")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use marline_core::finding::Severity;
use marline_core::units::DataSize;
use marline_lab::{
    Congestion, Lab, LabSpec, Output, Payload, Segment, ServerTcp, Service, Task, acquire_privileges, doctor,
};
use socket2::{Domain, Protocol, Socket, Type};

/// The program that some tests start as a process of its own.
const LAB: &str = env!("CARGO_BIN_EXE_marline-lab");

type Test = (&'static str, fn());

const TESTS: [Test; 18] = [
    (
        "a_download_arrives_whole_over_the_link_that_was_chosen",
        a_download_arrives_whole_over_the_link_that_was_chosen,
    ),
    ("tls_with_the_labs_authority_and_http_2", tls_with_the_labs_authority_and_http_2),
    ("ipv6_works_over_each_link", ipv6_works_over_each_link),
    (
        "the_order_of_first_packets_is_the_order_of_the_delays",
        the_order_of_first_packets_is_the_order_of_the_delays,
    ),
    ("a_link_that_goes_down_drops_and_comes_back", a_link_that_goes_down_drops_and_comes_back),
    ("a_change_from_outside_takes_effect", a_change_from_outside_takes_effect),
    ("the_same_seed_loses_the_same_packets", the_same_seed_loses_the_same_packets),
    ("each_congestion_control_is_what_connections_get", each_congestion_control_is_what_connections_get),
    (
        "every_mptcp_subflow_has_the_congestion_control_that_was_asked_for",
        every_mptcp_subflow_has_the_congestion_control_that_was_asked_for,
    ),
    (
        "a_request_for_another_priority_is_seen_and_may_be_lost",
        a_request_for_another_priority_is_seen_and_may_be_lost,
    ),
    ("a_client_sees_its_links_only", a_client_sees_its_links_only),
    ("a_server_of_ones_own", a_server_of_ones_own),
    (
        "places_behind_the_server_are_reached_over_their_own_segments",
        places_behind_the_server_are_reached_over_their_own_segments,
    ),
    ("the_server_may_stand_behind_its_gateways", the_server_may_stand_behind_its_gateways),
    ("what_cannot_be_served_is_said", what_cannot_be_served_is_said),
    ("exit_codes_are_those_of_a_shell", exit_codes_are_those_of_a_shell),
    ("nothing_is_left_after_kill_9", nothing_is_left_after_kill_9),
    ("a_signal_ends_the_command_and_the_lab", a_signal_ends_the_command_and_the_lab),
];

fn main() -> ExitCode {
    if std::env::args().nth(1).is_some_and(|arg| arg == "fetch-over-mptcp") {
        return fetch_over_mptcp();
    }
    let wanted = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    if let Err(error) = acquire_privileges() {
        eprintln!("skipped: {error}");
        return ExitCode::SUCCESS;
    }
    let mut findings = doctor::check_machine().findings.into_iter();
    if let Some(missing) = findings.find(|finding| finding.severity == Severity::Blocks) {
        eprintln!("skipped: {}: {}", missing.name, missing.message);
        return ExitCode::SUCCESS;
    }
    let mut failed = 0;
    for (name, test) in TESTS.iter().filter(|(name, _)| wanted.as_ref().is_none_or(|w| name.contains(w.as_str()))) {
        // Run each test on a thread of its own, as the standard harness does.
        let ok = std::thread::spawn(test).join().is_ok();
        println!("test {name} ... {}", if ok { "ok" } else { "FAILED" });
        failed += u8::from(!ok);
    }
    ExitCode::from(failed)
}

fn has_program(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).chain(["/usr/sbin".into()]).any(|dir| dir.join(program).is_file());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

fn lab_spec(links: &[&str], service: Service) -> LabSpec {
    LabSpec { service, ..LabSpec::new(links.iter().map(|link| link.parse().unwrap()).collect()) }
}

fn curl(args: &[&str]) -> Task {
    Task::new("curl").args(["-sS", "--max-time", "60"]).args(args.iter().copied()).output(Output::Capture)
}

const TWO_LINKS: [&str; 2] = ["wifi,rate=80Mbit/s,rtt=20ms", "lte,rate=61Mbit/s,rtt=50ms"];

fn a_download_arrives_whole_over_the_link_that_was_chosen() {
    if !has_program("nginx") || !has_program("curl") {
        return;
    }
    let size = DataSize::from_bytes(3_000_001);
    let payload = Payload::new(size).unwrap();
    let lab = Lab::start(&lab_spec(&TWO_LINKS, Service::Files(payload.path()))).unwrap();
    for (device, at) in [("wifi", 0), ("lte", 1), ("10.1.0.2", 0), ("10.2.0.2", 1)] {
        let run = lab.run(&curl(&["--interface", device, "{url}"])).unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(run.stdout, std::fs::read(payload.path()).unwrap(), "{device}");
        let links = &run.emulation.links;
        assert!(links[at].downlink.delivered.bytes >= size, "{device}");
        // The last packets of the previous command may still have been in flight.
        assert!(links[1 - at].downlink.delivered.bytes < DataSize::from_kib(1), "{device}");
        let slots: u64 = links[at].down_timeline.iter().map(|slot| slot.bytes()).sum();
        assert_eq!(slots, links[at].downlink.delivered.bytes.bytes());
        let delivered: u64 = links.iter().map(|l| l.downlink.delivered.packets + l.uplink.delivered.packets).sum();
        assert_eq!(run.emulation.lateness.packets, delivered);
    }
    // If the client does not choose, the first link is used.
    let run = lab.run(&curl(&["-o", "/dev/null", "{url}"])).unwrap();
    assert!(run.emulation.links[1].downlink.delivered.bytes < DataSize::from_kib(1));
    assert!(run.emulation.links[0].downlink.delivered.bytes >= size);
}

fn tls_with_the_labs_authority_and_http_2() {
    if !has_program("nginx") || !has_program("curl") {
        return;
    }
    let payload = Payload::new(DataSize::from_kib(100)).unwrap();
    let lab = Lab::start(&lab_spec(&TWO_LINKS, Service::Files(payload.path()))).unwrap();
    let run = lab.run(&curl(&[
        "--cacert",
        "{ca}",
        "-o",
        "/dev/null",
        "-w",
        "%{http_version} %{size_download}",
        "{urls}",
    ]));
    let run = run.unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    assert_eq!(String::from_utf8_lossy(&run.stdout), "2 102400");
    let without_ca = lab.run(&curl(&["-o", "/dev/null", "{urls}"])).unwrap();
    assert_eq!(without_ca.status.code(), Some(60), "the authority is unknown without --cacert");
}

fn ipv6_works_over_each_link() {
    if !has_program("nginx") || !has_program("curl") || !Path::new("/proc/net/if_inet6").exists() {
        return;
    }
    let payload = Payload::new(DataSize::from_kib(10)).unwrap();
    let lab = Lab::start(&lab_spec(&TWO_LINKS, Service::Files(payload.directory().into()))).unwrap();
    for (at, device) in ["wifi", "lte"].iter().enumerate() {
        let run = lab.run(&curl(&["-g", "--interface", device, "http://[fd99::1]/random-10240"])).unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        assert_eq!(run.stdout.len(), 10_240);
        assert!(run.emulation.links[at].downlink.delivered.bytes >= DataSize::from_kib(10));
    }
}

fn the_order_of_first_packets_is_the_order_of_the_delays() {
    if !has_program("nginx") || !has_program("curl") {
        return;
    }
    let payload = Payload::new(DataSize::from_kib(1)).unwrap();
    let links = ["near,rate=50Mbit/s,rtt=10ms", "far,rate=50Mbit/s,rtt=600ms"];
    let lab = Lab::start(&lab_spec(&links, Service::Files(payload.path()))).unwrap();
    let both = "curl -sS --interface far {url} -o /dev/null & curl -sS --interface near {url} -o /dev/null; wait";
    let run = lab.run(&Task::new("sh").args(["-c", both]).output(Output::Capture)).unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let [near, slow] = [0, 1].map(|at| run.emulation.links[at].down_span.unwrap());
    assert!(slow.0 >= Duration::from_millis(600), "nothing arrives before one RTT: {slow:?}");
    assert!(near.0 < slow.0, "{near:?} {slow:?}");
}

fn a_link_that_goes_down_drops_and_comes_back() {
    if !has_program("nginx") || !has_program("curl") {
        return;
    }
    let payload = Payload::new(DataSize::from_bytes(4_000_000)).unwrap();
    let mut spec = lab_spec(&["wifi,rate=40Mbit/s,rtt=20ms"], Service::Files(payload.path()));
    spec.events = ["300ms:wifi=down", "700ms:wifi=up"].map(|event| event.parse().unwrap()).to_vec();
    let run = Lab::start(&spec).unwrap().run(&curl(&["{url}"])).unwrap();
    assert!(run.status.success());
    assert_eq!(run.stdout, std::fs::read(payload.path()).unwrap());
    let link = &run.emulation.links[0];
    assert!(link.downlink.dropped_down.packets > 0);
    // Packets in flight at 300 ms arrived within 10 ms; none was sent until 700 ms.
    let silent: u64 = link.down_timeline.iter().skip(4).take(3).map(|slot| slot.bytes()).sum();
    assert_eq!(silent, 0, "{:?}", link.down_timeline);
}

fn a_change_from_outside_takes_effect() {
    if !has_program("nginx") || !has_program("curl") {
        return;
    }
    let payload = Payload::new(DataSize::from_bytes(500_000_000)).unwrap();
    let lab = Lab::start(&lab_spec(&["wifi,rate=40Mbit/s,rtt=20ms"], Service::Files(payload.path()))).unwrap();
    assert!(lab.change_link("lte", "down".parse().unwrap()).is_err());
    let run = std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            lab.change_link("wifi", "down".parse().unwrap()).unwrap();
        });
        lab.run(
            &Task::new("curl")
                .args(["-sS", "-o", "/dev/null", "{url}"])
                .limit(Duration::from_secs(1))
                .output(Output::Capture),
        )
    });
    let run = run.unwrap();
    assert!(run.timed_out && run.status.code().is_none());
    assert!(run.emulation.links[0].downlink.dropped_down.packets > 0);
}

fn the_same_seed_loses_the_same_packets() {
    if !has_program("python3") {
        return;
    }
    // 200 datagrams, one at a time, so that the n-th loss decision of the uplink concerns the n-th datagram. The server returns each one.
    let server = "python3 -c 'import socket as s;u=s.socket(s.AF_INET,s.SOCK_DGRAM);u.bind((\"\",9));
while 1:\n d,a=u.recvfrom(99);u.sendto(d,a)'";
    let client = "import socket as s\nu=s.socket(s.AF_INET,s.SOCK_DGRAM);u.settimeout(.03)\nfor n in range(200):\n u.sendto(b'%d'%n,('10.99.0.1',9))\n try: print(u.recv(99))\n except TimeoutError: print('-')";
    let run = |seed| {
        let spec =
            LabSpec { seed, ..lab_spec(&["wifi,rate=9Mbit/s,rtt=2ms,loss=10%"], Service::Command(server.into())) };
        let run =
            Lab::start(&spec).unwrap().run(&Task::new("python3").args(["-c", client]).output(Output::Capture));
        let run = run.unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        run.emulation.links[0].uplink.dropped_loss.packets
    };
    let lost = run(7);
    assert_eq!(lost, run(7));
    assert!((4..=50).contains(&lost), "{lost} of 200 at 10 %");
}

fn each_congestion_control_is_what_connections_get() {
    let available =
        std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control").unwrap_or_default();
    for congestion in Congestion::ALL {
        if !available.split_whitespace().any(|name| name == congestion.name()) {
            eprintln!("skipped: this kernel has no {congestion}");
            continue;
        }
        let lab = Lab::start(&LabSpec { congestion, ..lab_spec(&TWO_LINKS, Service::None) }).unwrap();
        assert!(lab.congestion().is_granted(), "{:?}", lab.congestion());
    }
}

/// This program as a client: reads a file from port 80 over MPTCP and discards it.
fn fetch_over_mptcp() -> ExitCode {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).unwrap();
    socket.connect(&SocketAddr::from(([10, 99, 0, 1], 80)).into()).unwrap();
    let mut stream = std::net::TcpStream::from(socket);
    let path = std::env::args().nth(2).unwrap();
    write!(stream, "GET /{path} HTTP/1.0\r\n\r\n").unwrap();
    let count = std::io::copy(&mut stream, &mut std::io::sink()).unwrap();
    println!("{count}");
    ExitCode::SUCCESS
}

fn has_mptcp() -> bool {
    let enabled = std::fs::read_to_string("/proc/sys/net/mptcp/enabled").unwrap_or_default().trim() == "1";
    if !enabled {
        eprintln!("skipped: this kernel has no MPTCP, or it is switched off");
    }
    enabled && ["nginx", "ip", "ss"].into_iter().all(has_program)
}

/// Adds LTE as an endpoint, downloads `path` over MPTCP, and runs `during` meanwhile.
fn with_lte_joined(during: &str, path: &str) -> Task {
    let client = std::env::current_exe().unwrap();
    let args = format!(
        "ip mptcp limits set subflows 2 && ip mptcp endpoint add 10.2.0.2 id 7 dev lte subflow && \
         {{ {} fetch-over-mptcp {path} & }} && {during}; wait",
        client.display()
    );
    Task::new("sh").args(["-c", &args]).output(Output::Capture).limit(Duration::from_secs(60))
}

fn every_mptcp_subflow_has_the_congestion_control_that_was_asked_for() {
    if !has_mptcp() {
        return;
    }
    let payload = Payload::new(DataSize::from_bytes(6_000_000)).unwrap();
    for congestion in [Congestion::Cubic, Congestion::Bbr] {
        let sender = ServerTcp { mptcp: true, keeps_cwnd: true };
        let spec = LabSpec {
            congestion,
            sender,
            ..lab_spec(&["wifi,rate=8Mbit/s,rtt=20ms", "lte,rate=8Mbit/s,rtt=50ms"], Service::Files(payload.path()))
        };
        let lab = Lab::start(&spec).unwrap();
        if !lab.congestion().is_granted() {
            eprintln!("skipped: {congestion} is not there");
            continue;
        }
        let seen = std::thread::scope(|scope| {
            let client = scope.spawn(|| lab.run(&with_lte_joined("true", "random-6000000")).unwrap());
            let mut both = None;
            while !client.is_finished() && both.is_none() {
                let output =
                    lab.output_at_server(Command::new("ss").args(["-Htin", "state", "established"])).unwrap();
                let text = String::from_utf8(output.stdout).unwrap();
                both = (text.contains("10.1.0.2") && text.contains("10.2.0.2")).then_some(text);
                std::thread::sleep(Duration::from_millis(50));
            }
            let run = client.join().unwrap();
            assert!(run.stdout.starts_with(b"6000"), "{}", String::from_utf8_lossy(&run.stderr));
            assert!(run.emulation.links.iter().all(|link| link.downlink.delivered.packets > 100));
            both.expect("both subflows are established at once")
        });
        let details: Vec<&str> = seen.lines().filter(|line| line.contains("wscale")).collect();
        assert!(details.len() >= 2, "{seen}");
        assert!(details.iter().all(|line| line.trim().starts_with(congestion.name())), "{seen}");
        let idle =
            lab.output_at_server(Command::new("cat").arg("/proc/sys/net/ipv4/tcp_slow_start_after_idle")).unwrap();
        assert_eq!(idle.stdout, b"0\n", "windows survive a pause");
    }
}

fn a_request_for_another_priority_is_seen_and_may_be_lost() {
    if !has_mptcp() {
        return;
    }
    let payload = Payload::new(DataSize::from_bytes(6_000_000)).unwrap();
    let sender = ServerTcp { mptcp: true, keeps_cwnd: false };
    let links = ["wifi,rate=8Mbit/s,rtt=20ms", "lte,rate=8Mbit/s,rtt=50ms"];
    let lab = Lab::start(&LabSpec { sender, ..lab_spec(&links, Service::Files(payload.path())) }).unwrap();
    let change = |flag| format!("ip mptcp endpoint change 10.2.0.2 id 7 dev lte {flag}");
    let then = format!("sleep 1; {}; sleep 1; {}", change("backup"), change("nobackup"));
    for lost in [false, true] {
        let run = std::thread::scope(|scope| {
            if lost {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(300));
                    lab.lose_mp_prio("lte", 1).unwrap();
                });
            }
            lab.run(&with_lte_joined(&format!("{{ {then}; ip mptcp endpoint flush; }}"), "random-6000000")).unwrap()
        });
        let stderr = String::from_utf8_lossy(&run.stderr);
        let request: Vec<(bool, bool)> = run.emulation.links[1]
            .mp_prio_requests
            .iter()
            .map(|request| (request.backup, request.is_dropped))
            .collect();
        assert_eq!(request, [(true, lost), (false, false)], "{stderr}");
        assert!(run.emulation.links[0].mp_prio_requests.is_empty());
    }
    assert!(lab.lose_mp_prio("umts", 1).is_err());
}

fn a_client_sees_its_links_only() {
    let lab = Lab::start(&lab_spec(&["wifi,rate=9Mbit/s,mtu=1400B", "cell,rate=9Mbit/s,kind=lte"], Service::None))
        .unwrap();
    let script = "cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' ' | sort | tr '\\n' ' '; ls /sys/class/net | tr '\\n' ' '; \
                cat /sys/class/net/cell/ifalias /sys/class/net/wifi/mtu";
    let run = lab.run(&Task::new("sh").args(["-c", script]).output(Output::Capture)).unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "cell lo wifi cell lo wifi marline-lab kind=lte\n1400\n");
}

fn a_server_of_ones_own() {
    if !has_program("python3") || !has_program("curl") {
        return;
    }
    let lab =
        Lab::start(&lab_spec(&TWO_LINKS, Service::Command("exec python3 -m http.server 8000 2>/dev/null".into())))
            .unwrap();
    let run = lab.run(&curl(&["-o", "/dev/null", "-w", "%{http_code}", "http://10.99.0.1:8000/"])).unwrap();
    assert_eq!(String::from_utf8_lossy(&run.stdout), "200");
}

fn places_behind_the_server_are_reached_over_their_own_segments() {
    if !has_program("curl") {
        return;
    }
    let segment = |from, to, name: &str| Segment {
        from,
        to,
        link: format!("{name},rate=100Mbit/s,rtt=10ms").parse().unwrap(),
    };
    let segments = vec![segment(0, 1, "near"), segment(0, 2, "far"), segment(1, 2, "between")];
    let lab = Lab::start(&LabSpec { segments, ..lab_spec(&TWO_LINKS, Service::None) }).unwrap();
    // No program listens on that port: a refused connection shows that the packet arrived.
    let links_used = |to: &str| {
        let run = lab.run(&curl(&[&format!("http://{to}:9/")])).unwrap();
        assert_eq!(run.status.code(), Some(7), "{to}: {}", String::from_utf8_lossy(&run.stderr));
        let both =
            run.emulation.links.iter().filter(|l| l.uplink.delivered.packets.min(l.downlink.delivered.packets) > 0);
        both.map(|link| link.name.clone()).collect::<Vec<_>>()
    };
    // Each site is reached over its own segment to the server, and over the client's first link.
    assert_eq!(links_used("10.99.0.2"), ["wifi", "near"]);
    assert_eq!(links_used("10.99.0.3"), ["wifi", "far"]);
    assert_eq!(links_used("10.99.0.1"), ["wifi"]);
}

fn the_server_may_stand_behind_its_gateways() {
    if !has_program("nginx") || !has_program("curl") || !has_program("ip") {
        return;
    }
    let payload = Payload::new(DataSize::from_kib(300)).unwrap();
    let onward = Segment { from: 0, to: 1, link: "onward,rate=100Mbit/s,rtt=20ms".parse().unwrap() };
    let spec =
        LabSpec { segments: vec![onward], server_site: 1, ..lab_spec(&TWO_LINKS, Service::Files(payload.path())) };
    let lab = Lab::start(&spec).unwrap();
    assert!(lab.urls().unwrap().0.starts_with("http://10.99.0.2/"));
    // The gateway is the link's server end; the server is behind it, and its certificate names the site's address.
    let script = "ip -4 route show default; curl -sf --cacert {ca} {urls} | sha256sum";
    let run = lab.run(&Task::new("sh").args(["-c", script]).output(Output::Capture)).unwrap();
    let stdout = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success() && stdout.contains(payload.sha256()), "{stdout}");
    assert!(stdout.lines().any(|line| line.starts_with("default via 10.1.0.1 dev")), "{stdout}");
    let passed = |link: usize| run.emulation.links[link].downlink.delivered.bytes.bytes();
    assert!(passed(0) > 300 * 1024 && passed(2) > 300 * 1024 && passed(1) == 0);
}

fn what_cannot_be_served_is_said() {
    let error = |service| Lab::start(&lab_spec(&TWO_LINKS, service)).unwrap_err().to_string();
    assert!(error(Service::Command("echo no >&2; exit 3".into())).contains("exit status: 3"));
    if has_program("nginx") {
        assert!(error(Service::Files("/no/such/file".into())).contains("/no/such/file"));
    }
    let lab = Lab::start(&lab_spec(&TWO_LINKS, Service::None)).unwrap();
    assert!(lab.run(&Task::new("no-such-program-of-marline")).unwrap_err().to_string().contains("no-such-program"));
    assert!(lab.run(&Task::new("true")).unwrap().status.success(), "the lab is still usable");
}

/// PIDs of all processes whose environment contains this mark.
fn pids_with_mark(mark: &str) -> Vec<u32> {
    let pids =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has_mark = |pid: &u32| {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|window| window == mark.as_bytes())
    };
    pids.filter(has_mark).collect()
}

fn wait_until(description: &str, ready: impl Fn() -> bool) {
    let start = Instant::now();
    while !ready() {
        assert!(start.elapsed() < Duration::from_secs(20), "{description}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// `marline-lab exec` as a separate process; returns when the command has printed its first line.
fn separate_lab(mark: &str, command: &str) -> std::process::Child {
    let mut child = Command::new(LAB)
        .args(["exec", "--link", "wifi,rate=9Mbit/s", "--serve", "10kB", "--", "sh", "-c", command])
        .env("MARLINE_LAB_TEST", mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn nothing_is_left_after_kill_9() {
    if !has_program("nginx") {
        return;
    }
    let mark = format!("kill-9-of-{}", std::process::id());
    let mut child = separate_lab(&mark, "(sleep 1000 & sleep 1001 &) ; echo ready; sleep 1002");
    // The lab, nginx, the shell and three sleep processes.
    wait_until("all have started", || pids_with_mark(&mark).len() >= 6);
    let namespaces: Vec<_> = pids_with_mark(&mark)
        .iter()
        .filter_map(|pid| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok())
        .filter(|ns| *ns != std::fs::read_link("/proc/self/ns/net").unwrap())
        .collect();
    assert!(namespaces.len() >= 4, "{namespaces:?}");
    child.kill().unwrap();
    let _ = child.wait();
    wait_until("all have died", || pids_with_mark(&mark).is_empty());
    let prefix = format!("marline-lab-{}-", child.id());
    let folders = || {
        let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
        entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix))).count()
    };
    // A lab without temporary directory removes stale ones too.
    drop(Lab::start(&lab_spec(&TWO_LINKS, Service::None)).unwrap());
    assert_eq!(folders(), 0);
}

fn exit_codes_are_those_of_a_shell() {
    let exec = |args: &[&str]| {
        let mut command = Command::new(LAB);
        let output = command.args(["exec", "--link", "wifi,rate=9Mbit/s"]).args(args).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    assert_eq!(exec(&["--", "sh", "-c", "exit 42"]).0, Some(42));
    assert_eq!(exec(&["--", "sh", "-c", "kill -9 $$"]).0, Some(128 + 9));
    assert_eq!(exec(&["--", "no-such-program-of-marline"]).0, Some(127));
    assert_eq!(exec(&["--", "/dev/null"]).0, Some(126));
    let (code, message) = exec(&["--", "curl", "{url}"]);
    assert!(code == Some(64) && message.contains("nothing is served: add --serve"), "{code:?} {message}");
    let (code, message) = exec(&["--json", "/no/such/directory/r.json", "--", "sh", "-c", "echo it-was-run >&2"]);
    assert!(code == Some(1) && !message.contains("it-was-run"), "{code:?} {message}");
}

fn a_signal_ends_the_command_and_the_lab() {
    if !has_program("nginx") {
        return;
    }
    let mark = format!("term-of-{}", std::process::id());
    let mut child =
        separate_lab(&mark, "trap 'echo stopped; exit 42' TERM; echo ready; while :; do sleep 0.05; done");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let status = child.wait().unwrap();
    let mut remaining = String::new();
    child.stderr.take().unwrap().read_to_string(&mut remaining).unwrap();
    assert_eq!(status.code(), Some(42), "{remaining}");
    assert!(remaining.contains("lateness"), "the table is printed: {remaining}");
    wait_until("all have died", || pids_with_mark(&mark).is_empty());
}
