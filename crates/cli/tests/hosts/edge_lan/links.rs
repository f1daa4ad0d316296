//! Failures of the link of the default route: each kind of failure, at the start and while the edge runs, for a LAN client and for a local
//! program, with a relay and without one. Further cases are enrolment and renewal over the other link, a VPN that takes the default route,
//! and hundreds of flows at once.

use super::{LINK_FAILURES, run_in_network};

/// Shell functions for the scripts below; `row` prints one test case. They need [`LINK_FAILURES`].
pub(super) const SHELL_FUNCTIONS: &str = r#"
command -v dnsmasq >/dev/null || { echo "skipped: needs the program dnsmasq"; exit 0; }
mkdir -m 755 run
"$MARLINE" fleet ca issue relay r2 --ca-dir ca --address 203.0.113.1 --address relay.test --out . >/dev/null 2>&1
# Each link has its own name server; the host's resolv.conf names that of the first link.
mkdir -p /run/resolvconf/interface
for n in 0 1; do echo "nameserver 10.0.$((n+1)).1" >/run/resolvconf/interface/up$n.dhcp; done
echo "nameserver 10.0.1.1" >resolv.conf
real=$(readlink -m /etc/resolv.conf); mkdir -p "${real%/*}"; [ -e "$real" ] || touch "$real"; mount --bind resolv.conf "$real"
names() { ip netns exec far dnsmasq --keep-in-foreground --conf-file=/dev/null --no-resolv --no-hosts --user=root --pid-file= --bind-interfaces "$@" 2>>names.log & }
names --listen-address=10.0.1.1 --listen-address=10.0.2.1 --address=/relay.test/203.0.113.1 --address=/fleet.test/203.0.113.1 --address=/srv.test/203.0.113.5
# A captive portal: answers each DNS query with its own address, and each HTTP request with a redirect.
names --listen-address=10.0.1.1 --port=5353 --address=/#/10.0.1.1
ip netns exec far perl -e "$portal" &
# A server with a certificate of another authority, to which connections are redirected.
"$MARLINE" fleet ca init --ca-dir other/ca --name other >/dev/null 2>&1
"$MARLINE" fleet ca issue relay r3 --ca-dir other/ca --address 203.0.113.1 --out other >/dev/null 2>&1
ip netns exec far "$MARLINE" relay --listen 10.0.1.1:4444 --certificate other/r3.pem --revoked other/ca/revoked.pem 2>other.log &
ip netns exec far "$MARLINE" relay --listen 203.0.113.1:4443 --certificate r2.pem --revoked ca/revoked.pem --allow-net 203.0.113.5 \
    --allow-port 80 --allow-port 2222 2>relay.log &
for log in other relay; do until grep -q "listens on" $log.log; do sleep 0.05; done; done
until [ $(ip netns exec far ss -Hlun 'sport = :53 or sport = :5353' | wc -l) -ge 3 ]; do sleep 0.05; done
begin() { # OPTIONS…; sets $edge
    : >edge.log; "$MARLINE" edge --certificate e1.pem --run-dir run --lan lan0 "$@" 2>>edge.log &
    edge=$!
    until grep -q "is the gateway of" edge.log; do sleep 0.05; kill -0 $edge || { cat edge.log >&2; exit 1; }; done
    led
}
stop() { kill -TERM $edge; wait $edge || true; free; }
timed() { curl -s -m 20 -o /dev/null -w '%{http_code} %{time_starttransfer}' "$@" || true; }
lans() { lan bash -c "$(declare -f timed); timed http://203.0.113.5/"; }
# A new name each time, so that no cached DNS answer is used.
programs() { timed -x socks5h://127.0.0.1:1088 http://n$(date +%s%N).srv.test/; }
# Prints the reason in the status once it contains WORDS, after at most 100 attempts; runs CLIENT between the attempts.
reason() { # WORDS CLIENT
    local why="" n
    for n in $(seq 100); do
        why=$("$MARLINE" edge status --run-dir run | grep -o 'link up0 does not [a-z ]*: .*; up1 does' || true)
        case "$why" in *"$1"*) break;; esac
        $2 >/dev/null; sleep 0.1
    done
    echo "$why"
}
words() { case $1 in portal|certificate) echo "captive portal";; mptcp) echo "MPTCP";; dns) echo "DNS servers";; *) echo "does not";; esac; }
# Prints: when, client, failure | three flows | the reason in the status | direct flows. The reason is awaited before or after the flows or not at all.
row() { # WHEN CLIENT HOW before|after|- OPTIONS…
    local when=$1 client=$2 how=$3 awaited=$4 why=""; shift 4
    [ $when = running ] || fail $how
    begin "$@"
    [ $when = start ] || { $client >/dev/null; fail $how; }
    [ "$awaited" != before ] || why=$(reason "$(words $how)" true)
    echo -n "$when, $client, $how | $($client) | $($client) | $($client) | "
    [ "$awaited" != after ] || why=$(reason "$(words $how)" $client)
    # Let the periodic probe run once more; its result must not count as a failure of the relay.
    case $when-$awaited-$how in running-after-portal|running-after-certificate) sleep 1.2; $client >/dev/null;; esac
    echo "$why | $("$MARLINE" edge status --run-dir run | head -n 1 | grep -o "[0-9]* direct")"
    stop; works
}
with_relay() { # WHEN CLIENT HOW
    local relay=203.0.113.1 awaited=after direct=--no-direct
    case $1-$3 in *-portal|start-dns) relay=relay.test;; running-dns) relay=relay.test; awaited=-;; esac
    [ $1 = start ] || direct=--direct
    row $1 $2 $3 $awaited --relay $relay $direct
}
without() { # WHEN CLIENT HOW
    local awaited=-
    # A portal is recognized by its response to an attempt to reach a relay.
    case $1-$3 in running-portal|running-certificate) awaited=before;; *-portal|*-certificate) awaited=after;; esac
    row $1 $2 $3 $awaited --relay 192.0.2.9 --direct
}
"#;

const WITH_RELAY: [&str; 7] = ["silent", "unreachable", "reset", "portal", "certificate", "mptcp", "dns"];
const DIRECTLY: [&str; 6] = ["silent", "unreachable", "reset", "portal", "certificate", "dns"];

/// Runs the cases one after another. A case is when the link fails (`start` or `running`), the clients (`lans` or `programs`), and the
/// kinds of failure. Checks that each flow is answered by the origin server within 5 s, and that the status names
/// the expected reason. `label` is the shell function `with_relay` or `without`. Prints the times to the first byte.
fn flows_are_answered(label: &str, cases: &[(&str, &str, &[&str])]) {
    let rows = cases
        .iter()
        .flat_map(|(when, client, methods)| methods.iter().map(move |method| (*when, *client, *method)));
    let script: String =
        rows.clone().map(|(when, client, method)| format!("{label} {when} {client} {method}\n")).collect();
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    lines.iter().for_each(|line| println!("{line}"));
    assert_eq!(lines.len(), rows.clone().count());
    for (line, (when, client, method)) in lines.iter().zip(rows) {
        let parts: Vec<&str> = line.split('|').map(str::trim).collect();
        assert_eq!((parts.len(), parts[0]), (6, &*format!("{when}, {client}, {method}")), "{lines:#?}");
        for flow in &parts[1..4] {
            let (code, time) = flow.split_once(' ').unwrap();
            assert_eq!(code, "200", "{lines:#?}");
            assert!(time.parse::<f64>().unwrap() < 5.0, "{lines:#?}");
        }
        let reason = match method {
            "portal" | "certificate" => "captive portal",
            "mptcp" => "the MPTCP option",
            "dns" if (label, when) == ("with_relay", "start") => "DNS servers",
            "dns" => "",
            _ if label == "without" => "",
            _ => "does not reach the relay",
        };
        assert!(parts[4].contains(reason), "{lines:#?}");
        assert_eq!(parts[5] == "0 direct", label == "with_relay", "{lines:#?}");
    }
}

#[test]
fn flows_start_over_the_link_that_reaches_the_relay_for_each_failure_of_the_default_link() {
    flows_are_answered("with_relay", &[("start", "lans", &WITH_RELAY), ("running", "programs", &WITH_RELAY)]);
}

#[test]
#[ignore = "half a minute; make soak runs it"]
fn flows_start_over_the_link_that_reaches_the_relay_for_the_other_clients_as_well() {
    flows_are_answered("with_relay", &[("start", "programs", &WITH_RELAY), ("running", "lans", &WITH_RELAY)]);
}

#[test]
fn without_a_relay_flows_go_directly_over_the_working_link() {
    let cases: &[_] = &[
        ("start", "programs", &DIRECTLY[..]),
        ("running", "lans", &DIRECTLY[..3]),
        // DNS fails after the name server of the default link has worked.
        ("running", "programs", &["dns"]),
    ];
    flows_are_answered("without", cases);
}

#[test]
#[ignore = "a minute; make soak runs it"]
fn without_a_relay_flows_go_directly_for_the_other_clients_as_well() {
    let after: &[_] = &[("start", "lans", &DIRECTLY[..]), ("running", "programs", &DIRECTLY)];
    flows_are_answered("without", after);
    flows_are_answered("without", &[("running", "lans", &DIRECTLY[3..])]);
}

#[test]
fn enrolment_and_renewal_reach_the_service_over_the_other_link() {
    let script = r#"
ip netns exec far "$MARLINE" fleet run --ca-dir ca --listen 203.0.113.1:4445 --address 203.0.113.1 --address fleet.test 2>fleet.log &
until grep -q "203.0.113.1:4445" fleet.log; do sleep 0.05; kill -0 $! || { cat fleet.log >&2; exit 1; }; done
for how in silent unreachable reset portal certificate; do
    "$MARLINE" fleet ca token --role edge --name new-$how --ca-dir ca >token-$how 2>/dev/null; chmod 600 token-$how
    fail $how
    timeout 8 "$MARLINE" fleet enroll --fleet https://203.0.113.1:4445 --token-file token-$how --out . >/dev/null 2>enroll.log || cat enroll.log
    # The service refuses the renewal as too early, which proves that it was reached.
    timeout 8 "$MARLINE" fleet renew --fleet https://203.0.113.1:4445 --certificate new-$how.pem 2>&1 | grep -o "it is renewed from"
    works
done
ls new-*.pem | wc -l
"#;
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    let mut expected = vec!["it is renewed from"; 5];
    expected.push("5");
    assert_eq!(lines, expected);
}

#[test]
fn connections_from_before_a_vpn_are_not_used_for_new_flows_once_it_has_the_default_route() {
    let script = r#"
# A server that sends a line every 100 ms.
ticks='use IO::Socket::IP; $| = 1; my $l = IO::Socket::IP->new(Listen => 5, LocalHost => "203.0.113.5", LocalPort => 2222, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { next if fork; while (1) { syswrite($c, "tick\n") or exit; select undef, undef, undef, 0.1 } }'
# A VPN that takes all packets and returns none: prints the destination of each SYN.
vpn='open my $t, "+<", "/dev/net/tun" or die; my $name = pack "a16 s x22", "tun0", 0x1001; ioctl $t, 0x400454ca, $name or die $!;
    system "ip link set tun0 up; ip address add 10.8.0.6/24 dev tun0; ip route add default dev tun0 metric 50"; $| = 1;
    while (sysread $t, my $packet, 2000) { my ($first, $of, $to) = (ord $packet, (unpack "x9 C", $packet), join ".", unpack "x16 C4", $packet);
        next if ($first & 0xf0) != 0x40 or $of != 6 or !(ord(substr $packet, 33, 1) & 2); print "$to\n" }'
[ -c /dev/net/tun ] || { echo "skipped: needs /dev/net/tun"; exit 0; }
ip netns exec srv perl -e "$ticks" & until ip netns exec srv ss -Hltn 'sport = :2222' | grep -q .; do sleep 0.05; done
begin --relay 203.0.113.1 --no-direct
programs | cut -d' ' -f1
lan bash -c 'exec 3<>/dev/tcp/203.0.113.5/2222; cat <&3' >ticks.log &
until [ -s ticks.log ]; do sleep 0.05; done
ready() { ss -Htn state established "dst 203.0.113.1 and dport = :4443" | wc -l; }
relay_has() { ip netns exec far ss -Htn state established 'sport = :4443' | wc -l; }
sleep 1
perl -e "$vpn" >tun.log & tunnel=$!
until ip route show default | grep -q tun0; do sleep 0.02; done
sleep 0.3
# New flows go into the tunnel and get no response; connections from before the VPN are not used for them.
curl -s -m 3 -x socks5h://127.0.0.1:1088 -o /dev/null -w '%{http_code}\n' http://203.0.113.5/ || true
lan curl -s -m 3 -o /dev/null -w '%{http_code}\n' http://203.0.113.5/ || true
sort -u tun.log
# The flow from before the VPN continues.
was=$(wc -l <ticks.log); sleep 0.5; [ $(wc -l <ticks.log) -gt $was ] && echo "it goes on"
kill $tunnel; wait $tunnel || true
until [ -z "$(ip route show default | grep tun0)" ]; do sleep 0.05; done
for n in $(seq 40); do code=$(curl -s -m 2 -x socks5h://127.0.0.1:1088 -o /dev/null -w '%{http_code}' http://203.0.113.5/ || true); [ $code = 200 ] && break; sleep 0.1; done
echo $code
was=$(wc -l <ticks.log); sleep 0.5; [ $(wc -l <ticks.log) -gt $was ] && echo "it goes on"
# Links named with --link are used despite a VPN.
kill -TERM $edge; wait $edge || true; free
begin --relay 203.0.113.1 --no-direct --link up0 --link up1
perl -e "$vpn" >tun.log & tunnel=$!
until ip route show default | grep -q tun0; do sleep 0.02; done
sleep 1
programs | cut -d' ' -f1
"#;
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    assert_eq!(lines, ["200", "000", "000", "203.0.113.1", "it goes on", "200", "it goes on", "200"]);
}

#[test]
fn hundreds_of_concurrent_connections_are_all_answered_and_none_bypasses_the_relay() {
    let script = r#"
begin --relay 203.0.113.1 --direct
programs | cut -d' ' -f1
# Opens all connections before the first request, so that none has ended when the last one opens.
crowd='use IO::Socket::IP; use IO::Select; my ($n, %all, %counts) = (shift);
    my @open = map { IO::Socket::IP->new(PeerHost => "127.0.0.1", PeerPort => 1088) or die "connect: $!" } 1..$n;
    for (@open) { syswrite $_, $n % 2 ? "CONNECT 203.0.113.5:80 HTTP/1.1\r\nHost: x\r\n\r\n" : "\5\1\0\5\1\0\1\xcb\0\x71\5\0\x50" }
    my $select = IO::Select->new(@open); my $until = time + 40;
    while ($select->count and time < $until) { for my $s ($select->can_read(1)) {
        my $got = sysread $s, my $piece, 4096; $all{$s} .= $piece if $got;
        my $answer = $all{$s} // ""; my $whole = $n % 2 ? $answer =~ /\r\n\r\n/ : length $answer >= 12;
        next unless !$got or $whole;
        my $kind = !$whole ? "without an answer" : $n % 2 ? ($answer =~ m{^HTTP/1.1 (200|503)} ? $1 : $answer) : substr($answer, 3, 1) eq "\0" ? "200" : "503";
        $counts{$kind}++; $select->remove($s) } }
    print join(", ", map { "$_: $counts{$_}" } sort keys %counts), "\n"'
for n in 400 401; do perl -e "$crowd" $n; done
# More than the limit of concurrent flows.
perl -e "$crowd" 600
"$MARLINE" edge status --run-dir run | head -n 1 | grep -o "[0-9]* direct"
"#;
    let Some(lines) = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{script}")) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert_eq!(lines[..3], ["200", "200: 400", "200: 401"]);
    let is_answered = |kind: &str| kind.starts_with("200: ") || kind.starts_with("503: ");
    assert!(lines[3].split(", ").all(is_answered), "{lines:?}");
    assert_eq!(lines[4], "0 direct");
}
