//! Downloads from a server that offers HTTP/2 and then requires HTTP/1.1 (`HTTP_1_1_REQUIRED`).

#[path = "../../net/tests/http/acceptor.rs"]
mod acceptor;
#[path = "../../net/tests/http/driver.rs"]
#[allow(dead_code, reason = "the tests of HTTP use the rest")]
mod driver;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use h2::Reason;
use marline_core::fetch::Config;
use marline_download::{
    Batch, BatchObserver, BatchProgress, ConnectOptions, CookieFiles, Credentials, Digests, DownloadError,
    EnergyOptions, FileRequest, FileResult, Links, MirrorUrl, Report, Settings, Target, run,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use acceptor::acceptor;
use driver::make_identity;

/// Number of connections for each protocol.
#[derive(Default)]
struct ServerCounts {
    http2: AtomicUsize,
    http1: AtomicUsize,
}

/// Resets each HTTP/2 stream, or closes the connection by a GOAWAY frame if `sends_goaway`. Over HTTP/1.1 it serves
/// ranges of `data`.
async fn serve(tls: TlsStream<TcpStream>, sends_goaway: bool, data: Arc<Vec<u8>>, counts: Arc<ServerCounts>) {
    if tls.get_ref().1.alpn_protocol() == Some(b"h2") {
        counts.http2.fetch_add(1, Ordering::Relaxed);
        let Ok(mut incoming) = h2::server::handshake(tls).await else { return };
        while let Some(Ok((_, mut answer))) = incoming.accept().await {
            if sends_goaway {
                incoming.abrupt_shutdown(Reason::HTTP_1_1_REQUIRED);
            } else {
                answer.send_reset(Reason::HTTP_1_1_REQUIRED);
            }
        }
        return;
    }
    counts.http1.fetch_add(1, Ordering::Relaxed);
    let mut tls = tls;
    let mut heads = Vec::new();
    loop {
        while let Some(end) = heads.windows(4).position(|four| four == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&heads[..end]).into_owned();
            heads.drain(..end + 4);
            let range = head.lines().find_map(|line| line.strip_prefix("Range: bytes=")).unwrap_or("0-99999999");
            let (start, end) = range.split_once('-').expect("a range");
            let (start, end): (usize, usize) = (start.parse().expect("a number"), end.parse().expect("a number"));
            let end = (end + 1).min(data.len());
            let head = format!(
                "HTTP/1.1 206 OK\r\nETag: \"1\"\r\nContent-Length: {}\r\nContent-Range: bytes {start}-{}/{}\r\n\r\n",
                end - start,
                end - 1,
                data.len()
            );
            if tls.write_all(head.as_bytes()).await.is_err() || tls.write_all(&data[start..end]).await.is_err() {
                return;
            }
        }
        match tls.read_buf(&mut heads).await {
            Ok(1..) => {}
            _ => return,
        }
    }
}

#[derive(Default)]
struct RecordingObserver {
    messages: Vec<String>,
    results: Vec<Result<Report, DownloadError>>,
}

impl BatchObserver for RecordingObserver {
    fn on_progress(&mut self, _: &BatchProgress) {}
    fn on_message(&mut self, _: Option<&str>, text: &str) {
        self.messages.push(text.to_owned());
    }
    fn on_file_ended(&mut self, ended: FileResult) {
        self.results.push(ended.result);
    }
}

#[test]
fn http_1_1_is_used_when_the_server_requires_it() {
    for sends_goaway in [false, true] {
        let identity = make_identity("localhost", None);
        let dir = tempfile::tempdir().expect("a directory");
        let ca = dir.path().join("ca.pem");
        std::fs::write(&ca, &identity.ca_pem).expect("written");
        let mut config = acceptor(&identity);
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = TcpListener::bind("127.0.0.1:0").expect("a listener");
        listener.set_nonblocking(true).expect("an option");
        let port = listener.local_addr().expect("an address").port();
        let data: Arc<Vec<u8>> =
            Arc::new((0..1_000_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect());
        let counts = Arc::new(ServerCounts::default());
        let (all, counted) = (Arc::clone(&data), Arc::clone(&counts));
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
                let acceptor = TlsAcceptor::from(Arc::new(config));
                loop {
                    let (tcp, _) = listener.accept().await.expect("a client");
                    let (acceptor, all, counted) = (acceptor.clone(), Arc::clone(&all), Arc::clone(&counted));
                    tokio::spawn(async move {
                        if let Ok(tls) = acceptor.accept(tcp).await {
                            serve(tls, sends_goaway, all, counted).await;
                        }
                    });
                }
            });
        });
        let target = dir.path().join("out");
        let settings = Settings {
            links: Links::Named(Vec::new()),
            config: Config::default(),
            credentials: Credentials::default(),
            ca_file: Some(ca),
            rate_limit: None,
            energy: EnergyOptions::default(),
            mptcp: false,
            connect_options: ConnectOptions::default(),
            cookie_files: CookieFiles::default(),
            use_remote_time: false,
        };
        let url = format!("https://localhost:{port}/file").parse().expect("a URL");
        let file = FileRequest {
            mirrors: vec![MirrorUrl::from_user(url)],
            target: Target::File(target.clone()),
            digests: Digests::default(),
            decision_log: None,
        };
        let max_time = Some(std::time::Duration::from_secs(30));
        let batch = Batch { settings, files: vec![file], parallel: 1, skip_completed: false, max_time };
        let mut lines = RecordingObserver::default();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(run(batch, &mut lines)).expect("begun");
        let report = lines.results.pop().expect("ended").expect("downloaded");
        assert!(std::fs::read(&target).expect("a file") == *data);
        assert!(lines.messages.is_empty(), "{:?}", lines.messages);
        let counts = (counts.http2.load(Ordering::Relaxed), counts.http1.load(Ordering::Relaxed));
        assert_eq!(counts.0, 1, "goes away: {sends_goaway}: HTTP/2 was offered again: {counts:?}");
        assert_eq!(report.links[0].retries, 0, "goes away: {sends_goaway}");
    }
}
