//! A host with links, each behind a router with NAT, and servers behind the routers, for tests of `marline paths` and `marline edge`.
//!
//! A test is a bash script that uses the shell functions of [`NETWORK`]; the test compares the lines that it prints. Each script runs in new
//! namespaces (needs root, `unshare`, `ip`, `tc`, `nft`, `perl`) and is skipped with a message where one of them is missing.

/// Runs the script in the network of [`NETWORK`] and returns the lines that it printed; none where the test is skipped.
pub(crate) fn run_in_network(script: &str) -> Option<Vec<String>> {
    crate::namespaces::run_in_namespaces(&["nft", "tc", "perl"], &format!("{NETWORK}{script}"))
}

/// This namespace ── link NAME ── router `gN` (NAT) ── `srv`, with an MPTCP server and a relay. Each link has 8 Mbit/s towards this
/// namespace.
const NETWORK: &str = r#"
mount -t tmpfs tmpfs /run
ip link set lo up
sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.default.rp_filter=0
ip netns add srv; ip -n srv link set lo up; ip -n srv address add 45.0.0.10/32 dev lo; ip -n srv address add 45.2.0.20/32 dev lo
ip netns exec srv ip mptcp limits set subflows 8 add_addr_accepted 8
# NAME N [ADDRESS ROUTER]: `router` makes the namespace gN, `plug` the interface to it, `link` both.
router() {
    ip netns add g$2; ip -n g$2 link set lo up
    ip link add s$2 netns srv type veth peer name up0 netns g$2
    ip -n srv address add 45.1.$2.1/24 dev s$2; ip -n srv link set s$2 up
    ip -n g$2 address add 45.1.$2.2/24 dev up0; ip -n g$2 link set up0 up; ip -n g$2 route add default via 45.1.$2.1
    ip netns exec g$2 sysctl -qw net.ipv4.ip_forward=1
    ip netns exec g$2 nft 'table ip n { chain p { type nat hook postrouting priority 100; oifname "up0" masquerade; }; }'
}
plug() {
    ip link add $1 type veth peer name dn0 netns g$2
    ip -n g$2 address add ${4:-192.168.8.1}/24 dev dn0; ip -n g$2 link set dn0 up
    ip address add ${3:-192.168.8.100}/24 dev $1; ip link set $1 up
    until ip -br link show $1 | grep -q LOWER_UP; do sleep 0.01; done
    ip route add default via ${4:-192.168.8.1} dev $1 metric $2'00'
    ip netns exec g$2 tc qdisc replace dev dn0 root tbf rate 8mbit burst 20k limit 100k
}
link() { router "$@"; plug "$@"; }
# The server: sends as many bytes as requested; for a negative number it receives so many and answers with their count.
echo 'use Socket; socket(my $l, PF_INET, SOCK_STREAM, 262) or die $!; setsockopt($l, SOL_SOCKET, SO_REUSEADDR, 1);
    bind($l, sockaddr_in(8000, INADDR_ANY)) or die $!; listen($l, 9); $SIG{CHLD} = "IGNORE";
    while (accept(my $c, $l)) { next if fork; my $n = ""; while ($n !~ /\n/) { sysread $c, $n, 1, length $n or exit } my $piece = "x" x 65536;
    if ($n < 0) { my $all = 0; while ($all < -$n and my $got = sysread $c, my $part, 65536) { $all += $got } syswrite $c, "$all\n" }
    while ($n > 0) { my $sent = syswrite($c, $piece, $n < 65536 ? $n : 65536) or last; $n -= $sent } exit }' >serve.pl
# The client: requests so many bytes from an address, or sends them if the number is negative, and prints how many arrived; with a port,
# through the SOCKS proxy there.
echo 'use Socket; my ($host, $bytes, $proxy) = @ARGV; socket(my $s, PF_INET, SOCK_STREAM, $proxy ? 6 : 262) or die $!; $SIG{ALRM} = sub { die "late\n" };
    alarm($ENV{LIMIT} || 40); connect($s, $proxy ? sockaddr_in($proxy, INADDR_LOOPBACK) : sockaddr_in(8000, inet_aton($host))) or die $!;
    if ($proxy) { syswrite $s, "\5\1\0"; sysread $s, my $a, 2; syswrite $s, "\5\1\0\1" . inet_aton($host) . pack("n", 8000); sysread $s, my $b, 10;
        die "refused\n" unless 0 == unpack "x C", $b }
    syswrite $s, "$bytes\n"; my $n = 0;
    if ($bytes < 0) { my $left = -$bytes; my $piece = "x" x 65536;
        while ($left > 0) { my $sent = syswrite($s, $piece, $left < 65536 ? $left : 65536) or die $!; $left -= $sent }
        sysread $s, my $all, 20; print $all; exit }
    while (my $got = sysread $s, my $piece, 65536) { $n += $got } print "$n\n"' >ask.pl
ip netns exec srv perl serve.pl & until ip netns exec srv ss -H4tln 'sport = :8000' | grep -q .; do sleep 0.02; kill -0 $!; done
rx() { awk -v name=$1: '$1 == name { print $2 }' /proc/net/dev; }
# Downloads, and prints the links that carried more than a fifth of the bytes.
carried() { # BYTES PROXY LINK…
    local bytes=$1 proxy=$2; shift 2
    local was=(); for name in "$@"; do was+=($(rx $name)); done
    [ "$(perl ask.pl ${HOST:-45.0.0.10} $bytes $proxy)" = $bytes ] || echo "not all came"
    local n=0; for name in "$@"; do
        [ $(( $(rx $name) - ${was[$n]} )) -gt $(( bytes / 5 )) ] && echo -n "$name "; n=$((n + 1)); done; echo
}
# Repeats until all these links carried, ten times at most: a recovered link carries only after a moment.
all_carry() { # BYTES PROXY LINK…
    local result n
    for n in $(seq 10); do
        result=$(carried "$@")
        case $result in "${*:3} "|*"not all"*) break;; esac
    done
    echo "$result"
}
paths() { # WORDS…
    "$MARLINE" paths --run-dir run --goal speed "$@" 2>paths.log & daemon=$!
    until "$MARLINE" paths status --run-dir run >/dev/null 2>&1; do sleep 0.1; kill -0 $daemon; done
}
relay() { # Environment: RELAY is its name, ALSO a second address to listen on.
    "$MARLINE" fleet ca init --ca-dir ca --name test >/dev/null 2>&1
    "$MARLINE" fleet ca issue relay r1 --ca-dir ca --address ${RELAY:-45.0.0.10} --out . >/dev/null 2>&1
    "$MARLINE" fleet ca issue edge e1 --ca-dir ca --out . >/dev/null 2>&1
    ip netns exec srv "$MARLINE" relay --listen 45.0.0.10:4443 ${ALSO:+--listen $ALSO} --certificate r1.pem --allow-net 45.2.0.20 --allow-port 8000 --allow-port 8001 --run-dir relay 2>relay.log &
    until grep -q "listens on" relay.log; do sleep 0.05; kill -0 $!; done
}
edge() { # WORDS…
    : >edge.log; "$MARLINE" edge --relay ${RELAY:-45.0.0.10} --certificate e1.pem --run-dir run ${DIRECT:---no-direct} "$@" 2>>edge.log & edge=$!
    until grep -q "listens on" edge.log; do sleep 0.05; kill -0 $edge; done
}
# Adds IPv6 without NAT to this link, or makes the link with IPv6 only; the server is 2a45::10.
six() { # NAME N
    ip -n srv address add 2a45::10/128 dev lo nodad 2>/dev/null || true
    ip -n srv address add 2a45:$2::1/64 dev s$2 nodad; ip -n g$2 address add 2a45:$2::2/64 dev up0 nodad
    ip -n srv -6 route add 2a46:$2::/64 via 2a45:$2::2; ip -n g$2 -6 route add default via 2a45:$2::1
    ip netns exec g$2 sysctl -qw net.ipv6.conf.all.forwarding=1
    if ! ip link show $1 >/dev/null 2>&1; then
        ip link add $1 type veth peer name dn0 netns g$2; ip -n g$2 link set dn0 up
        ip netns exec g$2 tc qdisc replace dev dn0 root tbf rate 8mbit burst 20k limit 100k
    fi
    ip -n g$2 address add 2a46:$2::1/64 dev dn0 nodad; ip address add 2a46:$2::2/64 dev $1 nodad; ip link set $1 up
    until ip -br link show $1 | grep -q LOWER_UP; do sleep 0.01; done
    ip -6 route add default via 2a46:$2::1 dev $1 metric $2'00'
}
silence() { ip netns exec g$1 nft 'table ip n { chain f { type filter hook forward priority 0; drop; }; }'; }
recover() { ip netns exec g$1 nft 'delete chain ip n f'; }
"#;
