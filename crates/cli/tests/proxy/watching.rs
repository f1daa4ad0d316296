//! A simulated player of a film over two links: it must not stall, and the costly link must be unused while the other one
//! suffices.
//!
//! The film is an MP4 head with the duration, followed by noise. The player is a thread that reads at the film's rate, half a
//! second ahead, and measures how long it had nothing to play. nginx serves the film.

use crate::cpu_pressure::CpuPressure;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::network::Network;
use crate::nginx::Nginx;
use crate::proxy::{Player, Proxy};
use crate::server::Resource;

/// Rates of the links in kbit/s: Wi-Fi 8 Mbit/s, LTE 6 Mbit/s.
pub(crate) const WIFI: u32 = 8000;
pub(crate) const LTE: u32 = 6000;

/// Two links and a server of one film.
struct Cinema {
    network: Network,
    _nginx: Nginx,
    film: Resource,
    url: String,
}

impl Cinema {
    /// With a film of this duration and rate, and links at [`WIFI`] and [`LTE`]. None, with a printed reason, where a program or a
    /// privilege is missing.
    fn open(seconds: u32, bytes_per_second: usize) -> Option<Self> {
        let network = Network::two_links()?;
        let film = film(seconds, bytes_per_second);
        let address: SocketAddr = "203.0.113.9:8080".parse().unwrap();
        let served = film.clone();
        let nginx = network.in_server_namespace(move || Ok(Nginx::at(address, "", &served, None)))?;
        shape(&network, "peer1", WIFI);
        shape(&network, "peer2", LTE);
        Some(Self { network, _nginx: nginx, film, url: format!("http://{address}/file") })
    }

    fn proxy(&self, args: &[&str]) -> Proxy {
        Proxy::with_prefix(self.network.client_prefix(), args)
    }

    /// A player that requests the film from this offset on.
    fn player(&self, proxy: &Proxy, from: u64) -> Player {
        let address = proxy.address;
        Player::on(
            Network::in_namespace(&self.network.client(), move || TcpStream::connect(address)),
            proxy,
            &self.url,
            from,
        )
    }
}

/// Limits the server's side of a link to this rate, with a queue of 100 ms.
pub(crate) fn shape(network: &Network, peer: &str, kbit: u32) {
    let server = network.server();
    let args = format!("-n {server} qdisc add dev {peer} root tbf rate {kbit}kbit burst 16kb latency 100ms");
    assert!(Command::new("tc").args(args.split_whitespace()).status().unwrap().success(), "tc {args}");
}

/// Offset of the film's noise: behind `ftyp` and `moov`.
const MEDIA_OFFSET: usize = 16 + 8 + 8 + 100;

/// An MP4 file of noise with this duration and rate.
fn film(seconds: u32, bytes_per_second: usize) -> Resource {
    let boxed = |name: &[u8; 4], body: &[u8]| [&(body.len() as u32 + 8).to_be_bytes()[..], name, body].concat();
    let mut times = vec![0; 12];
    times.extend(1000_u32.to_be_bytes());
    times.extend((seconds * 1000).to_be_bytes());
    times.extend([0; 80]);
    let head = [boxed(b"ftyp", b"isomiso2"), boxed(b"moov", &boxed(b"mvhd", &times))].concat();
    let mut film = Resource::new(seconds as usize * bytes_per_second);
    let left = film.data.len() - head.len();
    let data = Arc::make_mut(&mut film.data);
    data[..head.len()].copy_from_slice(&head);
    data[head.len()..head.len() + 4].copy_from_slice(&(left as u32).to_be_bytes());
    data[head.len() + 4..head.len() + 8].copy_from_slice(b"mdat");
    film
}

/// Plays for `time`; returns the bytes and how long the player stalled after the first picture.
fn watch(player: &mut Player, bytes_per_second: usize, time: Duration) -> (Vec<u8>, Duration) {
    let step = bytes_per_second / 20;
    let mut got = player.read(10 * step);
    let (start, mut waited) = (Instant::now(), Duration::ZERO);
    let mut shown = 0;
    while (shown as f64) < time.as_secs_f64() * 20.0 {
        // Each step shows 50 ms of the film; half a second is read ahead.
        let due = start + waited + Duration::from_millis(50) * (shown + 1);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        shown += 1;
        got.extend(player.read(step));
        // The bytes read above are due half a second later: only a longer delay is a stall.
        let delay = Instant::now().saturating_duration_since(due + Duration::from_millis(500));
        waited += delay;
    }
    (got, waited)
}

fn unused_links(now: &Value) -> Vec<&str> {
    let standby = now["sessions"][0]["decisions"]["standby_links"].as_array();
    standby.into_iter().flatten().filter_map(Value::as_str).collect()
}

pub(crate) fn bytes_over(now: &Value, name: &str) -> u64 {
    let links = now["links"].as_array().unwrap();
    links.iter().find(|link| link["name"] == name).and_then(|link| link["media"]["bytes"].as_u64()).unwrap_or(0)
}

#[test]
fn a_film_that_no_single_link_can_carry_plays_without_stalls_over_both() {
    // 1.3 times the rate of the better link, 0.74 of that of both.
    let calm = CpuPressure::begin();
    let rate = WIFI as usize * 1000 / 8 * 13 / 10;
    let Some(cinema) = Cinema::open(25, rate) else { return };
    let proxy = cinema.proxy(&[]);
    let mut player = cinema.player(&proxy, 0);
    let (got, waited) = watch(&mut player, rate, Duration::from_secs(15));
    let now = proxy.status();
    assert!(got == cinema.film.data[..got.len()]);
    let video = &now["sessions"][0]["video"];
    if calm.was_low() {
        assert_eq!((waited, video["stalls"].as_u64()), (Duration::ZERO, Some(0)), "{now:#}");
    }
    assert_eq!(video["source"], "mp4 mvhd", "{now:#}");
    assert_eq!(video["duration_s"].as_f64(), Some(25.0));
    // Each link has carried its share.
    assert!(bytes_over(&now, "wifi0") > 5_000_000 && bytes_over(&now, "lte0") > 3_000_000, "{now:#}");
    assert!(now["energy"]["energy_j"].as_f64() > Some(1.0), "{now:#}");
    assert_eq!(now["sessions"][0]["reason"], "ranges over all links", "nothing is held back: {now:#}");
}

#[test]
fn the_costly_link_is_unused_while_the_other_suffices_and_used_when_it_fails() {
    let calm = CpuPressure::begin();
    // Half the rate of Wi-Fi, in bytes per second.
    let rate = WIFI as usize * 1000 / 8 / 2;
    let Some(cinema) = Cinema::open(60, rate) else { return };
    let folder = tempfile::tempdir().unwrap();
    let proxy = cinema.proxy(&["--trace", folder.path().to_str().unwrap()]);
    let mut player = cinema.player(&proxy, 0);
    let (mut got, waited) = watch(&mut player, rate, Duration::from_secs(6));
    let before = proxy.wait_for_status("standby", |now| unused_links(now) == ["lte0"]);
    assert_eq!(before["sessions"][0]["decisions"]["reason"], "the other links suffice at lower cost");
    let (more, waited_too) = watch(&mut player, rate, Duration::from_secs(4));
    got.extend(more);
    let after = proxy.status();
    // What had been requested over LTE still arrived, and then nothing more.
    let lte_bytes = bytes_over(&after, "lte0") - bytes_over(&before, "lte0");
    assert!(bytes_over(&after, "wifi0") > bytes_over(&before, "wifi0"));
    // The only link in use drops everything during playback.
    cinema.network.cut("wifi0");
    let (more, waited_last) = watch(&mut player, rate, Duration::from_secs(8));
    got.extend(more);
    let end = proxy.status();
    assert!(got == cinema.film.data[..got.len()]);
    assert!(unused_links(&end).is_empty(), "{end:#}");
    if calm.was_low() {
        assert!(lte_bytes < 300_000, "{lte_bytes} bytes: {after:#}");
        assert_eq!((waited, waited_too, waited_last), Default::default(), "{end:#}");
        assert_eq!(end["sessions"][0]["video"]["stalls"], 0, "{end:#}");
    }
    drop(player);
    proxy.wait_for_status("over", |now| now["sessions"][0]["state"] == "idle");
    assert_logs_replay(folder.path());
}

#[test]
fn the_metered_link_is_unused_until_the_buffer_needs_it_and_stays_within_its_budget() {
    let calm = CpuPressure::begin();
    // Half the rate of Wi-Fi, in bytes per second.
    let rate = WIFI as usize * 1000 / 8 / 2;
    let Some(cinema) = Cinema::open(60, rate) else { return };
    let args = ["--link", "wifi0", "--link", "lte0,metered=yes,budget=3MB", "--metered", "use"];
    let proxy = cinema.proxy(&[&args[..], &["--goal", "cost"]].concat());
    let mut player = cinema.player(&proxy, 0);
    let (mut got, waited) = watch(&mut player, rate, Duration::from_secs(10));
    let after = proxy.status();
    assert_eq!(after["metered_bytes"].as_u64(), Some(bytes_over(&after, "lte0")));
    // The unmetered link drops everything: the metered one is used, unless a slow machine has made it necessary before.
    cinema.network.cut("wifi0");
    let end = proxy.wait_for_status("steps in", |now| bytes_over(now, "lte0") > 0);
    assert!(unused_links(&end).is_empty(), "{end:#}");
    std::thread::sleep(Duration::from_secs(5));
    // The film continues when the other link has recovered.
    cinema.network.uncut("wifi0");
    got.extend(player.read(12 * rate));
    assert!(got == cinema.film.data[..got.len()]);
    let spent = bytes_over(&proxy.status(), "lte0");
    assert!(spent <= 3_000_000, "{spent} bytes over the metered link");
    if calm.was_low() {
        assert_eq!((waited, bytes_over(&after, "lte0")), (Duration::ZERO, 0), "{after:#}");
    }
}

#[test]
fn playback_continues_without_stalls_after_a_seek() {
    let calm = CpuPressure::begin();
    // Half the rate of Wi-Fi, in bytes per second.
    let rate = WIFI as usize * 1000 / 8 / 2;
    let Some(cinema) = Cinema::open(60, rate) else { return };
    let proxy = cinema.proxy(&["--policy", "greenbag-e"]);
    let mut player = cinema.player(&proxy, 0);
    watch(&mut player, rate, Duration::from_secs(2));
    drop(player);
    let from = 40 * rate;
    let mut player = cinema.player(&proxy, from as u64);
    let (got, waited) = watch(&mut player, rate, Duration::from_secs(3));
    assert!(got == cinema.film.data[from..from + got.len()]);
    let now = proxy.status();
    let position = now["sessions"][0]["video"]["position_s"].as_f64().unwrap();
    if calm.was_low() {
        assert!((40.0..48.0).contains(&position), "{now:#}");
        assert_eq!((waited, &now["sessions"][0]["video"]["stalls"]), (Duration::ZERO, &0.into()), "{now:#}");
    }
}

/// A film of 20 s whose rate, in bytes per second, is 1.5 times the payload rate of both links (94 % of their rates).
fn film_above_capacity() -> Option<(Cinema, usize)> {
    let rate = (WIFI + LTE) as usize * 1000 / 8 * 94 / 100 * 15 / 10;
    Some((Cinema::open(20, rate)?, rate))
}

#[test]
fn a_film_above_the_rate_of_all_links_is_held_back_once_before_its_first_picture() {
    let calm = CpuPressure::begin();
    let Some((cinema, rate)) = film_above_capacity() else { return };
    let proxy = cinema.proxy(&[]);
    let mut player = cinema.player(&proxy, 0);
    let head = player.read(MEDIA_OFFSET);
    let held = proxy
        .wait_for_status("held", |now| now["sessions"][0]["decisions"]["startup_wait"]["remaining_s"].is_f64());
    let session = &held["sessions"][0];
    assert!(session["reason"].as_str().unwrap().starts_with("held back: "), "{held:#}");
    assert_eq!(
        session["delivered_bytes"], MEDIA_OFFSET as u64,
        "only the head may be delivered while held back: {held:#}"
    );
    assert_eq!(session["video"]["state"], "buffering", "{held:#}");
    assert_eq!(
        session["decisions"]["standby_links"].as_array().map(Vec::len),
        Some(0),
        "both links have to be used: {held:#}"
    );
    let (got, waited) = watch(&mut player, rate, Duration::from_secs(19));
    let now = proxy.status();
    assert!(
        cinema.film.data[..MEDIA_OFFSET] == head && cinema.film.data[MEDIA_OFFSET..MEDIA_OFFSET + got.len()] == got
    );
    assert!(now["sessions"][0]["decisions"]["startup_wait"].is_null(), "{now:#}");
    assert!(now["sessions"][0]["reason"].as_str().unwrap().contains("was held back for"), "{now:#}");
    if calm.was_low() {
        assert_eq!(waited, Duration::ZERO, "playback stalled after the first wait: {now:#}");
    }
}

#[test]
fn a_fast_start_and_a_seek_are_not_held_back() {
    let Some((cinema, rate)) = film_above_capacity() else { return };
    for (args, from) in [(&["--start", "fast"][..], 0), (&[], 10 * rate)] {
        let proxy = cinema.proxy(args);
        let mut player = cinema.player(&proxy, from as u64);
        let got = player.read(4 * rate);
        let now = proxy.status();
        assert!(cinema.film.data[from..from + got.len()] == got);
        assert_eq!(now["sessions"][0]["reason"], "ranges over all links", "{now:#}");
    }
}

/// Asserts that every decision log of the folder replays with equal decisions.
fn assert_logs_replay(folder: &std::path::Path) {
    let logs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!logs.is_empty());
    for log in logs {
        let out = Command::new(env!("CARGO_BIN_EXE_marline")).arg("replay").arg(&log).output().unwrap();
        assert!(out.status.success(), "{}: {}", log.display(), String::from_utf8_lossy(&out.stderr));
    }
}
