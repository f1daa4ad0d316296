//! The edge manages the paths of its MPTCP connections: after a SIGHUP, after another daemon, and with links that appear.

use super::run_in_network;

#[test]
fn sighup_keeps_paths_managed() {
    let script = r#"
relay
mkdir -m 755 run; state >before
edge
until "$MARLINE" paths status --run-dir run >/dev/null 2>&1; do sleep 0.1; kill -0 $edge; done
sysctl -n net.mptcp.path_manager
for n in 1 2; do
    kill -HUP $edge
    until [ $(grep -c "are read again" edge.log) = $n ]; do sleep 0.1; kill -0 $edge; done
done
sysctl -n net.mptcp.path_manager
"$MARLINE" paths status --run-dir run >/dev/null && echo "steered"
"$MARLINE" edge status --run-dir run --json | grep -A1 '"steering"' | grep -o '"active": true'
lan curl -sS -m 20 http://203.0.113.5/
kill -TERM $edge; wait $edge; free
state >after; diff before after && echo "as before"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected =
        ["userspace", "userspace", "steered", "\"active\": true", "203.0.113.1 to 203.0.113.5", "as before"];
    assert_eq!(lines, expected);
}

#[test]
fn paths_are_managed_again_after_another_daemon_ends_and_after_a_link_recovers() {
    let script = r#"
relay
mkdir -m 755 run; state >before
# Another daemon manages the paths: the edge carries flows without managing them, reports that, and takes over when the daemon is killed.
"$MARLINE" paths run --quiet --run-dir run 2>paths.log & other=$!
until "$MARLINE" paths status --run-dir run >/dev/null 2>&1; do sleep 0.1; kill -0 $other; done
steered() { "$MARLINE" edge status --run-dir run --json | grep -A1 '"steering"' | grep -o '"active": [a-z]*'; }
edge
steered
grep "MPTCP paths are not managed by this edge" edge.log | grep -c "the edge keeps trying"
lan curl -sS -m 20 http://203.0.113.5/
kill -KILL $other; wait $other || true
until grep -q "MPTCP paths are managed by this edge again" edge.log; do sleep 0.1; kill -0 $edge; done
steered
"$MARLINE" paths status --run-dir run --json | grep -c "\"pid\": $edge,"
# A link fails and recovers: both are managed as before.
up() { "$MARLINE" paths status --run-dir run --json | grep -c '"up": true'; }
until [ $(up) = 2 ]; do sleep 0.1; kill -0 $edge; done
ip link set up1 down
until [ $(up) = 1 ]; do sleep 0.1; kill -0 $edge; done
lan curl -sS -m 20 http://203.0.113.5/
ip link set up1 up; ip address replace 10.0.2.2/24 dev up1; ip -6 address replace fd02::2/64 dev up1 nodad
ip route replace default via 10.0.2.1 dev up1 metric 101; ip -6 route replace default via fd02::1 dev up1 metric 101
until [ $(up) = 2 ]; do sleep 0.1; kill -0 $edge; done
steered
lan curl -sS -m 20 http://203.0.113.5/
kill -TERM $edge; wait $edge && echo "ended well"
free; state >after; diff before after && echo "as before"
# Without the privilege, the edge makes one attempt and logs one line.
setpriv --bounding-set -net_admin "$MARLINE" edge --relay 10.0.1.1 --certificate e1.pem --run-dir run 2>edge.log & edge=$!
until steered 2>/dev/null; do sleep 0.1; kill -0 $edge; done
sleep 3; grep "managed" edge.log | sed 's/: .*needs/: needs/; s/ (or.*//'
kill -TERM $edge; wait $edge && echo "ended well"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let (carried, active) = ("203.0.113.1 to 203.0.113.5", "\"active\": true");
    let expected = [
        "\"active\": false",
        "1",
        carried,
        active,
        "1",
        carried,
        active,
        carried,
        "ended well",
        "as before",
        "\"active\": false",
        "marline: needs CAP_NET_ADMIN",
        "ended well",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn an_edge_that_starts_before_its_links_exist_manages_both_when_they_appear() {
    let script = r#"
relay
up() { "$MARLINE" paths status --run-dir run --json 2>/dev/null | grep -c '"up": true'; }
gone() { ip link delete up0; ip link delete up1; }
come() {
    for n in 0 1; do
        ip link add up$n type veth peer name up$n netns far
        wire - up$n 10.0.$((n+1)).2/24; wire far up$n 10.0.$((n+1)).1/24
        ip route add default via 10.0.$((n+1)).1 dev up$n metric 10$n
    done
}
# The edge also waits for named interfaces that do not exist yet.
for links in "" "--link up0 --link up1"; do
    gone
    edge $links
    grep -o "no link can be used\|waiting for a usable link" edge.log | sort -u
    "$MARLINE" edge status --run-dir run --json | grep -A1 '"steering"' | grep -o '"active": true'
    come
    until [ $(up) = 2 ]; do sleep 0.1; kill -0 $edge; done
    until ip rule | grep -q "from 10.0.2.2 lookup 731"; do sleep 0.1; kill -0 $edge; done
    until lan curl -sS -m 5 http://203.0.113.5/ 2>/dev/null; do sleep 0.2; kill -0 $edge; done
    kill -TERM $edge; wait $edge && echo "ended well"
    free
done
grep -c "no such interface yet" edge.log
"#;
    let Some(lines) = run_in_network(script) else { return };
    let each = [
        "no link can be used",
        "waiting for a usable link",
        "\"active\": true",
        "203.0.113.1 to 203.0.113.5",
        "ended well",
    ];
    let expected: Vec<&str> = each.iter().chain(&each).chain(&["2"]).copied().collect();
    assert_eq!(lines, expected);
}
