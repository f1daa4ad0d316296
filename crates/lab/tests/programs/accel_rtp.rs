//! `marline accel rtp` in the laboratory: ffmpeg's demuxer plays from an RTSP server over two emulated links, one of which has an outage.
//!
//! The server (in this file) implements the minimum of RFC 2326 appendix D.1 and knows nothing of two links; ffmpeg sends media and
//! sender reports. It offers a film in which every fifth picture is a key frame, and a stream of the key frames alone.
//!
//! The test compares which key frames the player received and which requests and reports the server received over each link, never
//! a duration. It is skipped, with the reason, on hosts without network namespaces or ffmpeg.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;

use crate::common;

/// Environment variable with the folder of the films. If set, this test program is the RTSP server.
const FILMS: &str = "MARLINE_TEST_FILMS";
const PORT: u16 = 8554;

/// RTSP session; any connection may refer to it.
struct Session {
    film: String,
    to: (SocketAddr, u16),
    sender: Option<Child>,
}

/// State that all connections of the server share.
#[derive(Default)]
struct Server {
    sessions: BTreeMap<String, Session>,
    log: Vec<String>,
}

/// Not a test: the RTSP server, if the environment selects it.
#[test]
fn rtsp_server_if_selected_by_the_environment() {
    let Ok(films) = std::env::var(FILMS) else { return };
    let films = PathBuf::from(films);
    let reports = UdpSocket::bind(("0.0.0.0", 0)).unwrap();
    let port = reports.local_addr().unwrap().port();
    let server = Arc::new(Mutex::new(Server::default()));
    let (log, dir) = (Arc::clone(&server), films.clone());
    std::thread::spawn(move || {
        let mut bytes = [0; 2000];
        while let Ok((length, from)) = reports.recv_from(&mut bytes) {
            if length >= 8 && bytes[1] == 201 {
                note(&log, &dir, &format!("RR {}", from.ip()));
            }
        }
    });
    for connection in TcpListener::bind(("0.0.0.0", PORT)).unwrap().incoming() {
        let (server, films) = (Arc::clone(&server), films.clone());
        std::thread::spawn(move || serve(connection.unwrap(), &server, &films, port));
    }
}

fn note(server: &Mutex<Server>, films: &Path, line: &str) {
    let mut server = server.lock().unwrap();
    server.log.push(line.to_owned());
    std::fs::write(films.join("log"), server.log.join("\n")).unwrap();
}

/// Serves the requests of one connection until it closes.
fn serve(connection: TcpStream, server: &Mutex<Server>, films: &Path, rtcp_port: u16) {
    let peer = connection.peer_addr().unwrap();
    let mut writes = connection.try_clone().unwrap();
    let mut reads = BufReader::new(connection);
    loop {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reads.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line.trim_end().is_empty() {
                break;
            }
            head.push(line.trim_end().to_owned());
        }
        let value = |name: &str| {
            let name = format!("{}:", name.to_lowercase());
            let line = head.iter().find(|line| line.to_lowercase().starts_with(&name));
            line.map(|line| line.split_once(':').unwrap().1.trim().to_owned())
        };
        let length = value("content-length").map_or(0, |length| length.parse().unwrap());
        reads.read_exact(&mut vec![0; length]).unwrap();
        let mut request_line = head[0].split(' ');
        let (method, uri) = (request_line.next().unwrap(), request_line.next().unwrap().to_owned());
        let session = value("session");
        note(server, films, &format!("{method} {} {uri}", peer.ip()));
        let response =
            respond(method, &uri, session.as_deref(), value("transport"), peer, server, films, rtcp_port);
        let (status, headers, body) = response;
        let cseq = value("cseq").unwrap();
        let mut text = format!("RTSP/1.0 {status}\r\nCSeq: {cseq}\r\n{headers}");
        if !body.is_empty() {
            text += &format!("Content-Type: application/sdp\r\nContent-Length: {}\r\n", body.len());
        }
        if writes.write_all(format!("{text}\r\n{body}").as_bytes()).is_err() {
            return;
        }
    }
}

#[expect(clippy::too_many_arguments, reason = "the parts of a request and the state of the server")]
fn respond(
    method: &str,
    uri: &str,
    session: Option<&str>,
    transport: Option<String>,
    peer: SocketAddr,
    server: &Mutex<Server>,
    films: &Path,
    rtcp_port: u16,
) -> (&'static str, String, String) {
    let film = uri.trim_end_matches("/track1").rsplit('/').next().unwrap().to_owned();
    let path = films.join(format!("{film}.mkv"));
    let ok = "200 OK";
    let mut server = server.lock().unwrap();
    match method {
        "OPTIONS" => {
            (ok, "Public: DESCRIBE, SETUP, PLAY, PAUSE, TEARDOWN, GET_PARAMETER\r\n".into(), String::new())
        }
        "DESCRIBE" if path.exists() => {
            let sdp = "v=0\r\no=- 0 0 IN IP4 10.99.0.1\r\ns=film\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\na=control:*\r\n\
                       m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track1\r\n";
            (ok, format!("Content-Base: {uri}/\r\n"), sdp.into())
        }
        "SETUP" => {
            let transport = transport.unwrap();
            let port = transport.split("client_port=").nth(1).unwrap().split(['-', ';']).next().unwrap();
            let to = (peer, port.parse().unwrap());
            let name = format!("s{}", server.sessions.len());
            let media = UdpSocket::bind(("0.0.0.0", 0)).unwrap().local_addr().unwrap().port();
            server.sessions.insert(name.clone(), Session { film, to, sender: None });
            let (media, to) = (media & !1, to.1);
            let header = format!("RTP/AVP;unicast;client_port={to}-{};server_port={media}-{rtcp_port}", to + 1);
            (ok, format!("Transport: {header}\r\nSession: {name};timeout=4\r\n"), String::new())
        }
        _ => {
            let Some(session) = session.and_then(|name| server.sessions.get_mut(name)) else {
                return (
                    if method == "DESCRIBE" { "404 Not Found" } else { "454 Session Not Found" },
                    String::new(),
                    String::new(),
                );
            };
            match method {
                "PLAY" if session.sender.is_none() => {
                    let (to, port) = (session.to.0.ip(), session.to.1);
                    let mut sender = Command::new("ffmpeg");
                    sender.args(["-v", "error", "-re", "-i"]).arg(films.join(format!("{}.mkv", session.film)));
                    sender.args(["-c", "copy", "-bsf:v", "h264_mp4toannexb", "-f", "rtp"]);
                    sender.arg(format!("rtp://{to}:{port}?rtcpport={}&pkt_size=1200", port + 1));
                    sender.stdin(Stdio::null()).stdout(Stdio::null());
                    session.sender = Some(sender.spawn().unwrap());
                }
                "TEARDOWN" => {
                    if let Some(mut sender) = session.sender.take() {
                        sender.kill().unwrap();
                        sender.wait().unwrap();
                    }
                }
                _ => {}
            }
            (ok, String::new(), String::new())
        }
    }
}

fn output_text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout)
}

/// Why the test cannot run on this host, if so.
fn skip_reason() -> Option<String> {
    let check = common::lab().arg("doctor").output().unwrap();
    if !check.status.success() {
        return Some(output_text(&check));
    }
    let ffmpeg = Command::new("ffmpeg").arg("-version").output();
    let probe = Command::new("ffprobe").arg("-version").output();
    (ffmpeg.is_err() || probe.is_err()).then(|| "ffmpeg and ffprobe are not installed (package ffmpeg)".to_owned())
}

/// Makes a film of 14 seconds and a stream of its key frames.
fn films(dir: &Path) {
    let ffmpeg = |args: &[&str]| {
        let output =
            Command::new("ffmpeg").args(["-v", "error", "-y"]).args(args).current_dir(dir).output().unwrap();
        assert!(output.status.success(), "{}", output_text(&output));
    };
    let picture = ["-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25", "-t", "14"];
    let coded = ["-c:v", "libx264", "-preset", "veryfast", "-b:v", "1500k", "-bf", "2"];
    let layers = ["-x264-params", "scenecut=0:keyint=5:min-keyint=5:b-pyramid=none", "full.mkv"];
    ffmpeg(&[&picture[..], &coded, &layers].concat());
    ffmpeg(&["-i", "full.mkv", "-c", "copy", "-bsf:v", "noise=drop=not(key)", "base.mkv"]);
}

/// Plays the film with an outage of wlan0 from 5 s to 8 s. Returns the counters of `marline`, the log of the server, and the times of the
/// key frames that the player received.
fn run(dir: &Path, name: &str, args: &str) -> (Value, Vec<String>, Vec<f64>) {
    let marline = common::marline().display();
    let server = "rtsp://10.99.0.1:8554";
    let script = format!(
        "{marline} accel rtp --primary wlan0 --secondary wwan0 --json {args} {server}/full >{name}.json 2>{name}.stderr & \
         for try in 1 2 3 4 5 6 7 8 9; do grep -q play {name}.stderr && break; sleep 0.3; done; \
         timeout 40 ffprobe -v error -rtsp_transport udp -read_intervals %+11 -show_entries packet=pts_time,flags -of csv=p=0 \
         rtsp://127.0.0.1:8554/full >{name}.list; \
         sleep 1; kill -INT $!; wait $!"
    );
    let exe = std::env::current_exe().unwrap();
    let serving =
        format!("{} accel_rtp::rtsp_server_if_selected_by_the_environment --exact --nocapture", exe.display());
    let mut command = Command::new("timeout");
    command.args(["90", common::LAB, "exec", "--link", "wlan0,rate=20Mbit/s,rtt=20ms"]);
    command.args(["--link", "wwan0,rate=3Mbit/s,up=400kbit/s,rtt=80ms", "--server", &serving]);
    command.args(["--at", "5s:wlan0=down", "--at", "8s:wlan0=up", "--", "sh", "-c", &script]);
    let output = command.env(FILMS, dir).env("HOME", dir).current_dir(dir).output().unwrap();
    let read = |file: String| std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    let json = read(format!("{name}.json"));
    let stats = serde_json::from_str(&json);
    let stats =
        stats.unwrap_or_else(|_| panic!("{json}{}{}", read(format!("{name}.stderr")), output_text(&output)));
    let log = read("log".to_owned()).lines().map(str::to_owned).collect();
    let listed = read(format!("{name}.list"));
    let keys = listed.lines().filter(|line| line.contains('K'));
    let keys = keys.filter_map(|line| line.split(',').next()?.parse().ok()).collect();
    println!("{name}: {stats}\n{}", output_text(&output));
    (stats, log, keys)
}

/// Longest interval of the film without a key frame, in seconds.
fn longest_gap(keys: &[f64]) -> f64 {
    keys.windows(2).map(|two| two[1] - two[0]).fold(0.0, f64::max)
}

#[test]
fn an_outage_costs_no_key_frame_and_reports_and_commands_continue() {
    if std::env::var(FILMS).is_ok() {
        return;
    }
    if let Some(reason) = skip_reason() {
        eprintln!("skipped: {reason}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    films(dir.path());
    let count = |stats: &Value, name: &str| stats[name].as_u64().unwrap();

    let (stats, log, keys) = run(dir.path(), "alone", "");
    assert!(longest_gap(&keys) > 2.0, "the outage is visible in the film: {keys:?}");
    assert_eq!((stats["base_layer"].as_str(), count(&stats, "filled")), (Some("off"), 0));
    let count_lines = |log: &[String], prefix: &str| log.iter().filter(|line| line.starts_with(prefix)).count();
    // The server receives more reports over the secondary link than over the primary link.
    let (first, second) = (count_lines(&log, "RR 10.1.0.2"), count_lines(&log, "RR 10.2.0.2"));
    assert!(second > 0 && second > first, "{log:?}");
    assert!(count(&stats, "offloaded") > 0 && count(&stats, "reports") >= second as u64, "{stats}");
    // Repeatable requests arrive over both links; requests that create state arrive over the primary link alone.
    assert!(count(&stats, "duplicated") > 0, "{stats}");
    for method in ["GET_PARAMETER", "TEARDOWN"] {
        assert!(count_lines(&log, &format!("{method} 10.2.0.2")) > 0, "{method}: {log:?}");
    }
    assert_eq!((count_lines(&log, "SETUP 10.2.0.2"), count_lines(&log, "SETUP 10.1.0.2")), (0, 1));
    assert_eq!((count_lines(&log, "PLAY 10.2.0.2"), count_lines(&log, "PLAY 10.1.0.2")), (0, 1));

    let (stats, log, keys) = run(dir.path(), "mirrored", "--base rtsp://10.99.0.1:8554/base");
    assert!(longest_gap(&keys) < 1.0, "the base layer fills the outage: {keys:?}\n{stats}");
    assert_eq!(stats["base_layer"].as_str(), Some("aligned"));
    assert!(count(&stats, "filled") > 0 && count(&stats, "lost") > 0, "{stats}");
    assert_eq!(count_lines(&log, "SETUP 10.2.0.2"), 1, "a session of its own: {log:?}");

    let (stats, _, keys) = run(dir.path(), "missing", "--base rtsp://10.99.0.1:8554/nothing");
    assert!(keys.len() > 10 && count(&stats, "filled") == 0, "the stream continues without it: {stats}");
    let line = std::fs::read_to_string(dir.path().join("missing.stderr")).unwrap();
    assert!(
        line.contains("the server answers DESCRIBE with `404 Not Found`; the stream continues without it"),
        "{line}"
    );
}

#[test]
fn usage_errors_are_reported_before_any_socket_is_opened() {
    let rtp = |args: &[&str]| {
        let output = Command::new(common::marline()).args(["accel", "rtp"]).args(args).output().unwrap();
        (output.status.code(), output_text(&output))
    };
    let links = ["--primary", "lo", "--secondary", "nosuch0"];
    for (args, code, expected) in [
        (&["rtsp://127.0.0.1/a"][..], 69, "link nosuch0: no such interface"),
        (&["rtsp://me:secretpw@127.0.0.1/a"], 64, "can read a password on the command line"),
        (&["me:secretpw@127.0.0.1/a"], 64, "expected rtsp://"),
        (&["rtsp://me:a 'secretpw@127.0.0.1/a"], 64, "'rtsp://MASKED@127.0.0.1/a'"),
        (
            &["--base", "rtsp://me:secretpw@127.0.0.1/a", "rtsp://127.0.0.1/a"],
            64,
            "can read a password on the command line",
        ),
        (&["http://127.0.0.1/a"], 64, "expected rtsp://"),
        (&["--listen", "0.0.0.0:8554", "rtsp://127.0.0.1/a"], 64, "not a loopback address"),
        (&["--reorder-wait", "250", "rtsp://127.0.0.1/a"], 64, "--reorder-wait"),
        (&["--reorder-wait", "9s", "rtsp://127.0.0.1/a"], 64, "players do not wait longer"),
    ] {
        let (status, text) = rtp(&[&links[..], args].concat());
        assert_eq!(status, Some(code), "{args:?}: {text}");
        assert!(text.contains(expected), "{args:?}: {text}");
        assert!(!text.contains("cretpw"), "{args:?}: {text}");
    }
    let (status, text) = rtp(&["--primary", "lo", "--secondary", "lo", "rtsp://127.0.0.1/a"]);
    assert!(status == Some(64) && text.contains("given as primary and as secondary link"), "{text}");
}
