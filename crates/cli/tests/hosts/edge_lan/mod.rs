//! Tests of `marline edge --lan` as a LAN client sees it, and of the addresses that the edge and the relay refuse to connect to.
//!
//! The client, the edge with two links, the relay and the origin server each have a network namespace. The client is a plain `curl`
//! without any configuration. Each test builds its own namespaces (needs root, `unshare`, `ip`, `nft`, `nginx`, `curl`, `perl`) and
//! prints that it was skipped where one of them is missing.

mod carrier;
mod firewalls;
mod links;
mod mptcp;
mod names;
mod portals;
mod private;
mod private_names;
mod service;
mod udp;

/// Runs the script in the network of [`NETWORK`] and returns the lines that it printed.
fn run_in_network(script: &str) -> Option<Vec<String>> {
    crate::namespaces::run_in_namespaces(&["nft", "nginx", "curl", "perl"], &format!("{NETWORK}{script}"))
}

/// The network, and shell functions for the scripts below:
/// `lan` (client) ── lan0, edge, up0 and up1 ══ `far` (relay) ── `srv` (origin server).
const NETWORK: &str = r#"
mount -t tmpfs tmpfs /run
for name in lan far srv; do ip netns add $name; ip -n $name link set lo up; done
ip link set lo up
# addrgenmode none: otherwise the kernel adds link-local addresses a second later, which would change the compared state.
wire() { # NAMESPACE DEVICE ADDRESS…; `-` is the namespace of the edge
    local on=""; [ "$1" = - ] || on="-n $1"
    local device=$2; shift 2
    ip $on link set $device addrgenmode none
    for address in "$@"; do
        case $address in *:*) ip $on address add $address dev $device nodad;; *) ip $on address add $address dev $device;; esac
    done
    ip $on link set $device up
}
ip link add lan0 type veth peer name eth0 netns lan
ip link add up0 type veth peer name up0 netns far
ip link add up1 type veth peer name up1 netns far
ip -n far link add srv0 type veth peer name eth0 netns srv
wire - lan0 192.168.77.1/24 fd77::1/64; wire lan eth0 192.168.77.2/24 fd77::2/64
wire - up0 10.0.1.2/24 fd01::2/64; wire far up0 10.0.1.1/24 fd01::1/64
wire - up1 10.0.2.2/24 fd02::2/64; wire far up1 10.0.2.1/24 fd02::1/64
wire far srv0 203.0.113.1/24 2001:db8::1/64; wire srv eth0 203.0.113.5/24 2001:db8::5/64
ip -n lan route add default via 192.168.77.1; ip -n lan -6 route add default via fd77::1
for n in 0 1; do
    ip route add default via 10.0.$((n+1)).1 dev up$n metric 10$n
    ip -6 route add default via fd0$((n+1))::1 dev up$n metric 10$n
done
ip -n srv route add default via 203.0.113.1; ip -n srv -6 route add default via 2001:db8::1
ip netns exec far sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
until [ -z "$(ip route show | grep linkdown)" ]; do sleep 0.01; done

cat >nginx.conf <<'NGINX'
daemon off; master_process off; pid nginx.pid; error_log stderr;
events {}
http {
    access_log off; client_max_body_size 0; client_body_temp_path body;
    proxy_temp_path p; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
    server { listen 203.0.113.5:80; listen [2001:db8::5]:80; location / { return 200 "$remote_addr to $server_addr\n"; }
        location = /generate_204 { return 204; } }
}
NGINX
ip netns exec srv nginx -p "$PWD" -c nginx.conf 2>nginx.log &
"$MARLINE" fleet ca init --ca-dir ca --name test >/dev/null 2>&1
"$MARLINE" fleet ca issue relay r1 --ca-dir ca --address 10.0.1.1 --address 203.0.113.1 --out . >/dev/null 2>&1
"$MARLINE" fleet ca issue edge e1 --ca-dir ca --out . >/dev/null 2>&1
relay() {
    ip netns exec far "$MARLINE" relay --listen ${RELAY:-10.0.1.1}:4443 --certificate r1.pem --revoked ca/revoked.pem --allow-net 203.0.113.5 \
        --allow-net 2001:db8::5 "$@" 2>relay.log &
    until grep -q "listens on" relay.log; do sleep 0.05; kill -0 $!; done
}
edge() { # sets $edge
    : >edge.log; "$MARLINE" edge --relay ${RELAY:-10.0.1.1} --certificate e1.pem --run-dir run --lan lan0 "$@" 2>>edge.log &
    edge=$!
    until grep -q "is the gateway of" edge.log; do sleep 0.05; kill -0 $edge || { cat edge.log >&2; exit 1; }; done
    led
}
# Waits until the edge redirects the LAN's traffic.
led() { until nft list table inet marline-edge 2>/dev/null | grep -q masquerade; do sleep 0.02; done; }
# Waits until the kernel has removed the table of an edge that ended.
free() { while nft list table inet marline-edge >/dev/null 2>&1; do sleep 0.02; done; }
lan() { ip netns exec lan "$@"; }
# Prints the host configuration that the edge may change. The socket that a killed edge leaves is ignored; the next edge replaces it.
state() {
    ip rule; ip -6 rule; ip route show table all; ip -6 route show table all; nft list ruleset; ls run 2>&1 | grep -v '\.sock$' || true
    sysctl net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.mptcp.path_manager net.ipv4.tcp_rmem
    sysctl -a -r 'net.ipv6.conf.*.accept_ra$'
}
# A UDP server: answers each datagram with its text and the sender's address.
echo='use IO::Socket::IP; my $s = IO::Socket::IP->new(Proto => "udp", LocalHost => shift // "203.0.113.5", LocalPort => 5000) or die;
    while (defined($s->recv(my $text, 1500))) { $s->send("$text from " . $s->peerhost) }'
# Sends to that server ten times a second from one socket, and prints the address that the server sees whenever it changes.
talk='use IO::Socket::IP; use IO::Select; $| = 1; my $s = IO::Socket::IP->new(Proto => "udp", PeerHost => shift, PeerPort => 5000) or die;
    my ($all, $was) = (IO::Select->new($s), "");
    while (1) { $s->send("I"); select undef, undef, undef, 0.1; while ($all->can_read(0)) { defined $s->recv(my $text, 1500) or last;
        $text =~ s/.* //; print "$text\n" if $text ne $was; $was = $text } }'
sink='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "203.0.113.5", LocalPort => 9000, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { next if fork; 1 while sysread $c, my $piece, 65536; exit }'
# Sends as fast as it can, and opens a new connection whenever one fails.
upload='use IO::Socket::IP; my $piece = "x" x 65536; $SIG{PIPE} = "IGNORE";
    while (1) { my $s = IO::Socket::IP->new(PeerHost => "203.0.113.5", PeerPort => 9000); 1 while $s and syswrite $s, $piece; select undef, undef, undef, 0.2 }'
# A TCP server on port 2222: greets each client with the client's address.
shell='use IO::Socket::INET; my $l = IO::Socket::INET->new(Listen => 5, LocalPort => 2222, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { print $c "hello, ", $c->peerhost, "\n"; close $c }'
ask='use IO::Socket::INET; my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "203.0.113.5", PeerPort => 5000) or die;
    $SIG{ALRM} = sub { die "no answer\n" }; alarm 10; $s->send("hello"); $s->recv(my $text, 1500); print "$text\n"'
"#;

#[test]
fn tcp_of_a_lan_goes_through_the_relay_other_packets_are_forwarded_and_the_host_is_restored() {
    let script = r#"
relay
mkdir -m 755 run; state >before
edge --link up0 --link up1 --listen 127.0.0.1:1088 --listen 192.168.77.1:1088
lan curl -sS -m 20 http://203.0.113.5/
lan curl -sS -m 20 -g 'http://[2001:db8::5]/'
ip netns exec srv perl -e "$echo" & until ip netns exec srv ss -uln | grep -q 5000; do sleep 0.02; done
lan perl -e "$ask"
# A service on the edge's host itself, reached by its LAN address and by the address of a link.
perl -e "$shell" & lan perl -e "$shell" &
until ss -tln | grep -q 2222 && lan ss -tln | grep -q 2222; do sleep 0.02; done
for address in 192.168.77.1 10.0.2.2; do lan bash -c "exec 3<>/dev/tcp/$address/2222; cat <&3"; done
# The edge's proxy refuses connections to the host's own addresses in every spelling, and allows the origin server.
via='curl -sS -m 20 -p -x http://192.168.77.1:1088 -o page -w %{http_connect}\n'
for own in 127.0.0.1 192.168.77.1 10.0.2.2 '[::1]' '[::ffff:127.0.0.1]' '[fd77::1]' localhost 0.0.0.0; do lan $via -g "http://$own:2222/" 2>/dev/null || true; done
lan $via http://203.0.113.5/; cat page
# Hosts beyond a link cannot reach the LAN, or another link, through the edge.
ip -n far route add 192.168.77.0/24 via 10.0.1.2
lan bash -c "exec 3<>/dev/tcp/192.168.77.2/2222; cat <&3"
ip netns exec far timeout 2 bash -c "exec 3<>/dev/tcp/192.168.77.2/2222; cat <&3" 2>/dev/null || true
sysctl -n net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv6.conf.up0.accept_ra net.ipv6.conf.lan0.accept_ra
kill -TERM $edge; wait $edge && echo "ended well"
free; ip -n far route del 192.168.77.0/24
state >after; diff before after && echo "as before"
grep -c "new flows go through 10.0.1.1" edge.log
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected = [
        "203.0.113.1 to 203.0.113.5",
        "2001:db8::1 to 2001:db8::5",
        "hello from 10.0.1.2",
        "hello, 192.168.77.2",
        "hello, 192.168.77.2",
        "403",
        "403",
        "403",
        "403",
        "403",
        "403",
        "403",
        "403",
        "200",
        "203.0.113.1 to 203.0.113.5",
        "hello, 192.168.77.2",
        "1",
        "1",
        "2",
        "1",
        "ended well",
        "as before",
        "1",
    ];
    assert_eq!(lines, expected);
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

#[test]
fn firewalls_that_block_a_lan_and_disabled_forwarding_are_reported_with_a_remedy() {
    let script = r#"
relay
ip netns exec srv perl -e "$echo" & sleep 0.2
gets_answer() { timeout 3 ip netns exec lan perl -e "$ask" 2>/dev/null | grep -q hello; }
# Docker's drop policy exists before the edge starts; Docker's own rules accept nothing of the LAN.
nft 'table ip filter { chain DOCKER-USER { return; }; chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; oifname "docker0" ct state established,related accept; }; }'
edge
until grep -q "drops forwarded" edge.log; do sleep 0.1; kill -0 $edge; done
grep "drops forwarded" edge.log | sed 's/`.*`/REMEDY/'
"$MARLINE" edge status --run-dir run | grep -c "drops forwarded"
gets_answer || echo "nothing passes"
# Run the remedy exactly as the log line gives it.
remedy=$(grep -o '`.*`' edge.log | grep DOCKER | head -n 1 | tr -d '`'); sh -ec "$remedy"
until grep -q "anymore" edge.log; do sleep 0.1; kill -0 $edge; done
gets_answer && echo "it passes"
"$MARLINE" edge status --run-dir run | grep -c "drops forwarded" || true
# Another kind of firewall, like firewalld's, loaded while the edge runs.
nft 'table inet firewalld { chain filter_INPUT { type filter hook input priority filter + 10; policy accept; ct state { established, related } accept; iifname "lo" accept; iifname "lan0" tcp dport 22 accept; reject with icmpx admin-prohibited; }; }'
until grep -q "drops TCP" edge.log; do sleep 0.1; kill -0 $edge; done
grep "drops TCP" edge.log | sed 's/`.*`/REMEDY/'
remedy=$(grep "drops TCP" edge.log | grep -o '`.*`' | tr -d '`'); sh -ec "$remedy"
until [ $(grep -c "anymore" edge.log) = 2 ]; do sleep 0.1; kill -0 $edge; done
lan curl -sS -m 10 http://203.0.113.5/
# Like ufw's.
nft 'table ip filter { chain INPUT { type filter hook input priority filter; policy drop; iifname "lo" accept; ct state established,related accept; tcp dport 22 accept; }; }'
until [ $(grep -c "drops TCP" edge.log) = 2 ]; do sleep 0.1; kill -0 $edge; done
grep "drops TCP" edge.log | tail -n 1 | sed 's/`.*/REMEDY/'
nft delete table ip filter
until [ $(grep -c "anymore" edge.log) = 3 ]; do sleep 0.1; kill -0 $edge; done
# Another program switches forwarding off.
sysctl -qw net.ipv4.ip_forward=0
until grep -q "net.ipv4.ip_forward: another program set it to 0; restored to 1" edge.log; do sleep 0.1; kill -0 $edge; done
gets_answer && echo "it passes again"
kill -TERM $edge; wait $edge; free; sysctl -n net.ipv4.ip_forward
# Forwarding was on before the edge started: another program may switch it off, and the edge only reports that.
sysctl -qw net.ipv4.ip_forward=1
edge
sysctl -qw net.ipv4.ip_forward=0
until grep -q "sysctl -w net.ipv4.ip_forward=1" edge.log; do sleep 0.1; kill -0 $edge; done
"$MARLINE" edge status --run-dir run --json | grep -c "net.ipv4.ip_forward is 0"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected = [
        "marline: chain FORWARD of table ip filter (policy drop) drops forwarded packets of lan0 (UDP, ICMP, TCP to private networks) towards the links. To allow them: REMEDY",
        "1",
        "nothing passes",
        "it passes",
        "0",
        "marline: chain filter_INPUT of table inet firewalld (a rule) drops TCP of lan0 that is redirected to this program. To allow it: REMEDY",
        "203.0.113.1 to 203.0.113.5",
        "marline: chain INPUT of table ip filter (policy drop) drops TCP of lan0 that is redirected to this program. To allow it: REMEDY",
        "it passes again",
        "0",
        "1",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn a_client_with_ipv6_is_refused_at_once_while_no_link_has_ipv6() {
    let script = r#"
relay
edge
get() { lan curl -sS -m 10 "$@" 2>&1; }
get -o page -w '%{http_code}\n' http://[2001:db8::5]/
# The refusal comes before the connection is accepted, fast enough for a browser to fall back to IPv4 (Happy Eyeballs).
no() { get -o page -w '%{time_connect} %{exitcode} %{time_total}\n' http://[2001:db8::5]/ | tail -n 1 | awk '{ print $1, $2, ($3 < 1 ? "at once" : $3) }'; }
for n in 0 1; do ip -6 route del default dev up$n; done
no
get http://203.0.113.5/
# One link has IPv6 again.
ip -6 route add default via fd02::1 dev up1 metric 101
get -o page -w '%{http_code}\n' http://[2001:db8::5]/
ip -6 route del default dev up1
no
"#;
    let Some(lines) = run_in_network(script) else { return };
    let no = "0.000000 7 at once";
    assert_eq!(lines, ["200", no, "203.0.113.1 to 203.0.113.5", "200", no]);
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

#[test]
fn an_address_that_a_local_route_makes_the_relays_own_is_not_reached_through_it() {
    let script = r#"
relay --allow-net 203.0.113.0/24
ip -n far route add local 203.0.113.77/32 dev lo
via='curl -sS -m 20 -o page -w %{http_connect}\n --proxy https://10.0.1.1:4443 --proxytunnel'
via="$via --proxy-cert e1.pem --proxy-key e1.key --proxy-cacert ca/ca.pem"
$via http://203.0.113.77/ 2>/dev/null || true
$via http://203.0.113.5/; cat page
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["403", "200", "203.0.113.1 to 203.0.113.5"]);
}

#[test]
fn invalid_lan_options_are_reported_before_the_host_is_changed() {
    let script = r#"
refused() { # CODE WORDS COMMAND…
    local code=$1 words=$2 is=0; shift 2
    state >was
    timeout 20 "$@" --relay 10.0.1.1 --certificate e1.pem --run-dir run 2>output || is=$?
    state >now
    [ $is = $code ] && [ $(wc -l <output) = 1 ] && grep -q -- "$words" output && diff was now && echo right || { echo "$is"; cat output; }
}
refused 64 "--lan lan9: no such interface" "$MARLINE" edge --lan lan0,lan9
refused 64 "--lan up0: it has a default route" "$MARLINE" edge --lan up0
refused 64 "--lan lo: it is the loopback" "$MARLINE" edge --lan lo
refused 64 "is not a valid interface name" "$MARLINE" edge --lan 'a"b'
refused 64 "is not a port, a host" "$MARLINE" edge --lan lan0 --live 0
refused 77 "--lan: not permitted: needs CAP_NET_ADMIN" setpriv --bounding-set -net_admin "$MARLINE" edge --lan lan0
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["right"; 6]);
}

#[test]
fn cap_net_admin_alone_is_enough_as_in_the_systemd_unit() {
    let script = r#"
relay
mkdir -m 755 run box; cp e1.pem e1.key ca/ca.pem box; chown -R nobody: run box; chmod 755 .
state >before
setpriv --reuid nobody --regid nogroup --clear-groups --bounding-set -all,+net_admin --inh-caps -all,+net_admin \
    --ambient-caps -all,+net_admin --no-new-privs \
    "$MARLINE" edge --relay 10.0.1.1 --certificate box/e1.pem --run-dir run --lan lan0 --link up0 --link up1 2>edge.log & edge=$!
until grep -q "is the gateway of" edge.log; do sleep 0.05; kill -0 $edge || { cat edge.log >&2; exit 1; }; done
led; lan curl -sS -m 20 http://203.0.113.5/
grep -c "not managed" edge.log || true
kill -TERM $edge; wait $edge && echo "ended well"
free; state >after; diff before after && echo "as before"
"#;
    let Some(lines) = run_in_network(script) else { return };
    assert_eq!(lines, ["203.0.113.1 to 203.0.113.5", "0", "ended well", "as before"]);
}
