//! Traffic of a LAN through the relay, and the privileges and options that the edge needs for it.

use super::run_in_network;

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
