//! A disk that is full, with a real relay: a small one in mounts of the test's own.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use marline_fleet::ca::NewKey;
use marline_fleet::relay::announce::announce;
use marline_fleet::service::words::{RelayRow, Standing};
use marline_fleet::service::{Drain, Drained, Enrol};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::announce::Station;
use super::*;

const SMALL: &str = "MARLINE_TEST_SMALL_DISK";

/// Where a disk of some megabytes is; none: the test runs once more, in mounts of its own, or cannot.
fn small_disk(test: &str) -> Option<PathBuf> {
    if let Some(disk) = std::env::var_os(SMALL) {
        return Some(disk.into());
    }
    let dir = TempDir::new().unwrap();
    let mount = format!("mount -t tmpfs -o size=8m small \"${SMALL}\" && exec \"$0\" \"$@\"");
    let run = |unshare: &[&str], program: &Path, words: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(unshare).args(["sh", "-c", &mount]).arg(program).args(words).env(SMALL, dir.path());
        command.stdin(Stdio::null()).output()
    };
    let ways: [&[&str]; 2] = [&["--mount"], &["--user", "--map-root-user", "--mount"]];
    let works = |way: &&[&str]| run(way, Path::new("true"), &[]).is_ok_and(|output| output.status.success());
    let Some(way) = ways.into_iter().find(works) else {
        println!("skipped: no mounts of its own here (unshare --mount, mount -t tmpfs)");
        return None;
    };
    let this = std::env::current_exe().unwrap();
    let output = run(way, &this, &["--exact", test, "--nocapture"]).unwrap();
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
    None
}

/// Leaves not one byte.
fn fill(disk: &Path) -> PathBuf {
    let path = disk.join("filler");
    let mut file = std::fs::File::create(&path).unwrap();
    for size in [1 << 16, 1 << 12, 1] {
        while file.write_all(&vec![0; size]).is_ok() {}
    }
    path
}

/// Whether the relay answers who shows this.
async fn answers(address: SocketAddr, own: &Credentials) -> bool {
    let Ok(socket) = TcpStream::connect(address).await else { return false };
    let tls = TlsConnector::from(Arc::new(client_config(own, None, true).unwrap()));
    let Ok(mut stream) = tls.connect(ServerName::try_from("127.0.0.1").unwrap(), socket).await else {
        return false;
    };
    let _ = stream.write_all(b"CONNECT a.invalid:1 HTTP/1.1\r\nHost: a.invalid:1\r\n\r\n").await;
    stream.read_u8().await.is_ok()
}

#[test]
fn a_full_disk_stops_no_relay_and_lets_in_nobody_who_was_revoked() {
    let Some(disk) = small_disk("disk::a_full_disk_stops_no_relay_and_lets_in_nobody_who_was_revoked") else {
        return;
    };
    std::fs::set_permissions(&disk, std::fs::Permissions::from_mode(0o700)).unwrap();
    block_on(async {
        // The service's store and the relay's list are on it; the authority is elsewhere.
        let mut place = Place::bare();
        place.start(Limits::default(), |_| Box::new(Embedded::open(&disk.join("fleet.redb")).unwrap())).await;
        let revoked = disk.join("revoked.pem");
        let Station { relay, doors, trust, terms, client } = Station::new(&place, &revoked);
        let address = doors.addresses()[0];
        let (carries, announces) = (Arc::clone(&relay), Arc::clone(&relay));
        tokio::spawn(async move { doors.attend(&carries).await.map(|never| match never {}) });
        tokio::spawn(async move { match trust.keep().await {} });
        tokio::spawn(async move { match announce(&announces, &terms, client, |_| {}).await {} });
        let mut ann = place.client("marline://operator/ann");
        until("listed", async || !ann.fetch::<Vec<RelayRow>>("/v1/relays").await.unwrap().is_empty()).await;

        let filler = fill(&disk);
        let good = place.member("marline://edge/cam-2");
        let thief = place.member("marline://edge/cam-1");
        assert!(answers(address, &good).await && answers(address, &thief).await);
        // Heartbeats go on, edges are matched, and operators are heard as long as the service lives.
        let mut cam = place.client_of(&good);
        let got: Standing = cam.send("/v1/edges/request", &wish(5, &[("r1", 30)])).await.unwrap();
        assert_eq!(got.assignment.map(|it| it.reservation), Some(mbps(30)));
        until("assigned", async || relay.assigned().len() == 1).await;
        let drain = |draining| Drain { draining, for_ms: None };
        let drained: Drained = ann.send("/v1/relays/r1/drain", &drain(true)).await.unwrap();
        assert_eq!(drained, Drained { known: true, durable: false });
        until("closed", async || relay.state().closed).await;
        // Nobody enrols, and no token is lost by that.
        let grant = Grant::new("marline://edge/cam-3".parse().unwrap(), vec![], DAY).unwrap();
        let token = place.authority().token(&grant, DAY, Stamp::now()).unwrap().reveal().to_owned();
        let enrol = Enrol { token, request: NewKey::generate().unwrap().request };
        assert_eq!(refused(cam.send::<Value>("/v1/enrol", &enrol).await).status, 503);
        // Who is taken back is out, though the list cannot be written where the relay keeps it.
        let before = std::fs::read(&revoked).unwrap();
        place.authority().revoke_name(&thief.peer().unwrap().identity, Stamp::now()).unwrap();
        until("the relay lets it in no longer", async || !answers(address, &thief).await).await;
        assert!(answers(address, &good).await);
        assert_eq!(std::fs::read(&revoked).unwrap(), before);

        std::fs::remove_file(filler).unwrap();
        let drained: Drained = ann.send("/v1/relays/r1/drain", &drain(false)).await.unwrap();
        assert_eq!(drained, Drained { known: true, durable: true });
        cam.send::<Value>("/v1/enrol", &enrol).await.unwrap();
    });
}
