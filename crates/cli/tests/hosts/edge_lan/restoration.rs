//! The host configuration after a crash of the edge, and after other programs have changed it.

use super::run_in_network;

#[test]
fn the_host_configuration_of_a_killed_edge_is_restored_by_a_command_and_by_the_next_start() {
    let script = r#"
relay
mkdir -m 755 run; state >before
for n in 1 2; do
    edge --no-paths
    lan curl -sS -m 20 http://203.0.113.5/
    kill -KILL $edge; wait $edge || true
    free
    sysctl -n net.ipv4.ip_forward
    ip rule | grep -c 'fwmark 0x6d62'
    if [ $n = 1 ]; then
        "$MARLINE" paths restore --run-dir run 2>restored
        grep -c "net.ipv4.ip_forward: restored to 0" restored
        state >after; diff before after && echo "as before"
    else
        edge --no-paths
        lan curl -sS -m 20 http://203.0.113.5/
        "$MARLINE" paths restore --run-dir run 2>restored || true
        grep -c "nothing to restore" restored
        # `restore` with another run directory removes nothing of the running edge either.
        mkdir -m 755 other; "$MARLINE" paths restore --run-dir other 2>restored || true
        lan curl -sS -m 20 http://203.0.113.5/
        ip rule | grep -c 'fwmark 0x6d62'
        kill -TERM $edge; wait $edge; free
        state >after; diff before after && echo "as before"
    fi
done
"#;
    let Some(lines) = run_in_network(script) else { return };
    let carried = "203.0.113.1 to 203.0.113.5";
    let expected =
        [carried, "1", "1", "1", "as before", carried, "1", "1", carried, "1", carried, "1", "as before"];
    assert_eq!(lines, expected);
}

#[test]
fn a_lan_stays_closed_after_a_crash_until_a_restart_or_restore() {
    let script = r#"
relay
# A router solicits its neighbours from a link-local address.
for device in lan0 up0 up1; do ip address add fe80::77/64 dev $device nodad; done
# A private network that only the default route covers, and a host that masquerades everything that leaves by a link.
ip -n far address add 10.20.0.5/32 dev lo
nft 'table ip host { chain post { type nat hook postrouting priority 100; oifname { "up0", "up1" } masquerade; }; }'
mkdir -m 755 run; state >before
# Both sides have routes to each other: only the rules of this host separate them.
for net in far srv; do
    via=10.0.1.2 via6=fd01::2; [ $net = far ] || { via=203.0.113.1; via6=2001:db8::1; }
    ip -n $net route add 192.168.77.0/24 via $via; ip -n $net -6 route add fd77::/64 via $via6
done
listen='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "::", LocalPort => 2222, V6Only => 0, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { print $c "hello\n"; close $c }'
for name in lan far; do
    ip netns exec $name perl -e "$listen" & until ip netns exec $name ss -tln | grep -q :2222; do sleep 0.02; done
done
reach='use IO::Socket::IP; for (@ARGV) { my $s = IO::Socket::IP->new(PeerHost => $_, PeerPort => 2222, Timeout => 2); print $s ? "OPEN " : "closed " } print "\n"'
outside() { ip netns exec far perl -e "$reach" 192.168.77.2 fd77::2; }
beyond() { lan curl -s -m 3 -o /dev/null http://203.0.113.5/ && echo "in plain text" || echo "refused"; }
# A private address that only the default route covers, and one in a link's own network.
private() { lan perl -e "$reach" 10.20.0.5 10.0.1.1; }
table() { nft list table inet marline-lan >/dev/null 2>&1 && echo "stands" || echo "none"; }
edge --no-paths
outside; table
"$MARLINE" edge status --run-dir run | grep -o "LAN lan0: blocked.*"
kill -KILL $edge; wait $edge || true
free; sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding
outside; beyond; private; table
"$MARLINE" edge status --run-dir run 2>&1 | grep -o "the LAN at lan0 stays blocked" || true
"$MARLINE" paths doctor --run-dir run | grep -o "table inet marline-lan, which keeps lan0 closed" || true
# Another run directory has no record of the previous forwarding setting: the table that keeps the LAN closed stays.
mkdir -m 755 other; "$MARLINE" restore --run-dir other 2>&1 | grep -o "keeps lan0 closed, because this host still forwards" || true
outside; private
# A restarted edge takes the table over, and an orderly end removes it.
edge --no-paths
lan curl -sS -m 20 http://203.0.113.5/
outside; table
"$MARLINE" restore --run-dir run 2>&1 | grep -c "nothing to restore"
outside; table
kill -TERM $edge; wait $edge; free
outside; table
state >after; diff before after && echo "as before"
# `restore` removes it as well, once forwarding is off.
edge --no-paths; kill -KILL $edge; wait $edge || true; free
"$MARLINE" restore --run-dir run 2>&1 | grep -o "table inet marline-lan removed, which kept lan0 closed"
outside; table
state >after; diff before after && echo "as before"
# With `--direct`, flows go directly after a crash as well; the LAN stays closed to the outside.
edge --no-paths --direct; kill -KILL $edge; wait $edge || true; free
outside; beyond; private
# Proof that the routes exist: without the table, the outside reaches the LAN.
nft delete table inet marline-lan; outside
"#;
    let Some(lines) = run_in_network(script) else { return };
    let closed = "closed closed ";
    let expected = [
        closed,
        "stands",
        "LAN lan0: blocked from the outside, also after a crash (nft table inet marline-lan)",
        "1",
        "1",
        closed,
        "refused",
        "closed OPEN ",
        "stands",
        "the LAN at lan0 stays blocked",
        "table inet marline-lan, which keeps lan0 closed",
        "keeps lan0 closed, because this host still forwards",
        closed,
        closed,
        "203.0.113.1 to 203.0.113.5",
        closed,
        "stands",
        "1",
        closed,
        "stands",
        closed,
        "none",
        "as before",
        "table inet marline-lan removed, which kept lan0 closed",
        closed,
        "none",
        "as before",
        closed,
        "in plain text",
        "OPEN OPEN ",
        "OPEN OPEN ",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn a_lan_is_carried_again_after_its_interface_was_recreated_and_rules_were_flushed_and_half_closes_pass() {
    let script = r#"
relay --allow-port 80 --allow-port 9000
mkdir -m 755 run
edge
again() { until lan curl -sS -m 2 http://203.0.113.5/ 2>/dev/null; do sleep 0.2; kill -0 $edge; done; }
again
# A USB adapter is pulled out and put back.
ip link delete lan0; sleep 1
ip link add lan0 type veth peer name eth0 netns lan
wire - lan0 192.168.77.1/24 fd77::1/64; wire lan eth0 192.168.77.2/24 fd77::2/64; ip -n lan route add default via 192.168.77.1
again
# Another program loads its firewall.
nft flush ruleset
again
led; nft list table inet marline-edge | grep -c tproxy | sed 's/[1-9][0-9]*/some/'
# A half-closed connection: the client has sent everything and waits for the response.
ip netns exec srv perl -e 'use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => "203.0.113.5", LocalPort => 9000) or die;
    while (my $c = $l->accept) { my $all = 0; while (my $n = sysread $c, my $piece, 65536) { $all += $n } print $c "$all\n"; close $c }' &
until ip netns exec srv ss -tln | grep -q :9000; do sleep 0.02; done
lan perl -e 'use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "203.0.113.5:9000") or die; alarm 20;
    print $s "x" x 100000; $s->flush; shutdown $s, 1; print <$s>'
# The same for a program on the edge's host, by CONNECT.
perl -e 'use IO::Socket::INET; my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:1088") or die; alarm 20;
    print $s "CONNECT 203.0.113.5:9000 HTTP/1.1\r\nHost: x\r\n\r\n"; $s->flush; while (<$s>) { last if /^\r\n/ }
    print $s "x" x 100000; $s->flush; shutdown $s, 1; print <$s>'
kill -TERM $edge; wait $edge && echo "ended well"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let carried = "203.0.113.1 to 203.0.113.5";
    assert_eq!(lines, [carried, carried, carried, "some", "100000", "100000", "ended well"]);
}
