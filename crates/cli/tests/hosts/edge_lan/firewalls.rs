//! Firewalls of the host: which rules the edge reports, which it cannot check, and that reading rules delays no connection.

use super::run_in_network;

#[test]
fn only_rules_that_block_forwarded_packets_are_reported_and_legacy_rules_are_reported_as_unchecked() {
    let script = r#"
relay
edge
drops() { until [ $(grep -c "drops forwarded" edge.log) = $1 ]; do sleep 0.1; kill -0 $edge; done; grep "drops forwarded" edge.log | tail -n 1 | sed 's/`.*`/REMEDY/'; }
gone() { until [ $(grep -c "anymore" edge.log) = $1 ]; do sleep 0.1; kill -0 $edge; done; }
# None of these blocks the LAN: a bridge table, a dormant table, a rule that logs and then accepts.
nft 'table bridge filter { chain FORWARD { type filter hook forward priority 0; policy drop; }; chain INPUT { type filter hook input priority 0; policy drop; }; }'
nft 'table inet off { flags dormant; chain FORWARD { type filter hook forward priority 0; policy drop; }; }'
nft 'table inet logs { chain FORWARD { type filter hook forward priority 0; policy drop; log prefix "drop { ; }" counter accept comment "} drop"; }; }'
sleep 2.5
# A rule that only logs and counts does not accept; the text in its quotes must not be parsed.
nft 'table inet fw { chain FORWARD { type filter hook forward priority 0; policy drop; iifname "lan0" log prefix "accept { lan0 ; } accept" counter comment "iifname lan0 accept"; }; }'
drops 1
nft delete table inet fw; gone 1
# A rule that blocks one link only, and a rule for IPv6.
nft 'table inet fw { chain FORWARD { type filter hook forward priority 0; policy accept; iifname "lan0" oifname "up1" reject; }; }'
drops 2
nft delete table inet fw; gone 2
nft 'table inet fw { chain FORWARD { type filter hook forward priority 0; policy accept; ip6 saddr fd00::/8 log prefix "six" drop; }; }'
drops 3
nft delete table inet fw; gone 3
# The other hooks that forwarded packets traverse.
nft 'table inet fw { chain pre { type filter hook prerouting priority 0; policy accept; iifname "lan0" meta l4proto udp drop; }; }'
drops 4
nft delete table inet fw; gone 4
nft 'table inet fw { chain post { type filter hook postrouting priority 0; policy accept; oifname "up1" drop; }; }'
drops 5
nft delete table inet fw; gone 5
grep -c "not checked" edge.log || true
iptables-legacy -P FORWARD DROP 2>/dev/null || { echo "no legacy"; exit 0; }
until grep -q "not checked" edge.log; do sleep 0.1; kill -0 $edge; done
"$MARLINE" edge status --run-dir run | grep -o "not checked: iptables-legacy rules are loaded (tables: filter)"
"$MARLINE" edge status --run-dir run --json | grep -A1 '"unchecked"' | grep -c "iptables-legacy -S FORWARD"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let stopped = |to: &str| format!("marline: chain {to}. To allow them: REMEDY");
    let mut expected = vec![
        stopped(
            "FORWARD of table inet fw (policy drop) drops forwarded packets of lan0 (UDP, ICMP, TCP to private networks) towards the links",
        ),
        stopped(
            "FORWARD of table inet fw (a rule) drops forwarded packets of lan0 (UDP, ICMP, TCP to private networks) towards up1",
        ),
        stopped(
            "FORWARD of table inet fw (a rule) drops forwarded packets of lan0 (IPv6) (UDP, ICMP, TCP to private networks) towards the links",
        ),
        stopped(
            "pre of table inet fw (a rule) drops forwarded packets of lan0 (UDP, ICMP, TCP to private networks) towards the links",
        ),
        stopped(
            "post of table inet fw (a rule) drops forwarded packets of lan0 (UDP, ICMP, TCP to private networks) towards up1",
        ),
        "0".to_owned(),
    ];
    let legacy = ["not checked: iptables-legacy rules are loaded (tables: filter)", "1"];
    match lines.last().map(String::as_str) {
        Some("no legacy") => expected.push("no legacy".to_owned()),
        _ => expected.extend(legacy.map(str::to_owned)),
    }
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn a_failure_to_list_rules_does_not_count_as_their_removal() {
    let script = r#"
relay
# A wrapper of nft that fails to list rules while the file `fails` exists.
mkdir bin; real=$(command -v nft)
printf '#!/bin/sh\n[ -e %s/fails ] && case "$*" in *--json*) echo "no JSON" >&2; exit 1;; esac\nexec %s "$@"\n' "$PWD" "$real" >bin/nft; chmod +x bin/nft
PATH=$PWD/bin:$PATH edge
says() { for n in $(seq 100); do grep -q "$1" edge.log && echo "$1" && break; sleep 0.1; done; }
"$real" 'table inet fw { chain FORWARD { type filter hook forward priority 0; policy drop; }; }'
says "table inet fw (policy drop) drops"
touch fails; "$real" add table ip other
says "not checked: the rules of other firewalls cannot be listed"
sleep 2.5
"$MARLINE" edge status --run-dir run | grep -o "table inet fw (policy drop) drops" | head -n 1
grep -c "blocks packets of the LAN" edge.log || true
rm fails; "$real" add table ip another
for n in $(seq 100); do "$MARLINE" edge status --run-dir run | grep -q "cannot be listed" || break; sleep 0.1; done
"$real" delete table inet fw
says "no firewall or setting of this host blocks packets of the LAN anymore"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected = [
        "table inet fw (policy drop) drops",
        "not checked: the rules of other firewalls cannot be listed",
        "table inet fw (policy drop) drops",
        "0",
        "no firewall or setting of this host blocks packets of the LAN anymore",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
}

#[test]
fn reading_rules_delays_no_connection_and_flows_and_status_do_not_trigger_it() {
    let script = r#"
relay
# A wrapper of nft that records each run, and takes 8 s while the file `slow` exists.
mkdir bin; real=$(command -v nft)
printf '#!/bin/sh\necho run >>%s/runs\n[ -e %s/slow ] && sleep 8\nexec %s "$@"\n' "$PWD" "$PWD" "$real" >bin/nft; chmod +x bin/nft
PATH=$PWD/bin:$PATH edge
get() { lan curl -sS -m 4 http://203.0.113.5/; }
sleep 2.5; was=$(wc -l <runs)
for n in $(seq 20); do get >/dev/null; "$MARLINE" edge status --run-dir run >/dev/null; done
[ $(wc -l <runs) = $was ] && echo "nft has not run"
# Another program changes the rules, and reading them takes 8 s.
touch slow; "$real" add table ip other
until [ $(wc -l <runs) -gt $was ]; do sleep 0.05; kill -0 $edge; done
get
"$MARLINE" edge status --run-dir run | grep -o "LAN lan0: blocked"
rm slow; sleep 8
# The edge restores a table that another program flushed within seconds.
"$real" flush ruleset
for n in $(seq 40); do "$real" list table inet marline-lan >/dev/null 2>&1 && echo "closed again" && break; sleep 0.1; done
kill -TERM $edge; wait $edge; free
"$real" list table inet marline-lan >/dev/null 2>&1 || echo "gone with the edge"
"#;
    let Some(lines) = run_in_network(script) else { return };
    let expected = [
        "nft has not run",
        "203.0.113.1 to 203.0.113.5",
        "LAN lan0: blocked",
        "closed again",
        "gone with the edge",
    ];
    assert_eq!(lines, expected, "{lines:#?}");
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
