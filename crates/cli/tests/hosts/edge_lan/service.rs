//! The fleet service is reached over the other link while the link of the default route fails: by an enrolling edge, by a relay that
//! registers itself, by an operator, and by an edge with `--fleet`.

use super::links::SHELL_FUNCTIONS;
use super::{LINK_FAILURES, run_in_network};

#[test]
fn members_reach_the_service_by_its_name_over_the_working_link() {
    let script = r#"
ip netns exec far "$MARLINE" fleet run --ca-dir ca --listen 203.0.113.1:4445 --address 203.0.113.1 --address fleet.test 2>fleet.log &
until grep -q "203.0.113.1:4445" fleet.log; do sleep 0.05; kill -0 $! || { cat fleet.log >&2; exit 1; }; done
for words in "operator ann" "relay r4 --address 10.0.2.2" "relay r5 --address 203.0.113.1"; do
    "$MARLINE" fleet ca issue $words --ca-dir ca --out . >/dev/null 2>&1
done
announces() { # NAME LISTEN FLEET [PREFIX…]: starts a relay and waits until the service has registered it; sets $relay
    local name=$1 listen=$2 fleet=$3; shift 3; : >$name.log
    "$@" "$MARLINE" relay --listen $listen --certificate $name.pem --revoked ca/revoked.pem --run-dir $name --allow-net 203.0.113.5 --allow-port 80 \
        --capacity 100Mbit/s --fleet $fleet --announce $listen 2>>$name.log & relay=$!
    until grep -q "the fleet's service knows this relay" $name.log; do sleep 0.1; kill -0 $relay; done
}
announces r5 203.0.113.1:4446 https://203.0.113.1:4445 ip netns exec far
url=https://fleet.test:4445
for how in silent dns reset; do
    fail $how
    "$MARLINE" fleet ca token --role edge --name $how --ca-dir ca >token 2>/dev/null; chmod 600 token
    timeout 15 "$MARLINE" fleet enroll --fleet $url --token-file token --out $how >/dev/null 2>enroll.log || cat enroll.log
    # The service refuses the renewal as too early, which proves that it was reached.
    timeout 15 "$MARLINE" fleet renew --fleet $url --certificate $how/$how.pem 2>&1 | grep -o "it is renewed from"
    timeout 15 "$MARLINE" fleet status --fleet $url --certificate ann.pem | grep -o "^r5 *ok" | tr -s ' '
    # A relay on this host, which has several links as well.
    announces r4 10.0.2.2:4443 $url
    kill $relay; wait $relay
    works
done
# An edge without saved state is assigned a relay, reports, and fetches the newest revocation list.
fail silent
: >edge.log; "$MARLINE" edge --fleet $url --certificate silent/silent.pem --run-dir run --state-file state.json --no-direct 2>>edge.log & edge=$!
until grep -o "has assigned r5" edge.log; do sleep 0.1; kill -0 $edge; done
programs | cut -d' ' -f1
"$MARLINE" fleet ca issue edge gone --ca-dir ca --out . >/dev/null 2>&1; "$MARLINE" fleet ca revoke --ca-dir ca --role edge gone >/dev/null 2>&1
until cmp -s ca/revoked.pem silent/revoked.pem; do sleep 0.1; kill -0 $edge; done
"$MARLINE" fleet status --fleet $url --certificate ann.pem | grep -o "^silent *r5" | tr -s ' '
"#;
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    let mut expected = ["it is renewed from", "r5 ok"].repeat(3);
    expected.extend(["has assigned r5", "200", "silent r5"]);
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn a_service_in_a_private_network_is_reached_by_its_static_route() {
    let script = r#"
ip netns add office; ip -n office link set lo up
ip link add off0 type veth peer name eth0 netns office
wire - off0 10.50.0.1/24; wire office eth0 10.50.0.2/24
ip -n office address add 172.20.0.1/32 dev lo; ip -n office route add default via 10.50.0.1
ip route add 172.20.0.0/16 via 10.50.0.2
ip netns exec office "$MARLINE" fleet run --ca-dir ca --listen 172.20.0.1:4445 --address 172.20.0.1 2>fleet.log &
until grep -q "172.20.0.1:4445" fleet.log; do sleep 0.05; kill -0 $! || { cat fleet.log >&2; exit 1; }; done
"$MARLINE" fleet ca issue operator ann --ca-dir ca --out . >/dev/null 2>&1
timeout 15 "$MARLINE" fleet status --fleet https://172.20.0.1:4445 --certificate ann.pem | grep -o "^relay *state" | tr -s ' '
"$MARLINE" edge --fleet https://172.20.0.1:4445 --certificate e1.pem --run-dir run --state-file state.json 2>edge.log & edge=$!
until timeout 15 "$MARLINE" fleet status --fleet https://172.20.0.1:4445 --certificate ann.pem | grep -o "^e1"; do sleep 0.1; kill -0 $edge; done
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["relay state", "e1"], "{lines:#?}");
}
