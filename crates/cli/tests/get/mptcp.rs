//! `--mptcp` over two links: servers with and without MPTCP, and a link that is removed.
//!
//! The kernel's own path manager has an endpoint on `lte0`. The server's side of each link is limited, so that one link is
//! not enough. The interface counters show what each link carried.

use std::fs;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::process::{Command, Stdio};

use rustix::net::ipproto::MPTCP;
use rustix::net::{AddressFamily, SocketType, bind, listen, socket};

use crate::network::Network;
use crate::program::link;
use crate::server::{Resource, Server};

const SIZE: usize = 3_000_000;

/// Two links with an endpoint, and a server of a file, with MPTCP if `mptcp`. None, with a printed reason, if this kernel lacks MPTCP.
fn setup(mptcp: bool) -> Option<(Network, Resource, Server)> {
    let network = Network::two_links()?;
    if socket(AddressFamily::INET, SocketType::STREAM, Some(MPTCP)).is_err() {
        eprintln!("skipped: this kernel has no MPTCP");
        return None;
    }
    for (link, net) in [("wifi0", 1), ("lte0", 2)] {
        network.client_ip(&format!(
            "route add default via 10.77.{net}.1 dev {link} table {net}0\nrule add from 10.77.{net}.2 table {net}0\n"
        ));
        let slow =
            format!("-n {} qdisc add dev peer{net} root tbf rate 20mbit burst 40k limit 150k", network.server());
        assert!(Command::new("tc").args(slow.split(' ')).status().unwrap().success());
    }
    network.client_ip("mptcp endpoint add 10.77.2.2 dev lte0 subflow\n");
    let listener = network.in_server_namespace(move || {
        let fd = socket(AddressFamily::INET, SocketType::STREAM, mptcp.then_some(MPTCP))?;
        bind(&fd, &SocketAddrV4::new(Ipv4Addr::new(203, 0, 113, 9), 0))?;
        listen(&fd, 64)?;
        Ok(TcpListener::from(fd))
    });
    let resource = Resource::new(SIZE);
    let all = resource.clone();
    Some((network, resource, Server::on(listener, move |request| all.respond(request))))
}

/// How many bytes the client has received over a link.
fn received_bytes(network: &Network, link: &str) -> u64 {
    let path = format!("/sys/class/net/{link}/statistics/rx_bytes");
    let args = ["netns", "exec", &network.client(), "cat", &path];
    let output = Command::new("ip").args(args).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}

#[test]
fn one_connection_to_an_mptcp_server_uses_both_links() {
    let Some((network, resource, server)) = setup(true) else { return };
    let program = network.program();
    let ended = program.run(&[&server.url("/file"), "-o", "out", "--json", "--mptcp"]);
    let report = ended.report();
    assert!(fs::read(program.path("out")).unwrap() == *resource.data);
    assert_eq!(report["mptcp"], "spoken", "{report}");
    assert!(
        server.requests().iter().all(super::server::Request::over_wifi),
        "the other link has connections of its own"
    );
    assert_eq!(link(&report, "lte0")["connections"], 0, "{report}");
    assert!(
        received_bytes(&network, "lte0") > 200_000,
        "the subflow was not used: {}",
        received_bytes(&network, "lte0")
    );
}

#[test]
fn each_link_has_its_own_connections_to_a_server_without_mptcp() {
    let Some((network, resource, server)) = setup(false) else { return };
    let program = network.program();
    let ended = program.run(&[&server.url("/file"), "-o", "out", "--json", "--mptcp"]);
    let report = ended.report();
    assert!(fs::read(program.path("out")).unwrap() == *resource.data);
    assert_eq!(report["mptcp"], "fell-back", "{report}");
    ended.assert_notice("does not support MPTCP; each link uses its own connections");
    assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn when_the_first_link_is_removed_the_other_one_carries_the_rest() {
    let Some((network, resource, server)) = setup(true) else { return };
    let program = network.program();
    let running = program.start(&[&server.url("/file"), "-o", "out", "--json", "--mptcp"]);
    server.wait_sent(500_000);
    network.client_ip("link del wifi0\n");
    let report = running.wait().report();
    assert!(fs::read(program.path("out")).unwrap() == *resource.data);
    assert_eq!(report["mptcp"], "spoken", "{report}");
    assert!(link(&report, "lte0")["bytes"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn paths_transparent_carries_a_plain_tcp_program_over_both_links() {
    let Some((network, resource, server)) = setup(true) else { return };
    if Command::new("nft").arg("--version").output().is_err() {
        return eprintln!("skipped: nft is not installed");
    }
    let program = network.program();
    let run_dir = program.path("run");
    // `paths` itself adds the rules that `setup` has added, and it replaces the endpoint of the kernel's path manager.
    network.client_ip("mptcp endpoint flush\nrule del from 10.77.1.2\nrule del from 10.77.2.2\n");
    // `ip netns exec` executes the program in its own process, so this child is the process that is killed below.
    let start = || {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &network.client(), env!("CARGO_BIN_EXE_marline"), "paths", "run"]);
        command.args(["--transparent", "--goal", "speed", "--link", "wifi0", "--link", "lte0"]);
        command.arg("--run-dir").arg(&run_dir).env("HOME", program.dir()).stderr(Stdio::null()).spawn().unwrap()
    };
    let rules = || {
        let list = ["netns", "exec", &network.client(), "nft", "list", "ruleset"];
        String::from_utf8(Command::new("ip").args(list).output().unwrap().stdout).unwrap()
    };
    let wait_for = |present: bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while rules().contains("tproxy") != present {
            assert!(std::time::Instant::now() < end, "timeout; tproxy rules exist: {}", !present);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    let mut paths = start();
    wait_for(true);
    let url = server.url("/file");
    let curl = || {
        let curl = ["netns", "exec", &network.client(), "curl", "-sS", "--max-time", "60", &url];
        Command::new("ip").args(curl).output().unwrap()
    };
    let output = curl();
    assert!(output.stdout == *resource.data, "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        received_bytes(&network, "lte0") > 200_000,
        "the other link was not used: {}",
        received_bytes(&network, "lte0")
    );
    paths.kill().unwrap();
    paths.wait().unwrap();
    wait_for(false);
    assert!(curl().stdout == *resource.data, "without the redirect, the client reaches the server directly");
    let mut paths = start();
    wait_for(true);
    rustix::process::kill_process(rustix::process::Pid::from_child(&paths), rustix::process::Signal::INT).unwrap();
    assert!(paths.wait().unwrap().success());
    assert_eq!(rules(), "");
}
