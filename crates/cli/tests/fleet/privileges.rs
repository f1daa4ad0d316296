//! Daemons permanently drop the capabilities that they do not need, in all threads. They keep the set of their systemd units, and the few
//! that only a daemon started by hand may need (root's files, ports below 1024, raw sockets).

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::members::{MARLINE, Running, TIMEOUT, command, members};

/// Capabilities and their numbers in linux/capability.h.
const NAMES: [(&str, u32); 7] = [
    ("CAP_DAC_OVERRIDE", 1),
    ("CAP_NET_BIND_SERVICE", 10),
    ("CAP_NET_ADMIN", 12),
    ("CAP_NET_RAW", 13),
    ("CAP_SYS_NICE", 23),
    ("CAP_PERFMON", 38),
    ("CAP_BPF", 39),
];

/// The capabilities in `CapabilityBoundingSet` of a unit, as a bit set.
fn unit_capabilities(name: &str) -> u64 {
    let path = format!("{}/../../contrib/systemd/marline-{name}.service", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    let bit = |capability: &str| NAMES.iter().find(|(name, _)| *name == capability).unwrap().1;
    line.split_whitespace().map(|capability| 1 << bit(capability)).sum()
}

/// Reads from a thread's status: no_new_privs, and the permitted, effective and bounding sets.
fn thread_privileges(status: &Path) -> (bool, [u64; 3]) {
    let text = std::fs::read_to_string(status).unwrap();
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let set = |name| u64::from_str_radix(&value(name), 16).unwrap();
    (value("NoNewPrivs:") == "1", [set("CapPrm:"), set("CapEff:"), set("CapBnd:")])
}

/// Asserts that all threads of a daemon have at most the capabilities of its unit and `extra_capabilities`.
fn assert_is_confined(child: &Child, unit: u64, extra_capabilities: u64) {
    let capabilities = thread_privileges(Path::new("/proc/self/status")).1;
    // Without CAP_SETPCAP (bit 8) a process cannot reduce its bounding set.
    let is_root = capabilities[1] & 1 << 8 != 0;
    let threads = std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    for thread in threads {
        let (no_new_privs, [permitted, effective, bounding]) =
            thread_privileges(&thread.unwrap().path().join("status"));
        assert!(no_new_privs);
        assert_eq!((permitted & !(unit | extra_capabilities), effective & !(unit | extra_capabilities)), (0, 0));
        // It keeps the capabilities of the unit that this test itself has.
        assert_eq!(permitted & unit, capabilities[0] & unit);
        assert!(!is_root || bounding & !(unit | extra_capabilities) == 0, "{bounding:x}");
    }
}

#[test]
fn daemons_keep_the_privileges_of_their_units_and_no_others() {
    let dir = members();
    let dir = dir.path();
    let [dac, bind, raw] = [1_u64 << 1, 1 << 10, 1 << 13];

    let relay = "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --run-dir run --threads 2 \
                 --audit-log audit.ndjson";
    let relay = Running::start(dir, relay);
    assert_is_confined(&relay.child, unit_capabilities("relay"), dac);
    let edge = format!(
        "edge --portal-probe off --no-paths --run-dir run --listen 127.0.0.1:0 --relay {} --certificate e1.pem --no-direct",
        relay.address
    );
    assert_is_confined(&Running::start(dir, &edge).child, unit_capabilities("edge"), dac | bind | raw);
    let service = Running::start(dir, "fleet run --ca-dir ca --listen 127.0.0.1:0");
    assert_is_confined(&service.child, unit_capabilities("fleet"), dac | bind);

    let run = dir.join("run2");
    for (args, ready) in [
        (format!("paths --dry-run --run-dir {}", run.display()), "dry run"),
        ("proxy --listen 127.0.0.1:0 --status-listen 127.0.0.1:0".to_owned(), "player page"),
    ] {
        let log = dir.join("log");
        let mut daemon = command(dir, &args);
        daemon.env("HOME", dir).stdout(Stdio::null()).stderr(std::fs::File::create(&log).unwrap());
        let mut daemon = daemon.spawn().unwrap();
        let begun = Instant::now();
        let log_text = || std::fs::read_to_string(&log).unwrap();
        while !log_text().contains(ready) && daemon.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < TIMEOUT, "{args}: {}", log_text());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        if daemon.try_wait().unwrap().is_some() {
            assert!(args.starts_with("paths"), "{}", log_text());
            eprintln!("skipped: {}", log_text());
            continue;
        }
        assert_is_confined(&daemon, unit_capabilities("paths"), dac | bind | raw);
        daemon.kill().unwrap();
        daemon.wait().unwrap();
    }
}

#[test]
#[cfg(feature = "accel")]
fn the_accelerator_keeps_only_the_privileges_of_its_unit_in_all_threads() {
    let dir = tempfile::tempdir().unwrap();
    let script = format!(
        "ip link set lo up; ip link add w0 type veth peer name w1; ip address add 10.1.1.1/24 dev w0; ip link set w0 up; \
         ip link set w1 up; ip route add default via 10.1.1.2 dev w0; exec {MARLINE} accel --primary w0 --run-dir run 2>log"
    );
    let mut command = Command::new("unshare");
    command
        .args(["--net", "sh", "-ec", &script])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    let Ok(mut daemon) = command.stderr(Stdio::null()).spawn() else { return eprintln!("skipped: needs unshare") };
    let (begun, log_text) =
        (Instant::now(), || std::fs::read_to_string(dir.path().join("log")).unwrap_or_default());
    // Its threads start before this message or soon after it.
    let threads =
        |child: &Child| std::fs::read_dir(format!("/proc/{}/task", child.id())).map_or(0, Iterator::count);
    while !(log_text().contains("press Ctrl-C to stop") && threads(&daemon) > 1)
        && daemon.try_wait().unwrap().is_none()
    {
        assert!(begun.elapsed() < TIMEOUT, "{}", log_text());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    if daemon.try_wait().unwrap().is_some() {
        return eprintln!("skipped: {}", log_text());
    }
    assert_is_confined(&daemon, unit_capabilities("accel@"), 1 << 10);
    assert!(Command::new("kill").args(["-TERM", &daemon.id().to_string()]).status().unwrap().success());
    assert!(daemon.wait().unwrap().success(), "{}", log_text());
}

#[test]
fn programs_started_for_the_user_keep_their_privileges() {
    // `play` and `run` start programs of the user, which may need set-user-ID programs.
    let out = Command::new(MARLINE).args(["run", "--", "cat", "/proc/self/status"]).output().unwrap();
    let text = String::from_utf8(out.stdout).unwrap();
    let privileges = thread_privileges(Path::new("/proc/self/status"));
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim).map(str::to_owned);
    if let Some(set) = field("CapBnd:") {
        assert_eq!(u64::from_str_radix(&set, 16).unwrap(), privileges.1[2]);
    } else {
        eprintln!("skipped: {}", String::from_utf8_lossy(&out.stderr));
    }
}
