//! Links that share an address, as modems of one brand do: 192.168.8.100 behind 192.168.8.1, each behind a NAT of its own.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod routers;

use routers::in_a_world;

#[test]
fn two_and_three_links_of_one_address_all_carry_also_after_one_was_away() {
    let script = r#"
link wan1 1; link wan2 2
over() { ip route get 45.0.0.10 "$@" | grep -o "dev wan[0-9]" | tr '\n' ' '; }
paths
echo "$(over) $(over from 192.168.8.100) $(over from 192.168.8.100 oif wan1) $(over from 192.168.8.100 oif wan2)"
"$MARLINE" paths doctor --run-dir run | grep "^ok *address"
carried 4000000 "" wan1 wan2
# One is removed, and comes back.
ip link delete wan2; sleep 0.5
carried 400000 "" wan1
plug wan2 2
until "$MARLINE" paths status --run-dir run | grep -q "^wan2 .* up"; do sleep 0.1; done
carried 4000000 "" wan1 wan2
# A third one, and one that is no twin.
link wan3 3
until "$MARLINE" paths status --run-dir run | grep -q "^wan3 .* up"; do sleep 0.1; done
carried 6000000 "" wan1 wan2 wan3
kill $daemon; wait $daemon
ip link delete wan3
link wan4 4 10.0.9.2 10.0.9.1
# The order of the names says nothing of the default route.
paths --link wan4 --link wan2 --link wan1
carried 6000000 "" wan1 wan2 wan4
ip netns exec g2 ip link set dn0 down; ip netns exec g2 ip link set dn0 up; ip netns exec g2 nft 'table ip n { chain i { type filter hook input priority 0; drop; }; }'
"$MARLINE" paths doctor --run-dir run | grep "^[a-z]* *address " | sed 's/  */ /g'
kill $daemon; wait $daemon; ip rule | grep -c 731 || true
"#;
    let Some(lines) = in_a_world(script) else { return };
    let expected = [
        "dev wan1  dev wan1  dev wan1  dev wan2 ",
        "ok     address       wan1, wan2 have the same address, and the router of each answers over its own link",
        "wan1 wan2 ",
        "wan1 ",
        "wan1 wan2 ",
        "wan1 wan2 wan3 ",
        "wan1 wan2 wan4 ",
        "note address the router of wan2 does not answer over it; wan1, wan2 have the same address",
        "0",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
#[cfg(feature = "fleet")]
fn an_edge_uses_links_of_one_address_and_one_of_them_is_enough() {
    let script = r#"
link wan1 1; link wan2 2
relay; edge
HOST=45.2.0.20
carried 4000000 1088 wan1 wan2
# The one that is not the default falls silent: flows go on over the other one.
silence 2
carried 400000 1088 wan1
recover 2
for n in 1 2 3; do sleep 2; done
carried 4000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = in_a_world(script) else { return };
    assert_eq!(lines, ["wan1 wan2 ", "wan1 ", "wan1 wan2 "], "{lines:#?}");
}

#[test]
#[cfg(feature = "fleet")]
fn an_edge_begins_over_the_other_one_of_two_links_of_one_address_while_the_default_one_is_silent() {
    let script = r#"
link wan1 1; link wan2 2
HOST=45.2.0.20
relay
silence 1
DIRECT=--direct edge
for n in 1 2; do LIMIT=10 carried 400000 1088 wan2; done
recover 1
both() { until [ "$(carried 2000000 1088 wan1 wan2)" = "wan1 wan2 " ]; do kill -0 $edge; done; echo "both"; }
both
# It falls silent while the edge runs.
silence 1
for n in 1 2; do LIMIT=10 carried 400000 1088 wan2; done
recover 1
both
"$MARLINE" edge status --run-dir run | head -n 1 | grep -o "[0-9]* direct"
kill $edge; wait $edge
"#;
    let Some(lines) = in_a_world(script) else { return };
    assert_eq!(lines, ["wan2 ", "wan2 ", "both", "wan2 ", "wan2 ", "both", "0 direct"], "{lines:#?}");
}
