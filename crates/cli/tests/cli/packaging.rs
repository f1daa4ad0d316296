//! Checks the files in `contrib/`: units, scripts and configurations are valid, and use only options that the program knows.
//!
//! Checkers (`systemd-analyze`, `shellcheck`, `dnsmasq`) are used where they are installed; the options are always tried with the
//! program itself.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MARLINE: &str = env!("CARGO_BIN_EXE_marline");

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(contrib(name)).unwrap()
}

/// Runs a checker; none if it is not installed.
fn run_checker(program: &str, args: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(args).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    output.inspect_err(|error| eprintln!("skipped: {program}: {error}")).ok()
}

/// Asserts that the program accepts these options: it must fail for a missing file that they name, not for an option.
fn assert_options_are_known(args: &[String]) {
    let output = Command::new(MARLINE).args(args).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.to_lowercase().contains("no such file") && stderr.contains(".pem"), "{args:?}: {stderr}");
}

#[test]
fn systemd_units_are_valid_and_their_options_are_known() {
    let dir = tempfile::tempdir().unwrap();
    for (unit, extra_args) in [
        ("marline-paths", ""),
        ("marline-accel@", ""),
        ("marline-edge", "--relay 127.0.0.1 --lan wlan1 --live 1936"),
        ("marline-relay", "--listen 127.0.0.1:4443"),
    ] {
        let text = read(&format!("systemd/{unit}.service"));
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/marline ")).unwrap();
        if !extra_args.is_empty() {
            let args = started.split(' ').filter(|arg| !arg.starts_with('$')).chain(extra_args.split(' '));
            assert_options_are_known(&args.map(|arg| arg.replace('%', "/nonexistent/")).collect::<Vec<_>>());
        }
        // systemd-analyze checks that the program exists at its path.
        let copy = dir.path().join(format!("{unit}.service"));
        std::fs::write(&copy, text.replace("/usr/local/bin/marline", MARLINE)).unwrap();
        if let Some(output) = run_checker("systemd-analyze", &["verify", copy.to_str().unwrap()]) {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let unit_lines: Vec<&str> = stderr.lines().filter(|line| line.contains(unit)).collect();
            assert!(unit_lines.is_empty() && output.status.success(), "{stderr}");
        }
        for setting in ["NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_", "ProtectSystem=", "Restart=on-failure"]
        {
            assert!(text.contains(setting), "{unit}: {setting}");
        }
        // Only the accelerator runs as root: it may set iptables-legacy rules, which needs root.
        assert_eq!(text.contains("DynamicUser=yes"), unit != "marline-accel@", "{unit}");
        if unit == "marline-accel@" {
            let args = started.replace("%i", "nowhere0").replace("$MARLINE_ACCEL", "--secondary nowhere1");
            let output = Command::new(MARLINE).args(args.split(' ')).output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(stderr.contains("nowhere0") && output.status.code() == Some(69), "{args}: {stderr}");
        }
    }
}

/// Replacements for the procd and UCI functions that the script uses; they print the command.
const STUBS: &str = r#"
config_load() { :; }
config_foreach() { "$1" main; }
of() { sed -n "s/^[[:space:]]*$1 $2 '\(.*\)'$/\1/p" "$CONFIG"; }
config_get() { local value; value=$(of option "$3"); eval "$1=\${value:-$4}"; }
config_get_bool() { config_get "$@"; }
config_list_foreach() { local value; for value in $(of list "$2"); do "$3" "$value" "$4"; done; }
procd_open_instance() { :; }
procd_close_instance() { :; }
procd_set_param() { local what=$1; shift; [ "$what" != command ] || { shift; printf '%s\n' "$@"; }; }
procd_append_param() { shift; printf '%s\n' "$@"; }
. "$SCRIPT"
start_service
"#;

#[test]
fn the_openwrt_script_starts_an_edge_with_all_configured_options() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("marline");
    // Options that are commented out are enabled as well.
    let all = read("openwrt/marline.config").replace("#\t", "\t");
    std::fs::write(&config, &all).unwrap();
    let mut command = Command::new("sh");
    command.args(["-ec", STUBS]).env("SCRIPT", contrib("openwrt/marline-edge")).env("CONFIG", &config);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let args: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let expected = "edge --certificate /etc/marline/edge.pem --goal speed --spare-connections 2 \
                    --fleet https://fleet.example.org:4444 --relay relay.example.org:4443 --lan br-lan --link wan --link wwan0,metered=yes --live ingest.example.org:443 --listen 127.0.0.1:1088 --local-domain office.example \
                    --direct --portal-probe http://connectivitycheck.gstatic.com/generate_204";
    assert_eq!(args.join(" "), expected);
    assert_options_are_known(&args);
    std::fs::write(&config, all.replace("enabled '1'", "enabled '0'")).unwrap();
    assert!(command.output().unwrap().stdout.is_empty(), "a disabled section starts nothing");
}

#[test]
fn scripts_and_hotspot_configurations_are_valid() {
    if let Some(output) = run_checker("shellcheck", &[contrib("openwrt/marline-edge").to_str().unwrap()]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    if let Some(output) =
        run_checker("dnsmasq", &["--test", "-C", contrib("hotspot/dnsmasq.conf").to_str().unwrap()])
    {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // hostapd has no check option; with a missing radio it must fail there, and not with a configuration error.
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("hostapd.conf");
    let sample = read("hotspot/hostapd.conf");
    let phrase = sample.lines().find_map(|line| line.strip_prefix("wpa_passphrase=")).unwrap();
    // IEEE 802.11 J.4.1 requires 8 to 63 characters: the sample's phrase is too short on purpose, because a published one must not be used.
    assert!(phrase.len() < 8, "the phrase of the sample is valid");
    std::fs::write(&conf, sample.replace("interface=wlan1", "interface=nosuch0")).unwrap();
    if let Some(output) = run_checker("timeout", &["10", "hostapd", conf.to_str().unwrap()]) {
        let is_installed = output.status.code() != Some(127);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(!is_installed || stdout.contains("passphrase"), "hostapd refuses the placeholder: {stdout}");
    }
    let edited = sample.replace(&format!("wpa_passphrase={phrase}"), "wpa_passphrase=a phrase of my own");
    std::fs::write(&conf, edited.replace("interface=wlan1", "interface=nosuch0")).unwrap();
    if let Some(output) = run_checker("timeout", &["10", "hostapd", conf.to_str().unwrap()]) {
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(!stdout.contains("errors found in configuration file") && !stdout.contains("Line "), "{stdout}");
    }
}
