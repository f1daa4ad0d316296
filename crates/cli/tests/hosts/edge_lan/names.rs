//! DNS of a LAN whose name server runs on the edge's host: the edge leads its queries to another link while the default one fails.

use super::{LINK_FAILURES, run_in_network};

/// Shell functions for the scripts below. `box_names UPSTREAM…` starts dnsmasq on the edge's host with the sample configuration for a
/// hotspot; `UPSTREAM` are the name servers on the Internet.
const SHELL_FUNCTIONS: &str = r#"
mkdir -m 755 run
[ -c /dev/net/tun ] || { echo "skipped: needs /dev/net/tun"; exit 0; }
command -v dnsmasq >/dev/null || { echo "skipped: needs the program dnsmasq"; exit 0; }
serves() { dnsmasq --keep-in-foreground --user=root --pid-file= --bind-interfaces --conf-file=/dev/null --no-resolv --no-hosts "$@" 2>>names.log & }
ip -n srv address add 203.0.113.53/24 dev eth0
ip netns exec srv bash -c "$(declare -f serves); serves --listen-address=203.0.113.53 --address=/test/203.0.113.5 --address=/ipv4only.arpa/192.0.0.170; wait" &
# A captive portal: answers each DNS query with its own address, and each HTTP request with a redirect.
ip netns exec far bash -c "$(declare -f serves); serves --listen-address=10.0.1.1 --port=5353 --address=/#/10.0.1.1; wait" &
ip netns exec far perl -e "$portal" &
box_names() { # UPSTREAM…
    rm -f upstream; for server in "$@"; do echo "nameserver $server" >>upstream; done
    # The answers are addresses reserved for documentation, which dnsmasq would reject as rebinding.
    dnsmasq --keep-in-foreground --user=root --pid-file= --conf-file=dnsmasq.conf --resolv-file="$PWD/upstream" --dhcp-leasefile="$PWD/leases" \
        --rebind-domain-ok=/test/ --no-hosts 2>>names.log & resolver=$!
    until ss -Hlun 'sport = :53' | grep -q 192.168.77.1; do sleep 0.02; kill -0 $resolver || { cat names.log >&2; exit 1; }; done
}
until ip netns exec srv ss -Hlun 'sport = :53' | grep -q 203; do sleep 0.02; done
# Strict reverse-path filtering, the default of many distributions: drops packets that arrive on a link other than the route to their source.
sysctl -qw net.ipv4.conf.up0.rp_filter=1 net.ipv4.conf.up1.rp_filter=1
echo "nameserver 192.168.77.1
options timeout:1 attempts:2" >lan.conf
real=$(readlink -m /etc/resolv.conf); mkdir -p "${real%/*}"; [ -e "$real" ] || touch "$real"
page() { mount --bind lan.conf "$real"; curl -s -m 5 -o /dev/null -w '%{http_code} %{remote_ip}\n' http://$1.test/ || true; }
number=0
# Fetches a page by a name that was not resolved before.
by_name() { number=$((number + 1)); lan env real="$real" bash -c "$(declare -f page); page n$number"; }
# The same with one retry: an answer may be late on a busy machine.
page_by_name() { by_name >result; grep -qx "200 203.0.113.5" result || by_name >result; cat result; }
led_elsewhere() { ip rule | grep -c "lookup 28004" || true; }
# Waits up to 20 s until queries follow the host's own routes again; prints the number of remaining rules.
led_as_usual() {
    local n; for n in $(seq 200); do [ "$(led_elsewhere)" = 0 ] && break; sleep 0.1; done
    led_elsewhere
}
# Repeats until a page is fetched by name, and compares the time with a limit.
soon() { # MILLISECONDS
    local began=$(date +%s%N) took
    until [ "$(by_name)" = "200 203.0.113.5" ]; do :; done
    took=$(( ($(date +%s%N) - began) / 1000000 )); [ $took -lt $1 ] && echo "in time" || echo "after $took ms"
}
"#;

/// Script that writes the sample of `contrib/hotspot`, adapted to the LAN interface of these tests.
fn sample() -> String {
    let text = include_str!("../../../../../contrib/hotspot/dnsmasq.conf").replace("wlan1", "lan0");
    format!("cat >dnsmasq.conf <<'SAMPLE'\n{text}SAMPLE\n")
}

fn lines_of(script: &str) -> Option<Vec<String>> {
    let lines = run_in_network(&format!("{}{LINK_FAILURES}{SHELL_FUNCTIONS}{script}", sample()))?;
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        eprintln!("{}", lines[0]);
        return None;
    }
    Some(lines)
}

#[test]
fn dns_of_a_lan_survives_a_failure_of_the_default_link() {
    let script = r#"
RELAY=203.0.113.1
relay
state >before
box_names 203.0.113.53
edge
# The name servers of both links, as DHCP clients record them.
mkdir -p /run/resolvconf/interface; for n in 0 1; do echo "nameserver 203.0.113.53" >/run/resolvconf/interface/up$n.dhcp; done
for how in silent unreachable portal dns; do
    page_by_name
    led_as_usual
    fail $how
    # Periodic probes, seconds apart, find a portal; a probe that started before the portal may have to be repeated.
    case $how in portal|dns) soon 16000;; *) soon 10000;; esac
    page_by_name
    works
    led_as_usual
done
kill -TERM $edge; wait $edge && echo "ended well"
free; kill $resolver; wait $resolver || true
state >after; diff before after && echo "as before"
"#;
    let Some(lines) = lines_of(script) else { return };
    let page = "200 203.0.113.5";
    let each = [page, "0", "in time", page, "0"];
    assert_eq!(lines, [&each[..], &each, &each, &each, &["ended well", "as before"]].concat(), "{lines:#?}");
}

#[test]
fn while_a_link_fails_other_name_servers_are_reached_as_before_and_rules_of_a_killed_edge_are_removed() {
    let script = r#"
RELAY=203.0.113.1
relay
state >before
# An office network behind a static route has a name server as well.
ip netns add office; ip -n office link set lo up
ip link add off0 type veth peer name eth0 netns office
wire - off0 10.50.0.1/24; wire office eth0 10.50.0.2/24
ip -n office address add 172.20.0.53/32 dev lo; ip -n office route add default via 10.50.0.1
ip route add 172.20.0.0/16 via 10.50.0.2
ip netns exec office bash -c "$(declare -f serves); serves --listen-address=172.20.0.53 --address=/office/172.20.0.1; wait" &
until ip netns exec office ss -Hlun 'sport = :53' | grep -q 172; do sleep 0.02; done
box_names 203.0.113.53
edge
fail silent
soon 10000
[ $(led_elsewhere) -gt 0 ] && echo "over the other link"
query='use IO::Socket::IP; $SIG{ALRM} = sub { print "no answer\n"; exit }; alarm 3;
    my ($to, $name, $device) = @ARGV; my $s = IO::Socket::IP->new(Proto => "udp", PeerHost => $to, PeerPort => 53) or die;
    !$device or setsockopt $s, 1, 25, pack "Z16", $device or die;
    $s->send(join "", pack("n6", 7, 0x100, 1, 0, 0, 0), (map { pack "C/a", $_ } split /\./, $name), pack "x n2", 1, 1);
    defined $s->recv(my $answer, 1500) or do { print "refused\n"; exit }; print join(".", unpack "C4", substr $answer, -4), "\n"'
perl -e "$query" 172.20.0.53 a.office
perl -e "$query" 203.0.113.53 a.test
# A socket bound to the link stays on it.
perl -e "$query" 203.0.113.53 a.test up0
# While a VPN has the host's default route, queries stay in the VPN.
vpn='open my $t, "+<", "/dev/net/tun" or die; my $name = pack "a16 s x22", "tun0", 0x1001; ioctl $t, 0x400454ca, $name or die $!;
    system "ip link set tun0 up; ip address add 10.8.0.6/24 dev tun0; ip route add default dev tun0 metric 50"; sleep 1 while 1'
perl -e "$vpn" & tunnel=$!
for n in $(seq 100); do [ "$(led_elsewhere)" = 0 ] && break; sleep 0.1; done
ip route get 9.9.9.9 ipproto udp dport 53 | grep -o "dev [a-z0-9]*"
kill $tunnel; wait $tunnel || true
for n in $(seq 100); do [ "$(led_elsewhere)" = 0 ] || break; sleep 0.1; by_name >/dev/null; done
kill -KILL $edge; wait $edge || true; free
[ $(led_elsewhere) -gt 0 ] && echo "left behind"
"$MARLINE" restore --run-dir run 2>&1 | grep -o "rules and routes of a LAN's gateway removed"
led_elsewhere
works; ip link del off0; ip netns del office; kill $resolver; wait $resolver || true
state >after; diff before after && echo "as before"
"#;
    let Some(lines) = lines_of(script) else { return };
    let expected = [
        "in time",
        "over the other link",
        "172.20.0.1",
        "203.0.113.5",
        "no answer",
        "dev tun0",
        "left behind",
        "rules and routes of a LAN's gateway removed",
        "0",
        "as before",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}
