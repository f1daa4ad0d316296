//! Real players with generated films over two links: mpv and a browser report their own stalls.
//!
//! ffmpeg makes the films at 1.6 times the capacity of each link (2.39 Mbit/s of payload) and 0.8 of that of both: plain MP4,
//! fragmented MP4, HLS and DASH. nginx serves them. A test is skipped with a message where a program is missing.
//! `make test` plays plain MP4 in mpv. `make soak` plays the other films, and one in a browser.

use crate::cpu_pressure::CpuPressure;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::network::Network;
use crate::proxy::Proxy;
use crate::server::{Response, Server, Step};

/// Rate of each link.
const LINK: &str = "2500kbit";
/// Video bit rate; 3.8 Mbit/s with sound and container.
const VIDEO: &str = "3650k";
const SECONDS: u64 = 16;

/// A process that is killed with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn is_installed(program: &str) -> bool {
    let found =
        std::env::split_paths("/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin").any(|dir| dir.join(program).exists());
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

/// Directory of the films; made once per test process.
fn films() -> &'static Path {
    static FILMS: OnceLock<TempDir> = OnceLock::new();
    FILMS
        .get_or_init(|| {
            let dir = tempfile::tempdir().unwrap();
            let ffmpeg = |args: &str| {
                let args = args.replace("DIR", &dir.path().display().to_string());
                let done = Command::new("ffmpeg").args(["-v", "error", "-y"]).args(args.split_whitespace()).status();
                assert!(done.unwrap().success(), "ffmpeg {args}");
            };
            // Noise cannot be compressed, so the bit rate is constant.
            ffmpeg(&format!(
                "-f lavfi -i nullsrc=size=320x180:rate=24,geq=random(1)*255:128:128 -f lavfi -i sine=frequency=440 -t {SECONDS} \
                 -c:v libx264 -preset ultrafast -g 48 -keyint_min 48 -sc_threshold 0 -pix_fmt yuv420p \
                 -b:v {VIDEO} -minrate {VIDEO} -maxrate {VIDEO} -bufsize 1000k -nal-hrd cbr -c:a aac -b:a 96k \
                 -movflags +faststart DIR/film.mp4"
            ));
            ffmpeg("-i DIR/film.mp4 -c copy -movflags +frag_keyframe+empty_moov+default_base_moof DIR/fragments.mp4");
            fs::create_dir(dir.path().join("hls")).unwrap();
            fs::create_dir(dir.path().join("dash")).unwrap();
            ffmpeg(
                "-i DIR/film.mp4 -c copy -f hls -hls_time 2 -hls_playlist_type vod -hls_base_url /hls/ \
                 -hls_segment_filename DIR/hls/s%d.ts DIR/hls/list.m3u8",
            );
            ffmpeg("-i DIR/film.mp4 -c copy -f dash -seg_duration 2 DIR/dash/film.mpd");
            dir
        })
        .path()
}

/// Two links and a server of the films.
struct Cinema {
    network: Network,
    _nginx: Running,
    /// Tests run one after another: with several decoders at once, players would wait for CPU time and not for data.
    _alone: MutexGuard<'static, ()>,
}

const ADDRESS: &str = "203.0.113.9:8080";

impl Cinema {
    fn open() -> Option<Self> {
        if !["ffmpeg", "nginx"].into_iter().all(is_installed) {
            return None;
        }
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let network = Network::two_links()?;
        let root = films();
        let text = format!(
            "user root; daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
             events {{}} http {{ access_log off; types {{ video/mp4 mp4 m4s; video/mp2t ts; application/dash+xml mpd;\n\
             application/vnd.apple.mpegurl m3u8; }} server {{ listen {ADDRESS}; root {}; }} }}",
            root.display()
        );
        let prefix = root.join(format!("nginx{}", std::process::id()));
        fs::create_dir_all(&prefix).unwrap();
        let conf = prefix.join("conf");
        fs::write(&conf, text).unwrap();
        let nginx = network.in_server_namespace(move || {
            for peer in ["peer1", "peer2"] {
                let args = format!("qdisc add dev {peer} root tbf rate {LINK} burst 16kb latency 100ms");
                assert!(Command::new("tc").args(args.split_whitespace()).status()?.success(), "tc {args}");
            }
            Command::new("nginx").arg("-p").arg(&prefix).arg("-c").arg(&conf).stderr(Stdio::null()).spawn()
        });
        Some(Self { network, _nginx: Running(nginx), _alone: alone })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{ADDRESS}/{path}")
    }

    /// Starts a program in the client's namespace.
    fn start(&self, args: &[&str], home: &Path) -> Running {
        let mut all = self.network.client_prefix();
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let log_file = fs::File::create(home.join("said")).unwrap();
        let child = Command::new(&all[0])
            .args(&all[1..])
            .env("HOME", home)
            .env_remove("http_proxy")
            .stdin(Stdio::null())
            .stdout(log_file.try_clone().unwrap())
            .stderr(log_file)
            .spawn()
            .unwrap();
        Running(child)
    }

    /// Plays with mpv to the end; returns the last report of mpv.
    fn mpv(&self, path: &str) -> (Value, Proxy) {
        let home = tempfile::tempdir().unwrap();
        let socket = home.path().join("mpv");
        let proxy = Proxy::with_prefix(
            self.network.client_prefix(),
            &["--mpv-socket", socket.to_str().unwrap(), "--metered", "use"],
        );
        let ipc = format!("--input-ipc-server={}", socket.display());
        let address = proxy.media_url(&self.url(path));
        let args = ["mpv", "--no-config", "--vo=null", "--ao=null", "--keep-open=yes", &ipc, &address];
        let player = self.start(&args, home.path());
        let report = watch(&proxy, &self.url(path), "mpv", home.path());
        drop(player);
        (report, proxy)
    }
}

/// Waits until the player reports the end; returns that report.
fn watch(proxy: &Proxy, url: &str, source: &str, home: &Path) -> Value {
    let end = Instant::now() + Duration::from_secs(SECONDS + 45);
    loop {
        let now = proxy.status();
        let mut player_sessions =
            now["sessions"].as_array().unwrap().iter().filter(|session| session["url"] == url);
        if let Some(session) = player_sessions.find(|session| session["player_report"]["ended"] == true) {
            assert_eq!(session["player_report"]["source"], source);
            return session["player_report"].clone();
        }
        let log = || fs::read_to_string(home.join("said")).unwrap_or_default();
        assert!(Instant::now() < end, "never played to the end: {now:#}\n{}", log());
        std::thread::sleep(Duration::from_millis(200));
    }
}

fn assert_no_stalls(report: &Value, proxy: &Proxy, calm: &CpuPressure) {
    let position = report["position_s"].as_f64().unwrap();
    if calm.was_low() {
        assert_eq!(report["stalls"], 0, "{report} {:#}", proxy.status()["sessions"]);
        // A player without enough CPU time drops frames and reports an older last position.
        assert!((position - SECONDS as f64).abs() < 1.0, "{report}");
    }
    let now = proxy.status();
    let shares: Vec<u64> =
        now["links"].as_array().unwrap().iter().map(|link| link["media"]["bytes"].as_u64().unwrap()).collect();
    let all: u64 = shares.iter().sum();
    eprintln!("player report: {report}\nbytes of each link: {shares:?}");
    assert!(
        shares.len() == 2 && shares.iter().all(|share| share * 5 > all),
        "one link carried nearly everything: {shares:?}"
    );
}

fn plays_in_mpv(path: &str) {
    let calm = CpuPressure::begin();
    let Some(cinema) = Cinema::open().filter(|_| is_installed("mpv")) else { return };
    let (report, proxy) = cinema.mpv(path);
    assert_no_stalls(&report, &proxy, &calm);
}

#[test]
fn mpv_plays_a_film_above_the_rate_of_either_link_without_stalls() {
    plays_in_mpv("film.mp4");
}

#[test]
#[ignore = "real time: make soak"]
fn mpv_plays_fragmented_mp4_without_stalls() {
    plays_in_mpv("fragments.mp4");
}

#[test]
#[ignore = "real time: make soak"]
fn mpv_plays_hls_without_stalls() {
    plays_in_mpv("hls/list.m3u8");
}

#[test]
#[ignore = "real time: make soak"]
fn mpv_plays_dash_without_stalls() {
    plays_in_mpv("dash/film.mpd");
}

#[test]
fn players_get_the_bytes_of_the_server() {
    let Some(cinema) = Cinema::open() else { return };
    let proxy = Proxy::with_prefix(cinema.network.client_prefix(), &["--metered", "use"]);
    let file = |path: &str| -> Vec<u8> { fs::read(films().join(path)).unwrap() };
    for path in ["film.mp4", "hls/s0.ts", "hls/s1.ts"] {
        assert!(proxy.get(&cinema.url(path), &[]).body == file(path), "{path}");
    }
    let list = String::from_utf8(file("hls/list.m3u8")).unwrap();
    let moved = list.replace("/hls/", &proxy.media_url(&cinema.url("hls/")));
    assert_eq!(proxy.get(&cinema.url("hls/list.m3u8"), &[]).text(), moved);
}

fn plays_in_a_browser(path: &str) {
    let calm = CpuPressure::begin();
    let Some(cinema) = Cinema::open().filter(|_| is_installed("chromium")) else { return };
    let proxy = Proxy::with_prefix(cinema.network.client_prefix(), &["--metered", "use"]);
    let home = tempfile::tempdir().unwrap();
    let url = cinema.url(path);
    let (page, profile): (String, PathBuf) =
        (format!("{}play#{url}", proxy.status_url), home.path().join("profile"));
    let profile = format!("--user-data-dir={}", profile.display());
    let args = [
        "chromium",
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
        "--mute-audio",
        "--autoplay-policy=no-user-gesture-required",
        &profile,
        &page,
    ];
    let browser = cinema.start(&args, home.path());
    let report = watch(&proxy, &url, "page", home.path());
    drop(browser);
    assert_no_stalls(&report, &proxy, &calm);
}

#[test]
#[ignore = "a browser: make soak"]
fn a_browser_plays_a_film_above_the_rate_of_either_link_without_stalls() {
    plays_in_a_browser("film.mp4");
}

/// A copy of a manifest with the templates moved to the adaptation sets and with representation IDs that are URL paths.
fn with_named_templates(manifest: &str) -> String {
    let mut sets = manifest.split("<AdaptationSet");
    let mut out = sets.next().unwrap().to_owned();
    for (n, set) in sets.enumerate() {
        let (tag, remaining) = set.split_once('>').unwrap();
        let from = remaining.find("<SegmentTemplate").unwrap();
        let to = remaining.find("</SegmentTemplate>").unwrap() + "</SegmentTemplate>".len();
        let template = remaining[from..to].replace("init-stream$RepresentationID$", "$RepresentationID$-init");
        let template = template.replace("chunk-stream$RepresentationID$", "$RepresentationID$");
        let others = format!("{}{}", &remaining[..from], &remaining[to..]);
        let others =
            others.replace(&format!("<Representation id=\"{n}\""), &format!("<Representation id=\"/v/{n}\""));
        out.push_str(&format!("<AdaptationSet{tag}>{template}{others}"));
    }
    let clock = "<UTCTiming schemeIdUri=\"urn:mpeg:dash:utc:http-iso:2014\" value=\"/time\"/></MPD>";
    out.replace("</MPD>", clock)
}

#[test]
fn ffmpeg_plays_unusual_playlists_to_their_end() {
    if !["ffmpeg", "ffprobe"].into_iter().all(is_installed) {
        return;
    }
    let file = |path: &str| fs::read(films().join(path)).unwrap();
    let list = String::from_utf8(file("hls/list.m3u8")).unwrap();
    let latin = list.replace(",\n", ",caf\u{e9}\n").chars().map(|c| u8::try_from(c).unwrap()).collect();
    let units = std::iter::once(0xfeff).chain(list.encode_utf16()).flat_map(u16::to_le_bytes);
    let quoted = list.replacen("#EXTINF", "#EXT-X-DATERANGE:ID=\"a\n#EXTINF", 1);
    let variable =
        "#EXTM3U\n#EXT-X-DEFINE:NAME=\"dir\",VALUE=\"/hls\"\n#EXT-X-STREAM-INF:BANDWIDTH=4000000\nimports.m3u8\n";
    let imports =
        list.replacen("#EXTINF", "#EXT-X-DEFINE:IMPORT=\"dir\"\n#EXTINF", 1).replace("\n/hls/", "\n{$dir}/");
    let manifest = with_named_templates(&String::from_utf8(file("dash/film.mpd")).unwrap());
    let bodies: Vec<(&str, Vec<u8>)> = vec![
        ("/latin.m3u8", latin),
        ("/return.m3u8", list.replace('\n', "\r").into_bytes()),
        ("/utf16.m3u8", units.collect()),
        ("/quote.m3u8", quoted.into_bytes()),
        ("/master.m3u8", variable.into()),
        ("/imports.m3u8", imports.into_bytes()),
        ("/named.mpd", manifest.into_bytes()),
    ];
    let served = bodies.clone();
    let server = Server::start(move |request| {
        let body = match served.iter().find(|(path, _)| *path == request.path) {
            Some((_, body)) => body.clone(),
            None => {
                let path = request.path.trim_start_matches('/');
                let path = match path.strip_prefix("v/").map(|name| (name.split_once("-init"), name)) {
                    Some((Some((number, end)), _)) => format!("dash/init-stream{number}{end}"),
                    Some((None, name)) => format!("dash/chunk-stream{name}"),
                    None => path.to_owned(),
                };
                let Ok(body) = fs::read(films().join(path)) else { return Response::status(404) };
                body
            }
        };
        let length = body.len().to_string();
        Response::page(200, "").with("Content-Length", &length).with_steps([Step::Raw(body)])
    });
    let proxy = Proxy::start(&[]);
    for (path, _) in bodies.iter().filter(|(path, _)| *path != "/imports.m3u8") {
        let url = proxy.media_url(&server.url(path));
        let args = "-v error -count_packets -select_streams v:0 -show_entries stream=nb_read_packets -of csv=p=0";
        let output = Command::new("ffprobe").args(args.split(' ')).arg(&url).output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let packets: u64 = out.lines().find_map(|line| line.trim_end_matches(',').parse().ok()).unwrap_or_default();
        assert!(packets >= SECONDS * 24 - 2, "{path}: {packets} packets: {err}");
    }
}
