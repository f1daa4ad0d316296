//! The command line as users and scripts use it: exit codes, one-line errors, help, JSON.
//!
//! Every test starts the built program with an empty home directory, so that the configuration of this machine has no influence.
//! No test needs a network: errors have to be found before any request is sent.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

struct Program {
    home: TempDir,
}

impl Program {
    fn new() -> Self {
        Self { home: tempfile::tempdir().unwrap() }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
        command.args(args).env_clear().env("HOME", self.home.path()).env("PATH", "/usr/bin:/bin");
        command.current_dir(self.home.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Expects the exit code and one line of explanation; returns that line.
    fn refused(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args);
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: results after an error");
        assert_eq!(stderr.matches('\n').count(), 1, "{args:?}: not one line: {stderr}");
        stderr.strip_prefix("marline: ").unwrap_or_else(|| panic!("{stderr}")).trim_end().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.home.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

/// An address of a documentation network (RFC 5737); nothing is sent to it.
const URL: &str = "http://198.51.100.1:9/file";

#[test]
fn usage_errors_end_with_64_and_one_line() {
    let program = Program::new();
    let table: &[(&[&str], &str)] = &[
        (&[], "missing subcommand: use get, links, replay"),
        (&["fetch", URL], "unrecognized subcommand 'fetch'"),
        (&["get"], "<URL>"),
        (&["get", "not a url"], "not a url: not a URL: it must begin with http:// or https://"),
        (&["get", "ftp://example.org/f"], "ftp://example.org/f: `ftp` is not supported: only http and https are"),
        (&["get", "http://[::1/f"], "http://[::1/f: not a URL: invalid IPv6 address"),
        (&["get", URL, "gopher://h/f"], "gopher://h/f: `gopher` is not supported"),
        (&["get", "--policy", "quick", URL], "unknown policy `quick`: use single, naive"),
        (&["get", "--limit-rate", "20Mb", URL], "`20Mb` is not a rate such as 20Mbit/s"),
        (&["get", "--max-time", "90", URL], "`90` is not a duration such as 50ms"),
        (&["get", "--link", "eth0,budget=2", URL], "budget: `2` is not a size such as 500KiB"),
        (&["get", "--link", "eth0,buget=2GB", URL], "`buget=2GB`: after the interface come kind="),
        (&["get", "--link", "eth0", "--link", "eth0", URL], "--link eth0: named twice"),
        (&["get", "--link", "eth0", "--limit-rate", "eth1=1Mbit/s", URL], "eth1 is not one of the --link"),
        (&["get", "--checksum", "sha256=12", URL], "sha256= and 64 hexadecimal digits"),
        (&["get", "-H", "Range: bytes=0-1", URL], "-H Range: marline sets this field itself"),
        (&["get", "--config", "absent.toml", URL], "absent.toml: No such file"),
        (&["get", "--user-file", "absent", URL], "absent: No such file"),
        (&["get", "--ca-file", "absent.pem", URL], "absent.pem: No such file"),
        (&["get", "--ca-file", "/dev/null", "https://198.51.100.1:9/file"], "/dev/null: it holds no certificate"),
        (&["get", "--ca-file", ".", URL], "Is a directory"),
        (&["get", "http:///x"], "http:///x: not a URL: there must be a host"),
        (&["get", "--trace", "-", URL], "--trace -: standard output is for results"),
        (&["replay"], "<FILE>"),
        (
            &["get", "--energy-model", "grenbag", URL],
            "--energy-model: unknown energy model `grenbag`: use typical, greenbag",
        ),
        (&["get", "--energy-model", "./absent.toml", URL], "./absent.toml: No such file"),
        (&["energy", "show", "x"], "unknown energy model `x`: use typical"),
        (&["energy", "what-if", "log", "--model", "x"], "unknown energy model `x`: use typical"),
        (&["energy"], "missing subcommand"),
    ];
    for (args, expected) in table {
        let line = program.refused(args, 64);
        assert!(line.contains(expected), "{args:?}: {line}");
    }
}

#[test]
fn a_typo_in_the_configuration_is_refused_with_its_line() {
    let program = Program::new();
    let path = program.write(".config/marline/marline.toml", "[link.wwan0]\nkind = \"lte\"\nmeterd = true\n");
    let line = program.refused(&["get", URL], 64);
    assert!(line.starts_with(&format!("{path}:3: unknown field `meterd`")), "{line}");
    assert!(program.refused(&["links"], 64).contains(":3: unknown field"));
    // A file named with --config replaces the one at the default path.
    let good = program.write("good.toml", "[link.wwan0]\nmetered = true\n");
    assert_eq!(program.run(&["links", "--config", &good]).status.code(), Some(0));
}

#[test]
fn a_secret_is_never_printed() {
    let program = Program::new();
    let table: &[&[&str]] = &[
        &["get", "--user", "hunter2", URL],
        &["get", "--user", "me:hunter2", "--user-file", "f", URL],
        &["get", "-H", "Authorization hunter2", URL],
        &["get", "ftp://me:hunter2@h/f"],
        &["get", "http://me:hunter2@h:bad/f"],
        &["get", "http:///me:hunter2@h/f"],
        &["get", "http:me:hunter2@h/f"],
    ];
    for args in table {
        assert!(!program.refused(args, 64).contains("hunter2"), "{args:?}");
    }
    let secret = program.write("secret", "hunter2\n");
    std::fs::set_permissions(&secret, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let line = program.refused(&["get", "--user-file", &secret, URL], 64);
    assert!(line.contains("write USER:PASS") && !line.contains("hunter2"), "{line}");
    let output = program.command(&["get", URL]).env("MARLINE_USER", "hunter2").output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(stderr.contains("MARLINE_USER: write USER:PASS") && !stderr.contains("hunter2"), "{stderr}");
}

#[test]
fn help_and_version_go_to_standard_output() {
    let program = Program::new();
    for (args, expected) in [
        (&["--version"][..], concat!("marline ", env!("CARGO_PKG_VERSION"))),
        (&["help"], "Download files over all links at once"),
        (&["--help"], "Exit codes: 0 success"),
        (&["get", "--help"], "marline get --link wlan0"),
        (&["help", "replay"], "marline replay run.ndjson"),
        (&["links", "--help"], "marline links --json"),
    ] {
        let output = program.run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        assert!(output.stderr.is_empty(), "{args:?}");
        assert!(String::from_utf8(output.stdout).unwrap().contains(expected), "{args:?}");
    }
}

#[test]
fn help_lists_the_exit_codes_of_the_documentation() {
    let text = String::from_utf8(Program::new().run(&["--help"]).stdout).unwrap();
    let (_, codes) = text.split_once("Exit codes:").unwrap();
    let codes: Vec<&str> =
        codes.split_once("\n\n").unwrap().0.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    let page =
        std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exit-codes.md")).unwrap();
    let (_, table) = page.split_once("|---|---|---|").unwrap();
    let rows = table.split("\n\n").next().unwrap().lines().filter_map(|row| row.split('|').nth(1)).map(str::trim);
    let missing: Vec<&str> = rows.filter(|code| !codes.contains(code)).collect();
    assert!(missing.is_empty(), "{missing:?}: {text}");
}

#[test]
fn help_lists_every_command() {
    let program = Program::new();
    let text = String::from_utf8(program.run(&["help"]).stdout).unwrap();
    for subcommand in ["get", "links", "replay"] {
        assert!(
            text.lines().any(|line| line.trim_start().starts_with(&format!("{subcommand} "))),
            "{subcommand}: {text}"
        );
    }
}

#[test]
fn a_missing_named_link_ends_with_69() {
    let program = Program::new();
    let output = program.run(&["get", "--link", "absent0", URL]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(69), "{stderr}");
    assert!(stderr.contains("absent0") && stderr.contains("no such interface"), "{stderr}");
    assert_eq!(std::fs::read_dir(program.home.path()).unwrap().count(), 0, "a file was left behind");
}

#[test]
fn links_list_the_loopback_and_why_it_is_not_used() {
    let program = Program::new();
    let output = program.run(&["links", "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let links: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lo = links.as_array().unwrap().iter().find(|link| link["name"] == "lo").unwrap();
    assert_eq!((&lo["used"], &lo["verdict"]), (&false.into(), &"unused".into()));
    assert_eq!(lo["explanation"], "it is the loopback interface");
    for key in ["index", "kind", "addresses", "route_v4", "route_v6", "metered", "budget_bytes", "rate_limit_mbps"]
    {
        assert!(lo.get(key).is_some(), "{key}");
    }
    let text = String::from_utf8(program.run(&["links"]).stdout).unwrap();
    assert!(text.starts_with("LINK "), "{text}");
    assert!(text.lines().any(|line| line.starts_with("lo ")), "{text}");
}

#[test]
fn a_damaged_log_is_reported_with_its_line() {
    let program = Program::new();
    assert!(program.refused(&["replay", "absent"], 1).contains("absent: No such file"));
    let log = program.write("log", "{\"log\":\"tick\",\"at\":0}\n");
    assert_eq!(
        program.refused(&["replay", &log], 1),
        format!("{log}:1: the log does not begin with its version and configuration")
    );
    let log = program.write("binary", "\0\0\0\n");
    assert!(program.refused(&["replay", &log], 1).starts_with(&format!("{log}:1: not a decision log of marline")));
    let log = program.write("empty", "");
    assert!(program.refused(&["replay", &log], 1).ends_with(":1: the log is empty"));
}

#[test]
fn a_log_is_replayed_from_standard_input() {
    let program = Program::new();
    let config = serde_json::to_value(marline_core::fetch::Config::default()).unwrap();
    let start = serde_json::json!({"log": "start", "version": env!("CARGO_PKG_VERSION"), "config": config});
    let mut child = program
        .command(&["replay", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    writeln!(child.stdin.take().unwrap(), "{start}").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "equal: 0 decisions from 1 records\n");
}

#[test]
fn a_closed_reader_causes_no_panic() {
    let program = Program::new();
    // The reader of standard output is closed at once.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program.command(&["links"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.is_empty(), "{stderr}");
    assert!(output.status.code().is_some(), "ended by a signal");
}

#[test]
fn a_wrong_log_filter_is_refused() {
    let program = Program::new();
    let output = program.command(&["links"]).env("MARLINE_LOG", "marline=loudly").output().unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(String::from_utf8(output.stderr).unwrap().starts_with("marline: MARLINE_LOG=marline=loudly: "));
}

#[test]
fn files_linked_in_the_documentation_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pages = vec![root.join("README.md"), root.join("CONTRIBUTING.md")];
    pages.extend(std::fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path()));
    for page in pages.iter().filter(|page| page.extension().is_some_and(|ext| ext == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        for target in text.split("](").skip(1).filter_map(|remaining| remaining.split([')', '#']).next()) {
            if !target.is_empty() && !target.contains("://") {
                let file = page.parent().unwrap().join(target);
                assert!(file.exists(), "{}: the link target {target} does not exist", page.display());
            }
        }
    }
}

#[test]
#[cfg(all(feature = "accel", feature = "fleet"))]
fn status_without_a_daemon_has_the_same_message_for_all_daemons() {
    let program = Program::new();
    for daemon in ["paths", "accel", "edge", "relay"] {
        for format in [&[][..], &["--json"]] {
            let line = program.refused(&[&[daemon, "status", "--run-dir", "none"], format].concat(), 1);
            let expected = format!(
                "no marline {daemon} daemon runs in this network namespace; start it with `marline {daemon}`, or name its --run-dir"
            );
            assert_eq!(line, expected);
        }
    }
}
