//! UDP of a LAN: which link it takes, and how it leaves a link that fails while no TCP flow reveals the failure.

use super::run_in_network;

/// Shell functions for the scripts below: a client that sends ten packets a second, and failures of the first link.
const SHELL_FUNCTIONS: &str = r#"
mkdir -m 755 run
RELAY=203.0.113.1
ip netns exec srv perl -e "$echo" & until ip netns exec srv ss -Huln | grep -q :5000; do sleep 0.02; done
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

#[test]
fn udp_uses_the_link_with_the_highest_measured_rate_and_another_link_when_it_fails() {
    let script = r#"
relay --allow-port 9000
# A forwarding host sends IPv6 neighbour solicitations from link-local addresses only.
for device in lan0 up0 up1; do ip address add fe80::1/64 dev $device nodad; done
for device in srv0 up0 up1; do ip -n far address add fe80::2/64 dev $device nodad; done
mkdir -m 755 run; state >before
tc qdisc add dev up0 root tbf rate 4mbit burst 16k latency 100ms; tc qdisc add dev up1 root tbf rate 20mbit burst 32k latency 100ms
edge --link up0,kind=ethernet,metered=no --link up1,kind=ethernet,metered=no
for address in 203.0.113.5 2001:db8::5; do ip netns exec srv perl -e "$echo" $address & done
until [ $(ip netns exec srv ss -uln | grep -c :5000) = 2 ]; do sleep 0.02; done
lan perl -e "$talk" 203.0.113.5 >addresses4 & lan perl -e "$talk" 2001:db8::5 >addresses6 &
ip netns exec srv perl -e "$sink" & until ip netns exec srv ss -tln | grep -q :9000; do sleep 0.02; done
# Load on both links, so that the edge measures their rates.
lan perl -e "$upload" &
until_seen_over() { until [ "$(tail -qn1 addresses4 addresses6 | tr '\n' ' ')" = "10.0.$1.2 fd0$1::2 " ]; do sleep 0.1; kill -0 $edge; done; }
over() { until "$MARLINE" edge status --run-dir run | grep "UDP and other packets"; do sleep 0.1; kill -0 $edge; done; }
until_seen_over 1; over
until_seen_over 2; over
# up1 drops all packets without an error, for TCP as well.
ip netns exec far nft 'table inet dead { chain in { type filter hook prerouting priority -400; iifname "up1" drop; };
    chain out { type filter hook postrouting priority -400; oifname "up1" drop; }; }'
until_seen_over 1; over
ip netns exec far nft delete table inet dead
# The other link loses its carrier.
until "$MARLINE" edge status --run-dir run | grep -q '^up1 *up '; do sleep 0.1; kill -0 $edge; done
ip -n far link set up0 down
until_seen_over 2; over
cat addresses4 addresses6
kill -KILL $edge; wait $edge || true
free; ip -n far link set up0 up
until [ -z "$(ip route show | grep linkdown)" ]; do sleep 0.01; done
ip rule | grep -c '^2000[23]:.*iif lan0'; ip route show table 28003; ip -6 route show table 28003 | cut -d' ' -f1-5
left="rules and routes of a LAN's gateway"
# Twenty of these rules lead DNS queries away from up0, which is down.
"$MARLINE" paths doctor --run-dir run | grep -o "34 $left" || true
"$MARLINE" paths restore --run-dir run 2>&1 | grep -o "34 $left removed"
state >after; diff before after && echo "as before"
grep "UDP and other packets of the LAN leave" edge.log
"#;
    let Some(lines) = run_in_network(script) else { return };
    let default_reason = "by the default route of the host: no link that is up has shown a rate yet";
    let reasons =
        [default_reason, "over up1: it has shown the highest rate", "over up0: it has shown the highest rate"];
    let order = [reasons[0], reasons[1], reasons[2], reasons[1]];
    let log_lines: Vec<String> =
        order.iter().map(|reason| format!("UDP and other packets of the LAN leave {reason}")).collect();
    let received = ["10.0.1.2", "10.0.2.2", "10.0.1.2", "10.0.2.2", "fd01::2", "fd02::2", "fd01::2", "fd02::2"];
    let kernel = [
        "2",
        "default via 10.0.2.1 dev up1 proto 109 ",
        "default via fd02::1 dev up1",
        "34 rules and routes of a LAN's gateway",
        "34 rules and routes of a LAN's gateway removed",
        "as before",
    ];
    let log = log_lines.iter().map(|line| format!("marline: {line}"));
    let expected: Vec<String> = log_lines
        .iter()
        .cloned()
        .chain(received.map(str::to_owned))
        .chain(kernel.map(str::to_owned))
        .chain(log)
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn udp_leaves_the_default_route_without_carrier_even_if_no_rate_is_known() {
    let script = r#"
mkdir -m 755 run; state >before
edge --no-paths
ip netns exec srv perl -e "$echo" & until ip netns exec srv ss -uln | grep -q :5000; do sleep 0.02; done
lan perl -e "$talk" 203.0.113.5 >addresses &
until_seen_as() { until [ "$(tail -n1 addresses)" = $1 ]; do sleep 0.1; kill -0 $edge; done; }
until_seen_as 10.0.1.2
# The cable is unplugged, and the route remains.
ip -n far link set up0 down
until_seen_as 10.0.2.2
ip route show default | grep -c up0
kill -TERM $edge; wait $edge && echo "ended well"
free; ip -n far link set up0 up
until [ -z "$(ip route show | grep linkdown)" ]; do sleep 0.01; done
state >after; diff before after && echo "as before"
cat addresses; grep -c "other packets of the LAN leave" edge.log
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["1", "ended well", "as before", "10.0.1.2", "10.0.2.2", "2"]);
}

#[test]
fn udp_leaves_a_link_that_drops_everything_while_no_other_traffic_flows() {
    let script = r#"
# Strict reverse-path filtering, the default of many distributions: drops packets that arrive on a link other than the route to their source.
sysctl -qw net.ipv4.conf.up0.rp_filter=1 net.ipv4.conf.up1.rp_filter=1
RELAY=203.0.113.1
relay
ip netns exec srv perl -e "$echo" & sleep 0.2
edge
# The flow starts on the default link, whose rate is not known.
lan perl -e "$talk" 203.0.113.5 >talk.log & sleep 1
cat talk.log
mute() { ip netns exec far nft "table inet mute { chain drops { type filter hook prerouting priority -400; iifname up$1 drop; }; }"; began=$(date +%s%N); }
over() { # ADDRESS LOG
    until tail -n 1 $2 | grep -q "^$1\$"; do sleep 0.05; kill -0 $edge; done
    took=$(( ($(date +%s%N) - began) / 1000000 )); [ $took -lt 4000 ] && echo "over $1 in time" || echo "over $1 after $took ms"
}
mute 0
over 10.0.2.2 talk.log
"$MARLINE" edge status --run-dir run | awk '$1 == "up0" { print $1, $2 }'
# up0 recovers, and the link in use drops everything.
ip netns exec far nft delete table inet mute
until "$MARLINE" edge status --run-dir run | grep -q "^up0 *up"; do sleep 0.1; kill -0 $edge; done
mute 1
over 10.0.1.2 talk.log
"$MARLINE" edge status --run-dir run | awk '$1 == "up1" { print $1, $2 }'
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected =
        ["10.0.1.2", "over 10.0.2.2 in time", "up0 unresponsive", "over 10.0.1.2 in time", "up1 unresponsive"];
    assert_eq!(lines, expected, "{lines:#?}");
}
