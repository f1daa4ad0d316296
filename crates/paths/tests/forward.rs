//! The forwarder between two networks of one's own: a program with plain TCP here, a server there.
//!
//! Each test makes two namespaces joined by a pair of devices. Namespaces belong to threads, so the forwarder, the
//! program and the server have a thread each. Without root, MPTCP or nft the tests are skipped, and say so.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use marline_paths::forward::{self, Config, Counts, ForwardError, Forwarder, Scope};
use marline_sys::mptcp::Spoken;
use marline_sys::namespace::{Network, is_privileged};
use socket2::{Domain, Protocol, SockRef, Socket, Type};

/// Two networks: the program's and the server's.
struct World {
    here: Network,
    there: Network,
}

const SERVER: [&str; 2] = ["10.9.0.2", "fd09::2"];
const PORT: u16 = 8080;

impl World {
    fn new() -> Option<Self> {
        let mptcp = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP));
        let nft = Command::new("nft").arg("--version").output();
        if !is_privileged() || mptcp.is_err() || nft.is_err() {
            eprintln!("skipped: needs root ({}), MPTCP ({}), nft", is_privileged(), mptcp.is_ok());
            return None;
        }
        let (here, there) = (Network::new().unwrap(), Network::new().unwrap());
        let name = format!("/proc/{}/fd/{}", std::process::id(), there.as_fd().as_raw_fd());
        ip(&here, &["link", "add", "w0", "type", "veth", "peer", "name", "w1", "netns", &name]);
        for (network, device, number) in [(&here, "w0", 1), (&there, "w1", 2)] {
            for words in [
                vec!["link", "set", "lo", "up"],
                vec!["addr", "add", &format!("10.9.0.{number}/24"), "dev", device],
                vec!["link", "set", device, "up"],
                vec!["addr", "add", &format!("fd09::{number}/64"), "dev", device, "nodad"],
            ] {
                ip(network, &words);
            }
        }
        Some(Self { here, there })
    }

    /// Serves one connection to `address`, by MPTCP or without.
    fn serve<T: Send + 'static>(
        &self,
        address: &str,
        mptcp: bool,
        work: impl FnOnce(TcpStream, SocketAddr) -> T + Send + 'static,
    ) -> thread::JoinHandle<T> {
        let listener = self.there.run(|| listener(address.parse().unwrap(), mptcp)).unwrap();
        thread::spawn(move || {
            let (connection, from) = listener.accept().unwrap();
            work(connection, from)
        })
    }

    fn connect(&self, address: &str, port: u16) -> io::Result<TcpStream> {
        self.here.run(|| TcpStream::connect(SocketAddr::new(address.parse().unwrap(), port)))
    }

    /// The rules that are in force here.
    fn rules(&self) -> String {
        let list = self.here.run(|| Command::new("nft").args(["list", "ruleset"]).output()).unwrap();
        String::from_utf8(list.stdout).unwrap()
    }

    /// Runs `work` while the forwarder runs.
    fn forwarded<T>(&self, config: Config, work: impl FnOnce(&Counts) -> T) -> T {
        let counts = Arc::new(Counts::default());
        let shared = Arc::clone(&counts);
        let forwarder = self.here.run(|| Ok(Forwarder::start(config, shared).unwrap())).unwrap();
        wait_for(|| self.rules().contains("tproxy to"));
        let result = work(&counts);
        drop(forwarder);
        result
    }
}

fn listener(address: IpAddr, mptcp: bool) -> io::Result<TcpListener> {
    let protocol = if mptcp { Protocol::MPTCP } else { Protocol::TCP };
    let address = SocketAddr::new(address, PORT);
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(protocol))?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(16)?;
    Ok(socket.into())
}

fn ip(network: &Network, words: &[&str]) {
    let output = network.run(|| Command::new("ip").args(words).output()).unwrap();
    assert!(output.status.success(), "ip {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Waits for what is bound to come; how long it takes decides nothing.
fn wait_for(mut ready: impl FnMut() -> bool) {
    let began = Instant::now();
    while !ready() {
        assert!(began.elapsed() < Duration::from_secs(20), "it did not come");
        thread::sleep(Duration::from_millis(10));
    }
}

fn noise(length: usize, seed: u32) -> Vec<u8> {
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
fn what_a_program_sends_and_hears_is_the_same_and_goes_by_mptcp() {
    let Some(world) = World::new() else { return };
    for address in SERVER {
        world.forwarded(Config::default(), |counts| {
            // The server hears everything to its end before it says anything: half-closed for the whole answer.
            let server = world.serve(address, true, |mut connection, _| {
                let mut heard = Vec::new();
                connection.read_to_end(&mut heard).unwrap();
                connection.write_all(&noise(9_000_000, 7)).unwrap();
                (Spoken::of(&connection).unwrap(), heard)
            });
            let mut program = world.connect(address, PORT).unwrap();
            assert_eq!(Spoken::of(&program).unwrap(), Spoken::Never);
            assert_eq!(program.peer_addr().unwrap().ip(), address.parse::<IpAddr>().unwrap());
            program.write_all(&noise(5_000_000, 3)).unwrap();
            program.shutdown(Shutdown::Write).unwrap();
            let mut heard = Vec::new();
            program.read_to_end(&mut heard).unwrap();
            assert!(heard == noise(9_000_000, 7), "{address}: {} bytes", heard.len());
            let (spoken, there) = server.join().unwrap();
            assert!(there == noise(5_000_000, 3), "{address}: {} bytes", there.len());
            assert_eq!(spoken, Spoken::Yes);
            assert_eq!((counts.mptcp(), counts.fallen_back(), counts.failed()), (1, 0, 0));
            wait_for(|| counts.open() == 0);
            assert_eq!(counts.bytes(), 14_000_000);
        });
        wait_for(|| world.rules().is_empty());
    }
}

#[test]
fn a_server_without_mptcp_is_reached_and_counted() {
    let Some(world) = World::new() else { return };
    world.forwarded(Config::default(), |counts| {
        let server = world.serve(SERVER[0], false, |mut connection, _| connection.write_all(b"plain").unwrap());
        let mut heard = String::new();
        world.connect(SERVER[0], PORT).unwrap().read_to_string(&mut heard).unwrap();
        server.join().unwrap();
        assert_eq!((heard.as_str(), counts.fallen_back(), counts.mptcp()), ("plain", 1, 0));
    });
}

#[test]
fn who_speaks_mptcp_himself_or_to_another_port_is_left_alone() {
    let Some(world) = World::new() else { return };
    let ports = vec!["1-79".parse().unwrap(), PORT.to_string().parse().unwrap()];
    world.forwarded(Config { scope: Scope { cgroup: None, ports }, ..Config::default() }, |counts| {
        let server = world.serve(SERVER[0], true, |connection, _| Spoken::of(&connection).unwrap());
        let connected = world.here.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP))?;
            socket.connect(&SocketAddr::new(SERVER[0].parse().unwrap(), PORT).into())?;
            Ok(socket)
        });
        assert_eq!(server.join().unwrap(), Spoken::Yes);
        drop(connected);
        // Nobody listens on port 80 there: the program hears it from the server itself, at once.
        let refused = world.connect(SERVER[0], 80).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!((counts.mptcp(), counts.fallen_back(), counts.failed()), (0, 0, 0));
    });
}

#[test]
fn who_is_bound_to_a_device_keeps_it_and_nothing_is_left_behind() {
    let Some(world) = World::new() else { return };
    let routing = || {
        // Whether a link has come up yet is no matter of routing.
        let show = |words: &[&str]| {
            let output = world.here.run(|| Command::new("ip").args(words).output()).unwrap();
            let text = String::from_utf8(output.stdout).unwrap().replace("linkdown ", "");
            // The kernel's own routes come with its addresses, some of them later.
            text.lines()
                .filter(|line| !line.contains("proto kernel"))
                .map(|line| format!("{line}\n"))
                .collect::<String>()
        };
        (show(&["rule"]), show(&["-6", "rule"]), show(&["route", "show", "table", "all"]))
    };
    let before = routing();
    world.forwarded(Config::default(), |counts| {
        for (address, domain) in [(SERVER[0], Domain::IPV4), (SERVER[1], Domain::IPV6)] {
            let server = world.serve(address, true, |connection, _| Spoken::of(&connection).unwrap());
            let connected = world.here.run(|| {
                let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
                socket.bind_device(Some(b"w0"))?;
                socket.connect(&SocketAddr::new(address.parse().unwrap(), PORT).into())?;
                Ok(socket)
            });
            assert!(connected.is_ok(), "{address}: {connected:?}");
            assert_eq!(server.join().unwrap(), Spoken::Never);
        }
        assert_eq!((counts.mptcp(), counts.fallen_back(), counts.failed()), (0, 0, 0));
        assert_ne!(routing(), before, "there is no detour");
    });
    assert_eq!(routing(), before);
}

#[test]
fn a_server_that_refuses_or_breaks_off_is_a_reset_for_the_program() {
    let Some(world) = World::new() else { return };
    world.forwarded(Config::default(), |counts| {
        // Nobody listens.
        let error = world.connect(SERVER[0], PORT).and_then(|mut program| program.read(&mut [0; 1])).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(counts.failed(), 1);
        let server = world.serve(SERVER[0], true, |mut connection, _| {
            connection.write_all(&noise(100_000, 1)).unwrap();
            SockRef::from(&connection).set_linger(Some(Duration::ZERO)).unwrap();
        });
        let error = world.connect(SERVER[0], PORT).unwrap().read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "half a file was taken for a whole");
        server.join().unwrap();
    });
}

#[test]
fn a_forwarder_that_ends_leaves_no_half_file_that_looks_whole() {
    let Some(world) = World::new() else { return };
    let (tell, told) = channel();
    let (mut program, server) = world.forwarded(Config::default(), |counts| {
        let server = world.serve(SERVER[0], true, move |mut connection, _| {
            connection.read_exact(&mut [0; 5]).unwrap();
            connection.write_all(b"half").unwrap();
            tell.send(()).unwrap();
            connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            connection.read(&mut [0; 1])
        });
        let mut program = world.connect(SERVER[0], PORT).unwrap();
        program.write_all(b"hello").unwrap();
        program.read_exact(&mut [0; 4]).unwrap();
        told.recv().unwrap();
        assert_eq!(counts.open(), 1);
        (program, server)
    });
    let ends = [program.read(&mut [0; 1]), server.join().unwrap()];
    for (who, end) in ["program", "server"].into_iter().zip(ends) {
        assert_eq!(end.unwrap_err().kind(), io::ErrorKind::ConnectionReset, "the {who} took it for a whole");
    }
}

#[test]
fn no_more_connections_than_the_limit_are_carried_and_the_others_wait() {
    let Some(world) = World::new() else { return };
    world.forwarded(Config { limit: 1, ..Config::default() }, |counts| {
        let listener = world.there.run(|| listener(SERVER[0].parse().unwrap(), true)).unwrap();
        let first = world.connect(SERVER[0], PORT).unwrap();
        let (there, _) = listener.accept().unwrap();
        let mut second = world.connect(SERVER[0], PORT).unwrap();
        second.write_all(b"later").unwrap();
        wait_for(|| counts.open() == 1);
        listener.set_nonblocking(true).unwrap();
        assert_eq!(listener.accept().unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop((first, there));
        listener.set_nonblocking(false).unwrap();
        let (mut there, _) = listener.accept().unwrap();
        let mut heard = [0; 5];
        there.read_exact(&mut heard).unwrap();
        assert_eq!(&heard, b"later");
    });
}

#[test]
fn the_rules_of_another_are_respected_and_those_of_nobody_replaced() {
    let Some(world) = World::new() else { return };
    // As a table that somebody added by hand, or that an older program left.
    world.here.run(|| Command::new("nft").args(["add", "table", "inet", "marline"]).status()).unwrap();
    world.forwarded(Config::default(), |_| {
        let second = world.here.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            Ok(runtime.block_on(forward::run(Config::default(), Arc::default())))
        });
        assert!(matches!(second.unwrap(), Err(ForwardError::Taken)));
        let detour = world.here.run(|| Command::new("ip").arg("rule").output()).unwrap();
        assert!(
            String::from_utf8_lossy(&detour.stdout).contains("fwmark 0x6d61"),
            "the first one's detour is gone"
        );
        assert!(world.rules().contains("tproxy to"), "the first one's rules were taken away");
        // A firewall that is loaded anew leaves them alone.
        world.here.run(|| Command::new("nft").args(["flush", "ruleset"]).status()).unwrap();
        assert!(world.rules().contains("tproxy to"));
    });
}

#[test]
fn the_rules_end_with_a_forwarder_that_is_killed() {
    let Some(world) = World::new() else { return };
    let mut killed = world.here.run(|| child(&[])).unwrap();
    wait_for(|| world.rules().contains("tproxy to"));
    killed.kill().unwrap();
    killed.wait().unwrap();
    wait_for(|| world.rules().is_empty());
    // And the next one begins as if nothing had been.
    world.forwarded(Config::default(), |_| ());
}

#[test]
fn without_nft_it_says_which_package_has_it() {
    let Some(world) = World::new() else { return };
    let child = world.here.run(|| child(&[("PATH", "/nonexistent")])).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("it is in the package nftables"), "{said}");
}

/// This program again, as a forwarder that runs until it is killed.
fn child(environment: &[(&str, &str)]) -> io::Result<std::process::Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--exact", "the_one_that_is_killed", "--nocapture", "--test-threads=1"]);
    command.env(CHILD, "1").envs(environment.iter().copied()).stdin(Stdio::null()).stdout(Stdio::piped());
    command.spawn()
}

const CHILD: &str = "MARLINE_TEST_FORWARDER";

#[test]
fn the_one_that_is_killed() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("{}", runtime.block_on(forward::run(Config::default(), Arc::default())).unwrap_err());
}

#[test]
fn only_programs_of_the_group_are_led_away() {
    let Some(world) = World::new() else { return };
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let Some(root) = mount.and_then(|line| line.split(' ').nth(4)) else {
        return eprintln!("skipped: no cgroup2 here");
    };
    let name = format!("marline-test-{}", std::process::id());
    let folder = std::path::Path::new(root).join(&name);
    if std::fs::create_dir(&folder).is_err() {
        return eprintln!("skipped: no group can be made in {root}");
    }
    let cgroup = match forward::Cgroup::find(std::path::Path::new(&name)) {
        Ok(cgroup) => cgroup,
        Err(why) => {
            std::fs::remove_dir(&folder).unwrap();
            return eprintln!("skipped: {why}");
        }
    };
    let config = Config { scope: Scope { cgroup: Some(cgroup), ports: Vec::new() }, ..Config::default() };
    world.forwarded(config, |counts| {
        let (tell, told) = channel();
        for (inside, spoken) in [(true, Spoken::Yes), (false, Spoken::Never)] {
            let tell = tell.clone();
            let server = world.serve(SERVER[0], true, move |connection, _| {
                tell.send(Spoken::of(&connection).unwrap()).unwrap();
            });
            let enter =
                if inside { format!("echo $$ > {}/cgroup.procs; ", folder.display()) } else { String::new() };
            let script = format!("{enter}exec 3<>/dev/tcp/{}/{PORT}; cat <&3", SERVER[0]);
            let program = world.here.run(|| Command::new("bash").args(["-c", &script]).status());
            assert!(program.unwrap().success());
            server.join().unwrap();
            assert_eq!(told.recv().unwrap(), spoken, "inside: {inside}");
        }
        assert_eq!(counts.mptcp(), 1);
    });
    std::fs::remove_dir(&folder).unwrap();
}
