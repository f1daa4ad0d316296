//! A simulated player of HLS and DASH over two links of which one suffices: the costly link must stay unused, without stalls.
//!
//! The segments are noise, served by nginx. The player requests one after another, keeps a buffer of ten seconds, and measures
//! how long it had nothing to play.

use std::fs;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::cpu_pressure::CpuPressure;
use crate::network::Network;
use crate::nginx::Nginx;
use crate::proxy::Proxy;
use crate::server::Resource;
use crate::watching::{LTE, WIFI, bytes_over, shape};

/// Size of a segment of two seconds, at half the rate of Wi-Fi.
const SEGMENT: usize = WIFI as usize * 1000 / 8;
const SEGMENT_DURATION: Duration = Duration::from_secs(2);
const COUNT: usize = 60;
/// Buffer that the player keeps.
const BUFFER: Duration = Duration::from_secs(10);

/// Two links and a server of segments and playlists.
struct Channel {
    network: Network,
    _nginx: Nginx,
    _files: TempDir,
    url: String,
}

fn segment(n: usize) -> Vec<u8> {
    Resource::other(SEGMENT, n as u64).data.to_vec()
}

impl Channel {
    fn open() -> Option<Self> {
        let network = Network::two_links()?;
        let files = tempfile::tempdir().unwrap();
        let folder = files.path().join("v");
        fs::create_dir(&folder).unwrap();
        let mut hls = "#EXTM3U\n#EXT-X-TARGETDURATION:2\n".to_owned();
        for n in 0..COUNT {
            fs::write(folder.join(format!("{n}.ts")), segment(n)).unwrap();
            hls += &format!("#EXTINF:2.0,\n{n}.ts\n");
        }
        fs::write(folder.join("live.m3u8"), &hls).unwrap();
        fs::write(folder.join("list.m3u8"), hls + "#EXT-X-ENDLIST\n").unwrap();
        let mpd = format!(
            "<MPD type=\"static\" mediaPresentationDuration=\"PT{}S\"><Period><AdaptationSet>\
             <SegmentTemplate timescale=\"1\" duration=\"2\" startNumber=\"0\" media=\"$Number$.ts\"/>\
             <Representation id=\"v\" bandwidth=\"4000000\"/></AdaptationSet></Period></MPD>",
            2 * COUNT
        );
        fs::write(folder.join("film.mpd"), mpd).unwrap();
        let address: SocketAddr = "203.0.113.9:8080".parse().unwrap();
        let settings = format!("location /v/ {{ root {}; }}", files.path().display());
        let nginx =
            network.in_server_namespace(move || Ok(Nginx::at(address, &settings, &Resource::new(1), None)))?;
        shape(&network, "peer1", WIFI);
        shape(&network, "peer2", LTE);
        Some(Self { network, _nginx: nginx, _files: files, url: format!("http://{address}/v") })
    }
}

/// Plays one segment after another.
struct Viewer<'a> {
    channel: &'a Channel,
    proxy: &'a Proxy,
    /// Number of the next segment.
    next: usize,
    /// Start of playback, when the first segment is complete.
    began: Option<Instant>,
    /// How long the player had nothing to play since then.
    waited: Duration,
}

impl<'a> Viewer<'a> {
    fn start(channel: &'a Channel, proxy: &'a Proxy, list: &str) -> Self {
        assert_eq!(proxy.get(&format!("{}/{list}", channel.url), &[]).status, 200);
        Self { channel, proxy, next: 0, began: None, waited: Duration::ZERO }
    }

    /// Requests the next segment when the buffer has space for it.
    fn step(&mut self) {
        let buffered = SEGMENT_DURATION * self.next as u32;
        if let Some(began) = self.began {
            let refill_at = began + self.waited + buffered.saturating_sub(BUFFER);
            std::thread::sleep(refill_at.saturating_duration_since(Instant::now()));
        }
        let got = self.proxy.get(&format!("{}/{}.ts", self.channel.url, self.next), &[]);
        assert!(got.status == 200 && got.body == segment(self.next), "{}: {}", self.next, got.status);
        if let Some(began) = self.began {
            self.waited += Instant::now().saturating_duration_since(began + self.waited + buffered);
        }
        self.began.get_or_insert_with(Instant::now);
        self.next += 1;
    }
}

/// Whether `lte0` is the unused link of the newest segment.
fn lte_is_unused(now: &Value) -> bool {
    let newest = now["sessions"]
        .as_array()
        .unwrap()
        .iter()
        .rfind(|session| session["url"].as_str().unwrap().ends_with(".ts"));
    newest.is_some_and(|session| session["decisions"]["standby_links"] == serde_json::json!(["lte0"]))
}

/// Plays until the costly link (LTE) is unused, and checks that it carries less than a twentieth of the other link's bytes during six
/// further segments. Then the other link fails.
fn costly_link_is_unused_while_one_suffices(list: &str) {
    let calm = CpuPressure::begin();
    let Some(channel) = Channel::open() else { return };
    let proxy = Proxy::with_prefix(channel.network.client_prefix(), &[]);
    let mut viewer = Viewer::start(&channel, &proxy, list);
    while !lte_is_unused(&proxy.status()) {
        assert!(viewer.next < 20, "the costly link is never unused: {:#}", proxy.status()["prefetches"]);
        viewer.step();
    }
    viewer.step();
    viewer.step();
    let before = proxy.status();
    (0..6).for_each(|_| viewer.step());
    let after = proxy.status();
    let (costly, other_bytes) = (
        bytes_over(&after, "lte0") - bytes_over(&before, "lte0"),
        bytes_over(&after, "wifi0") - bytes_over(&before, "wifi0"),
    );
    eprintln!("after the start: {costly} bytes over the costly link, {other_bytes} over the other one");
    channel.network.cut("wifi0");
    (0..8).for_each(|_| viewer.step());
    let end = proxy.status();
    assert!(bytes_over(&end, "lte0") > bytes_over(&after, "lte0"), "{end:#}");
    if calm.was_low() {
        assert!(costly * 20 < other_bytes, "{costly} of {other_bytes}: {after:#}");
        assert_eq!(viewer.waited, Duration::ZERO, "{end:#}");
        assert_eq!(end["prefetches"][0]["stalls"], 0, "{end:#}");
    }
}

#[test]
fn the_costly_link_is_unused_for_hls_and_used_when_the_other_fails() {
    costly_link_is_unused_while_one_suffices("list.m3u8");
}

#[test]
fn the_costly_link_is_unused_for_dash_and_used_when_the_other_fails() {
    costly_link_is_unused_while_one_suffices("film.mpd");
}

#[test]
fn the_costly_link_is_unused_for_a_live_playlist() {
    costly_link_is_unused_while_one_suffices("live.m3u8");
}
