//! UDP of a LAN leaves a link that fails otherwise than by dropping everything, while no TCP flow reveals the failure.

use super::run_in_network;

/// Shell functions for the scripts below: a client that sends ten packets a second, and failures of the first link.
const SHELL_FUNCTIONS: &str = r#"
mkdir -m 755 run
RELAY=203.0.113.1
ip netns exec srv perl -e "$echo" & until ip netns exec srv ss -Huln | grep -q :5000; do sleep 0.02; done
portal='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 50, LocalHost => "10.0.1.1", LocalPort => 81, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { sysread $c, my $head, 4096; print $c "HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n"; close $c }'
ip netns exec far perl -e "$portal" &
# Broadcasts, as from other hosts of a provider's network.
noise='use IO::Socket::IP; my $s = IO::Socket::IP->new(Proto => "udp", PeerHost => "10.0.1.255", PeerPort => 9, Broadcast => 1) or die;
    while (1) { $s->send("who has?"); select undef, undef, undef, 0.05 }'
dead() { ip netns exec far nft "table inet dead { chain in { type filter hook prerouting priority -90; $1; };
    chain to { type nat hook prerouting priority -100; $2; }; }"; }
fail() {
    case $1 in
        silent) dead 'iifname "up0" drop' '';;
        noisy) ip netns exec far perl -e "$noise" & dead 'iifname "up0" drop' '';;
        unreachable) ip netns exec far nft 'table inet dead { chain on { type filter hook forward priority 0; iifname "up0" reject with icmpx type host-unreachable; };
            chain in { type filter hook input priority 0; iifname "up0" meta l4proto tcp reject with tcp reset; }; }';;
        portal) dead 'iifname "up0" meta l4proto udp drop' 'iifname "up0" meta nfproto ipv4 meta l4proto tcp redirect to :81';;
    esac
}
begin() { # sets $edge and $client
    edge "$@"
    : >talk.log; ip netns exec lan perl -e "$talk" 203.0.113.5 >talk.log & client=$!
    until [ "$(cat talk.log)" = 10.0.1.2 ]; do sleep 0.05; kill -0 $edge; done
}
leaves() { # HOW MILLISECONDS
    local began=$(date +%s%N) took
    fail $1
    until [ "$(tail -n 1 talk.log)" = 10.0.2.2 ]; do sleep 0.05; kill -0 $edge; done
    took=$(( ($(date +%s%N) - began) / 1000000 )); [ $took -lt $2 ] && echo "$1: in time" || echo "$1: after $took ms"
}
stop() { kill $client; wait $client || true; kill -TERM $edge; wait $edge || true; free; ip netns exec far nft delete table inet dead; }
"#;

#[test]
fn udp_leaves_a_link_with_a_captive_portal_or_with_rejects_or_with_only_broadcasts() {
    let script = r#"
relay
for how in portal unreachable noisy; do
    begin --no-direct
    leaves $how 14000
    "$MARLINE" edge status --run-dir run | awk '$1 == "up0" { print $1, $2 }'
    stop
done
"#;
    let Some(lines) = run_in_network(&format!("{SHELL_FUNCTIONS}{script}")) else { return };
    let expected = [
        "portal: in time",
        "up0 unresponsive",
        "unreachable: in time",
        "up0 unresponsive",
        "noisy: in time",
        "up0 unresponsive",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn udp_leaves_an_unresponsive_link_while_no_relay_can_be_reached() {
    let script = r#"
RELAY=192.0.2.9
begin --direct
lan curl -sS -m 20 http://203.0.113.5/
leaves silent 10000
ip netns exec far nft delete table inet dead
until "$MARLINE" edge status --run-dir run | grep -q "^up0 *up"; do sleep 0.1; kill -0 $edge; done
echo "up again"
"#;
    let Some(lines) = run_in_network(&format!("{SHELL_FUNCTIONS}{script}")) else { return };
    assert_eq!(lines, ["10.0.1.2 to 203.0.113.5", "silent: in time", "up again"], "{lines:#?}");
}

#[test]
fn udp_stays_on_a_link_while_every_link_reports_the_relay_as_refused() {
    let script = r#"
relay
begin --no-direct
# The relay ends: its port is closed for all links, and the client's packets are no longer answered.
kill $(pgrep -f "relay --listen"); until ! ip netns exec far ss -Htln 'sport = :4443' | grep -q .; do sleep 0.05; done
ip netns exec srv nft 'table inet mute { chain out { type filter hook output priority 0; meta l4proto udp drop; }; }'
sleep 8
tail -n 1 talk.log
"$MARLINE" edge status --run-dir run | awk '$1 == "up0" || $1 == "up1" { print $1, $2 }'
grep -c "go unanswered" edge.log || true
"#;
    let Some(lines) = run_in_network(&format!("{SHELL_FUNCTIONS}{script}")) else { return };
    assert_eq!(lines, ["10.0.1.2", "up0 up", "up1 up", "0"], "{lines:#?}");
}

#[test]
fn an_idle_lan_and_a_single_link_cause_no_probes() {
    let script = r#"
relay
counted() { # Prints how many connections to the relay and how many DNS queries start within 12 s.
    ip netns exec far nft 'table inet count { counter relay { }; counter names { }; chain in { type filter hook prerouting priority -500;
        iifname { "up0", "up1" } tcp flags & (syn | ack) == syn tcp dport 4443 counter name relay; iifname { "up0", "up1" } udp dport 53 counter name names; }; }'
    sleep 12
    ip netns exec far nft list counters table inet count | awk '/counter/ { name = $2 } /packets/ { print name, $2 }' | sort
    ip netns exec far nft delete table inet count
}
begin --no-direct
sleep 9; kill $client; wait $client || true
# The packets that the client sent before it ended may cause one probe.
sleep 11
counted
kill -TERM $edge; wait $edge || true; free
ip -n far link set up1 down
begin --no-direct
sleep 5
counted
tail -n 1 talk.log
"#;
    let Some(lines) = run_in_network(&format!("{SHELL_FUNCTIONS}{script}")) else { return };
    assert_eq!(lines, ["names 0", "relay 0", "names 0", "relay 0", "10.0.1.2"], "{lines:#?}");
}
