//! What stands in `contrib/`: units, scripts and configurations are such as their readers take, and name only words that the
//! program knows.
//!
//! A program that judges them (`systemd-analyze`, `shellcheck`, `dnsmasq`) is asked where it is installed; the words are always
//! tried on the program itself.
#![cfg(feature = "fleet")]
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const MARLINE: &str = env!("CARGO_BIN_EXE_marline");

fn contrib(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../contrib").join(name)
}

fn read(name: &str) -> String {
    std::fs::read_to_string(contrib(name)).unwrap()
}

/// What a judge says; none: it is not installed.
fn judged(program: &str, words: &[&str]) -> Option<Output> {
    let output = Command::new(program).args(words).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output();
    output.inspect_err(|error| eprintln!("skipped: {program}: {error}")).ok()
}

/// The program takes these words: it ends with what is wrong with the files that they name, and not with the words.
fn is_understood(words: &[String]) {
    let output = Command::new(MARLINE).args(words).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.to_lowercase().contains("no such file") && said.contains(".pem"), "{words:?}: {said}");
}

#[test]
fn units_are_such_as_systemd_takes_and_their_words_are_known() {
    let place = tempfile::tempdir().unwrap();
    for (unit, more) in [
        ("marline-paths", ""),
        ("marline-accel@", ""),
        ("marline-edge", "--relay 127.0.0.1 --lan wlan1 --live 1936"),
        ("marline-relay", "--listen 127.0.0.1:4443"),
    ] {
        let text = read(&format!("systemd/{unit}.service"));
        let started = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/marline ")).unwrap();
        if !more.is_empty() {
            let words = started.split(' ').filter(|word| !word.starts_with('$')).chain(more.split(' '));
            is_understood(&words.map(|word| word.replace('%', "/nonexistent/")).collect::<Vec<_>>());
        }
        // It looks for the program at its place.
        let copy = place.path().join(format!("{unit}.service"));
        std::fs::write(&copy, text.replace("/usr/local/bin/marline", MARLINE)).unwrap();
        if let Some(output) = judged("systemd-analyze", &["verify", copy.to_str().unwrap()]) {
            let said = String::from_utf8_lossy(&output.stderr);
            let of_it: Vec<&str> = said.lines().filter(|line| line.contains(unit)).collect();
            assert!(of_it.is_empty() && output.status.success(), "{said}");
        }
        for word in ["NoNewPrivileges=yes", "CapabilityBoundingSet=CAP_", "ProtectSystem=", "Restart=on-failure"] {
            assert!(text.contains(word), "{unit}: {word}");
        }
        // Only the one that sets rules of iptables, whose older kind asks for root, has no user of its own.
        assert_eq!(text.contains("DynamicUser=yes"), unit != "marline-accel@", "{unit}");
        if unit == "marline-accel@" {
            let words = started.replace("%i", "nowhere0").replace("$MARLINE_ACCEL", "--secondary nowhere1");
            let output = Command::new(MARLINE).args(words.split(' ')).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(said.contains("nowhere0") && output.status.code() == Some(69), "{words}: {said}");
        }
    }
}

/// procd's words and UCI's, as far as the script uses them: they print the command.
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
fn the_script_of_openwrt_starts_an_edge_with_all_that_is_configured() {
    let place = tempfile::tempdir().unwrap();
    let config = place.path().join("marline");
    // What is commented out is tried as well.
    let all = read("openwrt/marline.config").replace("#\t", "\t");
    std::fs::write(&config, &all).unwrap();
    let mut command = Command::new("sh");
    command.args(["-ec", STUBS]).env("SCRIPT", contrib("openwrt/marline-edge")).env("CONFIG", &config);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let words: Vec<String> = String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect();
    let expected = "edge --certificate /etc/marline/edge.pem --goal speed --spare-connections 2 \
                    --fleet https://fleet.example.org:4444 --relay relay.example.org:4443 --lan br-lan --link wan --link wwan0,metered=yes --live ingest.example.org:443 --listen 127.0.0.1:1088 --local-domain office.example \
                    --direct --portal-probe http://connectivitycheck.gstatic.com/generate_204";
    assert_eq!(words.join(" "), expected);
    is_understood(&words);
    std::fs::write(&config, all.replace("enabled '1'", "enabled '0'")).unwrap();
    assert!(command.output().unwrap().stdout.is_empty(), "it is switched off");
}

#[test]
fn scripts_and_the_hotspots_configurations_are_taken_by_those_who_read_them() {
    if let Some(output) = judged("shellcheck", &[contrib("openwrt/marline-edge").to_str().unwrap()]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }
    if let Some(output) = judged("dnsmasq", &["--test", "-C", contrib("hotspot/dnsmasq.conf").to_str().unwrap()]) {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    // hostapd has no such question; without the radio it comes as far as that, and no configuration error.
    let place = tempfile::tempdir().unwrap();
    let conf = place.path().join("hostapd.conf");
    let sample = read("hotspot/hostapd.conf");
    let phrase = sample.lines().find_map(|line| line.strip_prefix("wpa_passphrase=")).unwrap();
    // IEEE 802.11 J.4.1: 8 to 63 characters. A phrase that everybody knows must not come into use as it is.
    assert!(phrase.len() < 8, "the sample's phrase works");
    std::fs::write(&conf, sample.replace("interface=wlan1", "interface=nosuch0")).unwrap();
    if let Some(output) = judged("timeout", &["10", "hostapd", conf.to_str().unwrap()]) {
        let is_there = output.status.code() != Some(127);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!is_there || said.contains("passphrase"), "hostapd refuses the placeholder: {said}");
    }
    let own = sample.replace(&format!("wpa_passphrase={phrase}"), "wpa_passphrase=a phrase of my own");
    std::fs::write(&conf, own.replace("interface=wlan1", "interface=nosuch0")).unwrap();
    if let Some(output) = judged("timeout", &["10", "hostapd", conf.to_str().unwrap()]) {
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("errors found in configuration file") && !said.contains("Line "), "{said}");
    }
}
