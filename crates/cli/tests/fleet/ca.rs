//! Tests of `marline fleet ca` as operators and scripts use it, cross-checked with openssl.
//!
//! Each test has its own directory; the checks with openssl are skipped where it is not installed.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use tempfile::TempDir;

struct Home(TempDir);

impl Home {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    /// A home directory with an authority in `ca`.
    fn with_authority() -> Self {
        let home = Self::new();
        home.done(&["init", "--name", "test fleet"]);
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_marline"));
        command.args(["fleet", "ca"]).args(args).arg("--ca-dir").arg(self.path("ca"));
        command.env_clear().env("HOME", self.0.path()).env("PATH", "/usr/bin:/bin");
        command.current_dir(self.0.path()).stdin(Stdio::null());
        command
    }

    /// Expects success; returns the standard output.
    fn done(&self, args: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Expects the exit code and one line of explanation; returns that line.
    fn refused(&self, args: &[&str], code: i32) -> String {
        let output = self.command(args).output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(output.stdout.is_empty(), "{args:?}: results after an error");
        assert_eq!(stderr.matches('\n').count(), 1, "{args:?}: not one line: {stderr}");
        stderr
    }

    fn list(&self) -> Vec<(String, String, String)> {
        let list: serde_json::Value = serde_json::from_str(&self.done(&["list", "--json"])).unwrap();
        let text = |row: &serde_json::Value, key: &str| row[key].as_str().unwrap().to_owned();
        let rows = list.as_array().unwrap().iter();
        rows.map(|row| (text(row, "identity"), text(row, "serial"), text(row, "state"))).collect()
    }

    /// Runs openssl. None, with a printed reason, where it is not installed.
    fn openssl(&self, args: &[&str]) -> Option<Output> {
        match Command::new("openssl").args(args).current_dir(self.0.path()).stdin(Stdio::null()).output() {
            Ok(output) => Some(output),
            Err(error) => {
                println!("skipped: openssl: {error}");
                None
            }
        }
    }

    fn verify(&self, certificate: &str) -> Option<(bool, String)> {
        let crl = ["-crl_check", "-CRLfile", "ca/revoked.pem"];
        let args = [&["verify", "-x509_strict", "-CAfile", "ca/ca.pem"][..], &crl[..], &[certificate][..]].concat();
        let output = self.openssl(&args)?;
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        Some((output.status.success(), text.into_owned()))
    }
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn an_authority_is_made_once_and_its_key_is_not_shown() {
    let home = Home::new();
    let output = home.command(&["init"]).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("SHA-256 ") && !stderr.contains("PRIVATE"), "{stderr}");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), home.path("ca/ca.pem").display().to_string());
    assert_eq!((mode(&home.path("ca")), mode(&home.path("ca/ca.key"))), (0o700, 0o600));
    assert!(home.refused(&["init"], 1).contains("ca.pem: it exists already, and is not overwritten"));
    std::fs::set_permissions(home.path("ca/ca.key"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(home.refused(&["list"], 1).contains("chmod 600 "));
}

#[test]
fn openssl_agrees_on_valid_and_revoked_certificates() {
    let home = Home::with_authority();
    let written = home.done(&["issue", "operator", "ann", "--out", "files"]);
    assert_eq!(written, "files/ann.pem\nfiles/ann.key\nfiles/ca.pem\n");
    assert_eq!(mode(&home.path("files/ann.key")), 0o600);
    home.done(&[
        "issue",
        "relay",
        "fra-1",
        "--address",
        "fra-1.example.org",
        "--address",
        "192.0.2.7",
        "--out",
        "r",
    ]);
    // A relay gets the current revocation list with its certificate.
    assert_eq!(
        std::fs::read(home.path("r/revoked.pem")).unwrap(),
        std::fs::read(home.path("ca/revoked.pem")).unwrap()
    );
    let Some((good, verify_output)) = home.verify("files/ann.pem") else { return };
    assert!(good, "{verify_output}");
    let serving = ["verify", "-purpose", "sslserver", "-CAfile", "ca/ca.pem", "-verify_hostname"];
    let relay = |name: &str| home.openssl(&[&serving[..], &[name, "r/fra-1.pem"]].concat()).unwrap().status;
    assert!(relay("fra-1.example.org").success() && !relay("fra-2.example.org").success());
    let ip = ["verify", "-purpose", "sslserver", "-CAfile", "ca/ca.pem", "-verify_ip", "192.0.2.7", "r/fra-1.pem"];
    assert!(home.openssl(&ip).unwrap().status.success());
    let edge = ["verify", "-purpose", "sslserver", "-CAfile", "ca/ca.pem", "files/ann.pem"];
    assert!(
        !home.openssl(&edge).unwrap().status.success(),
        "a certificate of an operator is not valid for servers"
    );
    let text = home.openssl(&["x509", "-in", "files/ann.pem", "-noout", "-text"]).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("URI:marline://operator/ann") && text.contains("NIST CURVE: P-256"), "{text}");
    let revoked = home.done(&["revoke", "ann", "--role", "operator"]);
    assert!(revoked.ends_with(" marline://operator/ann\n"), "{revoked}");
    let (good, output) = home.verify("files/ann.pem").unwrap();
    assert!(!good && output.contains("certificate revoked"), "{output}");
    assert!(home.verify("r/fra-1.pem").unwrap().0);
    let crl = home.openssl(&["crl", "-in", "ca/revoked.pem", "-noout", "-crlnumber"]).unwrap();
    assert_eq!(String::from_utf8(crl.stdout).unwrap().trim(), "crlNumber=0x02");
}

#[test]
fn a_certificate_request_is_signed_without_its_requested_names() {
    let home = Home::with_authority();
    let key = ["req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let names =
        ["-keyout", "box.key", "-out", "box.csr", "-subj", "/CN=root", "-addext", "subjectAltName=DNS:evil"];
    let Some(made) = home.openssl(&[&key[..], &names[..]].concat()) else { return };
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let written = home.done(&["issue", "edge", "cam-7", "--csr", "box.csr"]);
    assert_eq!(written, "./cam-7.pem\n./ca.pem\n");
    let text = home.openssl(&["x509", "-in", "cam-7.pem", "-noout", "-text"]).unwrap();
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("CN = cam-7") && text.contains("URI:marline://edge/cam-7"), "{text}");
    assert!(!text.contains("evil") && !text.contains("CN = root"), "{text}");
    let (good, output) = home.verify("cam-7.pem").unwrap();
    assert!(good, "{output}");
    let public = |args: &[&str]| home.openssl(args).unwrap().stdout;
    let certified = public(&["x509", "-in", "cam-7.pem", "-noout", "-pubkey"]);
    assert!(!certified.is_empty() && certified == public(&["pkey", "-in", "box.key", "-pubout"]));
    // A request in DER, and the same with an invalid signature.
    assert!(
        home.openssl(&["req", "-in", "box.csr", "-outform", "DER", "-out", "box.der"]).unwrap().status.success()
    );
    home.done(&["issue", "edge", "cam-8", "--csr", "box.der"]);
    let mut der = std::fs::read(home.path("box.der")).unwrap();
    *der.last_mut().unwrap() ^= 1;
    std::fs::write(home.path("bad.der"), der).unwrap();
    let message = home.refused(&["issue", "edge", "cam-9", "--csr", "bad.der"], 64);
    assert!(message.contains("bad.der: the certificate request is not signed with its own key"), "{message}");
    assert!(!home.path("cam-9.pem").exists());
    assert_eq!(home.list().len(), 2);
}

#[test]
fn the_list_shows_the_state_of_each_certificate() {
    let home = Home::with_authority();
    assert_eq!(home.done(&["list", "--json"]), "[]\n");
    home.done(&["issue", "operator", "ann", "--out", "a"]);
    home.done(&["issue", "operator", "ann", "--out", "b"]);
    home.done(&["issue", "operator", "bob", "--out", "c"]);
    let serial = home.list()[0].1.clone();
    assert_eq!(home.done(&["revoke", "--serial", &serial]), format!("{serial} marline://operator/ann\n"));
    let states: Vec<String> = home.list().into_iter().map(|(_, _, state)| state).collect();
    assert_eq!(states, ["revoked", "valid", "valid"]);
    assert_eq!(home.done(&["revoke", "ann", "--role", "operator"]).lines().count(), 2);
    let table = home.done(&["list"]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["identity", "serial", "valid", "until", "state"]);
    assert_eq!((lines[1][0], lines[1][1], lines[1][3]), ("marline://operator/ann", &serial[..], "revoked"));
    assert_eq!((lines[3][0], lines[3][3]), ("marline://operator/bob", "valid"));
}

#[test]
fn a_token_contains_its_certificate_template_and_is_unique() {
    let home = Home::with_authority();
    let args = ["token", "--role", "relay", "--name", "fra-1", "--address", "fra-1.example.org", "--valid", "2d"];
    let (one, two) = (home.done(&args), home.done(&args));
    assert_ne!(one, two);
    let token = marline_fleet::ca::Token::parse_unverified(&one).unwrap();
    assert_eq!(token.template.identity().to_string(), "marline://relay/fra-1");
    assert_eq!(token.template.lifetime(), Duration::from_secs(30 * 86_400));
    assert_eq!(home.list(), [], "a token is not yet a certificate");
    // Enrolment works once, here with the library, as in the fleet service.
    let authority = marline_fleet::ca::Authority::open(&home.path("ca")).unwrap();
    let now = marline_fleet::ca::UtcSeconds::now();
    let mut spent = marline_fleet::ca::UsedTokensFile::open(&authority, now).unwrap();
    let new = marline_fleet::ca::KeyWithRequest::generate().unwrap();
    let chain = authority.enrol(&one, new.request.as_bytes(), now, &mut spent).unwrap();
    assert!(authority.enrol(&one, new.request.as_bytes(), now, &mut spent).is_err());
    std::fs::write(home.path("fra-1.pem"), chain.pem()).unwrap();
    assert_eq!(home.list()[0].0, "marline://relay/fra-1");
    if let Some((good, output)) = home.verify("fra-1.pem") {
        assert!(good, "{output}");
    }
}

#[test]
fn usage_errors_change_nothing() {
    let home = Home::new();
    assert!(home.refused(&["list"], 1).contains("no authority here; `marline fleet ca init --ca-dir"));
    home.done(&["init"]);
    std::fs::write(home.path("no.csr"), "hello").unwrap();
    let table: &[(&[&str], &str)] = &[
        (&["issue", "king", "ann"], "`king` is not a role"),
        (&["issue", "edge", "Ann"], "`Ann` is not a valid name"),
        (&["issue", "relay", "fra-1"], "needs an address"),
        (&["issue", "edge", "cam-7", "--address", "a.example"], "has no addresses"),
        (&["issue", "edge", "cam-7", "--valid", "30"], "a duration such as"),
        (&["issue", "edge", "cam-7", "--valid", "4000d"], "must be 1min to 3650d"),
        (&["issue", "relay", "fra-1", "--address", "a.example:443"], "without a port"),
        (&["issue", "edge", "ca"], "`ca` cannot be used as a name"),
        (&["issue", "edge", "cam-7", "--csr", "absent.csr"], "absent.csr: No such file"),
        (&["issue", "edge", "cam-7", "--csr", "no.csr"], "no.csr: the certificate request cannot be read"),
        (&["token", "--role", "edge"], "--name"),
        (&["revoke"], "--serial"),
        (&["revoke", "cam-7"], "--role"),
        (&["revoke", "--serial", "12"], "`12` is not a serial number"),
        (&["init", "--name", ""], "not a valid name of an authority"),
    ];
    for (args, expected) in table {
        let message = home.refused(args, 64);
        assert!(message.contains(expected), "{args:?}: {message}");
    }
    assert!(home.refused(&["revoke", "cam-7", "--role", "edge"], 1).contains("has no certificate that is valid"));
    home.done(&["issue", "edge", "cam-7"]);
    assert!(home.refused(&["issue", "edge", "cam-7"], 1).contains("cam-7.pem: it exists already"));
    assert_eq!(home.list().len(), 1);
}

/// A command killed at any moment leaves the directory as it was before or after, and the next command works.
#[test]
fn a_killed_command_leaves_a_usable_directory() {
    for micros in (0..12_000).step_by(400) {
        let home = Home::new();
        let killed = |args: &[&str]| {
            let mut child = home.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(micros));
            // The process may have ended already.
            let _ = child.kill();
            child.wait().unwrap();
        };
        killed(&["init"]);
        if !home.path("ca/ca.pem").exists() {
            home.done(&["init"]);
        }
        killed(&["issue", "operator", "ann", "--out", "killed"]);
        home.done(&["issue", "operator", "ann", "--out", "whole"]);
        killed(&["revoke", "ann", "--role", "operator"]);
        home.done(&["revoke", "ann", "--role", "operator"]);
        let list = home.list();
        assert!((1..=2).contains(&list.len()), "{list:?}");
        assert!(list.iter().all(|(_, _, state)| state == "revoked"), "{list:?}");
        let key = home.path("killed/ann.key");
        if home.path("killed/ann.pem").exists() {
            assert_eq!(list.len(), 2, "a certificate is missing on the list");
            assert!(key.exists() && mode(&key) == 0o600, "a certificate without its key");
        }
        if let Some((good, output)) = home.verify("whole/ann.pem") {
            assert!(!good && output.contains("certificate revoked"), "{output}");
        }
    }
}
