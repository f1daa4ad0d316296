//! Links with the same address, as of several modems of one model: 192.168.8.100 behind 192.168.8.1, each behind its own NAT.

use crate::routers::run_in_network;

#[test]
fn two_and_three_links_with_one_address_all_carry_also_after_one_was_removed() {
    let script = r#"
link wan1 1; link wan2 2
over() { ip route get 45.0.0.10 "$@" | grep -o "dev wan[0-9]" | tr '\n' ' '; }
paths
echo "$(over) $(over from 192.168.8.100) $(over from 192.168.8.100 oif wan1) $(over from 192.168.8.100 oif wan2)"
"$MARLINE" paths doctor --run-dir run | grep "^ok *address"
carried 4000000 "" wan1 wan2
# One link is removed and returns.
ip link delete wan2; sleep 0.5
carried 400000 "" wan1
plug wan2 2
until "$MARLINE" paths status --run-dir run | grep -q "^wan2 .* up"; do sleep 0.1; done
carried 4000000 "" wan1 wan2
# A third link with this address, and later one with another address.
link wan3 3
until "$MARLINE" paths status --run-dir run | grep -q "^wan3 .* up"; do sleep 0.1; done
carried 6000000 "" wan1 wan2 wan3
kill $daemon; wait $daemon
ip link delete wan3
link wan4 4 10.0.9.2 10.0.9.1
# The order of --link does not determine the default route.
paths --link wan4 --link wan2 --link wan1
carried 6000000 "" wan1 wan2 wan4
ip netns exec g2 ip link set dn0 down; ip netns exec g2 ip link set dn0 up; ip netns exec g2 nft 'table ip n { chain i { type filter hook input priority 0; drop; }; }'
"$MARLINE" paths doctor --run-dir run | grep "^[a-z]* *address " | sed 's/  */ /g'
kill $daemon; wait $daemon; ip rule | grep -c 731 || true
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected = [
        "dev wan1  dev wan1  dev wan1  dev wan2 ",
        "ok     address       wan1, wan2 have the same address, and the router of each replies over its own link",
        "wan1 wan2 ",
        "wan1 ",
        "wan1 wan2 ",
        "wan1 wan2 wan3 ",
        "wan1 wan2 wan4 ",
        "note address the router of wan2 does not reply over it; wan1, wan2 have the same address",
        "0",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
#[cfg(feature = "fleet")]
fn an_edge_uses_links_with_one_address_and_continues_when_one_fails() {
    let script = r#"
link wan1 1; link wan2 2
relay; edge
HOST=45.2.0.20
carried 4000000 1088 wan1 wan2
# The link that is not the default drops everything: flows continue over the other one.
silence 2
carried 400000 1088 wan1
recover 2
for n in 1 2 3; do sleep 2; done
carried 4000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["wan1 wan2 ", "wan1 ", "wan1 wan2 "], "{lines:#?}");
}

#[test]
#[cfg(feature = "fleet")]
fn an_edge_starts_flows_over_the_second_link_with_the_same_address_while_the_default_one_drops_everything() {
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
# The default link drops everything while the edge runs.
silence 1
for n in 1 2; do LIMIT=10 carried 400000 1088 wan2; done
recover 1
both
"$MARLINE" edge status --run-dir run | head -n 1 | grep -o "[0-9]* direct"
kill $edge; wait $edge
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["wan2 ", "wan2 ", "both", "wan2 ", "wan2 ", "both", "0 direct"], "{lines:#?}");
}

#[test]
#[cfg(feature = "fleet")]
fn udp_of_a_lan_leaves_an_unresponsive_link_that_shares_its_address_with_another() {
    let script = r#"
link wan1 1; link wan2 2
ip netns add lan; ip -n lan link set lo up; ip link add lan0 type veth peer name eth0 netns lan
ip address add 192.168.77.1/24 dev lan0; ip link set lan0 up; ip -n lan address add 192.168.77.2/24 dev eth0; ip -n lan link set eth0 up
ip -n lan route add default via 192.168.77.1
relay; edge --lan lan0
# A UDP server that answers with the sender's address; a LAN client sends ten times a second from one socket and prints changed answers.
ip netns exec srv perl -e 'use Socket; socket(my $s, PF_INET, SOCK_DGRAM, 0) or die $!; bind($s, sockaddr_in(5000, inet_aton("45.2.0.20"))) or die $!;
    while (my $from = recv $s, my $text, 100, 0) { my (undef, $address) = sockaddr_in($from); send $s, inet_ntoa($address), 0, $from }' &
ip netns exec lan perl -e 'use Socket; use IO::Select; $| = 1; socket(my $s, PF_INET, SOCK_DGRAM, 0) or die $!; my ($all, $was) = (IO::Select->new($s), "");
    while (1) { send $s, "I", 0, sockaddr_in(5000, inet_aton("45.2.0.20")); select undef, undef, undef, 0.1;
        while ($all->can_read(0)) { defined recv $s, my $text, 100, 0 or last; print "$text\n" if $text ne $was; $was = $text } }' >addresses &
until_seen_as() { until [ "$(tail -n1 addresses)" = $1 ]; do sleep 0.1; kill -0 $edge; done; }
until_seen_as 45.1.1.2
silence 1; until_seen_as 45.1.2.2
recover 1
until "$MARLINE" edge status --run-dir run | grep -q "^wan1 *up"; do sleep 0.1; kill -0 $edge; done
silence 2; until_seen_as 45.1.1.2
cat addresses
kill $edge; wait $edge
"#;
    let Some(lines) = run_in_network(script) else { return };
    let links = ["45.1.1.2", "45.1.2.2"];
    assert!(lines.iter().all(|line| links.contains(&line.as_str())), "{lines:#?}");
    // On a busy machine the link may change more often, but not with each packet.
    let mut received = lines.iter();
    assert!([links[0], links[1], links[0]].iter().all(|link| received.any(|line| line == link)), "{lines:#?}");
    assert!(lines.len() <= 9, "{lines:#?}");
}
