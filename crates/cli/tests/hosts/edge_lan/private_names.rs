//! Private networks by name, for programs that use the proxy: the relay resolves first, then the name servers of the host and its links.

use super::run_in_network;

#[test]
fn programs_reach_private_networks_by_name_when_the_relay_does_not_resolve_it() {
    let script = r#"
command -v dnsmasq >/dev/null || { echo "skipped: needs the program dnsmasq"; exit 0; }
# An office network behind a static route, and the web page of the first link's router.
ip netns add office; ip -n office link set lo up
ip link add off0 type veth peer name eth0 netns office
wire - off0 10.50.0.1/24; wire office eth0 10.50.0.2/24
ip -n office address add 172.20.0.1/32 dev lo; ip -n office route add default via 10.50.0.1
ip route add 172.20.0.0/16 via 10.50.0.2
for name in far srv office; do ip netns exec $name perl -e "$shell" & done
perl -e "$shell" &
serves() { dnsmasq --keep-in-foreground --user=root --pid-file= --bind-interfaces --conf-file=/dev/null --no-resolv --no-hosts "$@" 2>>names.log & }
ip -n srv address add 203.0.113.53/24 dev eth0
internet() { # ADDRESS of rebind.test; sets $server
    ip netns exec srv bash -c "$(declare -f serves); serves --listen-address=203.0.113.53 --address=/srv.test/203.0.113.5 \
        --address=/intra.test/172.20.0.1 --address=/own.test/127.0.0.1 --address=/box.test/10.0.1.2 --address=/both.test/172.20.0.1 \
        --address=/both.test/203.0.113.6 --address=/office.example/172.20.0.1 --address=/rebind.test/$1"'; echo $! >server.pid; wait' & server=$!
    until ip netns exec srv ss -Hlun 'sport = :53' | grep -q 203; do sleep 0.02; done
}
internet 203.0.113.5
ip netns exec far bash -c "$(declare -f serves); serves --listen-address=10.0.1.1 --address=/fritz.box/10.0.1.1; wait" &
until ip netns exec far ss -Hlun 'sport = :53' | grep -q 10.0.1.1; do sleep 0.02; done
mkdir -p /run/resolvconf/interface; echo "nameserver 10.0.1.1" >/run/resolvconf/interface/up0.dhcp
echo "nameserver 203.0.113.53
options timeout:1 attempts:1" >resolv.conf
real=$(readlink -m /etc/resolv.conf); mkdir -p "${real%/*}"; [ -e "$real" ] || touch "$real"; mount --bind resolv.conf "$real"
relay --allow-port 2222
edge --no-direct --local-domain test --listen 127.0.0.1:1088 --listen 192.168.77.1:1088
greet() { curl -sS -m 10 --proxytunnel -x http://$1:1088 telnet://$2:2222 2>&1 </dev/null | tail -n 1 | sed 's/.*response 4/4/; s/.*response 5/5/'; }
for name in srv.test fritz.box intra.test nothing.lan own.test box.test both.test rebind.test office.example; do greet 127.0.0.1 $name; done
for name in fritz.box intra.test; do lan bash -c "$(declare -f greet); greet 192.168.77.1 $name"; done
curl -sS -m 10 -x socks5h://127.0.0.1:1088 telnet://fritz.box:2222 </dev/null | tail -n 1
# A public name now resolves to a private address (DNS rebinding).
kill $(cat server.pid); wait $server || true
internet 172.20.0.1
sleep 1
greet 127.0.0.1 rebind.test
"#;
    let Some(lines) = run_in_network(script) else { return };
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        return eprintln!("{}", lines[0]);
    }
    let (router, office, server) = ("hello, 10.0.1.2", "hello, 10.50.0.1", "hello, 203.0.113.1");
    let expected =
        [server, router, office, "502", "403", "403", "403", server, "403", router, office, router, "403"];
    assert_eq!(lines, expected, "{lines:#?}");
}
