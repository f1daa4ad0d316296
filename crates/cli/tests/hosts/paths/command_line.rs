//! Usage errors, queries without a daemon, and starts that fail: one line each, and nothing changes.

use super::{TestHome, assert_beginnings};

#[test]
fn usage_errors_end_with_64_and_one_line() {
    let home = TestHome::new();
    std::fs::write(
        home.0.path().join("model.toml"),
        "device = 'd'\nsource = 's'\nconfidence = '50%'\nplattform = '1W'\n",
    )
    .unwrap();
    std::fs::write(home.0.path().join("m.toml"), "[paths]\nprofil = 'energy'\n").unwrap();
    let group = "[paths]\ntransparent = true\ncgroup = '../elsewhere'\nports = [80, '8000-8999']\n";
    std::fs::write(home.0.path().join("group.toml"), group).unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["--goal", "fast"], "unknown goal `fast`; use speed, latency, energy or cost"),
        (
            &["--policy", "tcp"],
            "unknown policy `tcp`; use marline, emptcp, emptcp-settled, emptcp-table, wifi-first or mptcp",
        ),
        (&["--link", "eth0,buget=2GB"], "`buget=2GB`: use kind="),
        (&["--link", "eth0,metred=yes"], "use kind=, metered=, budget= or optional after the interface, separated"),
        (&["--port", "80"], "--port needs --transparent"),
        (&["--run-dir", "/etc/passwd"], "--run-dir /etc/passwd: not a directory"),
        (&["status", "--run-dir", "/etc/passwd"], "--run-dir /etc/passwd: not a directory"),
        (&["status", "--at-most", "x"], "`x` is not a number of connections"),
        (&["status", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["watch", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["explain", "7", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["doctor", "--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["doctor", "--config", "group.toml"], "[paths] cgroup: "),
        (&["--config", "group.toml"], "[paths] cgroup: "),
        (&["--link", "eth0", "--link", "eth0"], "--link eth0: named twice"),
        (&["--link", "eth0,limit=1Mbit/s"], "--link eth0: limit= is only for"),
        (&["--trace", "-"], "--trace -: name a file for the log"),
        (&["--dry-run", "--kernel-pm"], "cannot be used with"),
        (&["--energy-model", "./model.toml"], "--energy-model: ./model.toml:4: unknown field `plattform`"),
        (&["--energy-model", "./absent.toml"], "./absent.toml: No such file"),
        (&["--config", "m.toml"], "m.toml:2: unknown field `profil`"),
        (&["--cgroup", "x"], "--transparent"),
        (&["explain", "nonsense"], "a token is up to eight hexadecimal digits"),
        (&["eib", "--kinds", "wifi"], "name two kinds of links"),
        (&["eib", "--kinds", "wifi,tunnel"], "has no tunnel radio"),
        (&["doctor", "--probe", "nowhere"], "--probe nowhere: "),
        (&["stauts"], "unrecognized subcommand 'stauts'"),
    ];
    for (args, expected) in table {
        let output = home.marline(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(64), "{args:?}: {stderr}");
        assert!(stderr.contains(expected), "{args:?}: {stderr}");
        assert_eq!(stderr.matches('\n').count(), 1, "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn without_a_daemon_queries_end_with_1_and_say_how_to_start_it() {
    let home = TestHome::new();
    let run = home.0.path().display().to_string();
    for args in [&["status"][..], &["status", "--json"], &["watch"], &["explain", "7b9c2f7a"]] {
        let output = home.marline(&[args, &["--run-dir", &run]].concat());
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{stderr}");
        assert!(
            stderr.starts_with("marline: no marline paths daemon runs in this network namespace; start it with ")
                && output.stdout.is_empty(),
            "{stderr}"
        );
    }
}

#[test]
fn the_energy_information_base_is_printed_for_people_and_programs() {
    let home = TestHome::new();
    let text = String::from_utf8(home.marline(&["eib", "--energy-model", "emptcp-s3"]).stdout).unwrap();
    assert!(text.starts_with("emptcp-s3: links with the least energy per byte"), "{text}");
    let json = home.marline(&["eib", "--energy-model", "emptcp-s3", "--json"]).stdout;
    let value: serde_json::Value = serde_json::from_slice(&json).unwrap();
    // eMPTCP, table 2, third row (LTE at 1.5 Mbit/s): Wi-Fi alone from 0.803 Mbit/s.
    let row = value["rows"].as_array().unwrap().iter().find(|row| row["second_mbps"] == 1.5).unwrap();
    assert!((row["first_above_mbps"].as_f64().unwrap() / 0.803 - 1.0).abs() < 0.06, "{row}");
}

#[test]
fn a_failed_start_is_one_line_and_changes_nothing() {
    let home = TestHome::new();
    let script = r#"
refused $steer --link eth9
refused setpriv --bounding-set=-net_admin --inh-caps=-net_admin "$MARLINE" paths --run-dir "$RUN"
cp "$(command -v ip)" ./mptcpd; ./mptcpd mptcp monitor >/dev/null & other=$!
until grep -qE " 16 +[0-9]+ +0*[1-9a-f]" /proc/net/netlink; do sleep 0.01; done
refused $steer
kill $other; wait $other || true
paths --run-dir /proc/none >log 2>&1 || echo "$? $(cat log)"
mount -t tmpfs none /proc/sys/net/mptcp
refused $steer
umount /proc/sys/net/mptcp
mkdir -m 777 ./shared
refused paths --run-dir ./shared
refused $steer --trace /nonexistent/x
chmod 755 .; cp "$MARLINE" ./marline; mkdir -m 755 "$RUN"; touch "$RUN/roots"
refused setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin \
    ./marline paths --run-dir "$RUN"
refused setpriv --reuid 65534 --regid 65534 --clear-groups --inh-caps=+net_admin --ambient-caps=+net_admin \
    ./marline paths --run-dir "$RUN/new"
mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys
refused $steer
umount /proc/sys
"#;
    let Some(lines) = home.run_in_network(script) else { return };
    let expected = [
        "69 marline: link eth9: no such interface; `marline links` lists the interfaces",
        "77 marline: managing paths in this network namespace: not permitted: needs CAP_NET_ADMIN",
        "1 marline: another path manager is active: mptcpd (process ",
        "1 marline: /proc/none: ",
        "1 marline: this kernel has no MPTCP path manager",
        "1 marline: ./shared: users other than its owner may write to it: ",
        "1 marline: /nonexistent/x: the log cannot be written: ",
        "77 marline: the instance lock of this network namespace: ",
        "77 marline: ",
        "1 marline: net.mptcp.path_manager: cannot be set: Read-only file system",
    ];
    assert_beginnings(&lines, &expected);
    for line in &lines[7..9] {
        assert!(line.contains("Permission denied") && line.contains("with --run-dir"), "{line}");
    }
}
