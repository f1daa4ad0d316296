//! `marline paths --dry-run`.

use super::TestHome;

#[test]
fn a_dry_run_needs_no_privilege_and_changes_nothing() {
    let home = TestHome::new();
    let script = r#"
chmod 755 .; mkdir "$RUN"; chown 65534 "$RUN"; cp "$MARLINE" ./marline
state >before
setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=-all --bounding-set=-all \
    ./marline paths --dry-run --run-dir "$RUN" --link eth0,kind=wifi --link eth1,kind=lte 2>log & daemon=$!
started --run-dir "$RUN"
paths status --run-dir "$RUN" --json
kill $daemon; code=0; wait $daemon || code=$?
compare; echo "$code"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let (last, json) = lines.split_last().unwrap();
    assert_eq!(last, "0");
    let log = std::fs::read_to_string(home.0.path().join("log")).unwrap();
    for line in [
        "marline: would set net.mptcp.path_manager: userspace (it is kernel)\n",
        "marline: would set the route default via 10.1.0.1 dev eth1 table 7310",
        "marline: would add the rule 20000 from 10.1.0.2 lookup main suppress_prefixlength 1\n",
        "marline: would add the rule 20001 from 2001:db8:1::2 lookup 7310",
    ] {
        assert!(log.contains(line), "{line}: {log}");
    }
    let status: serde_json::Value = serde_json::from_str(&json.join("\n")).unwrap();
    assert_eq!((status["mode"].as_str(), status["links"].as_array().unwrap().len()), (Some("dry-run"), 2));
}

#[test]
fn a_dry_run_is_queried_at_the_default_socket_and_never_replaces_a_daemons() {
    let home = TestHome::new();
    let script = r#"
mkdir -p "$RUN"; mount --make-rprivate / && mount -t tmpfs tmpfs /run && mkdir /run/marline
dry() { "$MARLINE" paths --dry-run --link eth0 --link eth1 "$@" 2>log & daemon=$!; }
dry --quiet
started
paths status --json | grep '"mode"'; stop; wc -c <log
$MARLINE paths --quiet --link eth0 --link eth1 & daemon=$! real=$!
started
dry; until grep -q "cannot query this dry run" log; do sleep 0.02; kill -0 $daemon; done
paths status --json | grep '"mode"'; stop
paths status --json | grep '"mode"'
TERM=dumb paths watch >/dev/null 2>ended & watch=$!
sleep 0.3; kill $real; wait $real; code=0; wait $watch || code=$?
echo "$code $(cat ended)"
"#;
    let Some(lines) = home.run_in_network_and_mounts(script) else { return };
    let modes: Vec<&str> = lines.iter().map(|line| line.trim().trim_end_matches(',')).collect();
    assert_eq!(
        modes,
        [
            r#""mode": "dry-run""#,
            "0",
            r#""mode": "userspace""#,
            r#""mode": "userspace""#,
            "1 marline: `marline paths` has ended",
        ]
    );
}
