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
mod restoration;
mod service;
mod steering;
mod traffic;
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
# A captive portal: answers each HTTP request with a redirect.
portal='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 50, LocalHost => "10.0.1.1", LocalPort => 81, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { sysread $c, my $head, 4096; print $c "HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n"; close $c }'
ask='use IO::Socket::INET; my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "203.0.113.5", PeerPort => 5000) or die;
    $SIG{ALRM} = sub { die "no answer\n" }; alarm 10; $s->send("hello"); $s->recv(my $text, 1500); print "$text\n"'
"#;

/// Shell functions: `fail KIND` makes up0, the link of the default route, fail for forwarded packets and for packets to the relay alike;
/// `works` ends the failure.
const LINK_FAILURES: &str = r#"
rules() { ip netns exec far nft "table inet dead { chain in { type filter hook input priority -400; $1; }
    chain on { type filter hook forward priority -400; $1; }; chain to { type nat hook prerouting priority -100; $2; }; }"; }
fail() {
    case $1 in
        silent) rules 'iifname "up0" drop' '';;
        unreachable) rules 'iifname "up0" reject with icmpx type host-unreachable' '';;
        reset) rules 'iifname "up0" meta l4proto tcp reject with tcp reset' '';;
        portal) rules '' 'iifname "up0" meta nfproto ipv4 meta l4proto tcp redirect to :81; iifname "up0" udp dport 53 redirect to :5353';;
        certificate) rules '' 'iifname "up0" meta nfproto ipv4 meta l4proto tcp redirect to :4444';;
        mptcp) rules 'iifname "up0" tcp flags syn tcp option mptcp exists drop' '';;
        dns) rules 'iifname "up0" meta l4proto { tcp, udp } th dport 53 drop' '';;
    esac
}
works() { ip netns exec far nft delete table inet dead; }
"#;
