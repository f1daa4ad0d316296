//! Links that strip the MPTCP option from TCP segments, and relays without MPTCP.

use super::run_in_network;

/// Shell functions for the scripts below: `strip` removes MPTCP options on links, `await_log` waits for a log line, `flags` prints the status.
const STRIP: &str = r#"
strip() { # LINK…
    ip netns exec far nft add table ip strip
    ip netns exec far nft add chain ip strip pre '{ type filter hook prerouting priority -300; }'
    for link in "$@"; do ip netns exec far nft add rule ip strip pre iifname $link reset tcp option mptcp; done
}
heal() { ip netns exec far nft delete table ip strip; }
await_log() { timeout 30 bash -c "until grep -q '$1' edge.log; do sleep 0.1; done" || { cat edge.log >&2; exit 1; }; }
flags() { "$MARLINE" edge status --run-dir run --json | grep -oE '"(name|mptcp_stripped|without_mptcp)": *[^,}]*' | tr -d ' \n'; echo; }
"#;

#[test]
fn a_default_link_that_strips_mptcp_is_reported_and_flows_start_over_another_link_until_it_stops() {
    let script = r#"
relay; strip up0
edge --link up0 --link up1
await_log "MPTCP is stripped over up0.*flows start over up1"
flags
sleep 1
# The spare connections and a new flow.
lan curl -sS -m 20 http://203.0.113.5/ >/dev/null
ip netns exec far ss -Htn state established sport = :4443 | awk '{ sub(":[0-9]*$", "", $4); print $4 }' | sort -u
"$MARLINE" edge status --run-dir run | grep "MPTCP is stripped"
heal
await_log "MPTCP is no longer stripped over up0"
flags
grep -c "MPTCP is stripped" edge.log
grep "does not reach\|disabled on" edge.log || true
"#;
    let Some(lines) = run_in_network(&format!("{STRIP}{script}")) else { return };
    assert_eq!(
        lines,
        [
            r#""without_mptcp":false"name":"up0""mptcp_stripped":true"name":"up1""mptcp_stripped":false"#,
            "10.0.2.2",
            "MPTCP is stripped over up0, by the provider or a firewall: this link does not add capacity; flows start over up1",
            r#""without_mptcp":false"name":"up0""mptcp_stripped":false"name":"up1""mptcp_stripped":false"#,
            "1",
        ]
    );
}

#[test]
fn a_secondary_link_that_strips_mptcp_is_reported_although_no_connection_starts_over_it() {
    let script = r#"
relay; strip up1
edge --link up0 --link up1
await_log "MPTCP is stripped over up1.*flows start over up0"
flags
heal
await_log "MPTCP is no longer stripped over up1"
grep "does not reach\|disabled on\|over up0," edge.log || true
"#;
    let Some(lines) = run_in_network(&format!("{STRIP}{script}")) else { return };
    assert_eq!(
        lines,
        [r#""without_mptcp":false"name":"up0""mptcp_stripped":false"name":"up1""mptcp_stripped":true"#]
    );
}

#[test]
fn a_relay_without_mptcp_is_reported_and_no_link_is_blamed() {
    let script = r#"
ip netns exec far sysctl -qw net.mptcp.enabled=0
relay
edge --link up0 --link up1
await_log "relay 10.0.1.1: MPTCP is disabled on the relay"
flags
"$MARLINE" edge status --run-dir run | grep "MPTCP is"
lan curl -sS -m 20 http://203.0.113.5/
ip netns exec far sysctl -qw net.mptcp.enabled=1
ip netns exec far ss -Htlnp sport = :4443 | grep -o 'pid=[0-9]*' | head -1 | tr -d pid= | xargs kill -KILL
relay
# A flow that takes a spare connection to the killed relay fails.
until lan curl -sS -m 20 http://203.0.113.5/ 2>/dev/null; do sleep 0.1; kill -0 $edge; done
await_log "relay 10.0.1.1: MPTCP works again"
flags
grep -c "stripped over up\|does not reach" edge.log || true
"#;
    let Some(lines) = run_in_network(&format!("{STRIP}{script}")) else { return };
    assert_eq!(
        lines,
        [
            r#""without_mptcp":true"name":"up0""mptcp_stripped":false"name":"up1""mptcp_stripped":false"#,
            "relay 10.0.1.1: MPTCP is disabled on the relay or stripped over every link, so each flow uses one link (on the relay: sysctl \
             net.mptcp.enabled=1)",
            "203.0.113.1 to 203.0.113.5",
            "203.0.113.1 to 203.0.113.5",
            r#""without_mptcp":false"name":"up0""mptcp_stripped":false"name":"up1""mptcp_stripped":false"#,
            "0",
        ]
    );
}
