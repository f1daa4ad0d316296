//! Tests of the transparent forwarder between two network namespaces: a program with plain TCP and a server.
//!
//! Each test creates two namespaces joined by a veth pair. Namespaces belong to threads, so the forwarder, the
//! program and the server each have a thread. Without root, MPTCP or nft the tests are skipped with a message.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use marline_paths::transparent::{self, Config, ForwardError, Forwarder, ForwarderCounters, Scope};
use marline_sys::mptcp::MptcpStatus;
use marline_sys::namespace::{NetNs, is_privileged};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Two network namespaces: the program's and the server's.
struct TestNetworks {
    client_netns: NetNs,
    server_netns: NetNs,
}

const SERVER: [&str; 2] = ["10.9.0.2", "fd09::2"];
const PORT: u16 = 8080;

impl TestNetworks {
    fn new() -> Option<Self> {
        let mptcp = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
        let nft = Command::new("nft").arg("--version").output();
        if !is_privileged() || mptcp.is_err() || nft.is_err() {
            eprintln!("skipped: needs root ({}), MPTCP ({}), nft", is_privileged(), mptcp.is_ok());
            return None;
        }
        let (client_netns, server_netns) = (NetNs::new().unwrap(), NetNs::new().unwrap());
        let netns_path = format!("/proc/{}/fd/{}", std::process::id(), server_netns.as_fd().as_raw_fd());
        run_ip(&client_netns, &["link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", &netns_path]);
        for (netns, device, number) in [(&client_netns, "w0", 1), (&server_netns, "w1", 2)] {
            for arguments in [
                vec!["link", "set", "lo", "up"],
                vec!["addr", "add", &format!("10.9.0.{number}/24"), "dev", device],
                vec!["link", "set", device, "up"],
                vec!["addr", "add", &format!("fd09::{number}/64"), "dev", device, "nodad"],
            ] {
                run_ip(netns, &arguments);
            }
        }
        Some(Self { client_netns, server_netns })
    }

    /// Serves one connection to `address`, with MPTCP or plain TCP.
    fn serve<T: Send + 'static>(
        &self,
        address: &str,
        mptcp: bool,
        action: impl FnOnce(TcpStream, SocketAddr) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let server_socket = self.server_netns.run(|| bind_listener(address.parse().unwrap(), mptcp)).unwrap();
        thread::spawn(move || {
            let (connection, from) = server_socket.accept().unwrap();
            action(connection, from)
        })
    }

    fn connect(&self, address: &str, port: u16) -> io::Result<TcpStream> {
        self.client_netns.run(|| TcpStream::connect(SocketAddr::new(address.parse().unwrap(), port)))
    }

    /// The nftables rules of the program's namespace.
    fn nft_rules(&self) -> String {
        let output = self.client_netns.run(|| Command::new("nft").args(["list", "ruleset"]).output()).unwrap();
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `action` while the forwarder runs.
    fn with_forwarder<T>(&self, config: Config, action: impl FnOnce(&ForwarderCounters) -> T) -> T {
        let counters = Arc::new(ForwarderCounters::default());
        let counters_clone = Arc::clone(&counters);
        let forwarder = self.client_netns.run(|| Ok(Forwarder::start(config, counters_clone).unwrap())).unwrap();
        wait_until(|| self.nft_rules().contains("tproxy to"));
        let result = action(&counters);
        drop(forwarder);
        result
    }
}

fn bind_listener(address: IpAddr, mptcp: bool) -> io::Result<TcpListener> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let address = SocketAddr::new(address, PORT);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(16)?;
    Ok(socket.into())
}

fn run_ip(netns: &NetNs, arguments: &[&str]) {
    let output = netns.run(|| Command::new("ip").args(arguments).output()).unwrap();
    assert!(output.status.success(), "ip {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for an expected condition; the time that it takes does not matter.
fn wait_until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < Duration::from_secs(20), "the condition did not hold in time");
        thread::sleep(Duration::from_millis(10));
    }
}

fn pseudo_random_bytes(length: usize, seed: u32) -> Vec<u8> {
    let mut state = seed | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

#[test]
fn data_is_forwarded_unchanged_over_mptcp() {
    let Some(networks) = TestNetworks::new() else { return };
    for address in SERVER {
        networks.with_forwarder(Config::default(), |counters| {
            // The server reads everything before it responds, so the connection is half-closed for the whole
            // response.
            let server = networks.serve(address, true, |mut connection, _| {
                let mut received = Vec::new();
                connection.read_to_end(&mut received).unwrap();
                connection.write_all(&pseudo_random_bytes(9_000_000, 7)).unwrap();
                (MptcpStatus::query(&connection).unwrap(), received)
            });
            let mut program = networks.connect(address, PORT).unwrap();
            assert_eq!(MptcpStatus::query(&program).unwrap(), MptcpStatus::PlainTcp);
            assert_eq!(program.peer_addr().unwrap().ip(), address.parse::<IpAddr>().unwrap());
            program.write_all(&pseudo_random_bytes(5_000_000, 3)).unwrap();
            program.shutdown(Shutdown::Write).unwrap();
            let mut received = Vec::new();
            program.read_to_end(&mut received).unwrap();
            assert!(received == pseudo_random_bytes(9_000_000, 7), "{address}: {} bytes", received.len());
            let (mptcp_status, request) = server.join().unwrap();
            assert!(request == pseudo_random_bytes(5_000_000, 3), "{address}: {} bytes", request.len());
            assert_eq!(mptcp_status, MptcpStatus::Negotiated);
            assert_eq!((counters.mptcp(), counters.fallen_back(), counters.failed()), (1, 0, 0));
            wait_until(|| counters.open() == 0);
            assert_eq!(counters.bytes(), 14_000_000);
        });
        wait_until(|| networks.nft_rules().is_empty());
    }
}

#[test]
fn a_server_without_mptcp_is_reached_and_counted() {
    let Some(networks) = TestNetworks::new() else { return };
    networks.with_forwarder(Config::default(), |counters| {
        let server = networks.serve(SERVER[0], false, |mut connection, _| connection.write_all(b"plain").unwrap());
        let mut received = String::new();
        networks.connect(SERVER[0], PORT).unwrap().read_to_string(&mut received).unwrap();
        server.join().unwrap();
        assert_eq!((received.as_str(), counters.fallen_back(), counters.mptcp()), ("plain", 1, 0));
    });
}

#[test]
fn mptcp_sockets_and_other_ports_are_not_redirected() {
    let Some(networks) = TestNetworks::new() else { return };
    let ports = vec!["1-79".parse().unwrap(), PORT.to_string().parse().unwrap()];
    networks.with_forwarder(Config { scope: Scope { cgroup: None, ports }, ..Config::default() }, |counters| {
        let server = networks.serve(SERVER[0], true, |connection, _| MptcpStatus::query(&connection).unwrap());
        let connected = networks.client_netns.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
            socket.connect(&SocketAddr::new(SERVER[0].parse().unwrap(), PORT).into())?;
            Ok(socket)
        });
        assert_eq!(server.join().unwrap(), MptcpStatus::Negotiated);
        drop(connected);
        // No program listens on port 80 there: the client receives the refusal of the server itself, at once.
        let refused = networks.connect(SERVER[0], 80).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!((counters.mptcp(), counters.fallen_back(), counters.failed()), (0, 0, 0));
    });
}

#[test]
fn sockets_bound_to_a_device_are_not_redirected_and_nothing_is_left_behind() {
    let Some(networks) = TestNetworks::new() else { return };
    let routing = || {
        // Exclude the link state, which does not concern routing.
        let show = |arguments: &[&str]| {
            let output = networks.client_netns.run(|| Command::new("ip").args(arguments).output()).unwrap();
            let text = String::from_utf8(output.stdout).unwrap().replace("linkdown ", "");
            // The kernel adds its own routes with the addresses, some of them later.
            text.lines()
                .filter(|line| !line.contains("proto kernel"))
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        (show(&["rule"]), show(&["-6", "rule"]), show(&["route", "show", "table", "all"]))
    };
    let before = routing();
    networks.with_forwarder(Config::default(), |counters| {
        for (address, domain) in [(SERVER[0], Domain::IPV4), (SERVER[1], Domain::IPV6)] {
            let server = networks.serve(address, true, |connection, _| MptcpStatus::query(&connection).unwrap());
            let connected = networks.client_netns.run(|| {
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.bind_device(Some(b"w0"))?;
                socket.connect(&SocketAddr::new(address.parse().unwrap(), PORT).into())?;
                Ok(socket)
            });
            assert!(connected.is_ok(), "{address}: {connected:?}");
            assert_eq!(server.join().unwrap(), MptcpStatus::PlainTcp);
        }
        assert_eq!((counters.mptcp(), counters.fallen_back(), counters.failed()), (0, 0, 0));
        assert_ne!(routing(), before, "there is no policy route");
    });
    assert_eq!(routing(), before);
}

#[test]
fn a_refusal_or_failure_of_the_server_resets_the_program() {
    let Some(networks) = TestNetworks::new() else { return };
    networks.with_forwarder(Config::default(), |counters| {
        // No program listens at this port.
        let error =
            networks.connect(SERVER[0], PORT).and_then(|mut program| program.read(&mut [0; 1])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(counters.failed(), 1);
        let server = networks.serve(SERVER[0], true, |mut connection, _| {
            connection.write_all(&pseudo_random_bytes(100_000, 1)).unwrap();
            SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
        });
        let error = networks.connect(SERVER[0], PORT).unwrap().read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "half a file was taken for a whole");
        server.join().unwrap();
    });
}

#[test]
fn a_forwarder_that_ends_resets_open_connections() {
    let Some(networks) = TestNetworks::new() else { return };
    let (status_tx, status_rx) = channel();
    let (mut program, server) = networks.with_forwarder(Config::default(), |counters| {
        let server = networks.serve(SERVER[0], true, move |mut connection, _| {
            connection.read_exact(&mut [0; 5]).unwrap();
            connection.write_all(b"half").unwrap();
            status_tx.send(()).unwrap();
            connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            connection.read(&mut [0; 1])
        });
        let mut program = networks.connect(SERVER[0], PORT).unwrap();
        program.write_all(b"hello").unwrap();
        program.read_exact(&mut [0; 4]).unwrap();
        status_rx.recv().unwrap();
        assert_eq!(counters.open(), 1);
        (program, server)
    });
    let results = [program.read(&mut [0; 1]), server.join().unwrap()];
    for (end_name, end) in ["program", "server"].into_iter().zip(results) {
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "the {end_name} took it for a whole");
    }
}

#[test]
fn connections_beyond_the_limit_wait() {
    let Some(networks) = TestNetworks::new() else { return };
    networks.with_forwarder(Config { max_connections: 1, ..Config::default() }, |counters| {
        let listener = networks.server_netns.run(|| bind_listener(SERVER[0].parse().unwrap(), true)).unwrap();
        let first = networks.connect(SERVER[0], PORT).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let mut second = networks.connect(SERVER[0], PORT).unwrap();
        second.write_all(b"later").unwrap();
        wait_until(|| counters.open() == 1);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((first, accepted));
        listener.set_nonblocking(false).unwrap();
        let (mut accepted, _) = listener.accept().unwrap();
        let mut received = [0; 5];
        accepted.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"later");
    });
}

#[test]
fn rules_of_another_owner_are_kept_and_those_without_owner_replaced() {
    let Some(networks) = TestNetworks::new() else { return };
    // A table without an owner, as added by hand or left by an older program.
    networks.client_netns.run(|| Command::new("nft").args(["add", "table", "inet", "marline"]).status()).unwrap();
    networks.with_forwarder(Config::default(), |_| {
        let second = networks.client_netns.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(transparent::run(Config::default(), Arc::default())))
        });
        assert!(matches!(second.unwrap(), Err(ForwardError::AlreadyOwned)));
        let rules = networks.client_netns.run(|| Command::new("ip").arg("rule").output()).unwrap();
        assert!(
            String::from_utf8_lossy(&rules.stdout).contains("fwmark 0x6d61"),
            "the policy route of the first forwarder was removed"
        );
        assert!(networks.nft_rules().contains("tproxy to"), "the rules of the first forwarder were removed");
        // Reloading a firewall does not remove them.
        networks.client_netns.run(|| Command::new("nft").args(["flush", "ruleset"]).status()).unwrap();
        assert!(networks.nft_rules().contains("tproxy to"));
    });
}

#[test]
fn the_rules_end_with_a_forwarder_that_is_killed() {
    let Some(networks) = TestNetworks::new() else { return };
    let mut process = networks.client_netns.run(|| spawn_forwarder_process(&[])).unwrap();
    wait_until(|| networks.nft_rules().contains("tproxy to"));
    process.kill().unwrap();
    process.wait().unwrap();
    wait_until(|| networks.nft_rules().is_empty());
    // The next forwarder starts normally.
    networks.with_forwarder(Config::default(), |_| ());
}

#[test]
fn without_nft_the_error_names_the_package() {
    let Some(networks) = TestNetworks::new() else { return };
    let child = networks.client_netns.run(|| spawn_forwarder_process(&[("PATH", "/nonexistent")])).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("package nftables"), "{text}");
}

/// Starts this test program as a forwarder that runs until it is killed.
fn spawn_forwarder_process(environment: &[(&str, &str)]) -> io::Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "forwarder_process_to_be_killed", "--nocapture", "--test-threads=1"]);
    command.env(CHILD_ENV, "1").envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn()
}

const CHILD_ENV: &str = "MARLINE_TEST_FORWARDER";

#[test]
fn forwarder_process_to_be_killed() {
    if std::env::var_os(CHILD_ENV).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{}", runtime.block_on(transparent::run(Config::default(), Arc::default())).unwrap_err());
}

#[test]
fn only_programs_of_the_control_group_are_redirected() {
    let Some(networks) = TestNetworks::new() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(root) = mount.and_then(|line| line.split(' ').nth(4)) else {
        return eprintln!("skipped: no cgroup2 here");
    };
    let name = format!("marline-test-{}", std::process::id());
    let cgroup_dir = std::path::Path::new(root).join(&name);
    if std::fs::create_dir(&cgroup_dir).is_err() {
        return eprintln!("skipped: no group can be made in {root}");
    }
    let cgroup = match transparent::Cgroup::find(std::path::Path::new(&name)) {
        Ok(cgroup) => cgroup,
        Err(reason) => {
            std::fs::remove_dir(&cgroup_dir).unwrap();
            return eprintln!("skipped: {reason}");
        }
    };
    let config = Config { scope: Scope { cgroup: Some(cgroup), ports: Vec::new() }, ..Config::default() };
    networks.with_forwarder(config, |counters| {
        let (status_tx, status_rx) = channel();
        for (inside, mptcp_status) in [(true, MptcpStatus::Negotiated), (false, MptcpStatus::PlainTcp)] {
            let status_tx = status_tx.clone();
            let server = networks.serve(SERVER[0], true, move |connection, _| {
                status_tx.send(MptcpStatus::query(&connection).unwrap()).unwrap();
            });
            let join_cgroup =
                if inside { format!("echo $$ > {}/cgroup.procs; ", cgroup_dir.display()) } else { String::new() };
            let script = format!("{join_cgroup}exec 3<>/dev/tcp/{}/{PORT}; cat <&3", SERVER[0]);
            let program = networks.client_netns.run(|| Command::new("bash").args(["-c", &script]).status());
            assert!(program.unwrap().success());
            server.join().unwrap();
            assert_eq!(status_rx.recv().unwrap(), mptcp_status, "inside: {inside}");
        }
        assert_eq!(counters.mptcp(), 1);
    });
    std::fs::remove_dir(&cgroup_dir).unwrap();
}
