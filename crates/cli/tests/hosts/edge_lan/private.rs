//! Private networks that the host has routes to: TCP of the LAN is forwarded there like UDP, by the host's current routes and rules.

use super::run_in_network;

/// An office network behind the edge's host, with servers, and shell functions for the scripts below.
const OFFICE: &str = r#"
ip netns add office; ip -n office link set lo up
ip link add off0 type veth peer name eth0 netns office
wire - off0 10.50.0.1/24; wire office eth0 10.50.0.2/24
for address in 172.20.0.1 192.168.100.1 100.100.100.200; do ip -n office address add $address/32 dev lo; done
ip -n office route add default via 10.50.0.1
ip route add 172.20.0.0/16 via 10.50.0.2
# The same address next to the public server: the relay reaches that one.
ip -n srv address add 192.168.100.1/32 dev lo; ip -n far route add 192.168.100.1 via 203.0.113.5
for name in srv office; do ip netns exec $name perl -e "$shell" & done
ip netns exec office perl -e "$echo" 172.20.0.1 &
until [ $(ip netns exec office ss -Htuln 'sport = :2222 or sport = :5000' | wc -l) = 2 ]; do sleep 0.02; done
tcp='use IO::Socket::IP; $SIG{ALRM} = sub { print "no answer\n"; exit }; alarm 2;
    my $s = IO::Socket::IP->new(PeerHost => shift, PeerPort => 2222) or do { print "refused\n"; exit }; print scalar(<$s>) // "reset\n"'
udp='use IO::Socket::IP; $SIG{ALRM} = sub { print "no answer\n"; exit }; alarm 2;
    my $s = IO::Socket::IP->new(Proto => "udp", PeerHost => shift, PeerPort => 5000) or die; $s->send("hello");
    defined $s->recv(my $text, 1500) or do { print "refused\n"; exit }; print "$text\n"'
both() { echo "$(lan perl -e "$tcp" 172.20.0.1) | $(lan perl -e "$udp" 172.20.0.1)"; }
"#;

#[test]
fn forward_rules_of_the_host_apply_to_tcp_to_private_networks_as_to_udp() {
    let script = r#"
relay
edge
both
nft 'table ip filter { chain FORWARD { type filter hook forward priority filter; policy drop; }; }'
both
# Packets with another program's mark reach the edge, which opens no connection that these rules would drop.
nft 'table ip marks { chain pre { type filter hook prerouting priority -300; iifname "lan0" ip daddr 172.20.0.0/16 meta mark set 5; }; }'
lan perl -e "$tcp" 172.20.0.1
nft delete table ip marks
nft add rule ip filter FORWARD reject
both
nft 'insert rule ip filter FORWARD iifname lan0 oifname off0 accept; insert rule ip filter FORWARD oifname lan0 ct state established accept'
both
# Public destinations go to the relay, whatever the forward chain decides.
lan curl -sS -m 20 http://203.0.113.5/
kill -TERM $edge; wait $edge && echo "ended well"
"#;
    let Some(lines) = run_in_network(&format!("{OFFICE}{script}")) else { return };
    let answered = "hello, 10.50.0.1 | hello from 10.50.0.1";
    let expected = [
        answered,
        "no answer | no answer",
        "reset",
        "refused | refused",
        answered,
        "203.0.113.1 to 203.0.113.5",
        "ended well",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn connections_from_outside_to_the_lan_still_work_where_the_host_was_a_router_before() {
    let script = r#"
relay
sysctl -qw net.ipv4.ip_forward=1
# A camera in the LAN, which the office reaches by a route, and the Internet by a forwarded port.
lan perl -e "$shell" & until lan ss -Htln 'sport = :2222' | grep -q .; do sleep 0.02; done
nft 'table ip host { chain pre { type nat hook prerouting priority -100; iifname "up0" tcp dport 8080 dnat to 192.168.77.2:2222; }; }'
outside() { ip netns exec office perl -e "$tcp" 192.168.77.2; ip netns exec srv timeout 2 bash -c 'exec 3<>/dev/tcp/10.0.1.2/8080; cat <&3' || echo "no answer"; }
ip -n srv route add 10.0.1.0/24 via 203.0.113.1
outside
edge
outside
lan perl -e "$tcp" 172.20.0.1
lan curl -sS -m 20 http://203.0.113.5/
kill -KILL $edge; wait $edge || true; free
outside
"#;
    let Some(lines) = run_in_network(&format!("{OFFICE}{script}")) else { return };
    let outside = ["hello, 10.50.0.2", "hello, 203.0.113.5"];
    let allowed = ["hello, 10.50.0.1", "203.0.113.1 to 203.0.113.5"];
    assert_eq!(lines, [outside, outside, allowed, outside].concat(), "{lines:#?}");
}

#[test]
fn forwarded_tcp_needs_no_icmp_where_a_link_has_a_smaller_mtu() {
    let script = r#"
relay
# Packets larger than 1420 bytes are dropped without an ICMP message. Segmentation offload would hide that.
ip link set off0 mtu 1420 gso_max_segs 1
ip -n office link set eth0 gso_max_segs 1; ip -n lan link set eth0 gso_max_segs 1
for name in lan office; do ip netns exec $name nft 'table inet noicmp { chain in { type filter hook input priority 0; meta l4proto { icmp, ipv6-icmp } drop; }; }'; done
bulk='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "172.20.0.1", LocalPort => 3333) or die;
    while (my $c = $l->accept) { my ($all, $n) = (0); while ($all < 300000 and $n = sysread $c, my $piece, 65536) { $all += $n } print $c "x" x 300000, "$all\n"; close $c }'
ip netns exec office perl -e "$bulk" & until ip netns exec office ss -Htln 'sport = :3333' | grep -q .; do sleep 0.02; done
edge
lan timeout -k 1 10 perl -e 'use IO::Socket::IP; my $s = IO::Socket::IP->new(PeerHost => "172.20.0.1", PeerPort => 3333) or die;
    print $s "x" x 300000; $s->flush; my $all = do { local $/; <$s> }; print length($all), substr($all, 300000) =~ s/^/ /r' || echo "it stalls"
"#;
    let Some(lines) = run_in_network(&format!("{OFFICE}{script}")) else { return };
    assert_eq!(lines, ["300007 300000"], "{lines:#?}");
}

#[test]
fn a_private_network_is_routed_as_soon_as_the_host_has_a_route_and_running_flows_continue() {
    let script = r#"
relay --allow-net 192.168.100.1 --allow-port 2222 --allow-port 3333
edge
page() { lan perl -e "$tcp" 192.168.100.1; }
page
ip route add 192.168.100.0/24 via 10.50.0.2
page
ip route del 192.168.100.0/24
page
# A rejecting route of the host also applies to flows that would go to the relay.
for kind in unreachable prohibit blackhole; do
    ip route add $kind 192.168.100.0/24; page; ip route del $kind 192.168.100.0/24
done
# The address of a cloud metadata service is refused on every path.
ip route add 100.100.100.200/32 via 10.50.0.2
lan perl -e "$tcp" 100.100.100.200
# A server that sends a line every 100 ms. Running flows stay on the path they started on; when that path is removed, the client is reset.
ticks='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "192.168.100.1", LocalPort => 3333, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { next if fork; while (1) { syswrite($c, "tick\n") or exit; select undef, undef, undef, 0.1 } }'
for name in srv office; do
    ip netns exec $name perl -e "$ticks" & until ip netns exec $name ss -Htln 'sport = :3333' | grep -q .; do sleep 0.02; done
done
listen() { lan bash -c 'exec 3<>/dev/tcp/192.168.100.1/3333; while echo hm >&3; do sleep 0.2; done & cat <&3; echo ended' >$1 2>/dev/null & until [ -s $1 ]; do sleep 0.05; done; }
more() { local was=$(wc -l <$1); for n in $(seq 100); do [ $(wc -l <$1) -gt $((was + 5)) ] && echo "it goes on" && break; sleep 0.1; done; }
listen carried
ip route add 192.168.100.0/24 via 10.50.0.2
more carried
listen forwarded
more forwarded
ip route del 192.168.100.0/24
for n in $(seq 100); do grep -q ended forwarded && echo "it ended" && break; sleep 0.1; done
more carried
# The same over the interface of the default route: the kernel keeps the masquerade state, and nothing is forwarded without the route.
ip route add 192.168.100.0/24 via 10.0.1.1 dev up0
listen beside
more beside
ip route del 192.168.100.0/24
for n in $(seq 100); do grep -q ended beside && echo "it ended" && break; sleep 0.1; done
more carried
kill -KILL $edge; wait $edge || true; free
"$MARLINE" restore --run-dir run 2>&1 | grep -o "[0-9]* rules and routes of a LAN's gateway removed"
ip rule | grep -c "fwmark 0x6d63" || true
"#;
    let Some(lines) = run_in_network(&format!("{OFFICE}{script}")) else { return };
    let expected = [
        "hello, 203.0.113.1",
        "hello, 10.50.0.1",
        "hello, 203.0.113.1",
        "reset",
        "reset",
        "reset",
        "reset",
        "it goes on",
        "it goes on",
        "it ended",
        "it goes on",
        "it goes on",
        "it ended",
        "it goes on",
        "12 rules and routes of a LAN's gateway removed",
        "0",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn tcp_to_private_networks_is_routed_like_udp() {
    let script = r#"
relay
# One modem page has the address of a link's router, another has an address that only the default route covers.
for name in far; do ip netns exec $name perl -e "$shell" & done
ip -n far address add 192.168.100.1/32 dev lo; ip -n far address add 100.64.7.1/32 dev lo
# An office network behind a static route of the edge's host.
ip netns add office; ip -n office link set lo up
ip link add off0 type veth peer name eth0 netns office
wire - off0 10.50.0.1/24 fd50::1/64; wire office eth0 10.50.0.2/24 fd50::2/64
ip -n office address add 172.20.0.1/32 dev lo; ip -n office route add default via 10.50.0.1
ip -n office address add fd60::1/128 dev lo; ip -n office -6 route add default via fd50::1
ip route add 172.20.0.0/16 via 10.50.0.2; ip -6 route add fd60::/64 via fd50::2
ip netns exec office perl -e "$shell" &
echo 'use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "fd60::1", LocalPort => 2222) or die;
    while (my $c = $l->accept) { print $c "hello, ", $c->peerhost, "\n"; close $c }' >six.pl
ip netns exec office perl six.pl &
greet='use IO::Socket::IP; $SIG{ALRM} = sub { print "late\n"; exit }; alarm 20;
    my $s = IO::Socket::IP->new(PeerHost => shift, PeerPort => 2222) or do { print "refused\n"; exit }; print scalar(<$s>) // "reset\n"'
there="10.0.1.1 10.0.2.1 192.168.100.1 100.64.7.1 172.20.0.1 fd60::1"
sleep 0.3
for words in "" "--no-direct" "--listen 192.168.77.1:1088 --listen 127.0.0.1:1088"; do
    edge $words
    for to in $there; do lan perl -e "$greet" $to; done
    # Public destinations go to the relay as before.
    lan curl -sS -m 20 http://203.0.113.5/
    case "$words" in *listen*) break;; esac
    kill -TERM $edge; wait $edge; free
done
ask() { curl -sS -m 8 --proxytunnel -x http://$1:1088 telnet://$2:2222 2>&1 </dev/null | tail -n 1; }
asks() { for to in 10.0.2.1 192.168.100.1 172.20.0.1; do ask $1 $to; done; }
echo "socks"; asks 127.0.0.1
lan bash -ec "$(declare -f ask asks); asks 192.168.77.1"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let by = |address: &str| format!("hello, {address}");
    let mut each: Vec<String> =
        ["10.0.1.2", "10.0.2.2", "10.0.1.2", "10.0.1.2", "10.50.0.1", "fd50::1"].map(by).into();
    each.push("203.0.113.1 to 203.0.113.5".to_owned());
    let addresses_by_proxy = ["10.0.2.2", "10.0.1.2", "10.50.0.1"].map(by);
    let mut expected = [each.clone(), each.clone(), each].concat();
    expected.push("socks".to_owned());
    expected.extend(addresses_by_proxy.iter().chain(&addresses_by_proxy).cloned());
    assert_eq!(lines, expected);
}
