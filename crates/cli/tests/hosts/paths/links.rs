//! Links that appear and disappear, and their budgets.

use super::TestHome;

#[test]
fn an_optional_link_may_be_the_only_one() {
    let home = TestHome::new();
    let script = r#"
state >before
start --link usb0,optional,kind=lte
plug_usb0
until paths status --run-dir "$RUN" | grep -q "^usb0 .* up"; do sleep 0.05; kill -0 $daemon; done
grep "managing MPTCP" log
stop
ip link delete usb0
compare
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let [line] = &lines[..] else { panic!("{lines:#?}") };
    assert!(line.starts_with("marline: managing MPTCP over no link yet; policy marline"), "{line}");
}

#[test]
fn an_optional_link_is_used_whenever_it_appears() {
    let home = TestHome::new();
    let script = r#"
state >before
start --link eth0,kind=wifi --link usb0,optional,kind=lte
paths status --run-dir "$RUN" --json >first
for turn in 1 2; do
    plug_usb0
    until ip rule | grep -q "from 10.7.0.2 lookup 731"; do sleep 0.05; kill -0 $daemon; done
    ip link delete usb0
    while ip rule | grep -q "from 10.7.0.2"; do sleep 0.05; kill -0 $daemon; done
done
paths status --run-dir "$RUN" --json >second
for status in first second; do tr -d ' \n' <$status | grep -o '"name":"[a-z0-9]*"' | tr '\n' ' '; echo; done
grep usb0 log
stop
compare
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "\"name\":\"eth0\" ",
        "\"name\":\"eth0\" \"name\":\"usb0\" ",
        "marline: link usb0: no such interface yet; it will be used when it appears",
        "marline: usb0 (lte) appeared, and is used from now on",
    ];
    assert_eq!(lines, expected);
}

/// Interfaces at boot: down, up without a default route, or missing; found or named in the configuration.
#[test]
fn a_run_that_starts_before_its_links_waits_for_them() {
    let home = TestHome::new();
    std::fs::write(home.0.path().join("named.toml"), "[paths]\noptional-links = ['eth0', 'eth1']\n").unwrap();
    let script = r#"
both() { paths status --run-dir "$RUN" --json | tr -d ' \n' | grep -o '"up":true' | wc -l; }
led() { ip rule | grep -c "from 10.1.0.2 lookup 731" || true; }
come() {
    for n in 0 1; do
        ip link show eth$n >/dev/null 2>&1 || ip link add eth$n type veth peer name far$n
        ip address replace 10.$n.0.2/24 dev eth$n; ip link set eth$n up; ip link set far$n up
        until ip -br link show eth$n | grep -q LOWER_UP; do sleep 0.01; done
        ip route replace default via 10.$n.0.1 dev eth$n metric 10$n
    done
}
begin() {
    start "$@"
    grep "waiting" log | sed 's/ used:.*;/ used;/'
    come
    until [ $(both) = 2 ] && [ $(led) = 1 ]; do sleep 0.05; kill -0 $daemon; done
    stop && echo "both are steered"
}
ip link set eth0 down; ip link set eth1 down
begin
ip route flush default; ip -6 route flush default
begin
ip link delete eth0; ip link delete eth1
begin
ip link delete eth0; ip link delete eth1
begin --quiet
ip link delete eth0; ip link delete eth1
begin --config named.toml
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let each = ["marline: no link can be used; waiting for a usable link", "both are steered"];
    assert_eq!(lines, each.repeat(5), "{lines:#?}");
}

#[test]
fn the_used_part_of_a_budget_is_kept_for_the_next_run() {
    let home = TestHome::new();
    let script = r#"
mkdir "$RUN"; echo '{"eth1": 400000000, "wwan7": 7}' >"$RUN/budgets.json"
used() { paths status --run-dir "$RUN" --json | tr -d ' \n' | grep -o '"budget_used_bytes":[0-9]*,"budget_left_bytes":[0-9]*' | tr -dc '0-9,'; echo; }
for run in 1 2; do
    start --link eth0 --link eth1,budget=1GB
    used
    # No host has this address: only ARP requests are sent.
    until [ "$(used | cut -d, -f1)" -gt 400000000 ]; do
        timeout 0.5 bash -c 'exec 3<>/dev/tcp/10.1.0.9/80' 2>/dev/null || true; kill -0 $daemon
    done
    stop
done
tr -d ' \n' <"$RUN/budgets.json"
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let [first, second, saved] = &lines[..] else { panic!("{lines:?}") };
    let [first, second] = [first, second].map(|line| {
        let (used, left) = line.split_once(',').unwrap();
        let (used, left): (u64, u64) = (used.parse().unwrap(), left.parse().unwrap());
        assert_eq!(used + left, 1_000_000_000);
        used
    });
    let saved: std::collections::BTreeMap<String, u64> = serde_json::from_str(saved).unwrap();
    assert!(first >= 400_000_000 && second > first && saved["eth1"] >= second, "{first} {second} {saved:?}");
    assert!(saved["eth1"] < 400_100_000 && saved["wwan7"] == 7, "{saved:?}");
}
