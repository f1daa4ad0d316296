//! `marline edge` over two links, each behind its own NAT: networks as users described them in reports.
//!
//! Each test runs in new namespaces (needs root, `unshare`, `ip`, `tc`, `nft`, `perl`) and is skipped with a message elsewhere.

use crate::routers::run_in_network;

/// Two links of 8 Mbit/s in each direction, a relay at 45.0.0.10, and behind it a server at 45.2.0.20: port 8000 sends, port 8001 receives.
const RELAY: &str = r#"
link wan1 1 10.0.1.2 10.0.1.1; link wan2 2 10.0.2.2 10.0.2.1
for n in 1 2; do tc qdisc replace dev wan$n root tbf rate 8mbit burst 20k limit 100k; done
"$MARLINE" fleet ca init --ca-dir ca --name test >/dev/null 2>&1
"$MARLINE" fleet ca issue relay r1 --ca-dir ca --address 45.0.0.10 --out . >/dev/null 2>&1
"$MARLINE" fleet ca issue edge e1 --ca-dir ca --out . >/dev/null 2>&1
relay() { # NETWORK ADDRESS
    : >relay.log
    ip netns exec $1 "$MARLINE" relay --listen $2:4443 --certificate r1.pem --allow-net 45.2.0.20 --allow-port 8000-8001 --run-dir relay 2>>relay.log & relay=$!
    until grep -q "listens on" relay.log; do sleep 0.05; kill -0 $relay; done
}
edge() {
    : >edge.log; "$MARLINE" edge --relay 45.0.0.10 --certificate e1.pem --run-dir run "$@" 2>>edge.log & edge=$!
    until grep -q "listens on" edge.log; do sleep 0.05; kill -0 $edge; done
}
stop() { kill $edge; wait $edge; }
# Receives, and prints how many bytes arrived on each connection.
echo 'use Socket; socket(my $l, PF_INET, SOCK_STREAM, 6) or die $!; setsockopt($l, SOL_SOCKET, SO_REUSEADDR, 1); $| = 1;
    bind($l, sockaddr_in(8001, INADDR_ANY)) or die $!; listen($l, 99); $SIG{CHLD} = "IGNORE";
    while (accept(my $c, $l)) { next if fork; my $n = 0; while (my $got = sysread $c, my $piece, 65536) { $n += $got } print "$n\n"; exit }' >sink.pl
ip netns exec srv perl sink.pl >sink.log & sleep 0.2
# Sends this many bytes through the SOCKS proxy, and prints how many seconds the proxy took to accept the flow.
echo 'use Socket; use Time::HiRes "time"; my ($bytes) = @ARGV; my $at = time; socket(my $s, PF_INET, SOCK_STREAM, 6) or die $!; alarm 40;
    connect($s, sockaddr_in(1088, INADDR_LOOPBACK)) or die $!; syswrite $s, "\5\1\0"; sysread $s, my $a, 2;
    syswrite $s, "\5\1\0\1" . inet_aton("45.2.0.20") . pack("n", 8001); sysread $s, my $b, 10; die "refused\n" if ord substr $b, 1; my $took = time - $at;
    my $piece = "x" x 50000; while ($bytes > 0) { my $sent = syswrite($s, $piece) or die $!; $bytes -= $sent } printf "%.2f\n", $took' >send.pl
tx() { awk -v name=$1: '$1 == name { print $10 }' /proc/net/dev; }
"#;

fn with_a_relay(script: &str) -> Option<Vec<String>> {
    run_in_network(&format!("{RELAY}{script}"))
}

#[test]
fn a_relay_behind_a_port_forward_is_used_over_both_links_and_again_after_a_restart() {
    let script = r#"
# 45.0.0.10 is the address of the relay's router; the relay has the address 10.9.0.2.
ip netns add inner; ip -n inner link set lo up
ip link add rg netns srv type veth peer name r0 netns inner
ip -n srv address add 10.9.0.1/24 dev rg; ip -n srv link set rg up
ip -n inner address add 10.9.0.2/24 dev r0; ip -n inner link set r0 up; ip -n inner route add default via 10.9.0.1
ip netns exec srv sysctl -qw net.ipv4.ip_forward=1
ip netns exec srv nft 'table ip f { chain d { type nat hook prerouting priority -100; ip daddr 45.0.0.10 tcp dport 4443 dnat to 10.9.0.2:4443; }; }'
relay inner 0.0.0.0
edge --no-direct
HOST=45.2.0.20
carried 4000000 1088 wan1 wan2
perl ask.pl 45.2.0.20 20000000 1088 >cut & running=$!
sleep 1; kill -9 $relay; wait $relay || true
wait $running || true; [ $(cat cut) -lt 20000000 ] && echo "cut"
relay inner 0.0.0.0
until perl send.pl 1000 >/dev/null 2>&1; do sleep 0.2; kill -0 $edge; done
carried 4000000 1088 wan1 wan2
stop
"#;
    let Some(lines) = with_a_relay(script) else { return };
    assert_eq!(lines, ["wan1 wan2 ", "cut", "wan1 wan2 "], "{lines:#?}");
}

#[test]
fn repeated_connections_start_without_delay_and_both_directions_use_both_links() {
    let script = r#"
relay srv 45.0.0.10
edge --no-direct
for n in $(seq 12); do perl send.pl 100000; done | sort -n | sed -n '9p;$p'
# sink.pl prints a connection only after its bytes have arrived.
until [ $(grep -c . sink.log) = 12 ]; do sleep 0.05; kill -0 $edge; done
sort sink.log | uniq -c | sed 's/^ *//'
before="$(rx wan1) $(rx wan2) $(tx wan1) $(tx wan2)"; began=${EPOCHREALTIME/./}
took() { echo $(( (${EPOCHREALTIME/./} - began) / 1000 )); }
perl send.pl 8000000 >/dev/null & up=$!
perl ask.pl 45.2.0.20 8000000 1088
down=$(took)
wait $up
until grep -q 8000000 sink.log; do sleep 0.05; kill -0 $edge; done
echo $(( down + $(took) ))
after="$(rx wan1) $(rx wan2) $(tx wan1) $(tx wan2)"
# ACKs of one direction add at most 200 kB to the other direction.
paste -d' ' <(tr ' ' '\n' <<<"$before") <(tr ' ' '\n' <<<"$after") | awk '{ print ($2 - $1 > 1000000) }' | tr '\n' ' '; echo
stop
"#;
    let mut slow = Vec::new();
    for _ in 0..3 {
        let Some(lines) = with_a_relay(script) else { return };
        let [most, slowest, arrived, down, took, shares] = &lines[..] else { panic!("{lines:?}") };
        assert_eq!([arrived, down, shares], ["12 100000", "8000000", "1 1 1 1 "], "{lines:?}");
        let number = |text: &str| text.parse::<f64>().unwrap();
        // Each takes some milliseconds; a busy machine may delay a few, or a whole attempt. A flow that waits for a link takes 0.3 s
        // or more, one that waits for a relay seconds. One link takes 8 s for each direction.
        if number(most) < 0.25 && number(slowest) < 1.5 && number(took) < 16_000.0 {
            return;
        }
        slow.push(lines);
    }
    panic!("slow each time: {slow:#?}");
}

#[test]
fn edge_and_accel_run_beside_paths_and_a_second_path_manager_is_refused_by_name() {
    let script = r#"
relay srv 45.0.0.10
"$MARLINE" paths --run-dir paths 2>paths.log & paths=$!
until "$MARLINE" paths status --run-dir paths >/dev/null 2>&1; do sleep 0.05; kill -0 $paths; done
"$MARLINE" paths --run-dir other 2>second.log && echo "a second one ran" || echo "$? $(sed 's/[0-9][0-9]*/N/' second.log)"
edge --no-direct
grep -c "MPTCP paths are not managed by this edge: a .marline paths. (process $paths) already manages this network namespace" edge.log
# The edge reports no link as unused either, because the other program manages both.
sleep 2; grep -c "is not used" edge.log || true
"$MARLINE" accel --primary wan1 --secondary wan2 --run-dir accel 2>accel.log & accel=$!
until grep -q "accelerating" accel.log; do sleep 0.05; kill -0 $accel; done
HOST=45.2.0.20
carried 4000000 1088 wan1 wan2
kill $accel; wait $accel; stop; kill $paths; wait $paths
ip rule | grep -c 731 || true; nft list ruleset | grep -c marline || true
"#;
    let Some(lines) = with_a_relay(script) else { return };
    let refused = "a `marline paths` (process N) already manages this network namespace; stop it first, or query it with `marline paths status`";
    let expected = [
        format!("1 marline: {refused}"),
        "1".to_owned(),
        "0".to_owned(),
        "wan1 wan2 ".to_owned(),
        "0".to_owned(),
        "0".to_owned(),
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn links_with_unusual_names_are_found_and_used_and_never_executed() {
    let script = r#"
relay srv 45.0.0.10
ip link set wan2 down
n=2
for name in 'ü-lte' '-x' 'a"b' "a'b" 'a;b' 'a{b' '$(id)' '-br.100' 'a*' 'wan,1'; do
    n=$((n + 1)); router x $n 10.0.$n.2 10.0.$n.1
    ip link add name "$name" type veth peer name dn0 netns g$n
    ip -n g$n address add 10.0.$n.1/24 dev dn0; ip -n g$n link set dn0 up
    ip address add 10.0.$n.2/24 dev "$name"; ip link set dev "$name" up
    until ip -br link show dev "$name" | grep -q LOWER_UP; do sleep 0.01; done
    ip route add default via 10.0.$n.1 dev "$name" metric ${n}00
    for how in named found; do
        words=(); [ $how = found ] || words=(--link wan1 "--link=$name")
        # A comma separates the interface from its properties, so this name cannot be given to --link.
        if [ "$how$name" = named'wan,1' ]; then
            timeout 20 "$MARLINE" edge --relay 45.0.0.10 --certificate e1.pem --run-dir run "${words[@]}" 2>refused.log || echo "$? $(cat refused.log)"
            continue
        fi
        edge --no-direct "${words[@]}"
        was=$(awk -v name="$name:" '$1 == name { print $2 }' /proc/net/dev)
        [ "$(perl ask.pl 45.2.0.20 1000000 1088)" = 1000000 ] || echo "not all came"
        now=$(awk -v name="$name:" '$1 == name { print $2 }' /proc/net/dev)
        echo "$name $how $(( now - was > 100000 ))"
        stop
    done
    "$MARLINE" edge --relay 45.0.0.10 --certificate e1.pem --run-dir run --lan="$name" 2>lan.log && echo "a LAN" || echo "$? $(cat lan.log)"
    ip link delete dev "$name"
done
"#;
    let Some(mut lines) = with_a_relay(script) else { return };
    let names = ["ü-lte", "-x", "a\"b", "a'b", "a;b", "a{b", "$(id)", "-br.100", "a*"];
    let no_lan = |name: &str| match name {
        "-x" | "-br.100" => {
            format!(
                "64 marline: --lan {name}: it has a default route, so it is a link to the Internet and not a LAN"
            )
        }
        _ => format!("64 marline: --lan: `{name}` is not a valid interface name (examples: br-lan, wlan1)"),
    };
    let with_comma = lines.split_off(3 * names.len());
    let expected: Vec<String> = names
        .iter()
        .flat_map(|name| [format!("{name} named 1"), format!("{name} found 1"), no_lan(name)])
        .collect();
    assert_eq!(lines, expected, "{lines:#?}");
    let [named, found, lan] = &with_comma[..] else { panic!("{with_comma:#?}") };
    assert!(named.starts_with("64 ") && named.contains("`1`: use kind="), "{named}");
    assert_eq!(found, "wan,1 found 1");
    assert!(lan.starts_with("64 marline: --lan wan: no such interface"), "{lan}");
}

#[test]
fn without_privileges_paths_ends_and_an_edge_carries_flows_without_managing_paths() {
    let script = r#"
relay srv 45.0.0.10
chmod 755 .; mkdir -m 777 home; cp e1.pem e1.key ca.pem home/; chown 65534:65534 home/*
bare="setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=$PWD/home XDG_RUNTIME_DIR=$PWD/home"
$bare "$MARLINE" paths 2>log && echo "steers" || echo "$? $(cat log)"
$bare "$MARLINE" edge --relay 45.0.0.10 --certificate home/e1.pem --no-direct 2>edge.log & edge=$!
until grep -q "listens on" edge.log; do sleep 0.05; kill -0 $edge; done
perl ask.pl 45.2.0.20 100000 1088
grep "managed" edge.log
$bare "$MARLINE" edge status | grep "managed"
stop
"#;
    let Some(lines) = with_a_relay(script) else { return };
    let needs = "managing paths in this network namespace: not permitted: needs CAP_NET_ADMIN (or `--dry-run`, which changes nothing)";
    let unsteered = format!("MPTCP paths are not managed by this edge: {needs}");
    assert_eq!(
        lines,
        [format!("77 marline: {needs}"), "100000".to_owned(), format!("marline: {unsteered}"), unsteered],
        "{lines:#?}"
    );
}

#[test]
fn a_relay_without_privileges_reports_how_many_links_its_kernel_allows() {
    let script = r#"
chmod 755 .; mkdir home; cp r1.pem r1.key ca/ca.pem ca/revoked.pem home/; chown -R 65534:65534 home
bare() { # without privileges
    ip netns exec srv setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=$PWD/home "$MARLINE" relay --listen 45.0.0.10:4443 \
        --certificate home/r1.pem --allow-net 45.2.0.20 --allow-port 8000-8001 --run-dir home/run 2>bare.log & relay=$!
    # Its startup messages are complete when its control socket exists.
    until ls home/run/*.sock >/dev/null 2>&1; do sleep 0.05; kill -0 $relay; done
    grep "this kernel" bare.log || echo "nothing of this kernel"
}
unbare() { kill $relay; wait $relay; }
for subflows in 4 8; do ip netns exec srv ip mptcp limits set subflows $subflows; bare; unbare; done
ip netns exec srv sysctl -qw net.mptcp.enabled=0
bare
edge --no-direct
perl ask.pl 45.2.0.20 100000 1088
until grep "MPTCP" edge.log; do sleep 0.1; kill -0 $edge; done
stop
"#;
    let Some(lines) = with_a_relay(script) else { return };
    let expected = [
        "marline: this kernel allows 5 links per connection, failed ones included: more need CAP_NET_ADMIN, or \
         ip mptcp limits set subflows 8",
        "nothing of this kernel",
        "marline: this kernel has no MPTCP, so each edge uses one link at a time (try sysctl net.mptcp.enabled=1)",
        "100000",
        "marline: relay 45.0.0.10: MPTCP is disabled on the relay or stripped over every link, so each flow uses one link (on the \
         relay: sysctl net.mptcp.enabled=1)",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn a_full_state_directory_is_reported() {
    let script = r#"
mkdir kept; mount -t tmpfs -o size=64k tmpfs kept; dd if=/dev/zero of=kept/full bs=4k 2>/dev/null || true
relay srv 45.0.0.10
edge --no-direct --state-file kept/edge.json
perl ask.pl 45.2.0.20 1000 1088
says() { until "$MARLINE" edge status --run-dir run | grep -o "kept/edge.json: .* is not saved"; do sleep 0.1; kill -0 $edge; done; }
says
grep -c "kept/edge.json: .* is not saved" edge.log; ls kept
rm kept/full; stop; ls kept
"#;
    let Some(lines) = with_a_relay(script) else { return };
    let why = "kept/edge.json: No space left on device (os error 28): the state of relays is not saved";
    assert_eq!(lines, ["1000", why, "1", "full", "edge.json"], "{lines:#?}");
}
