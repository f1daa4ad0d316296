//! The offline root key of the authority: the procedure of `docs/fleet.md` with the real commands; two directories stand for two machines.

use std::path::Path;

use crate::members::{ESTABLISHED, Running, TIMEOUT, marline, server, tunnel};

fn run_ok(dir: &Path, args: &str) -> String {
    let out = marline(dir, args);
    assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn refused(dir: &Path, args: &str, why: &str) {
    let out = marline(dir, args);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && stderr.contains(why), "{args}: {stderr}");
}

/// Copies files from one machine to the other.
fn copy_files(from: &Path, to: &Path, files: &[&str]) {
    std::fs::create_dir_all(to).unwrap();
    for file in files {
        std::fs::copy(from.join(file), to.join(Path::new(file).file_name().unwrap())).unwrap();
    }
}

#[test]
fn a_fleet_runs_without_its_root_key() {
    use std::os::unix::fs::PermissionsExt as _;
    let both = tempfile::tempdir().unwrap();
    let (vault, online) = (both.path().join("vault"), both.path().join("online"));
    for dir in [&vault, &online] {
        std::fs::create_dir(dir).unwrap();
    }
    // On the machine without a network: the authority and certificates.
    run_ok(&vault, "fleet ca init --ca-dir ca --name test");
    for member in ["fleet f1 --address 127.0.0.1", "relay r1 --address 127.0.0.1", "operator ann", "edge e1"] {
        run_ok(&vault, &format!("fleet ca issue {member} --ca-dir ca --out out"));
    }
    // Files for the online machine; ca.key is not among them.
    let service = online.join("ca");
    copy_files(&vault.join("ca"), &service, &["ca.pem", "revoked.pem", "issued.jsonl"]);
    std::fs::set_permissions(&service, std::fs::Permissions::from_mode(0o700)).unwrap();
    let members =
        ["f1", "r1", "ann", "e1"].map(|name| [format!("out/{name}.pem"), format!("out/{name}.key")]).concat();
    let members: Vec<&str> = members.iter().map(String::as_str).chain(["out/ca.pem", "out/revoked.pem"]).collect();
    copy_files(&vault, &online, &members);
    assert!(!service.join("ca.key").exists());

    refused(&online, "fleet run --ca-dir ca --listen 127.0.0.1:0", "cannot sign here");
    let mut fleet = Running::start(&online, "fleet run --ca-dir ca --certificate f1.pem --listen 127.0.0.1:0");
    let url = format!("https://{}", fleet.address);
    let target = server();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let relay = format!(
        "relay --listen {free} --certificate r1.pem --run-dir run --allow-net 127.0.0.1 --allow-port {} --fleet {url} \
         --announce {free} --capacity 100Mbit/s",
        target.port()
    );
    let relay = Running::start(&online, &relay);
    let edge = "edge --no-paths --no-direct --spare-connections 0 --run-dir run --listen 127.0.0.1:0 --state-file edge.json --certificate e1.pem";
    let edge = Running::start(&online, &format!("{edge} --relay {free} --fleet {url}"));
    assert_eq!(tunnel(edge.address, target).0, ESTABLISHED);
    let status = format!("fleet status --fleet {url} --certificate ann.pem");
    let begun = std::time::Instant::now();
    while !run_ok(&online, &status).contains("r1") {
        assert!(begun.elapsed() < TIMEOUT);
    }
    // The online machine can sign nothing, neither with commands nor for enrolling members.
    for args in ["token --role edge --name e2", "issue edge e2 --out out", "revoke --role edge e1"] {
        refused(
            &online,
            &format!("fleet ca {args} --ca-dir ca"),
            "restore it from a copy, or issue and revoke where the key is",
        );
    }
    let token = online.join("token");
    std::fs::write(&token, run_ok(&vault, "fleet ca token --role edge --name e2 --ca-dir ca")).unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    refused(
        &online,
        &format!("fleet enroll --fleet {url} --token-file token --out new"),
        "the authority's key is kept off-line",
    );

    // A key that is generated online and never leaves: the request goes to the offline machine, the certificate returns.
    if std::process::Command::new("openssl").arg("version").output().is_ok_and(|out| out.status.success()) {
        let openssl = |args: &str| {
            let out =
                std::process::Command::new("openssl").current_dir(&online).args(args.split(' ')).output().unwrap();
            assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        };
        openssl("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out bob.key");
        openssl("req -new -key bob.key -subj /CN=bob -out bob.csr");
        copy_files(&online, &vault, &["bob.csr"]);
        run_ok(&vault, "fleet ca issue operator bob --csr bob.csr --ca-dir ca --out out");
        copy_files(&vault, &online, &["out/bob.pem"]);
        assert!(run_ok(&online, &status.replace("ann.pem", "bob.pem")).contains("r1"));
    }

    // Revocation: signed on the offline machine and copied to the service, which distributes it.
    run_ok(&vault, "fleet ca revoke --ca-dir ca --role edge e1");
    copy_files(&vault.join("ca"), &online, &["revoked.pem"]);
    std::fs::rename(online.join("revoked.pem"), service.join("revoked.pem")).unwrap();
    std::fs::copy(service.join("revoked.pem"), online.join("revoked.pem")).unwrap();
    fleet.signal("-HUP");
    fleet.line_with("read again");
    let begun = std::time::Instant::now();
    while tunnel(edge.address, target).0 == ESTABLISHED {
        assert!(begun.elapsed() < TIMEOUT, "the revoked edge is still carried");
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    drop((edge, relay));
    assert_eq!(fleet.stop("-TERM").0, Some(0));
}
