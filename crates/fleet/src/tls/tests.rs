//! Handshakes over loopback: which peers are accepted, which are rejected, and what a resumed session still knows.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, HandshakeKind, ServerConnection, Stream};
use tempfile::TempDir;

use super::*;
use crate::ca::{Authority, CertTemplate, MemberFiles};

const DAY: Duration = Duration::from_secs(86_400);

struct TestFleet {
    home: TempDir,
    authority: Authority,
}

impl TestFleet {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        // The authority is older than the expired certificates.
        let started_at = UtcSeconds::now().saturating_sub(100 * DAY);
        let authority = Authority::init(&home.path().join("ca"), "test fleet", started_at).unwrap();
        Self { home, authority }
    }

    fn member(&self, identity: &str) -> Credentials {
        self.member_of(identity, UtcSeconds::now())
    }

    /// Credentials that pass through files, as in the programs.
    fn member_of(&self, identity: &str, issued: UtcSeconds) -> Credentials {
        let files = self.files_of(identity, issued);
        Credentials::read(&files.certificate, &files.key, &files.authority).unwrap()
    }

    fn files_of(&self, identity: &str, issued: UtcSeconds) -> MemberFiles {
        let identity: Identity = identity.parse().unwrap();
        let addresses = match identity.role {
            Role::Relay | Role::Fleet => vec!["localhost".parse().unwrap(), "127.0.0.1".parse().unwrap()],
            _ => vec![],
        };
        let template = CertTemplate::new(identity.clone(), addresses, 30 * DAY).unwrap();
        let (chain, key) = self.authority.issue_with_key(&template, issued).unwrap();
        let dir = self.home.path().join(chain.record.serial.to_string());
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &identity.name).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        files
    }

    fn revocations(&self) -> RevocationFile {
        RevocationFile::open(&self.authority.crl_path(), self.authority.certificate()).unwrap()
    }

    fn server(&self, roles: &[Role], allow_unauthenticated: bool) -> Arc<ServerConfig> {
        let credentials = self.member("marline://relay/fra-1");
        let clients = ClientAuth { roles: roles.to_vec(), allow_unauthenticated };
        Arc::new(server_config(&credentials, self.revocations().crl_der(), &clients, true).unwrap())
    }
}

/// The state of both sides after a handshake.
struct Handshake {
    server: ServerConnection,
    client: ClientConnection,
}

/// One connection with a byte in each direction; the errors of both sides if it fails.
fn handshake(server: &Arc<ServerConfig>, client: &Arc<ClientConfig>, name: &str) -> Result<Handshake, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let config = Arc::clone(server);
    let serve = std::thread::spawn(move || {
        let (mut socket, _) = listener.accept().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut connection = ServerConnection::new(config).unwrap();
        let ended = exchange(&mut Stream::new(&mut connection, &mut socket));
        ended.map(|()| connection)
    });
    let mut socket = TcpStream::connect(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut connection = ClientConnection::new(Arc::clone(client), name).unwrap();
    let client = exchange(&mut Stream::new(&mut connection, &mut socket));
    drop(socket);
    match (serve.join().unwrap(), client) {
        (Ok(server), Ok(())) => Ok(Handshake { server, client: connection }),
        (server, client) => Err(format!("server: {:?}; client: {:?}", server.err(), client.err())),
    }
}

fn exchange(stream: &mut (impl Read + Write)) -> io::Result<()> {
    stream.write_all(b"x")?;
    stream.flush()?;
    stream.read_exact(&mut [0])
}

fn assert_refused(result: Result<Handshake, String>, expected: &str) {
    let message = result.err().expect("the handshake is rejected");
    assert!(message.contains(expected), "{message}");
}

fn client_config_of(credentials: &Credentials) -> Arc<ClientConfig> {
    Arc::new(client_config(credentials, None, true).unwrap())
}

#[test]
fn members_of_one_fleet_authenticate_each_other() {
    let fleet = TestFleet::new();
    let server = fleet.server(&[Role::Edge, Role::Operator], false);
    for (identity, name) in [("marline://edge/cam-7", "localhost"), ("marline://operator/ann", "127.0.0.1")] {
        let credentials = fleet.member(identity);
        let met = handshake(&server, &client_config_of(&credentials), name).unwrap();
        assert_eq!(Peer::of(met.server.peer_certificates()).unwrap(), credentials.peer().unwrap());
        assert_eq!(credentials.peer().unwrap().identity.to_string(), identity);
        let relay = Peer::of(met.client.peer_certificates()).unwrap();
        assert_eq!(relay.identity.to_string(), "marline://relay/fra-1");
        assert_eq!(met.server.alpn_protocol(), Some(&b"http/1.1"[..]));
        assert_eq!(met.client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
        assert_eq!(met.server.peer_certificates().unwrap().len(), 1, "the authority's certificate is not sent");
    }
    assert_refused(
        handshake(&server, &client_config_of(&fleet.member("marline://edge/a")), "other.example"),
        "NotValidForName",
    );
}

#[test]
fn clients_without_a_certificate_are_unauthenticated() {
    let fleet = TestFleet::new();
    let unauthenticated = Arc::new(first_contact_config(fleet.authority.fingerprint(), true).unwrap());
    assert_refused(
        handshake(&fleet.server(&[Role::Edge], false), &unauthenticated, "localhost"),
        "NoCertificatesPresented",
    );
    let met = handshake(&fleet.server(&[Role::Edge], true), &unauthenticated, "localhost").unwrap();
    assert!(Peer::of(met.server.peer_certificates()).unwrap_err().to_string().contains("no certificate"));
}

#[test]
fn at_first_contact_the_fingerprint_selects_the_authority() {
    let (fleet, other) = (TestFleet::new(), TestFleet::new());
    let server = fleet.server(&[Role::Edge], true);
    let wrong = Arc::new(first_contact_config(other.authority.fingerprint(), true).unwrap());
    assert_refused(handshake(&server, &wrong, "localhost"), "UnknownIssuer");
    let right = Arc::new(first_contact_config(fleet.authority.fingerprint(), true).unwrap());
    assert!(handshake(&server, &right, "localhost").is_ok());
    assert_refused(handshake(&server, &right, "other.example"), "NotValidForName");
    // A server that sends the expected authority's certificate along with a certificate of another authority.
    let mut mixed_chain = other.member("marline://relay/fra-1");
    mixed_chain.chain.truncate(1);
    mixed_chain.chain.push(fleet.authority.certificate().clone());
    let clients = ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: true };
    let server = Arc::new(server_config(&mixed_chain, other.revocations().crl_der(), &clients, true).unwrap());
    assert!(handshake(&server, &right, "localhost").is_err());
}

#[test]
fn another_authority_is_rejected_on_both_sides() {
    let (fleet, other) = (TestFleet::new(), TestFleet::new());
    let server = fleet.server(&[Role::Edge], false);
    let edge = other.member("marline://edge/cam-7");
    assert_refused(handshake(&server, &client_config_of(&edge), "localhost"), "client: Some(");
    // A client that trusts this server and presents the other authority's certificate.
    let mixed = Credentials { authority: fleet.authority.certificate().clone(), ..edge };
    let message = handshake(&server, &client_config_of(&mixed), "localhost").err().unwrap();
    assert!(message.contains("server: Some(") && message.contains("InvalidCertificate"), "{message}");
}

/// Credentials of a member with a bundle of two authorities, including both revocation lists.
fn with_two_authorities(fleet: &TestFleet, other: &TestFleet, identity: &str) -> Credentials {
    let files = fleet.files_of(identity, UtcSeconds::now());
    let file =
        |fleet: &TestFleet, name: &str| std::fs::read_to_string(fleet.home.path().join("ca").join(name)).unwrap();
    let bundle: String =
        [other, fleet].iter().flat_map(|fleet| [file(fleet, "ca.pem"), file(fleet, "revoked.pem")]).collect();
    std::fs::write(&files.authority, bundle).unwrap();
    Credentials::read(&files.certificate, &files.key, &files.authority).unwrap()
}

#[test]
fn the_authority_that_has_signed_a_member_is_found_in_a_bundle() {
    let (fleet, other) = (TestFleet::new(), TestFleet::new());
    let files = fleet.files_of("marline://edge/cam-7", UtcSeconds::now());
    let credentials = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
    let pem = |fleet: &TestFleet| std::fs::read_to_string(fleet.home.path().join("ca/ca.pem")).unwrap();
    let list = std::fs::read_to_string(other.authority.crl_path()).unwrap();
    let read = |bundle: String| {
        std::fs::write(&files.authority, bundle).unwrap();
        Credentials::read(&files.certificate, &files.key, &files.authority)
    };
    for bundle in [pem(&fleet) + &pem(&other), pem(&other) + &pem(&fleet) + &pem(&other)] {
        let both = read(bundle).unwrap();
        assert_eq!((both.authority(), both.other_authorities.len()), (credentials.authority(), 1));
        assert_eq!(both.authorities_without_crl(), ["CN=test fleet"]);
    }
    assert!(read(pem(&other) + &pem(&fleet) + &list).unwrap().authorities_without_crl().is_empty());
    let extra_pem: String = std::iter::repeat_with(TestFleet::new).take(8).map(|fleet| pem(&fleet)).collect();
    let member = std::fs::read_to_string(&files.certificate).unwrap();
    for (bundle, expected) in [
        (String::new(), "it holds no certificate of an authority"),
        (list.clone(), "it holds no certificate of an authority"),
        (pem(&other) + &pem(&TestFleet::new()), "none of the authorities in it has signed"),
        (pem(&fleet) + &extra_pem, "it holds the certificates of 9 authorities, more than the limit of 8"),
        (member, "is not a CA certificate: remove it"),
        (pem(&fleet) + &list, "a revocation list in it is signed by none of the authorities in it"),
        ("x".repeat(9 << 20), "it is larger than 8 MiB"),
    ] {
        let error = read(bundle).unwrap_err().to_string();
        assert!(error.contains("ca.pem: ") && error.contains(expected), "{error}");
    }
}

#[test]
fn members_that_trust_two_authorities_of_one_name_accept_members_of_both() {
    let (old, new, third) = (TestFleet::new(), TestFleet::new(), TestFleet::new());
    let clients = ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: false };
    let relay = |credentials: &Credentials, fleet: &TestFleet| {
        Arc::new(server_config(credentials, fleet.revocations().crl_der(), &clients, true).unwrap())
    };
    let (relay_name, edge_name) = ("marline://relay/fra-1", "marline://edge/cam-7");
    // The steps of a replacement: both sides trust both, the relay gets a new certificate, then the edge.
    let relays = [
        relay(&with_two_authorities(&old, &new, relay_name), &old),
        relay(&with_two_authorities(&new, &old, relay_name), &new),
    ];
    let client = |credentials: &Credentials, fleet: &TestFleet| {
        Arc::new(client_config(credentials, Some(fleet.revocations().crl_der()), true).unwrap())
    };
    for server in &relays {
        for edge in [
            client(&with_two_authorities(&old, &new, edge_name), &old),
            client(&with_two_authorities(&new, &old, edge_name), &new),
        ] {
            handshake(server, &edge, "localhost").unwrap();
            assert_refused(handshake(server, &edge, "other.example"), "NotValidForName");
        }
        assert_refused(handshake(server, &client_config_of(&third.member(edge_name)), "localhost"), "");
    }
    // Without the bundle, members of the old authority and the new authority reject each other.
    assert_refused(handshake(&relays[1], &client_config_of(&old.member(edge_name)), "localhost"), "BadSignature");
}

#[test]
fn a_certificate_revoked_by_another_authority_of_the_bundle_is_rejected() {
    let (old, new) = (TestFleet::new(), TestFleet::new());
    let (relay_name, edge_name) = ("marline://relay/fra-1", "marline://edge/cam-7");
    let stolen = with_two_authorities(&old, &new, edge_name);
    let bad_relay = with_two_authorities(&old, &new, relay_name);
    for member in [&stolen, &bad_relay] {
        let serial = member.peer().unwrap().serial;
        let issued = old.authority.issued_certs(UtcSeconds::now()).unwrap();
        let (issued, _) = issued.iter().find(|(one, _)| one.serial.as_bytes() == serial).unwrap();
        old.authority.revoke(issued.serial, UtcSeconds::now()).unwrap();
    }
    let clients = ClientAuth { roles: vec![Role::Edge], allow_unauthenticated: true };
    let relay = with_two_authorities(&new, &old, relay_name);
    let server = Arc::new(server_config(&relay, new.revocations().crl_der(), &clients, true).unwrap());
    assert_refused(handshake(&server, &client_config_of(&stolen), "localhost"), "Revoked");
    // Long connections and resumed sessions.
    assert!(
        relay
            .other_authorities()
            .check_not_revoked(&stolen.peer().unwrap())
            .unwrap_err()
            .to_string()
            .contains("revoked")
    );
    relay
        .other_authorities()
        .check_not_revoked(&with_two_authorities(&old, &new, edge_name).peer().unwrap())
        .unwrap();
    let edge = with_two_authorities(&new, &old, edge_name);
    let server = Arc::new(server_config(&bad_relay, old.revocations().crl_der(), &clients, true).unwrap());
    assert_refused(handshake(&server, &client_config_of(&edge), "localhost"), "Revoked");
    // The list of a member's own authority applies although the bundle repeats that authority.
    let own_list = with_two_authorities(&old, &new, relay_name);
    let server = Arc::new(server_config(&own_list, old.revocations().crl_der(), &clients, true).unwrap());
    assert_refused(handshake(&server, &client_config_of(&stolen), "localhost"), "Revoked");
}

#[test]
fn a_certificate_renewed_by_the_new_authority_belongs_to_it() {
    let (old, new) = (TestFleet::new(), TestFleet::new());
    let credentials = with_two_authorities(&old, &new, "marline://edge/cam-7");
    let next = credentials.with_certificate(new.member("marline://edge/cam-7").chain[0].clone());
    assert_eq!((next.authority(), next.other_authorities.len()), (new.authority.certificate(), 1));
    assert!(next.is_signed_by_authority());
    let third = credentials.with_certificate(TestFleet::new().member("marline://edge/cam-7").chain[0].clone());
    assert!(third.authority() == credentials.authority() && !third.is_signed_by_authority());
}

#[test]
fn revoked_members_are_rejected_on_both_sides() {
    let fleet = TestFleet::new();
    let edge = fleet.member("marline://edge/cam-7");
    let old_server = fleet.server(&[Role::Edge], false);
    handshake(&old_server, &client_config_of(&edge), "localhost").unwrap();
    fleet.authority.revoke_name(&edge.peer().unwrap().identity, UtcSeconds::now()).unwrap();
    assert_refused(
        handshake(&fleet.server(&[Role::Edge], false), &client_config_of(&edge), "localhost"),
        "Revoked",
    );
    let good = fleet.member("marline://edge/cam-8");
    handshake(&fleet.server(&[Role::Edge], false), &client_config_of(&good), "localhost").unwrap();
    let relay: Identity = "marline://relay/fra-1".parse().unwrap();
    fleet.authority.revoke_name(&relay, UtcSeconds::now()).unwrap();
    let careful = client_config(&good, Some(fleet.revocations().crl_der()), true).unwrap();
    assert_refused(handshake(&old_server, &Arc::new(careful), "localhost"), "Revoked");
}

#[test]
fn expired_certificates_are_rejected() {
    let fleet = TestFleet::new();
    let server = fleet.server(&[Role::Edge], false);
    let edge = fleet.member_of("marline://edge/cam-7", UtcSeconds::now().saturating_sub(31 * DAY));
    assert_refused(handshake(&server, &client_config_of(&edge), "localhost"), "Expired");
    let edge = fleet.member_of("marline://edge/cam-8", UtcSeconds::now().saturating_sub(29 * DAY));
    handshake(&server, &client_config_of(&edge), "localhost").unwrap();
}

#[test]
fn an_edge_is_not_accepted_as_a_relay() {
    let fleet = TestFleet::new();
    let edge = fleet.member("marline://edge/cam-7");
    let server = fleet.server(&[Role::Relay], false);
    assert_refused(
        handshake(&server, &client_config_of(&edge), "localhost"),
        "clients of the role edge are not accepted here",
    );
    handshake(&server, &client_config_of(&fleet.member("marline://relay/ams-1")), "localhost").unwrap();
    let clients = ClientAuth { roles: vec![Role::Operator], allow_unauthenticated: false };
    let server = Arc::new(server_config(&edge, fleet.revocations().crl_der(), &clients, true).unwrap());
    let message =
        handshake(&server, &client_config_of(&fleet.member("marline://operator/ann")), "localhost").err().unwrap();
    assert!(message.contains("InvalidPurpose") || message.contains("NotValidForName"), "{message}");
}

#[test]
fn a_resumed_session_keeps_the_certificate_so_that_revocation_is_detected() {
    let fleet = TestFleet::new();
    let edge = fleet.member("marline://edge/cam-7");
    let (server, client) = (fleet.server(&[Role::Edge], false), client_config_of(&edge));
    let mut crl = fleet.revocations();
    let first = handshake(&server, &client, "localhost").unwrap();
    assert_eq!(first.server.handshake_kind(), Some(HandshakeKind::Full));
    fleet.authority.revoke_name(&edge.peer().unwrap().identity, UtcSeconds::now()).unwrap();
    assert!(crl.refresh().unwrap());
    let second = handshake(&server, &client, "localhost").expect("rustls does not check again");
    assert_eq!(second.server.handshake_kind(), Some(HandshakeKind::Resumed));
    let peer = Peer::of(second.server.peer_certificates()).unwrap();
    assert_eq!(peer, edge.peer().unwrap());
    assert!(crl.is_revoked(&peer.serial));
    assert!(peer.check(&crl, UtcSeconds::now()).unwrap_err().to_string().contains("has been revoked"));
    // The configuration with the new list resumes no old session.
    assert_refused(handshake(&fleet.server(&[Role::Edge], false), &client, "localhost"), "Revoked");
}

#[test]
fn a_peer_is_checked_by_list_and_date() {
    let fleet = TestFleet::new();
    let peer = fleet.member("marline://edge/cam-7").peer().unwrap();
    let crl = fleet.revocations();
    assert!(peer.check(&crl, UtcSeconds::now()).is_ok());
    assert!(peer.check(&crl, peer.not_after.saturating_add(Duration::from_secs(1))).is_err());
}

#[test]
fn wrong_files_are_reported_by_name_and_keys_are_not_printed() {
    let fleet = TestFleet::new();
    let dir = fleet.home.path().join("ca");
    let (pem, key) = (dir.join("ca.pem"), dir.join("ca.key"));
    let message = |cert: &Path, key: &Path, ca: &Path| Credentials::read(cert, key, ca).unwrap_err().to_string();
    let other = fleet.home.path().join("other.key");
    std::fs::copy(&pem, &other).unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    assert!(message(&pem, &other, &pem).contains("other.key: it holds no PEM section of the expected kind"));
    assert!(message(&pem, &pem, &pem).contains("ca.pem: users other than its owner may read it"));
    assert!(message(&key, &key, &pem).contains("ca.key: it holds no certificate"));
    assert!(message(&dir.join("absent"), &key, &pem).contains("absent: No such file"));
    assert!(!format!("{:?}", fleet.member("marline://edge/a")).contains("Pkcs8"));
}
