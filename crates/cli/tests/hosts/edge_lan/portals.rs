//! Captive portals that redirect port 80 and drop or refuse everything else, as most do. They never answer for a relay, so the edge needs a
//! portal probe to detect them. Also what looks like a portal and is none: a relay with a wrong certificate, a network after the login.

use super::links::SHELL_FUNCTIONS;
use super::{LINK_FAILURES, run_in_network};

const SHELL_FUNCTIONS_OF_PORTALS: &str = r#"
# A web server that answers each request with 204 and logs its path.
empty='use IO::Socket::IP; $| = 1; my $l = IO::Socket::IP->new(Listen => 50, LocalHost => "203.0.113.6", LocalPort => 80, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { my ($head, $part) = (""); $head .= $part while $head !~ /\r\n\r\n/ and sysread $c, $part, 4096;
        print "$1\n" if $head =~ /^(GET [^ ]*)/; print $c "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n"; close $c }'
ip -n srv address add 203.0.113.6/24 dev eth0
ip netns exec srv perl -e "$empty" >requests & until ip netns exec srv ss -Hltn 'sport = :80' | grep -q 203.0.113.6; do sleep 0.02; done
probe="--portal-probe http://203.0.113.6/generate_204"
http_portal() { # drop|reject|names: of each packet to another port than 80, which is 81 by then, and 53
    local how=drop names=""; [ $1 != reject ] || how="reject with tcp reset"
    # `names`: the portal also answers each DNS query with its own address.
    [ $1 != names ] || names='; iifname "up0" udp dport 53 redirect to :5353'
    rules "iifname up0 tcp dport != { 53, 81 } $how" "iifname up0 meta nfproto ipv4 tcp dport 80 redirect to :81$names"
}
# Waits until the status contains this pattern.
says() { until "$MARLINE" edge status --run-dir run | grep -o "$1"; do sleep 0.1; kill -0 $edge; done; }
unsays() { while "$MARLINE" edge status --run-dir run | grep -q "$1"; do sleep 0.1; kill -0 $edge; done; }
page() { curl -s -m 5 -x socks5h://127.0.0.1:1088 http://203.0.113.5/ || true; }
"#;

fn lines_of(script: &str) -> Option<Vec<String>> {
    let lines = run_in_network(&format!("{LINK_FAILURES}{SHELL_FUNCTIONS}{SHELL_FUNCTIONS_OF_PORTALS}{script}"))?;
    if lines.first().is_some_and(|line| line.starts_with("skipped")) {
        eprintln!("{}", lines[0]);
        return None;
    }
    Some(lines)
}

#[test]
fn a_portal_that_redirects_only_port_80_is_reported_and_flows_take_the_other_link() {
    let script = r#"
for how in drop reject names; do
    [ $how != names ] || probe="--portal-probe http://srv.test/generate_204"
    for when in start running; do
        [ $when = running ] || http_portal $how
        begin --relay 203.0.113.1 --no-direct $probe
        [ $when = start ] || { programs >/dev/null; http_portal $how; }
        # The next flows reveal the failure of the link.
        for client in lans programs; do $client | cut -d' ' -f1; done
        says "link up0 does not reach the relay: a captive portal.*"
        works
        unsays "link up0 does"
        stop
    done
done
"#;
    let Some(lines) = lines_of(script) else { return };
    let portal =
        "link up0 does not reach the relay: a captive portal, which a browser on that network shows; up1 does";
    assert_eq!(lines, ["200", "200", portal].repeat(6));
}

#[test]
fn without_a_relay_flows_leave_a_link_with_a_portal_and_return_after_the_login() {
    let script = r#"
begin --relay 192.0.2.9 --direct $probe
page
http_portal drop
# The portal answers instead of the server until the edge detects it.
until [ "$(page)" = "10.0.2.2 to 203.0.113.5" ]; do sleep 0.2; kill -0 $edge; done
says "link up0 does not carry new connections: a captive portal.*"
page
works
unsays "link up0 does"
page
# While flows go directly, each link is probed at most once in 30 s, however long the flows take here.
: >requests; began=$SECONDS; for n in $(seq 40); do page >/dev/null; sleep 0.25; done
took=$((SECONDS - began)) asked=$(wc -l <requests)
[ $asked -le $((2 * (took / 30 + 1))) ] && echo "no oftener than needed" || echo "$asked requests in $took s"
stop
# With the probe off, nothing is sent.
: >requests; begin --relay 192.0.2.9 --direct --portal-probe off
for n in $(seq 8); do page >/dev/null; sleep 0.25; done
wc -l <requests
"#;
    let Some(lines) = lines_of(script) else { return };
    let (first, second) = ("10.0.1.2 to 203.0.113.5", "10.0.2.2 to 203.0.113.5");
    let portal = "link up0 does not carry new connections: a captive portal, which a browser on that network shows; up1 does";
    assert_eq!(lines, [first, portal, second, first, "no oftener than needed", "0"]);
}

#[test]
fn a_portal_probe_without_a_204_on_any_link_is_reported_once_and_marks_no_link_as_failed() {
    let script = r#"
# A page instead of the expected 204, as for a wrong probe URL. A response 403 proves nothing.
page='use IO::Socket::IP; my $l = IO::Socket::IP->new(Listen => 50, LocalHost => "203.0.113.6", LocalPort => 81, ReuseAddr => 1) or die;
    while (my $c = $l->accept) { sysread $c, my $head, 4096; my $code = $head =~ /refused/ ? 403 : 200; print $c "HTTP/1.1 $code X\r\nContent-Length: 0\r\n\r\n"; close $c }'
ip netns exec srv perl -e "$page" & until ip netns exec srv ss -Hltn 'sport = :81' | grep -q 203.0.113.6; do sleep 0.02; done
for path in refused page; do
    begin --relay 203.0.113.1 --no-direct --portal-probe http://203.0.113.6:81/$path
    [ $path = refused ] || until grep -q "its URL may be wrong" edge.log; do sleep 0.1; kill -0 $edge; done
    sleep 6
    programs | cut -d' ' -f1
    grep -c "its URL may be wrong" edge.log || true
    "$MARLINE" edge status --run-dir run | grep -c "captive portal" || true
    stop
done
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(lines, ["200", "0", "0", "200", "1", "0"]);
}

#[test]
fn the_portal_of_the_only_link_is_reported() {
    let script = r#"
ip link del up1
http_portal reject
begin --relay 203.0.113.1 --no-direct $probe
says "link up0 does not carry new connections: a captive portal.*"
works
unsays "link up0 does"
for n in $(seq 40); do code=$(programs | cut -d' ' -f1); [ "$code" = 200 ] && break; sleep 0.25; done; echo $code
"#;
    let Some(lines) = lines_of(script) else { return };
    assert_eq!(
        lines,
        ["link up0 does not carry new connections: a captive portal, which a browser on that network shows", "200"]
    );
}

#[test]
fn a_wrong_relay_certificate_and_a_login_while_the_relay_is_down_leave_no_portal_reported() {
    let script = r#"
ip netns exec far "$MARLINE" relay --listen 203.0.113.1:4446 --certificate other/r3.pem --revoked other/ca/revoked.pem 2>wrong.log &
until grep -q "listens on" wrong.log; do sleep 0.05; done
# Over up1 the first SYN of each connection is lost, so that its certificate error appears a second after that of up0.
ip netns exec far nft 'table inet late { set seen { type ipv4_addr . inet_service; flags dynamic; timeout 60s; };
    chain in { type filter hook input priority 0; iifname "up1" tcp dport 4446 tcp flags syn ip saddr . tcp sport != @seen add @seen { ip saddr . tcp sport } drop; }; }'
for how in "--portal-probe off" "$probe"; do
    begin --relay 203.0.113.1:4446 --direct $how
    for n in $(seq 12); do page >/dev/null; sleep 0.25; done
    unsays "link up0 does"
    sleep 3; page; stop
done
ip netns exec far nft delete table inet late
# A user logs in at the portal while the relay is down.
for how in "--portal-probe off" "$probe"; do
    begin --relay 203.0.113.1:4447 --direct $how
    fail portal
    for n in $(seq 40); do "$MARLINE" edge status --run-dir run | grep -q "link up0 does" && break; page >/dev/null; sleep 0.25; done
    says "link up0 does not carry new connections"
    page
    works
    unsays "link up0 does"
    page; stop
done
"#;
    let Some(lines) = lines_of(script) else { return };
    let (first, second) = ("10.0.1.2 to 203.0.113.5", "10.0.2.2 to 203.0.113.5");
    let portal = "link up0 does not carry new connections";
    assert_eq!(lines, [first, first, portal, second, first, portal, second, first]);
}
