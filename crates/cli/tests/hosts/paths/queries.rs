//! `marline paths status`, `explain` and `doctor` beside a running daemon.

use super::TestHome;

#[test]
fn doctor_and_queries_use_the_configuration() {
    let home = TestHome::new();
    let script = r#"
mkdir -p config/marline
printf '[paths]\nrun-dir = "%s"\nlinks = ["eth0", "eth1"]\n[link.eth0]\nkind = "lte"\nmetered = true\n[link.eth1]\nkind = "wifi"\n' \
    "$RUN" >config/marline/marline.toml
file=config/marline/marline.toml
paths doctor --config $file | grep "default link"
XDG_CONFIG_HOME=$PWD/config "$MARLINE" paths doctor | grep -c "default link"
sed 's/"eth1"\]/"wwan9"]/' <$file >other.toml
code=0; paths doctor --config other.toml >seen || code=$?; echo "$code"; grep "^WRONG" seen
"$MARLINE" paths --config $file 2>log & daemon=$!
started --config $file
[ -S "$RUN"/paths-*.sock ]
XDG_CONFIG_HOME=$PWD/config "$MARLINE" paths status | grep -c "policy marline"
code=0; paths explain 7 --config $file 2>seen || code=$?; echo "$code $(cut -d, -f1 seen)"
code=0; timeout 1 "$MARLINE" paths watch --config $file >seen || code=$?; echo "$code"
stop
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "note   default link  connections begin over eth0, which is metered, although there is eth1",
        "1",
        "1",
        "WRONG  links         the configuration names wwan9, but there is no such interface",
        "1",
        "1 marline: there is no connection 00000007",
        "124",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn other_users_see_that_a_daemon_runs_and_that_they_may_not_query_it() {
    let home = TestHome::new();
    let script = r#"
chmod 755 .; cp "$MARLINE" ./marline
mount -t tmpfs -o mode=755 none /run
as() { user=$1; shift; setpriv --reuid $user --regid $user --clear-groups --inh-caps=-all --bounding-set=-all "$@"; }
"$MARLINE" paths --link eth0 --link eth1 2>log & daemon=$!
started
code=0; as 65534 ./marline paths doctor >seen || code=$?; echo "$code"; grep -E "^[a-zA-Z]+ +(privilege|path manager) " seen
code=0; as 65534 ./marline paths status 2>seen || code=$?; echo "$code $(grep -o "not permitted: run this command as root" seen)"
stop
code=0; as 65534 ./marline paths doctor >seen || code=$?; echo "$code"; grep -E "^[a-zA-Z]+ +(privilege|path manager) " seen
mkdir theirs; chown 65533 theirs
as 65533 ./marline paths --dry-run --run-dir theirs --link eth0 --link eth1 2>log & daemon=$!
until ls theirs/*.sock >/dev/null 2>&1; do sleep 0.02; kill -0 $daemon; done
code=0; as 65534 ./marline paths status --run-dir theirs 2>seen || code=$?; echo "$code $(grep -o "not permitted: run this command as root" seen)"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "0",
        "ok     privilege     not here; `marline paths` is running and has it: with sudo more is checked",
        "ok     path manager  `marline paths` is running; `sudo marline paths status` shows what it does",
        "77 not permitted: run this command as root",
        "1",
        "WRONG  privilege     CAP_NET_ADMIN is missing, without which no path can be managed",
        "ok     path manager  the kernel's own; `marline paths` takes over while it runs",
        "77 not permitted: run this command as root",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn the_status_shows_connections_of_the_forwarder() {
    let home = TestHome::new();
    // The link leads nowhere; the forwarder's connection fails after the kernel's three ARP requests for the router.
    let script = r#"
command -v nft >/dev/null || { echo "skipped: needs nft" >&2; exit 0; }
start_both --transparent
led $daemon
timeout 20 bash -c 'exec 3<>/dev/tcp/198.51.100.1/80; read -u 3' || true
until paths status --run-dir "$RUN" | grep "^forwarded TCP connections: 0 open, .* 1 failed, "; do sleep 0.05; kill -0 $daemon; done
paths status --run-dir "$RUN" --json
stop
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let Some((_, json)) = lines.split_first() else { return };
    let status: serde_json::Value = serde_json::from_str(&json.join("\n")).unwrap();
    assert_eq!(status["forwarder"]["failed"], 1, "{status}");
}

#[test]
fn foreign_endpoints_are_reported_at_the_start_and_own_ones_are_not_reported_as_foreign() {
    let home = TestHome::new();
    let script = r#"
ip mptcp endpoint add 10.1.0.2 id 7 dev eth1 subflow
ip mptcp endpoint add 10.77.0.1 id 9 signal
start_both --kernel-pm
grep -c "endpoint 10.1.0.2 id 7 does not belong to marline: with it the kernel adds a subflow over eth1" log
grep -c "does not belong to marline" log
paths status --run-dir "$RUN" --json | grep -c "does not belong to marline"
findings() { paths doctor --run-dir "$RUN" | grep " endpoints " || true; }
findings
crash
findings
ip mptcp endpoint show | grep -c "^10.0.0.2"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    assert_eq!(lines[..3], ["1", "1", "1"], "{lines:#?}");
    for finding in &lines[3..5] {
        assert!(finding.ends_with("has configured 2 endpoints: 10.1.0.2 id 7, 10.77.0.1 id 9"), "{finding}");
    }
    assert_eq!(lines[5], "1", "marline's own endpoint remains after a crash");
}

#[test]
fn the_doctor_reports_problems_and_ends_with_1() {
    let home = TestHome::new();
    let script = r#"
paths doctor --run-dir "$RUN" >log; echo "fit $?"
sysctl -q net.mptcp.enabled=0
code=0; paths doctor --run-dir "$RUN" --json >log || code=$?; echo "$code"; cat log
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    assert_eq!(lines[..2], ["fit 0", "1"], "{lines:#?}");
    let report: serde_json::Value = serde_json::from_str(&lines[2..].join("\n")).unwrap();
    assert_eq!(report["ok"], false);
    let findings = report["findings"].as_array().unwrap();
    let wrong: Vec<&str> =
        findings.iter().filter(|f| f["severity"] == "blocks").map(|f| f["name"].as_str().unwrap()).collect();
    assert_eq!(wrong, ["MPTCP"], "{report}");
}
