//! The link of the default route loses its carrier and keeps its routes, as with static addresses and ifupdown: only one link works, and
//! the kernel still prefers the route over the link without carrier.

use super::links::SHELL_FUNCTIONS;
use super::{LINK_FAILURES, run_in_network};

#[test]
fn flows_use_the_remaining_link_when_the_default_link_lost_its_carrier_but_kept_its_routes() {
    let script = r#"
carrier() { # on|off
    local want=down; [ $1 = off ] || want=up
    ip -n far link set up0 $want
    if [ $1 = off ]; then until ip route show | grep -q linkdown; do sleep 0.01; done
    else until [ -z "$(ip route show | grep linkdown)" ]; do sleep 0.01; done; fi
}
# With a relay by address, by name, and without a relay; `programs` connects by host name.
for how in "--relay 203.0.113.1 --no-direct" "--relay relay.test --no-direct" "--relay 192.0.2.9 --direct"; do
    for when in start running; do
        if [ $when = start ]; then carrier off; begin $how; else begin $how; programs >/dev/null; carrier off; fi
        # Wait until the edge has noticed the lost carrier.
        until "$MARLINE" edge status --run-dir run | grep -q '^up0 *down '; do sleep 0.1; kill -0 $edge; done
        sleep 0.3
        ip route get 203.0.113.5 | grep -o 'dev up0'
        for client in lans programs; do echo "$($client)"; done
        stop; carrier on
    done
done
# Enrolment and certificate renewal.
ip netns exec far "$MARLINE" fleet run --ca-dir ca --listen 203.0.113.1:4445 --address 203.0.113.1 --address fleet.test 2>fleet.log &
until grep -q "203.0.113.1:4445" fleet.log; do sleep 0.05; kill -0 $! || { cat fleet.log >&2; exit 1; }; done
"$MARLINE" fleet ca token --role edge --name new --ca-dir ca >token 2>/dev/null; chmod 600 token
carrier off
timeout 8 "$MARLINE" fleet enroll --fleet https://203.0.113.1:4445 --token-file token --out . >/dev/null 2>enroll.log || cat enroll.log
timeout 8 "$MARLINE" fleet renew --fleet https://203.0.113.1:4445 --certificate new.pem 2>&1 | grep -o "it is renewed from"
"#;
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    assert_eq!(lines.len(), 6 * 3 + 1, "{lines:#?}");
    for case in lines[..18].chunks(3) {
        assert_eq!(case[0], "dev up0", "{lines:#?}");
        for flow in &case[1..] {
            let (code, time) = flow.split_once(' ').unwrap();
            assert_eq!(code, "200", "{lines:#?}");
            // Usually some milliseconds; a busy machine may take seconds, as in `links.rs`.
            assert!(time.parse::<f64>().unwrap() < 5.0, "{lines:#?}");
        }
    }
    assert_eq!(lines[18], "it is renewed from");
}
