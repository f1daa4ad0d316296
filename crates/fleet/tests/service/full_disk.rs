//! A full disk, with a real relay: a small tmpfs in a mount namespace of the test.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use marline_fleet::ca::KeyWithRequest;
use marline_fleet::relay::heartbeat::send_heartbeats;
use marline_fleet::service::api_types::{AssignmentReply, RelaySummary};
use marline_fleet::service::{DrainReply, DrainRequest, EnrolRequest};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::heartbeat::AnnouncedRelay;
use super::*;

const SMALL_DISK_VAR: &str = "MARLINE_TEST_SMALL_DISK";

/// The path of a disk of some megabytes. None: the test has run as a child process in a mount namespace, or that is not possible here.
fn small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(SMALL_DISK_VAR) {
        return Some(disk.into());
    }
    let dir = TempDir::new().unwrap();
    let mount = format!("mount -t tmpfs -o size=8m small \"${SMALL_DISK_VAR}\" && exec \"$0\" \"$@\"");
    let run = |unshare: &[&str], program: &Path, args: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", &mount]).arg(program).args(args).env(SMALL_DISK_VAR, dir.path());
        command.stdin(Stdio::null()).output()
    };
    let variants: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let is_possible = |unshare_args: &&[&str]| {
        run(unshare_args, Path::new("true"), &[]).is_ok_and(|output| output.status.success())
    };
    let Some(variant) = variants.into_iter().find(is_possible) else {
        println!("skipped: cannot create a mount namespace with a tmpfs (unshare --mount, mount -t tmpfs)");
        return None;
    };
    let program = std::env::current_exe().unwrap();
    let output = run(variant, &program, &["--exact", test, "--nocapture"]).unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && output_text.contains("1 passed"), "{output_text}");
    None
}

/// Fills the disk to the last byte.
fn fill_disk(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    path
}

/// Whether the relay responds to a client with these credentials.
async fn relay_answers(address: SocketAddr, credentials: &Credentials) -> bool {
    let Ok(socket) = TcpStream::connect(address).await else { return false };
    let tls = TlsConnector::from(Arc::new(client_config(credentials, None, true).unwrap()));
    let Ok(mut stream) = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), socket).await else {
        return false;
    };
    let _ = stream.write_all(b"CONNECT a.invalid:1 HTTP/1.1\r\nHost: a.invalid:1\r\n\r\n").await;
    stream.read_u8().await.is_ok()
}

#[test]
fn a_full_disk_stops_no_relay_and_admits_no_revoked_member() {
    let Some(disk) = small_disk("full_disk::a_full_disk_stops_no_relay_and_admits_no_revoked_member") else {
        return;
    };
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o700)).unwrap();
    block_on(async {
        // The service's store and the relay's revocation list are on this disk; the authority is elsewhere.
        let mut service = TestService::not_started();
        service
            .start(Limits::default(), |_| Box::new(EmbeddedStore::open(&disk.join("fleet.redb")).unwrap()))
            .await;
        let revoked = disk.join("revoked.pem");
        let AnnouncedRelay { relay, listeners, trust, config, client } = AnnouncedRelay::new(&service, &revoked);
        let address = listeners.addresses()[0];
        let (serving_relay, heartbeat_relay) = (Arc::clone(&relay), Arc::clone(&relay));
        tokio::spawn(async move { listeners.serve(&serving_relay).await.map(|never| match never {}) });
        tokio::spawn(async move { match trust.run().await {} });
        tokio::spawn(async move { match send_heartbeats(&heartbeat_relay, &config, client, |_| {}).await {} });
        let mut ann = service.client("marline://operator/ann");
        wait_until("listed", async || !ann.get::<Vec<RelaySummary>>("/v1/relays").await.unwrap().is_empty()).await;

        let filler = fill_disk(&disk);
        let good = service.member("marline://edge/cam-2");
        let revoked_edge = service.member("marline://edge/cam-1");
        assert!(relay_answers(address, &good).await && relay_answers(address, &revoked_edge).await);
        // Heartbeats continue, edges are matched, and operators' orders take effect until the service restarts.
        let mut cam = service.client_of(&good);
        let got: AssignmentReply =
            cam.post("/v1/edges/request", &assignment_request(5, &[("r1", 30)])).await.unwrap();
        assert_eq!(got.assignment.map(|it| it.reservation), Some(mbps(30)));
        wait_until("assigned", async || relay.assigned().len() == 1).await;
        let drain = |draining| DrainRequest { draining, duration_ms: None };
        let drained: DrainReply = ann.post("/v1/relays/r1/drain", &drain(true)).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: false });
        wait_until("closed", async || relay.state().closed).await;
        // Enrolment fails, but its token stays valid.
        let template = CertTemplate::new("marline://edge/cam-3".parse().unwrap(), vec![], DAY).unwrap();
        let token =
            service.authority().create_token(&template, DAY, UtcSeconds::now()).unwrap().reveal().to_owned();
        let enrol = EnrolRequest { token, request: KeyWithRequest::generate().unwrap().request };
        assert_eq!(expect_problem(cam.post::<Value>("/v1/enrol", &enrol).await).status, 503);
        // A revoked edge is refused, although the relay cannot write the new list to its disk.
        let before = std::fs::read(&revoked).unwrap();
        service.authority().revoke_name(&revoked_edge.peer().unwrap().identity, UtcSeconds::now()).unwrap();
        wait_until("the relay refuses the revoked edge", async || !relay_answers(address, &revoked_edge).await)
            .await;
        assert!(relay_answers(address, &good).await);
        assert_eq!(std::fs::read(&revoked).unwrap(), before);

        std::fs::remove_file(filler).unwrap();
        let drained: DrainReply = ann.post("/v1/relays/r1/drain", &drain(false)).await.unwrap();
        assert_eq!(drained, DrainReply { known: true, durable: true });
        cam.post::<Value>("/v1/enrol", &enrol).await.unwrap();
    });
}
