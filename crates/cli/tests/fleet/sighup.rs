//! SIGHUP, sent by a closing terminal or `systemctl reload`: daemons with certificates reload them, and no connection ends.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::members::{ESTABLISHED, Running, check_echo, marline, members, server, tunnel};

const RELAY: &str =
    "relay --listen 127.0.0.1:0 --certificate r1.pem --revoked ca/revoked.pem --run-dir run --allow-net 127.0.0.1";

fn run_ok(dir: &Path, args: &str) -> String {
    let out = marline(dir, args);
    assert!(out.status.success(), "{args}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// The serial number of a member's certificate, from the authority's list.
fn serial(dir: &Path, identity: &str) -> String {
    let list: serde_json::Value = serde_json::from_str(&run_ok(dir, "fleet ca list --ca-dir ca --json")).unwrap();
    let row = list.as_array().unwrap().iter().find(|row| row["identity"] == identity).unwrap();
    row["serial"].as_str().unwrap().to_owned()
}

/// Replaces certificate and key of a member by those in `new`.
fn replace(dir: &Path, name: &str) {
    for file in [format!("{name}.pem"), format!("{name}.key")] {
        std::fs::rename(dir.join("new").join(&file), dir.join(&file)).unwrap();
    }
}

#[test]
fn a_relay_presents_its_new_certificate_and_keeps_the_old_one_if_the_file_is_damaged() {
    let (dir, server) = (members(), server());
    let dir = dir.path();
    let mut relay = Running::start(dir, &format!("{RELAY} --allow-port {}", server.port()));
    let edge = format!(
        "edge --portal-probe off --no-paths --no-direct --spare-connections 0 --run-dir run --listen 127.0.0.1:0 --relay {} --certificate e1.pem --revoked ca/revoked.pem",
        relay.address
    );
    let edge = Running::start(dir, &edge);
    let (status, mut before) = tunnel(edge.address, server);
    assert_eq!(status, ESTABLISHED);

    let old_serial = serial(dir, "marline://relay/r1");
    run_ok(dir, "fleet ca issue relay r1 --ca-dir ca --address 127.0.0.1 --out new");
    replace(dir, "r1");
    relay.signal("-HUP");
    relay.line_with("r1.pem: certificate, key, authority and revocation list are read again");
    // From here on, the edge would refuse a relay that presents the old certificate.
    run_ok(dir, &format!("fleet ca revoke --ca-dir ca --serial {old_serial}"));
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(tunnel(edge.address, server).0, ESTABLISHED);

    std::fs::write(dir.join("r1.pem"), "no certificate").unwrap();
    relay.signal("-HUP");
    let log = relay.line_with("that were read before stay in force");
    assert!(log.lines().count() == 1 && log.contains("r1.pem"), "{log}");
    assert_eq!(tunnel(edge.address, server).0, ESTABLISHED);
    check_echo(&mut before).unwrap();
    // Close the tunnels first: an ending relay waits for them.
    drop((before, edge));
    assert_eq!(relay.stop("-INT").0, Some(0));
}

#[test]
fn an_edge_keeps_its_flows_and_presents_its_new_certificate() {
    let (dir, server) = (members(), server());
    let dir = dir.path();
    let relay = Running::start(dir, &format!("{RELAY} --allow-port {}", server.port()));
    let edge = format!(
        "edge --portal-probe off --no-paths --no-direct --spare-connections 0 --run-dir run --listen 127.0.0.1:0 --relay {} --certificate e1.pem",
        relay.address
    );
    let mut edge = Running::start(dir, &edge);
    let (status, mut before) = tunnel(edge.address, server);
    assert_eq!(status, ESTABLISHED);
    run_ok(dir, "fleet ca issue edge e1 --ca-dir ca --out new");
    replace(dir, "e1");
    edge.signal("-HUP");
    edge.line_with("e1.pem: certificate, key, authority and revocation list are read again");
    check_echo(&mut before).unwrap();
    assert_eq!(tunnel(edge.address, server).0, ESTABLISHED);
    // A running edge does not accept a certificate of another member.
    run_ok(dir, "fleet ca issue edge e2 --ca-dir ca --out new");
    std::fs::copy(dir.join("new/e2.pem"), dir.join("e1.pem")).unwrap();
    std::fs::copy(dir.join("new/e2.key"), dir.join("e1.key")).unwrap();
    edge.signal("-HUP");
    let log = edge.line_with("stay in force");
    assert!(log.contains("it belongs to marline://edge/e2, but this process runs as marline://edge/e1"), "{log}");
    assert_eq!(tunnel(edge.address, server).0, ESTABLISHED);
    assert_eq!(edge.stop("-TERM").0, Some(0));
}

#[test]
fn the_fleet_service_continues_after_sighup() {
    let dir = members();
    let dir = dir.path();
    run_ok(dir, "fleet ca issue operator ann --ca-dir ca --out .");
    let mut service = Running::start(dir, "fleet run --ca-dir ca --listen 127.0.0.1:0");
    service.signal("-HUP");
    service.line_with("SIGHUP: authorities and revocation list reloaded");
    let list = std::fs::read(dir.join("ca/revoked.pem")).unwrap();
    std::fs::write(dir.join("ca/revoked.pem"), "damaged").unwrap();
    service.signal("-HUP");
    service.line_with("revoked.pem");
    std::fs::write(dir.join("ca/revoked.pem"), list).unwrap();
    run_ok(dir, &format!("fleet status --fleet https://{} --certificate ann.pem", service.address));
    assert_eq!(service.stop("-TERM").0, Some(0));
}

/// The certificates of two authorities of equal name, with their revocation lists, as one PEM text.
fn bundle(dir: &Path, first: &str, second: &str) -> String {
    let file = |ca_name: &str, name: &str| std::fs::read_to_string(dir.join(ca_name).join(name)).unwrap();
    [first, second].iter().map(|ca_name| file(ca_name, "ca.pem") + &file(ca_name, "revoked.pem")).collect()
}

#[test]
fn an_authority_is_replaced_while_relay_and_edge_run() {
    let (dir, server) = (members(), server());
    let dir = dir.path();
    for args in [
        "fleet ca init --ca-dir ca-2 --name test",
        "fleet ca issue edge e2 --ca-dir ca --out .",
        "fleet ca revoke --role edge e2 --ca-dir ca",
        "fleet ca issue relay r1 --ca-dir ca-2 --address 127.0.0.1 --out new",
        "fleet ca issue edge e1 --ca-dir ca-2 --out new",
    ] {
        run_ok(dir, args);
    }
    std::fs::copy(dir.join("ca/revoked.pem"), dir.join("list.pem")).unwrap();
    let relay = format!(
        "relay --listen 127.0.0.1:0 --certificate r1.pem --fleet-ca relay-ca.pem --revoked list.pem --run-dir run --allow-net 127.0.0.1 \
         --allow-port {}",
        server.port()
    );
    let edge = |name: &str, relay: &Running| {
        let args = format!(
            "edge --portal-probe off --no-paths --no-direct --spare-connections 0 --run-dir run-{name} --listen 127.0.0.1:0 --relay {} --certificate {name}.pem \
             --fleet-ca edge-ca.pem",
            relay.address
        );
        Running::start(dir, &args)
    };
    let reread = |process: &mut Running| {
        process.signal("-HUP");
        process.line_with("certificate, key, authority and revocation list are read again");
    };
    for file in ["relay-ca.pem", "edge-ca.pem"] {
        std::fs::copy(dir.join("ca/ca.pem"), dir.join(file)).unwrap();
    }
    let mut relay = Running::start(dir, &relay);
    let mut e1 = edge("e1", &relay);
    assert_eq!(tunnel(e1.address, server).0, ESTABLISHED);
    // An invalid bundle changes nothing.
    std::fs::write(dir.join("relay-ca.pem"), "").unwrap();
    relay.signal("-HUP");
    relay.line_with("relay-ca.pem: it holds no certificate of an authority");
    // Relay and edge trust both authorities.
    std::fs::write(dir.join("relay-ca.pem"), bundle(dir, "ca", "ca-2")).unwrap();
    std::fs::write(dir.join("edge-ca.pem"), bundle(dir, "ca-2", "ca")).unwrap();
    reread(&mut relay);
    reread(&mut e1);
    assert_eq!(tunnel(e1.address, server).0, ESTABLISHED);
    // The relay gets a certificate of the new authority; the edge keeps one of the old authority.
    replace(dir, "r1");
    std::fs::copy(dir.join("ca-2/revoked.pem"), dir.join("list.pem")).unwrap();
    reread(&mut relay);
    assert_eq!(tunnel(e1.address, server).0, ESTABLISHED);
    // An edge that the old authority has revoked stays refused.
    let mut e2 = edge("e2", &relay);
    assert_ne!(tunnel(e2.address, server).0, ESTABLISHED);
    e2.line_with("this edge's certificate has been revoked");
    drop(e2);
    // The edge also gets a certificate of the new authority.
    replace(dir, "e1");
    std::fs::copy(dir.join("ca-2/revoked.pem"), dir.join("revoked.pem")).unwrap();
    reread(&mut e1);
    assert_eq!(tunnel(e1.address, server).0, ESTABLISHED);
    // The old authority is no longer trusted.
    for file in ["relay-ca.pem", "edge-ca.pem"] {
        std::fs::copy(dir.join("ca-2/ca.pem"), dir.join(file)).unwrap();
    }
    reread(&mut relay);
    reread(&mut e1);
    assert_eq!(tunnel(e1.address, server).0, ESTABLISHED);
    assert_eq!(e1.stop("-TERM").0, Some(0));
}

#[test]
fn the_fleet_service_serves_members_of_the_previous_authority() {
    let dir = members();
    let dir = dir.path();
    for args in [
        "fleet ca issue operator ann --ca-dir ca --out .",
        "fleet ca issue operator bob --ca-dir ca --out .",
        "fleet ca revoke --role operator bob --ca-dir ca",
        "fleet ca init --ca-dir ca-2 --name test",
    ] {
        run_ok(dir, args);
    }
    let both = bundle(dir, "ca-2", "ca");
    let mut service = Running::start(dir, "fleet run --ca-dir ca-2 --listen 127.0.0.1:0");
    std::fs::write(dir.join("ca.pem"), &both).unwrap();
    let url = format!("https://{}", service.address);
    let status = |name: &str| marline(dir, &format!("fleet status --fleet {url} --certificate {name}.pem"));
    assert!(!status("ann").status.success());
    std::fs::write(dir.join("ca-2/ca.pem"), &both).unwrap();
    service.signal("-HUP");
    service.line_with("SIGHUP: authorities and revocation list reloaded");
    let ann = status("ann");
    assert!(ann.status.success(), "{}", String::from_utf8_lossy(&ann.stderr));
    let bob = status("bob");
    assert!(
        !bob.status.success() && String::from_utf8_lossy(&bob.stderr).contains("CertificateRevoked"),
        "{bob:?}"
    );
    assert_eq!(service.stop("-TERM").0, Some(0));
    // The same from the start of the service.
    let mut service = Running::start(dir, "fleet run --ca-dir ca-2 --listen 127.0.0.1:0");
    run_ok(dir, &format!("fleet status --fleet https://{} --certificate ann.pem", service.address));
    // A newly enrolled member trusts both as well, and gets the revocation list of the old authority.
    let token = run_ok(dir, "fleet ca token --role edge --name new --ca-dir ca-2");
    std::fs::write(dir.join("token"), token).unwrap();
    std::fs::set_permissions(dir.join("token"), std::fs::Permissions::from_mode(0o600)).unwrap();
    run_ok(dir, &format!("fleet enroll --fleet https://{} --token-file token --out joined", service.address));
    let read_file = |ca: &str, file: &str| std::fs::read_to_string(dir.join(ca).join(file)).unwrap();
    let old = |file: &str| read_file("ca", file);
    let new = both.split_inclusive("-----END CERTIFICATE-----\n").next().unwrap();
    assert_eq!(read_file("joined", "ca.pem"), format!("{new}{}{}", old("ca.pem"), old("revoked.pem")));
    // An existing ca.pem with only the new authority is kept, and that is reported.
    std::fs::create_dir(dir.join("image")).unwrap();
    std::fs::write(dir.join("image/ca.pem"), new).unwrap();
    std::fs::write(dir.join("token"), run_ok(dir, "fleet ca token --role edge --name other --ca-dir ca-2"))
        .unwrap();
    let enrol = format!("fleet enroll --fleet https://{} --token-file token --out image", service.address);
    let stderr = String::from_utf8(marline(dir, &enrol).stderr).unwrap();
    assert!(stderr.contains("trusts other authorities than the service does"), "{stderr}");
    assert_eq!(read_file("image", "ca.pem"), new);
    // Without that list, the service reports that it trusts the authority without knowing its revocations.
    std::fs::write(dir.join("ca-2/ca.pem"), format!("{new}{}", old("ca.pem"))).unwrap();
    service.signal("-HUP");
    service.line_with("is trusted without its revocation list");
}
