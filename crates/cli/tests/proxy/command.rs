//! The command lines of `proxy` and `play`.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::proxy::Proxy;
use crate::server::{Resource, Server};

fn marline(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_marline")).args(args).env("HOME", "/nonexistent").output().unwrap()
}

fn refused(args: &[&str], code: i32, expected: &str) {
    let output = marline(args);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), line.lines().count()), (Some(code), 1), "{args:?}: {line}");
    assert!(line.contains(expected), "{args:?}: {line}");
}

#[test]
fn a_failed_start_is_explained_in_one_line() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _held = TcpListener::bind(taken).unwrap();
    let taken = taken.to_string();
    refused(&["proxy", "--listen", &taken], 1, "the port is already in use");
    refused(&["proxy", "--listen", "0.0.0.0:0"], 64, "--allow-lan");
    refused(&["proxy", "--listen", "127.0.0.1:0", "--status-listen", "0.0.0.0:0", "--allow-lan"], 64, "0.0.0.0:0");
    refused(&["proxy", "--listen", "here"], 64, "invalid");
    refused(&["proxy", "--window", "32"], 64, "32");
    for option in ["--window", "--memory"] {
        for size in ["0B", "1B", "1000KiB"] {
            refused(&["proxy", option, size], 64, option);
            refused(&["proxy", option, size], 64, "use 1MiB or more");
        }
    }
    for metered in [&[][..], &["--metered", "avoid"], &["--metered", "never"]] {
        refused(&[&["proxy", "--goal", "cost"], metered].concat(), 64, "needs --metered use");
    }
    for lan in [&[][..], &["--allow-lan"]] {
        let args = [&["proxy", "--listen", "127.0.0.1:0", "--status-listen", "192.168.91.1:1"], lan].concat();
        refused(&args, 64, "--status-listen 192.168.91.1:1: status and events are served on this machine only");
    }
    refused(&["proxy", "--ca-file", "/nonexistent"], 64, "/nonexistent");
    refused(&["proxy", "--listen", "192.0.2.1:0", "--allow-lan"], 1, "no such address");
    refused(&["play", "film.mp4"], 64, "http://");
    refused(&["play", "--player", "/nonexistent/player", "--listen", &taken, "http://h/f"], 64, "no such program");
}

#[test]
fn a_proxy_ends_with_success_on_int_and_term() {
    for signal in [Signal::INT, Signal::TERM] {
        assert_eq!(Proxy::start(&[]).stop(signal), Some(0));
    }
}

#[test]
fn an_ignored_proxy_variable_is_reported() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_marline"))
        .args(["proxy", "--listen", "127.0.0.1:0", "--status-listen", "127.0.0.1:0"])
        .env("HOME", "/nonexistent")
        .env("https_proxy", "http://me:secret@proxy.example:3128")
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok) {
        stderr += &line;
        if line.contains("https_proxy is set but ignored") {
            break;
        }
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(child.wait().unwrap().success());
    assert!(!stderr.contains("secret"), "{stderr}");
}

#[test]
fn play_prints_the_page_of_the_proxy_that_it_starts() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let args = ["play", "--page", "--listen", &free, "https://h/film.mp4"];
    let mut child = Command::new(env!("CARGO_BIN_EXE_marline"))
        .args(args)
        .env("HOME", "/nonexistent")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let page = line.trim().strip_suffix("play#https://h/film.mp4").map(str::to_owned);
    refused(&args, 1, "a proxy is running already");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert!(page.is_some_and(|page| page.starts_with("http://127.0.0.1:")), "{line}");
}

#[test]
fn play_prints_the_address_or_starts_the_player() {
    let resource = Resource::new(100_000);
    let server = Server::honest(&resource);
    let proxy = Proxy::start(&[]);
    let listen = proxy.address.to_string();
    let url = server.url("/film");
    let printed = marline(&["play", "--listen", &listen, &url]);
    assert_eq!(String::from_utf8(printed.stdout).unwrap(), format!("{}\n", proxy.media_url(&url)));
    assert!(printed.stderr.is_empty());
    let printed = marline(&["play", "--listen", &listen, "example.org/a<b"]);
    assert_eq!(
        String::from_utf8(printed.stdout).unwrap(),
        format!("{}\n", proxy.media_url("http://example.org/a%3Cb"))
    );

    let dir = tempfile::tempdir().unwrap();
    let player = dir.path().join("player");
    std::fs::write(&player, "#!/bin/sh\ncurl -s -o \"$1\" \"$2\"\nexit 3\n").unwrap();
    std::fs::set_permissions(&player, std::fs::Permissions::from_mode(0o755)).unwrap();
    // With a running proxy, and with a proxy that `play` starts itself.
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    for (listen, out) in [(&listen, "one"), (&free, "two")] {
        let out = dir.path().join(out);
        let with = format!("{} {}", player.display(), out.display());
        let played = marline(&["play", "--player", &with, "--listen", listen, &url]);
        let stderr = String::from_utf8_lossy(&played.stderr).into_owned();
        assert_eq!(played.status.code(), Some(3), "{stderr}");
        assert!(!stderr.contains("marline: ") || stderr.contains("status http"), "{stderr}");
        assert!(std::fs::read(&out).unwrap() == *resource.data);
    }
}
