//! `marline paths` and `marline run` over kernel MPTCP: a real nginx and a real curl in a lab, with links that fail
//! and links that are suspended.
//!
//! No measured time decides: bytes, packets and states do. Where the machine permits no lab, or its kernel has no
//! MPTCP, the reason is printed and the test is skipped.

use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use crate::common;

/// The client's script: starts the daemon, runs curl as an MPTCP program, and ends the daemon.
const CLIENT: &str = r#"
"$MARLINE" paths run --policy marline --energy-model emptcp-s3 --run-dir "$PLACE/run" \
    --link wifi,kind=wifi --link lte,kind=lte >"$PLACE/daemon.log" 2>&1 &
daemon=$!
for turn in $(seq 100); do
    "$MARLINE" paths status --run-dir "$PLACE/run" --json >"$PLACE/status.json" 2>"$PLACE/status.log" && break
    kill -0 $daemon 2>/dev/null || { cat "$PLACE/daemon.log" >&2; exit 99; }
    sleep 0.1
done
"$MARLINE" run -- curl -sS --max-time 100 -o "$PLACE/out" "$MARLINE_LAB_URL"
code=$?
sleep 1
"$MARLINE" paths status --run-dir "$PLACE/run" --json >"$PLACE/status.json"
kill $daemon
wait $daemon
sha256sum "$PLACE/out" | cut -d' ' -f1 >"$PLACE/sum"
echo "$MARLINE_LAB_SHA256" | cmp - "$PLACE/sum" >&2 || exit 98
exit $code
"#;

/// The same with a daemon that selects its links itself; `lte` is plugged in while curl downloads.
const PLUGGED_IN: &str = r#"
mkfifo "$PLACE/away" "$PLACE/back"
unshare --net sh -c 'echo >"$PLACE/away"; read now <"$PLACE/back"; ip link set lte netns "$1"' sh $$ & elsewhere=$!
read now <"$PLACE/away"
address=$(ip -o -4 address show dev lte | sed 's/.* inet \([^ ]*\).*/\1/')
ip link set lte netns $elsewhere
rules() { ip rule; ip -6 rule; ip route show table all | grep "proto 109"; }
rules >"$PLACE/before"
"$MARLINE" paths run --goal speed --energy-model none --run-dir "$PLACE/run" >"$PLACE/daemon.log" 2>&1 &
daemon=$!
for turn in $(seq 100); do
    "$MARLINE" paths status --run-dir "$PLACE/run" --json >"$PLACE/first.json" 2>"$PLACE/status.log" && break
    kill -0 $daemon 2>/dev/null || { cat "$PLACE/daemon.log" >&2; exit 99; }
    sleep 0.1
done
"$MARLINE" run -- curl -sS --max-time 100 -o "$PLACE/out" "$MARLINE_LAB_URL" & curl=$!
until [ -s "$PLACE/out" ]; do kill -0 $curl || exit 94; sleep 0.1; done
echo >"$PLACE/back"
wait $elsewhere || exit 97
ip address add "$address" dev lte
ip link set lte up
ip route add default dev lte metric 101
wait $curl; code=$?
"$MARLINE" paths status --run-dir "$PLACE/run" --json >"$PLACE/status.json"
rules >"$PLACE/while"
kill $daemon
wait $daemon
rules >"$PLACE/after"
cmp "$PLACE/before" "$PLACE/after" >&2 || exit 96
! cmp -s "$PLACE/before" "$PLACE/while" || exit 95
sha256sum "$PLACE/out" | cut -d' ' -f1 >"$PLACE/sum"
echo "$MARLINE_LAB_SHA256" | cmp - "$PLACE/sum" >&2 || exit 98
exit $code
"#;

/// Downloads in a lab and returns the lab's record; `None` if no lab is possible.
fn download(dir: &TempDir, links: [&str; 2], events: &[&str], size: &str) -> Option<Value> {
    with_a_client(CLIENT, dir, links, events, size)
}

fn with_a_client(client: &str, dir: &TempDir, links: [&str; 2], events: &[&str], size: &str) -> Option<Value> {
    if !has_mptcp() {
        return None;
    }
    let record = dir.path().join("record.json");
    std::fs::create_dir(dir.path().join("run")).unwrap();
    let mut command = common::lab();
    command.args(["exec", "--mptcp", "--keep-window", "--serve", size, "--json"]).arg(&record);
    command.args(links.iter().flat_map(|link| ["--link", link]));
    command.args(events.iter().flat_map(|event| ["--at", event]));
    command.args(["--", "sh", "-c", client]);
    command.env("PLACE", dir.path()).env("HOME", dir.path());
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let log = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap_or_default();
    match output.status.code() {
        Some(77) => eprintln!("skipped: {stderr}"),
        Some(99)
            if ["not permitted", "no MPTCP", "CAP_NET_ADMIN"].iter().any(|pattern| stderr.contains(pattern)) =>
        {
            eprintln!("skipped: marline paths: {stderr}");
        }
        Some(0) => return Some(serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap()),
        code => panic!("{code:?}: {stderr}\nthe daemon: {}\n{}", log("daemon.log"), log("status.log")),
    }
    None
}

fn has_mptcp() -> bool {
    let enabled = std::fs::read_to_string("/proc/sys/net/mptcp/enabled").unwrap_or_default();
    let managers = std::fs::read_to_string("/proc/sys/net/mptcp/available_path_managers").unwrap_or_default();
    let ok = enabled.trim() == "1" && (managers.contains("userspace") || managers.is_empty());
    if !ok {
        eprintln!("skipped: this kernel has no MPTCP with path managers in user space");
    }
    let curl = ["/usr/bin/curl", "/bin/curl", "/usr/local/bin/curl"].iter().any(|file| Path::new(file).is_file());
    if ok && !curl {
        eprintln!("skipped: curl is not installed");
    }
    ok && curl
}

fn link<'a>(record: &'a Value, name: &str) -> &'a Value {
    record["run"]["links"].as_array().unwrap().iter().find(|link| link["name"] == name).unwrap()
}

#[test]
fn a_download_is_complete_when_its_first_link_fails_in_the_middle() {
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=8Mbit/s,rtt=30ms,up=5Mbit/s", "lte,rate=16Mbit/s,rtt=60ms,up=5Mbit/s"];
    let Some(record) = download(&dir, links, &["4s:wifi=down"], "16MB") else { return };
    // At most four seconds' worth of the 16 MB arrived over Wi-Fi.
    let bytes = |name| link(&record, name)["down"]["bytes"].as_u64().unwrap();
    assert!(bytes("wifi") > 1_000_000 && bytes("wifi") < 5_000_000, "{}", bytes("wifi"));
    assert!(bytes("lte") > 11_000_000, "{}", bytes("lte"));
}

#[test]
fn a_link_that_is_plugged_in_during_a_download_is_used() {
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=4Mbit/s,rtt=30ms,up=5Mbit/s", "lte,rate=16Mbit/s,rtt=60ms,up=5Mbit/s"];
    let Some(record) = with_a_client(PLUGGED_IN, &dir, links, &[], "16MB") else { return };
    let bytes = |name| link(&record, name)["down"]["bytes"].as_u64().unwrap();
    assert!(bytes("lte") > 4_000_000, "{}", bytes("lte"));
    let names = |file: &str| {
        let text = std::fs::read_to_string(dir.path().join(file)).unwrap();
        let status: Value = serde_json::from_str(&text).unwrap();
        let links = status["links"].as_array().unwrap().clone();
        links.iter().map(|link| link["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        (names("first.json"), names("status.json")),
        (vec!["wifi".into()], vec!["wifi".into(), "lte".into()])
    );
    let message = std::fs::read_to_string(dir.path().join("daemon.log")).unwrap();
    assert!(message.contains("lte (lte) appeared, and is used from now on"), "{message}");
}

#[test]
fn a_small_download_never_uses_lte() {
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=16Mbit/s,rtt=40ms,up=5Mbit/s", "lte,rate=16Mbit/s,rtt=60ms,up=5Mbit/s"];
    let Some(record) = download(&dir, links, &[], "256kB") else { return };
    for direction in ["down", "up"] {
        assert_eq!(link(&record, "lte")[direction]["offered_packets"], 0, "{direction}");
        assert!(link(&record, "wifi")[direction]["offered_packets"].as_u64().unwrap() > 10);
    }
}

#[test]
fn a_suspended_link_carries_no_payload() {
    let dir = tempfile::tempdir().unwrap();
    let links = ["wifi,rate=1Mbit/s,rtt=40ms,up=5Mbit/s,queue=60kB", "lte,rate=8Mbit/s,rtt=60ms,up=5Mbit/s"];
    let Some(record) = download(&dir, links, &["7s:wifi=rate=20Mbit/s"], "45MB") else { return };
    let lte = link(&record, "lte");
    let request = lte["priorities"].as_array().unwrap().iter().rfind(|priority| priority["lost"] == false);
    let Some(request) = request else {
        // If the subflow over LTE was closed instead, LTE carries nothing either; but it must have been used
        // before.
        assert!(lte["down"]["bytes"].as_u64().unwrap() > 100_000, "LTE was never used");
        return;
    };
    assert_eq!(request["backup"], true, "Wi-Fi is good, and LTE is suspended: {}", lte["priorities"]);
    // Two seconds are more than enough to empty a queue of a tenth of a second.
    let from = ((request["at_s"].as_f64().unwrap() + 2.0) * 10.0) as usize;
    let slots: Vec<u64> =
        lte["payload_timeline_bytes"].as_array().unwrap().iter().map(|slot| slot.as_u64().unwrap()).collect();
    let before: u64 = slots.iter().take(from).sum();
    let after: u64 = slots.iter().skip(from).sum();
    assert!(before > 1_000_000, "LTE helped before: {before}");
    assert_eq!(after, 0, "{slots:?}");
}
