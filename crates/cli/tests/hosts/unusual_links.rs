//! Unusual but valid links and routes: reverse-path filters, equal metrics, one route over two links, other kinds of interfaces, and links
//! that are slow, flap, are many, or are all unresponsive.
//!
//! The tests check which links carry and that all bytes arrive.

use crate::routers::run_in_network;

/// Two links, as most scripts below need them.
const TWO: &str = "link wan1 1 10.0.1.2 10.0.1.1; link wan2 2 10.0.2.2 10.0.2.1\n";

fn lines_of(script: &str) -> Option<Vec<String>> {
    run_in_network(&format!("{TWO}{script}"))
}

#[test]
fn both_links_carry_with_strict_rp_filter_a_multipath_route_and_equal_metrics() {
    let script = r#"
sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.wan1.rp_filter=1 net.ipv4.conf.wan2.rp_filter=1
both() { paths; carried 4000000 "" wan1 wan2; kill $daemon; wait $daemon; ip rule | grep -c 2000 || true; }
both
ip route delete default; ip route delete default
ip route add default nexthop via 10.0.1.1 dev wan1 nexthop via 10.0.2.1 dev wan2
both
ip route delete default
ip route add default via 10.0.1.1 dev wan1 metric 100; ip route append default via 10.0.2.1 dev wan2 metric 100
both
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["wan1 wan2 ", "0", "wan1 wan2 ", "0", "wan1 wan2 ", "0"], "{lines:#?}");
}

#[test]
fn an_edge_follows_links_that_change_their_metric_name_kind_address_and_router() {
    let script = r#"
relay; edge
HOST=45.2.0.20
both() { # NAME…: waits until these links are up, and downloads
    for name in "$@"; do until "$MARLINE" edge status --run-dir run | grep -q "^$name .*up"; do sleep 0.1; kill -0 $edge; done; done
    sleep 1; carried 3000000 1088 "$@"
}
both wan1 wan2
# Another link becomes the default link.
ip route add default via 10.0.2.1 dev wan2 metric 50; sleep 1
both wan1 wan2
ip route delete default via 10.0.2.1 dev wan2 metric 50
# udev renames the link.
ip link set wan2 down; ip link set wan2 name wwan9; ip link set wwan9 up; ip route add default via 10.0.2.1 dev wwan9 metric 200
both wan1 wwan9
# A modem in raw IP mode: a /32 address and no router.
ip netns exec g2 sysctl -qw net.ipv4.conf.dn0.proxy_arp=1 net.ipv4.neigh.dn0.proxy_delay=0; ip -n g2 route add 100.70.1.9/32 dev dn0
ip address flush dev wwan9; ip address add 100.70.1.9/32 dev wwan9; ip route add default dev wwan9 scope link metric 200
# Spare connections from before the change are used first.
sleep 3; perl ask.pl 45.2.0.20 1000 1088 >/dev/null; perl ask.pl 45.2.0.20 1000 1088 >/dev/null; both wan1 wwan9
# The interface becomes a port of a bridge.
ip address flush dev wwan9; ip link add br-wan type bridge; ip link set wwan9 master br-wan; ip link set br-wan up
ip address add 10.0.2.2/24 dev br-wan; ip route add default via 10.0.2.1 dev br-wan metric 200
both wan1 br-wan
ip link set wwan9 nomaster; ip link delete br-wan
if ip link add mv0 link wwan9 type macvlan mode bridge 2>/dev/null; then
    ip link set mv0 up; ip address add 10.0.2.22/24 dev mv0; ip route add default via 10.0.2.1 dev mv0 metric 200
    name=mv0
else
    ip address add 10.0.2.2/24 dev wwan9; ip route add default via 10.0.2.1 dev wwan9 metric 200
    name=wwan9
fi
both wan1 $name | sed "s/$name/third/"
# The router changes its address while the lease stays the same.
ip -n g2 address add 10.0.2.254/24 dev dn0; ip route replace default via 10.0.2.254 dev $name metric 200
ip -n g2 address delete 10.0.2.1/24 dev dn0; ip -n g2 address add 10.0.2.254/24 dev dn0 2>/dev/null || true
sleep 1
both wan1 $name | sed "s/$name/third/"
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(script) else { return };
    let two =
        ["wan1 wan2 ", "wan1 wan2 ", "wan1 wwan9 ", "wan1 wwan9 ", "wan1 br-wan ", "wan1 third ", "wan1 third "];
    assert_eq!(lines, two, "{lines:#?}");
}

#[test]
fn a_second_link_of_20_kbits_does_not_slow_a_transfer_down() {
    let script = r#"
ip netns exec g2 tc qdisc replace dev dn0 root tbf rate 20kbit burst 5k limit 20k
relay; edge
HOST=45.2.0.20
# 2 s at the rate of the first link; LIMIT is the timeout of `ask.pl`.
LIMIT=15 carried 2000000 1088 wan1 wan2
LIMIT=15 carried 2000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["wan1 ", "wan1 "], "{lines:#?}");
}

#[test]
fn flows_start_and_run_over_the_second_link_while_the_default_link_has_20_kbits() {
    let script = r#"
ip netns exec g1 tc qdisc replace dev dn0 root tbf rate 20kbit burst 5k limit 20k
tc qdisc replace dev wan1 root tbf rate 20kbit burst 5k limit 20k
relay; DIRECT=--direct edge
HOST=45.2.0.20
# Half a second each; over the first link it would take minutes.
for n in 1 2 3; do LIMIT=15 carried 500000 1088 wan1 wan2; done
"$MARLINE" edge status --run-dir run | head -n 1 | grep -o "[0-9]* direct"
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["wan2 ", "wan2 ", "wan2 ", "0 direct"], "{lines:#?}");
}

#[test]
fn a_flow_started_while_all_links_are_unresponsive_is_refused_and_later_flows_are_carried() {
    let script = r#"
relay; edge
HOST=45.2.0.20
carried 100000 1088 wan1 wan2 >/dev/null
silence 1; silence 2
sleep 2
LIMIT=30 perl ask.pl $HOST 1000 1088 2>&1
recover 1; recover 2
until [ "$(LIMIT=10 perl ask.pl $HOST 1000 1088 2>/dev/null)" = 1000 ]; do sleep 0.5; done
carried 3000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(&script.replace("1088 2>&1", "1088 2>&1 || true")) else { return };
    assert_eq!(lines, ["refused", "wan1 wan2 "], "{lines:#?}");
}

/// wan1 has only IPv4, wan2 has only IPv6; the server has both and announces both (ADD_ADDR).
const OTHER_FAMILY: &str = r#"
link wan1 1 10.0.1.2 10.0.1.1
router wan2 2; six wan2 2
ip netns exec srv ip mptcp endpoint add 2a45::10 signal
ip netns exec srv ip mptcp endpoint add 45.0.0.10 signal
"#;

#[test]
fn an_ipv6_only_link_carries_a_connection_started_over_ipv4_if_the_socket_is_dual_stack() {
    let script = r#"
sed 's/PF_INET,/PF_INET6,/; s/bind(/setsockopt($l, 41, 26, 1); bind(/; s/sockaddr_in(8000, INADDR_ANY)/sockaddr_in6(8000, pack("x16"))/' serve.pl >serve6.pl
ip netns exec srv perl serve6.pl & until ip netns exec srv ss -H6tln 'sport = :8000' | grep -q .; do sleep 0.02; kill -0 $!; done
paths
# A dual-stack IPv6 socket, as Java opens its sockets.
sed 's/PF_INET,/PF_INET6,/; s/sockaddr_in(8000, inet_aton(\$host))/sockaddr_in6(8000, Socket::inet_pton(AF_INET6, $host))/' ask.pl >ask6.pl
perl ask6.pl ::ffff:45.0.0.10 12000000 & transfer=$!
sleep 3; silence 1; wait $transfer
recover 1
was=$(rx wan2); LIMIT=20 perl ask.pl 45.0.0.10 6000000 & transfer=$!
# Until the server's addresses have arrived (ADD_ADDR), the status gives another reason.
for n in $(seq 100); do
    why=$("$MARLINE" paths status --run-dir run | grep -o "wan2 has only .*" || true)
    case $why in *"IPv4 only") break;; esac; sleep 0.1
done
echo "$why"; wait $transfer
[ $(( $(rx wan2) - was )) -lt 100000 ] || echo "the other socket, too"
# A connection that started over IPv6 uses all links with IPv6.
six wan1 1
both() {
    local one=$(rx wan1) two=$(rx wan2)
    [ "$(perl ask6.pl 2a45::10 4000000)" = 4000000 ] || echo "not all came"
    [ $(( $(rx wan1) - one )) -gt 800000 -a $(( $(rx wan2) - two )) -gt 800000 ]
}
for try in $(seq 10); do both && break; done
times=0; for try in 1 2 3; do both && times=$(( times + 1 )); done; echo "both $times times"
kill $daemon; wait $daemon; ip -6 rule | grep -c 2000 || true
"#;
    let Some(lines) = run_in_network(&format!("{OTHER_FAMILY}{script}")) else { return };
    let why = "wan2 has only IPv6, and the program's socket is for IPv4 only";
    assert_eq!(lines, ["12000000", why, "6000000", "both 3 times", "0"], "{lines:#?}");
}

#[test]
fn an_edge_uses_an_ipv6_only_link_when_the_ipv4_link_fails() {
    let script = r#"
printf '127.0.0.1 localhost\n45.0.0.10 relay.test\n2a45::10 relay.test\n' >hosts; mount --bind hosts /etc/hosts
RELAY=relay.test ALSO=[2a45::10]:4443
relay; edge
HOST=45.2.0.20
carried 4000000 1088 wan1 wan2
perl ask.pl $HOST 12000000 1088 & transfer=$!
sleep 3; silence 1; wait $transfer
# New flows begin over IPv6.
carried 200000 1088 wan1 wan2; carried 200000 1088 wan1 wan2
recover 1
all_carry 4000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = run_in_network(&format!("{OTHER_FAMILY}{script}")) else { return };
    assert_eq!(lines, ["wan1 wan2 ", "12000000", "wan2 ", "wan2 ", "wan1 wan2 "], "{lines:#?}");
}

#[test]
#[ignore = "24 s of flapping; make soak runs it"]
fn a_flapping_link_causes_no_log_lines_and_little_cpu_time_and_both_links_carry_afterwards() {
    let script = r#"
relay; edge
HOST=45.2.0.20
LIMIT=90 perl ask.pl $HOST 40000000 1088 >came & transfer=$!
sleep 2
ticks() { sed 's/.*) //' /proc/$1/stat | awk '{ print $12 + $13 }'; }
lines=$(wc -l <edge.log); ticks=$(ticks $edge)
for turn in $(seq 12); do
    ip link set wan2 down; sleep 1; ip link set wan2 up; ip route replace default via 10.0.2.1 dev wan2 metric 200; sleep 1
done
ticks=$(( $(ticks $edge) - ticks ))
# 0.6 s in a debug build; a thread that spins between events takes more than 20 s.
[ $ticks -le $(( 4 * $(getconf CLK_TCK) )) ] || echo "$ticks ticks of the processor"
[ $(( $(wc -l <edge.log) - lines )) -le 4 ] || { echo "many lines"; cat edge.log; }
wait $transfer; cat came
carried 4000000 1088 wan1 wan2
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["40000000", "wan1 wan2 "], "{lines:#?}");
}

#[test]
#[ignore = "two minutes of an idle session; make soak runs it"]
fn an_idle_session_survives_routers_that_drop_its_nat_state() {
    let script = r#"
for n in 1 2; do
    ip netns exec g$n sysctl -qw net.netfilter.nf_conntrack_tcp_timeout_established=40 net.netfilter.nf_conntrack_tcp_loose=0
    ip netns exec g$n nft 'table ip x { chain f { type filter hook forward priority 10; ct state invalid drop; };
        chain i { type filter hook input priority 10; ct state invalid drop; }; }'
done
relay; edge
ip netns exec srv perl -e 'use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => "45.2.0.20", LocalPort => 8001) or die;
    my $c = $l->accept; while (<$c>) { print $c $_; $c->flush }' &
until ip netns exec srv ss -tln | grep -q :8001; do sleep 0.05; done
perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 6) or die $!; connect($s, sockaddr_in(1088, INADDR_LOOPBACK)) or die $!; $SIG{ALRM} = sub { die "late\n" };
    syswrite $s, "\5\1\0"; sysread $s, my $a, 2; syswrite $s, "\5\1\0\1" . inet_aton("45.2.0.20") . pack("n", 8001); sysread $s, my $b, 10;
    syswrite $s, "one\n"; sysread $s, my $one, 10; sleep 85; alarm 20; syswrite $s, "two\n"; sysread $s, my $two, 10; print $one, $two'
kill $edge; wait $edge
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["one", "two"], "{lines:#?}");
}

#[test]
#[ignore = "twenty links; make soak runs it"]
fn of_twenty_links_as_many_carry_as_the_kernel_allows() {
    let script = r#"
for n in $(seq 20); do
    link wan$n $n 10.0.$n.2 10.0.$n.1
    ip netns exec g$n tc qdisc replace dev dn0 root tbf rate 1mbit burst 10k limit 60k
done
paths
names=$(seq -f wan%g 20)
declare -A was; for name in $names; do was[$name]=$(rx $name); done
LIMIT=60 perl ask.pl 45.0.0.10 5000000
used=0; for name in $names; do if [ $(( $(rx $name) - ${was[$name]} )) -gt 100000 ]; then used=$((used + 1)); fi; done
[ $used -ge 6 ] && echo "six or more" || echo "only $used"
kill $daemon; wait $daemon; ip rule | grep -c 2000 || true; ip route show table all proto 109 | wc -l
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["5000000", "six or more", "0", "0"], "{lines:#?}");
}
