//! SIGHUP, sent by a closing terminal or `systemctl reload`: it ends no daemon, although those without certificates have nothing to
//! reload.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use crate::namespaces::MARLINE;
use crate::routers::run_in_network;

#[test]
fn daemons_without_certificates_report_that_nothing_is_reloaded() {
    let home = tempfile::tempdir().unwrap();
    let run = home.path().join("run");
    for (words, ready) in [
        (format!("paths --dry-run --run-dir {}", run.display()), "dry run"),
        ("proxy --listen 127.0.0.1:0 --status-listen 127.0.0.1:0".to_owned(), "player page"),
    ] {
        let mut daemon = Command::new(MARLINE);
        daemon.args(words.split(' ')).env("HOME", home.path()).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut daemon = daemon.stdout(Stdio::null()).spawn().unwrap();
        let mut stderr = BufReader::new(daemon.stderr.take().unwrap()).lines();
        let mut until = |words: &str| {
            let mut all = String::new();
            loop {
                let Some(line) = stderr.next() else { return Err(all) };
                all += &(line.unwrap() + "\n");
                if all.contains(words) {
                    return Ok(());
                }
            }
        };
        let kill = |signal: &str| Command::new("kill").args([signal, &daemon.id().to_string()]).status().unwrap();
        if let Err(all) = until(ready) {
            assert!(words.starts_with("paths"), "{all}");
            eprintln!("skipped: {all}");
            continue;
        }
        for _ in 0..2 {
            kill("-HUP");
            until("SIGHUP: nothing to reload").unwrap_or_else(|all| panic!("{words} has ended: {all}"));
        }
        kill("-TERM");
        daemon.wait().unwrap();
    }
}

#[test]
fn paths_keeps_managing_after_sighup_and_restores_the_host_at_its_end() {
    let script = r#"
link wan1 1 10.0.1.2 10.0.1.1; link wan2 2 10.0.2.2 10.0.2.1
state() { ip rule; ip -6 rule; ip route show table all | grep -v fe80::; ip mptcp endpoint; ip mptcp limits; nft list ruleset; sysctl -a 2>/dev/null -r 'net.(mptcp|ipv4.tcp|core)'; }
state >before
paths
state >while; cmp -s before while && echo "nothing was changed"
for n in 1 2; do
    kill -HUP $daemon
    until [ $(grep -c "SIGHUP: nothing to reload" paths.log) = $n ]; do sleep 0.05; kill -0 $daemon; done
done
state >after; diff while after && echo "as before the signal"
carried 2000000 "" wan1 wan2
kill $daemon; wait $daemon; echo "$?"
state >after; diff before after && echo "as before"
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["as before the signal", "wan1 wan2 ", "0", "as before"], "{lines:#?}");
}
