//! `marline accel`: invalid arguments, and downloads with curl over an accelerated link of a laboratory, while the accelerator
//! starts, is killed and stops.
//!
//! No timing decides, but bytes, packet rules and exit codes. Where the machine permits no laboratory, or has no iptables, the
//! reason is printed and the test is skipped.

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::common;

fn marline(args: &[&str]) -> Output {
    Command::new(common::marline()).args(args).output().unwrap()
}

#[test]
fn invalid_arguments_are_refused_in_one_line_before_anything_changes() {
    for (args, code, expected) in [
        ("", 64, "--primary <IFACE>"),
        ("--primary lo", 64, "link lo: it is the loopback"),
        ("--primary lo --secondary lo", 64, "link lo: it is named twice"),
        ("--primary nosuch0", 69, "link nosuch0: no such interface; `marline links` lists"),
        ("--primary lo --enable offlod", 64, "unknown mechanism `offlod`; use ack-offload, eifel-undo"),
        (
            "--primary lo --enable ack-offload",
            64,
            "--enable ack-offload: it needs a second link; name one with --secondary",
        ),
        ("--primary lo --enable fast-fetch", 64, "--enable fast-fetch: it needs a second link"),
        (
            "--primary lo --secondary x --enable eifel-undo --disable eifel-undo",
            64,
            "--enable eifel-undo: it is in --disable, too",
        ),
        ("--primary lo --disable eifel-undo,withheld-ack,outage-revert", 64, "no mechanism is left"),
        ("--primary lo --flows tcp~dst~prot~443", 64, "`prot`: expected `port N`"),
        ("--primary lo --flows port~443~or", 64, "it ends where"),
        ("--primary lo --secondary x --secondary-up 5", 64, "a rate such as 20Mbit/s"),
        ("--primary lo --secondary x --secondary-down 0bit/s", 64, "is of no use"),
        ("--primary lo --secondary-up 5Mbit/s", 64, "--secondary-up: it is given 1 times, and --secondary 0 times"),
        ("--primary lo --primary-gateway here", 64, "invalid value 'here'"),
        ("--primary lo --via relay.example:4443", 64, "a relay ends the connections that it carries"),
        ("status --run-dir /nonexistent/marline", 1, "no marline accel daemon runs in this network namespace"),
    ] {
        let args: Vec<String> = args.split_whitespace().map(|arg| arg.replace('~', " ")).collect();
        let args: Vec<&str> = std::iter::once("accel").chain(args.iter().map(String::as_str)).collect();
        let output = marline(&args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(expected) && stderr.lines().count() == 1, "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

/// Exits with a different code for each failure.
const CLIENT: &str = r#"
cd "$PLACE"
rules() { iptables -t mangle -S 2>/dev/null; ip6tables -t mangle -S 2>/dev/null; }
ours() { rules | grep -c marline; }
start() {
    "$MARLINE" accel --primary wifi --secondary lte --run-dir run "$@" >last.json 2>>daemon.log & daemon=$!
    until "$MARLINE" accel status --run-dir run --json >status.json 2>/dev/null; do
        kill -0 $daemon 2>/dev/null || { cat daemon.log >&2; exit 99; }
        sleep 0.1
    done
}
intact() { [ "$(sha256sum got | cut -d' ' -f1)" = "$MARLINE_LAB_SHA256" ]; }
rules >before
# A run from beginning to end.
start --json
[ $(ours) = 12 ] || exit 11
# A terminal that closes, or `systemctl reload`: it goes on.
for n in 1 2; do
    kill -HUP $daemon
    until [ $(grep -c 'SIGHUP: nothing to reload' daemon.log) = $n ]; do
        kill -0 $daemon 2>/dev/null || exit 10
        sleep 0.1
    done
done
curl -sS --max-time 60 -o got "$MARLINE_LAB_URL" || exit 12
[ $(ours) = 12 ] || exit 11
intact || exit 13
"$MARLINE" accel status --run-dir run --json >status.json || exit 14
"$MARLINE" accel status --run-dir run >status.txt || exit 14
"$MARLINE" accel --primary wifi --run-dir run 2>second.log && exit 15
[ $(ours) = 12 ] || exit 16
"$MARLINE" accel stop --run-dir run 2>stop.log || exit 17
wait $daemon || exit 18
mv last.json first.json
rules | cmp -s before - || exit 19
# It is killed during a download: the download goes on.
start
rm -f got
curl -sS --max-time 60 -o got "$MARLINE_LAB_URL" & curl=$!
until [ -s got ]; do kill -0 $curl || exit 21; sleep 0.1; done
kill -9 $daemon; wait $daemon
[ $(ours) = 12 ] || exit 22
wait $curl || exit 23
intact || exit 24
# The next start replaces its rules, and a signal stops it.
start --flows 'tcp dst port 1'
[ $(ours) = 12 ] || exit 31
curl -sS --max-time 60 -o got "$MARLINE_LAB_URL" || exit 32
intact || exit 33
"$MARLINE" accel status --run-dir run --json >unmeant.json || exit 34
kill -INT $daemon; wait $daemon || exit 35
rules | cmp -s before - || exit 36
# `stop` with another run directory leaves the rules of one that runs. No second one starts, also beside the BPF driver.
start --flows 'host 10.99.0.1'
"$MARLINE" accel stop --run-dir elsewhere 2>/dev/null || exit 37
[ $(ours) = 10 ] || exit 38
"$MARLINE" accel stop --run-dir run 2>/dev/null && wait $daemon || exit 39
start --disable eifel-undo,withheld-ack,outage-revert --secondary-up 400kbit/s
"$MARLINE" accel --primary wifi --run-dir run 2>third.log && exit 40
"$MARLINE" accel stop --run-dir run 2>/dev/null && wait $daemon || exit 40
# `stop` removes rules of a killed run as well.
start
kill -9 $daemon; wait $daemon
"$MARLINE" accel stop --run-dir run 2>swept.log || exit 41
rules | cmp -s before - || exit 42
"$MARLINE" accel stop --run-dir run 2>again.log || exit 43
exit 0
"#;

/// Kills it while early-acked holes are open, until the repair process has reported that it filled some. The download may be
/// slow, as it runs at this loss without acceleration, but must make progress.
const KILLED_WITH_HOLES: &str = r#"
cd "$PLACE"
start() {
    "$MARLINE" accel --primary wifi --secondary lte --run-dir run --enable early-ack 2>>daemon.log & daemon=$!
    until "$MARLINE" accel status --run-dir run --json >status.json 2>/dev/null; do
        kill -0 $daemon 2>/dev/null || { cat daemon.log >&2; exit 99; }
        sleep 0.1
    done
}
# Starts a download, and kills the daemon while a hole is open. Fails if the download ended before.
kill_with_hole() {
    rm -f got
    curl -sS --speed-limit 1 --speed-time 30 -o got "$MARLINE_LAB_URL" 2>curl.log & curl=$!
    until grep -q '"missing_bytes": *[1-9]' status.json; do
        kill -0 $curl 2>/dev/null || return 1
        "$MARLINE" accel status --run-dir run --json >status.json || exit 22
    done
    eval "$BEFORE"
    kill -9 $daemon; wait $daemon
    return 0
}
repaired() { for i in $(seq 300); do ls run/*.pending >/dev/null 2>&1 || return 0; sleep 0.1; done; ls run; return 1; }
for turn in $(seq 20); do
    start
    if ! kill_with_hole; then
        wait $curl || exit 21
        kill -9 $daemon; wait $daemon
        continue
    fi
    eval "$AFTER"
done
exit 26
"#;

/// The download completes, and is intact.
const INTACT: &str = r#"
wait $curl || { echo "curl: $?: $(cat curl.log)" >&2; exit 23; }
[ "$(sha256sum got | cut -d' ' -f1)" = "$MARLINE_LAB_SHA256" ] || exit 24
repaired || exit 25
[ $(grep -c ' 0 flows were reset' daemon.log) = $(grep -c 'flows were reset' daemon.log) ] || exit 27
[ $(grep -c '[1-9] holes were filled' daemon.log) -lt 3 ] || exit 0
"#;

/// Nothing can be fetched: the repair process's connections cannot be opened.
const BARRED: &str = "iptables -I OUTPUT -p tcp --syn -j DROP";

/// The download ends with a connection error (56), not with a stall (28), and the server is reset, too.
const RESET: &str = r#"
killed=$(date +%s%3N)
wait $curl; code=$?
echo "ended after $(($(date +%s%3N) - killed)) ms with $code" >>ended.log
iptables -D OUTPUT -p tcp --syn -j DROP
repaired || exit 25
# The hole may have been filled just before the kill.
if [ $code = 0 ]; then continue; fi
[ $code = 56 ] || { cat curl.log >&2; exit 23; }
grep -q ' 1 flows were reset' daemon.log || exit 27
exit 0
"#;

/// Downloads until the mirrored connection has filled a hole, then runs `$THEN`; the download completes.
const MIRRORED: &str = r#"
cd "$PLACE"
"$MARLINE" accel --primary wifi --secondary lte --run-dir run --enable fast-fetch,early-ack 2>>daemon.log & daemon=$!
until "$MARLINE" accel status --run-dir run --json >status.json 2>/dev/null; do
    kill -0 $daemon 2>/dev/null || { cat daemon.log >&2; exit 99; }
    sleep 0.1
done
curl -sS --max-time 150 -o got "$MARLINE_LAB_URL" & curl=$!
until grep -q '"filled_holes": *[1-9]' status.json; do
    kill -0 $curl 2>/dev/null || exit 21
    sleep 0.1
    "$MARLINE" accel status --run-dir run --json >status.json || exit 22
done
cp status.json filled.json
"$MARLINE" accel status --run-dir run >status.txt
eval "$THEN"
wait $curl || exit 23
[ "$(sha256sum got | cut -d' ' -f1)" = "$MARLINE_LAB_SHA256" ] || exit 24
"$MARLINE" accel status --run-dir run --json >status.json || exit 25
"$MARLINE" accel stop --run-dir run 2>stop.log || exit 26
wait $daemon || exit 27
! iptables -t mangle -S 2>/dev/null | grep -q marline || exit 28
exit 0
"#;

/// As root, in a run directory of another user, and in one of its own where another user has planted files. The victim belongs
/// to root, and the planted names are those that a run with one of the next process numbers would use.
const PLANTED: &str = r#"
cd "$PLACE"
echo 'secret of root' >victim; chmod 600 victim
repairers() { for p in /proc/[0-9]*/cmdline; do tr '\0' ' ' <$p 2>/dev/null; echo; done | grep -c "accel [r]epair.*$PLACE"; }
plant() {
    mkdir $1
    for n in $(seq $(( $$ + 1 )) $(( $$ + 300 ))); do ln -s ../victim $1/accel-wifi-$n.pending; done
    ln victim $1/accel-wifi-4194001.pending
    ln -s ../victim $1/accel-wifi-4194002.pending
    echo '[]' >$1/accel-wifi-4194003.pending
    ln -s ../victim $1/accel-wifi.sock
    chown -h nobody $1/accel-wifi-[0-9]*.pending $1/accel-wifi.sock
    # The hard link is the victim itself.
    chown root victim
}
intact() { [ "$(cat victim)" = 'secret of root' ] && [ "$(stat -c %a victim)" = 600 ]; }
plant given; chown nobody given
timeout 20 "$MARLINE" accel --primary wifi --enable early-ack --run-dir "$PLACE/given" 2>refused.log; echo $? >refused.code
cannot='not permitted|NFQUEUE'
grep -qE "$cannot" refused.log && { cat refused.log >&2; exit 99; }
intact || exit 51
[ $(repairers) = 0 ] || exit 52
plant own
"$MARLINE" accel --primary wifi --enable early-ack --run-dir "$PLACE/own" 2>own.log & daemon=$!
until "$MARLINE" accel status --run-dir "$PLACE/own" --json >status.json 2>/dev/null; do
    kill -0 $daemon 2>/dev/null || { cat own.log >&2; exit 99; }
    sleep 0.1
done
intact || exit 53
[ $(repairers) = 1 ] || exit 54
[ "$(stat -c '%F %a' own/accel-wifi.sock)" = 'socket 600' ] || exit 55
"$MARLINE" accel stop --run-dir "$PLACE/own" 2>/dev/null || exit 56
wait $daemon || exit 57
intact || exit 58
exit 0
"#;

/// A file that a script has written.
fn read(dir: &Path, name: &str) -> String {
    std::fs::read_to_string(dir.join(name)).unwrap_or_default()
}

/// Runs a script over two links with a server of a file of this size. Returns false if this machine cannot, and prints the reason.
fn run_script(dir: &Path, bytes: &str, links: [&str; 2], script: &str) -> bool {
    run_script_with(dir, bytes, links, script, &[])
}

/// The same, with these variables.
fn run_script_with(dir: &Path, bytes: &str, links: [&str; 2], script: &str, variables: &[(&str, &str)]) -> bool {
    let lacks = |program: &str, arg: &str| Command::new(program).arg(arg).output().is_err();
    if lacks("iptables", "--version") || lacks("curl", "-V") {
        eprintln!("skipped: needs the programs iptables and curl");
        return false;
    }
    let mut command = common::lab();
    command.args(["exec", "--serve", bytes, "--link", links[0], "--link", links[1]]);
    command.args(["--", "bash", "-c", script]);
    command.env("PLACE", dir).env("HOME", dir);
    command.envs(variables.iter().copied());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let cannot = ["not permitted", "NFQUEUE"].iter().any(|pattern| stderr.contains(pattern));
    match output.status.code() {
        Some(77) => eprintln!("skipped: {stderr}"),
        Some(99) if cannot => eprintln!("skipped: marline accel: {stderr}"),
        code => {
            let (log, status) = (read(dir, "daemon.log"), read(dir, "status.json"));
            assert_eq!(code, Some(0), "{stderr}\nthe daemon: {log}\n{status}");
            return true;
        }
    }
    false
}

/// A link with 2 % of loss, and one for fetches.
const LOSSY: [&str; 2] = ["wifi,rate=20Mbit/s,rtt=50ms,loss=2%,uploss=0%", "lte,rate=2Mbit/s,rtt=120ms"];

#[test]
fn early_acked_holes_are_filled_after_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("BEFORE", "true"), ("AFTER", INTACT)];
    if run_script_with(dir.path(), "3MB", LOSSY, KILLED_WITH_HOLES, &variables) {
        println!("{}", read(dir.path(), "daemon.log"));
    }
}

#[test]
fn a_flow_that_cannot_be_repaired_when_it_is_killed_ends_with_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let variables = [("BEFORE", BARRED), ("AFTER", RESET)];
    if run_script_with(dir.path(), "3MB", LOSSY, KILLED_WITH_HOLES, &variables) {
        println!("{}{}", read(dir.path(), "ended.log"), read(dir.path(), "daemon.log"));
    }
}

#[test]
fn a_run_directory_of_another_user_is_refused_and_nothing_planted_is_followed() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give files away");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=20Mbit/s,rtt=20ms", "lte,rate=2Mbit/s,rtt=50ms"];
    if run_script(dir.path(), "1MB", links, PLANTED) {
        let log = read(dir.path(), "refused.log");
        assert_eq!(read(dir.path(), "refused.code").trim(), "1", "{log}");
        assert!(log.lines().count() == 1 && log.contains("given: it belongs to another user"), "{log}");
        assert!(log.contains("--run-dir"), "{log}");
    }
}

#[test]
fn a_mirrored_connection_fills_holes_and_the_download_is_intact_without_its_link() {
    for then in ["true", "ip link set lte down"] {
        let dir = tempfile::tempdir().unwrap();
        let links = ["wifi,rate=10Mbit/s,rtt=50ms,loss=1%,uploss=0%", "lte,rate=900kbit/s,up=400kbit/s,rtt=100ms"];
        let script = format!("THEN='{then}'\n{MIRRORED}");
        if !run_script(dir.path(), "20MB", links, &script) {
            return;
        }
        let filled: Value = serde_json::from_str(&read(dir.path(), "filled.json")).unwrap();
        let conn = &filled[0]["flows"][0]["mirrored_conn"];
        assert!(
            conn["filled_bytes"].as_u64().unwrap() > 0 && conn["skipped_bytes"].as_u64().unwrap() > 0,
            "{conn}"
        );
        assert!(conn["received_bytes"].as_u64() > conn["filled_bytes"].as_u64(), "{conn}");
        let text = read(dir.path(), "status.txt");
        assert!(text.contains("a mirrored connection has filled"), "{text}");
        println!("{then}: {}", read(dir.path(), "status.json"));
    }
}

#[test]
fn a_download_is_intact_while_the_accelerator_starts_is_killed_and_stops() {
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=30Mbit/s,rtt=30ms", "lte,rate=2Mbit/s,rtt=80ms"];
    if !run_script(dir.path(), "6MB", links, CLIENT) {
        return;
    }
    let read = |name: &str| read(dir.path(), name);
    let json = |name: &str| serde_json::from_str::<Value>(&read(name)).unwrap();
    let status = &json("status.json")[0];
    let names: Vec<&str> =
        status["links"].as_array().unwrap().iter().map(|l| l["name"].as_str().unwrap()).collect();
    assert_eq!((names, &status["links"][0]["gateway"]), (vec!["wifi", "lte"], &Value::from("10.1.0.1")));
    assert_eq!(json("unmeant.json")[0]["counts"]["queued"], 0, "flows outside of the filter are not queued");
    let first = json("first.json");
    assert!(first["counts"]["queued"].as_u64().unwrap() > 100, "{first}");
    let mechanisms = ["ack-offload", "eifel-undo", "withheld-ack", "outage-revert"];
    assert_eq!(first["mechanisms"], serde_json::json!(mechanisms));
    assert_eq!(read("last.json"), "", "the final status is printed only with --json");
    assert!(read("second.log").contains("another `marline accel` serves it already"), "{}", read("second.log"));
    assert!(read("third.log").contains("another `marline accel` serves it already"), "{}", read("third.log"));
    assert!(read("stop.log").contains("wifi: stopped; everything is as it was before"), "{}", read("stop.log"));
    assert!(read("swept.log").contains("wifi: removed packet rules of a killed run"), "{}", read("swept.log"));
    assert!(read("again.log").contains("no `marline accel` runs here"), "{}", read("again.log"));
    assert!(read("status.txt").contains("wifi  primary"), "{}", read("status.txt"));
}
