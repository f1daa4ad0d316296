//! End-to-end tests of energy accounting: the energy of a download over the loopback interface, and of its decision log.
//!
//! The loopback interface is a link of the kind `other`, so the tests use their own model file for that kind.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

/// A radio with 1 W while active, 10 nJ/bit, and a tail of 2 J in two stages.
const CUSTOM_MODEL: &str = "\
device = 'a loopback'
source = 'this test'
confidence = '100%'
[radio.other]
down = { base = '1W', per_bit = '10nJ/bit' }
tail = [{ power = '500mW', time = '2s' }, { power = '250mW', time = '4s' }]
";
const SIZE: usize = 500_000;

fn marline(home: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
    command.args(args).env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.current_dir(home.path()).stdin(Stdio::null()).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a server of one file with ranges; returns the URL.
fn serve() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/f", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                loop {
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        if reader.read_line(&mut head).unwrap_or(0) == 0 {
                            return;
                        }
                    }
                    let range = head.lines().find_map(|line| {
                        line.to_ascii_lowercase().strip_prefix("range: bytes=").map(str::to_owned)
                    });
                    let range = range.unwrap_or_default();
                    let (first, last) = range.split_once('-').unwrap_or(("0", ""));
                    let first: usize = first.parse().unwrap_or(0);
                    let last = last.trim().parse().unwrap_or(SIZE).min(SIZE - 1);
                    let length = last + 1 - first;
                    let head = format!(
                        "HTTP/1.1 206 Partial Content\r\nETag: \"e\"\r\nContent-Length: {length}\r\nContent-Range: bytes {first}-{last}/{SIZE}\r\n\r\n"
                    );
                    if stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&vec![7; length])).is_err()
                    {
                        return;
                    }
                }
            });
        }
    });
    url
}

#[test]
fn a_download_and_its_log_have_the_same_energy() {
    let (home, url) = (tempfile::tempdir().unwrap(), serve());
    std::fs::write(home.path().join("mine.toml"), CUSTOM_MODEL).unwrap();
    let args = ["get", "--json", "--quiet", "--trace", "log", "--energy-model", "./mine.toml", url.as_str()];
    let report = json(&marline(&home, &args));
    assert_eq!(report["energy_model"], "mine");
    let link = &report["links"][0];
    assert_eq!(link["kind"], "other");
    let parts = &link["energy"];
    let joules = |value: &Value| value.as_f64().unwrap();
    // Both stages of the tail follow the last byte; pauses of a busy machine may add tail energy.
    let tail = joules(&parts["tail_j"]);
    assert!((2.0..=2.0 + 0.5 * joules(&report["seconds"])).contains(&tail), "{report}");
    // At least the energy of the bits; at most that plus 1 W over the whole time.
    let bits = SIZE as f64 * 8.0 * 10e-9;
    let most = bits + joules(&report["seconds"]);
    assert!((bits..=most).contains(&joules(&parts["active_j"])), "{report}");
    let sum: f64 = parts.as_object().unwrap().values().map(joules).sum();
    assert!((sum - joules(&link["energy_j"])).abs() < 1e-9);
    assert_eq!(report["energy_j"], link["energy_j"]);

    let args = ["energy", "what-if", "log", "--model", "./mine.toml", "--model", "greenbag", "--json"];
    let what_if_report = json(&marline(&home, &args));
    let custom = &what_if_report["models"][0];
    assert_eq!(custom["energy_j"], report["energy_j"]);
    assert_eq!(custom["links"][0]["energy"], link["energy"]);
    assert_eq!(custom["links"][0]["bytes"], SIZE);
    // The phone of the GreenBag model has no radio of this kind.
    assert_eq!(what_if_report["models"][1]["energy_j"], Value::Null);

    // The configuration can name the model as well; a report without a model has null values.
    std::fs::write(home.path().join("c.toml"), "energy-model = './mine.toml'\n").unwrap();
    let args = ["get", "--json", "--quiet", "--config", "c.toml", "-o", "g", url.as_str()];
    assert_eq!(json(&marline(&home, &args))["energy_model"], "mine");
    let output = marline(&home, &["energy", "what-if", "log", "--config", "c.toml"]);
    assert!(String::from_utf8(output.stdout).unwrap().starts_with("mine: "));
    // Without --json, the energy is printed in a line if a model is named.
    let output = marline(&home, &["get", "--energy-model", "greenbag", "-o", "i", url.as_str()]);
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("energy with model greenbag, including tails: unknown ("), "{stderr}");
    let args = ["get", "--json", "--quiet", "--energy-model", "none", "-o", "h", url.as_str()];
    let report = json(&marline(&home, &args));
    assert_eq!((&report["energy_model"], &report["energy_j"]), (&Value::Null, &Value::Null));
}

#[test]
fn models_are_listed_shown_and_can_be_files() {
    let home = tempfile::tempdir().unwrap();
    let list = json(&marline(&home, &["energy", "models", "--json"]));
    assert_eq!(list.as_array().unwrap().len(), 9);
    assert!(list.as_array().unwrap().iter().all(|model| model["source"].as_str().is_some_and(|s| s.len() > 10)));
    let shown = json(&marline(&home, &["energy", "show", "huang2012", "--json"]));
    assert_eq!(shown["radios"][1]["tail"][0]["time_s"], 11.576);
    // Every field is documented.
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/json.md")).unwrap();
    for value in [&shown, &shown["radios"][0]] {
        for key in value.as_object().unwrap().keys() {
            assert!(page.contains(&format!("`{key}`")), "docs/json.md does not describe the field {key}");
        }
    }
    std::fs::write(home.path().join("mine.toml"), CUSTOM_MODEL.replace("tail", "tial")).unwrap();
    let output = marline(&home, &["energy", "show", "./mine.toml"]);
    assert_eq!(output.status.code(), Some(64));
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.starts_with("marline: ./mine.toml:6: unknown field `tial`"), "{stderr}");
    let text = String::from_utf8(marline(&home, &["energy", "models"]).stdout).unwrap();
    assert!(text.contains("typical is the default"), "{text}");
}

#[test]
fn a_file_that_is_no_log_fails_with_its_line() {
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("log"), "{}\n").unwrap();
    for (log, expected) in [("log", "log:1: not a decision log of marline"), ("absent", "absent: No such file")] {
        let output = marline(&home, &["energy", "what-if", log]);
        assert_eq!(output.status.code(), Some(1));
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(stderr.starts_with(&format!("marline: {expected}")), "{stderr}");
    }
}
