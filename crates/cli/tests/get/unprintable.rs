//! Untrusted text on the terminal: no control, bidirectional or invisible character from a server or the kernel reaches standard
//! output or standard error.

use std::process::{Command, Output, Stdio};

use marline_net::printable::is_unprintable;

use crate::program::marline;
use crate::server::{Response, Server};

/// One character of each kind: C1 control (CSI for many terminals), bidirectional override, zero width, line separator, tag.
const MARKS: &str = "x\u{9b}31m\u{202e}evil\u{200b}\u{2028}\u{e0041}";

/// Runs `marline get` against a server that sends exactly this response.
fn get(response: Vec<u8>, args: &[&str], log: Option<&str>) -> Output {
    let home = tempfile::tempdir().unwrap();
    let server = Server::start(move |_| Response::garbage(&response));
    let url = server.url("/file");
    let mut command = marline(home.path(), &["get", "--retry", "1", "--max-time", "5s"]);
    if let Some(log) = log {
        command.env("MARLINE_LOG", log);
    }
    command.args(args).arg(url).output().unwrap()
}

fn assert_clean(output: &Output, description: &str) {
    for (name, bytes) in [("stdout", &output.stdout), ("stderr", &output.stderr)] {
        let text = String::from_utf8_lossy(bytes);
        let bad = text.chars().find(|c| *c != '\n' && is_unprintable(*c));
        assert!(bad.is_none(), "{description}: {bad:?} on {name}: {text:?}");
    }
}

#[test]
fn no_header_of_a_server_reaches_the_terminal_unescaped() {
    let plain = "Content-Length: 3\r\n";
    for head in [
        format!("HTTP/1.1 200 OK\r\n{plain}Content-Encoding: {MARKS}\r\n"),
        format!("HTTP/1.1 200 OK\r\n{plain}Content-Type: text/{MARKS}\r\n"),
        format!("HTTP/1.1 200 OK\r\n{plain}ETag: \"{MARKS}\"\r\nAccept-Ranges: {MARKS}\r\n"),
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: {MARKS}\r\n"),
        format!("HTTP/1.1 200 OK\r\n{plain}Content-Disposition: attachment; filename=\"{MARKS}\"\r\n"),
        format!("HTTP/1.1 206 Partial\r\n{plain}Content-Range: bytes {MARKS}\r\n"),
        format!("HTTP/1.1 302 Found\r\n{plain}Location: {MARKS}://h/\r\n"),
        format!("HTTP/1.1 302 Found\r\n{plain}Location: http://127.0.0.1:1/{MARKS}\r\n"),
        format!("HTTP/1.1 404 {MARKS}\r\n{plain}"),
        format!("HTTP/1.1 503 {MARKS}\r\n{plain}Retry-After: {MARKS}\r\n"),
        format!("HTTP/1.1 401 no\r\n{plain}WWW-Authenticate: Basic realm=\"{MARKS}\"\r\n"),
        format!("{MARKS}\r\n"),
    ] {
        let response = format!("{head}\r\nabc").into_bytes();
        for (args, log) in [(&[][..], None), (&["--json"][..], Some("trace"))] {
            assert_clean(&get(response.clone(), args, log), &head);
        }
    }
}

#[test]
fn names_of_interfaces_are_escaped() {
    let name = "\u{1b}[31m\u{202e}w0";
    assert!(name.len() <= 15);
    let script =
        format!("ip link add name '{name}' type dummy && ip link set '{name}' up && \"$MARLINE\" links \"$@\"");
    for args in [&[][..], &["--json"]] {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-ec", &script, "sh"]).args(args);
        let output = command.env("MARLINE", env!("CARGO_BIN_EXE_marline")).stdin(Stdio::null()).output();
        let Ok(output) = output else { return eprintln!("skipped: needs unshare") };
        if output.stdout.is_empty() {
            return eprintln!("skipped: no namespaces, or no dummy interfaces, here");
        }
        assert_clean(&output, "marline links");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("\\u001b[31m\\u202ew0"), "{text}");
    }
}
