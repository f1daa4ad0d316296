//! A live broadcast through an edge: ffmpeg, unmodified, pushes RTMP; nginx, unmodified, receives it; links fail meanwhile.
//!
//! ```text
//! ffmpeg ─▶ [socat] ─▶ marline edge ═(links)═▶ marline relay ─▶ nginx with its RTMP module
//! ```
//!
//! In: a fleet's setting, what is sent, when which link fails. Out: a [`Broadcast`]: whether every packet arrived, how long
//! nothing did, what each link carried.
//!
//! 1. ffmpeg knows no proxies for RTMP; socat, unmodified as well, hands its connection to the edge with CONNECT. Behind an
//!    edge that is a LAN's gateway ([`Through::Lan`]) there is no socat, and ffmpeg knows of nothing.
//! 2. A link fails in one of two ways: its device goes down, of which the kernel hears ([`How::Carrier`]), or it loses
//!    everything without a word ([`How::Silent`]).
//! 3. A stall belongs to a failure if it lies between its beginning and [`AFTERMATH`] after its end, or the next failure.
//! 4. After the last packet was sent the recording has [`DRAIN`] without a new packet to come to its end.

mod compare;
mod encoder;
mod flv;
mod ingest;

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use marline_sim::spec::{Change, LinkSpec};
use serde::Serialize;

use crate::fleet::{EDGE, Fleet, Member, Setting, Through};
use crate::network::SERVER;
use crate::{Emulation, Lab, LabError};
use compare::{Received, Seen, delay, stall};
pub(crate) use encoder::Show;
pub(crate) use ingest::check_installed;
use ingest::{Ingest, Recorded};

/// How a link fails.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum How {
    /// Its device goes down.
    Carrier,
    /// It loses everything, and nobody says so.
    Silent,
}

impl How {
    /// In tables.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Carrier => "carrier lost",
            Self::Silent => "silent",
        }
    }
}

/// A failure of a link.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Cut {
    /// Since the start of the stream.
    pub(crate) at: Duration,
    /// It works again after this.
    pub(crate) length: Duration,
    /// Which link, by its place.
    pub(crate) link: usize,
    pub(crate) how: How,
}

/// Two failures in a stream of this length: the first link, then the second one, each for a sixth of it.
pub(crate) fn two_cuts(length: Duration, how: [How; 2]) -> [Cut; 2] {
    let [first, second] = how;
    let cut = |at: f64, link, how| Cut { at: length.mul_f64(at), length: length / 6, link, how };
    [cut(0.25, 0, first), cut(0.6, 1, second)]
}

/// What a failure cost.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Felt {
    pub(crate) link: String,
    pub(crate) how: How,
    /// When it began, since the stream's start.
    pub(crate) at_s: f64,
    /// The longest time in which nothing arrived.
    pub(crate) stall_s: f64,
}

/// What came of a broadcast.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Broadcast {
    #[serde(flatten)]
    pub(crate) received: Received,
    /// By ffmpeg's own account.
    pub(crate) dropped: Option<u64>,
    /// How far the encoder fell behind the camera, at most.
    pub(crate) behind_s: f64,
    /// The longest time in which nothing arrived.
    pub(crate) stall_s: f64,
    /// What a viewer's buffer must hold so as not to notice.
    pub(crate) delay_s: f64,
    pub(crate) cuts: Vec<Felt>,
    /// Each link's bytes from the client, in the order of the links.
    pub(crate) links: Vec<(String, u64)>,
    /// The same in slots of 100 ms ([`Emulation::SLOT`]) since the stream's start, and after them the packets that arrived.
    pub(crate) timeline: Vec<Vec<u64>>,
    /// RTMP connections that ended before the stream did.
    pub(crate) disconnects: usize,
    /// The relay that it went through, as the edge says.
    pub(crate) relay: Option<String>,
    /// Why ffmpeg gave up, if it did.
    pub(crate) failed: Option<String>,
    /// Why the figures should not be trusted, if so.
    pub(crate) suspect: Option<String>,
}

impl Broadcast {
    /// Whether every frame was sent and received over one connection.
    pub(crate) fn is_whole(&self) -> bool {
        self.received.is_whole() && self.disconnects == 0 && self.failed.is_none() && self.dropped == Some(0)
    }

    /// A link's share of all bytes from the client.
    pub(crate) fn share(&self, at: usize) -> f64 {
        let all: u64 = self.links.iter().map(|(_, bytes)| bytes).sum();
        self.links.get(at).map_or(0.0, |(_, bytes)| *bytes as f64 / all.max(1) as f64)
    }
}

/// Broadcasts. None: the user wants an end.
pub(crate) fn broadcast(setting: &Setting<'_>, show: Show, cuts: &[Cut]) -> Result<Option<Broadcast>, LabError> {
    let fleet = Fleet::start(setting)?;
    let lab = fleet.lab();
    let ingest = Ingest::start(lab, fleet.folder())?;
    let (_forwarder, host) = match setting.through {
        Through::Proxy => (Some(forwarder(lab, &fleet)?), FORWARDER.to_owned()),
        Through::Lan => (None, SERVER.to_string()),
    };
    let before = lab.emulation()?;
    let progress = fleet.folder().join("progress");
    let url = format!("rtmp://{host}/live/camera");
    let mut command = encoder::command(show, &url, &progress);
    let began = Instant::now();
    let child = fleet.spawn(&mut command);
    let mut ffmpeg = Encoder(child.map_err(|source| LabError::Start { program: "ffmpeg".into(), source })?);
    let said = encoder_said(&mut ffmpeg.0);
    let sent = ffmpeg.0.stdout.take().map(encoder::collect);
    if !fail(lab, setting.links, cuts, &mut ffmpeg.0, began, show.length + PATIENCE)? {
        return Ok(None);
    }
    let status = ffmpeg.0.wait().map_err(LabError::at("ffmpeg's end"))?;
    let sent = sent
        .and_then(|sent| sent.recv_timeout(PATIENCE).ok())
        .unwrap_or_else(|| Err("ffmpeg sends nothing".into()));
    let sent = sent.map_err(LabError::Server)?;
    drain(&ingest, sent.len());
    let recorded = ingest.end().map_err(LabError::Server)?;
    let said = said.recv_timeout(PATIENCE).unwrap_or_default();
    let failed = (!status.success())
        .then(|| format!("ffmpeg: {status}: {}", said.trim().lines().last().unwrap_or_default()));
    let dropped = encoder::dropped(&std::fs::read_to_string(&progress).unwrap_or_default());
    let after = lab.emulation()?;
    let relay = fleet.used().map(|at| format!("relay-{}", at + 1));
    let links = carried(&before, &after);
    let timeline = timeline(&after, began - fleet.zero(), &recorded, began);
    let late = after.lateness.max;
    let suspect = after.suspect().or_else(|| (late > TOO_LATE).then(|| format!("a packet was {late:.1?} late")));
    let cuts = felt(setting.links, cuts, &recorded, began);
    Ok(Some(told(
        &sent,
        recorded,
        Broadcast {
            received: Received::default(),
            dropped,
            behind_s: delay(&sent).as_secs_f64(),
            stall_s: 0.0,
            delay_s: 0.0,
            cuts,
            links,
            timeline,
            disconnects: 0,
            relay,
            failed,
            suspect,
        },
    )))
}

/// Fills in what both ends together say.
fn told(sent: &[Seen], recorded: Recorded, rest: Broadcast) -> Broadcast {
    let all = &recorded.packets;
    let whole = all.first().zip(all.last()).map(|(first, last)| stall(all, first.at, last.at));
    Broadcast {
        received: Received::of(sent, all),
        stall_s: whole.unwrap_or_default().as_secs_f64(),
        delay_s: delay(all).as_secs_f64(),
        disconnects: recorded.connections.saturating_sub(1) + usize::from(rest.failed.is_some()),
        ..rest
    }
}

fn felt(links: &[LinkSpec], cuts: &[Cut], recorded: &Recorded, began: Instant) -> Vec<Felt> {
    let one = |(at, cut): (usize, &Cut)| {
        let from = began + cut.at;
        let next = cuts.get(at + 1).map_or(Duration::MAX, |next| next.at);
        let until = began + (cut.at + cut.length + AFTERMATH).min(next);
        let stall = stall(&recorded.packets, from, until);
        let link = links.get(cut.link).map_or("?", |link| &link.name).to_owned();
        Felt { link, how: cut.how, at_s: cut.at.as_secs_f64(), stall_s: stall.as_secs_f64() }
    };
    cuts.iter().enumerate().map(one).collect()
}

/// Bytes of IP packets that reached the server over each link between both.
fn carried(before: &Emulation, after: &Emulation) -> Vec<(String, u64)> {
    let up = |emulation: &Emulation, at: usize| -> u64 {
        emulation.links.get(at).map_or(0, |link| link.up_timeline.iter().map(|slot| slot.bytes()).sum())
    };
    let one =
        |(at, link): (usize, &crate::LinkRun)| (link.name.clone(), up(after, at).saturating_sub(up(before, at)));
    after.links.iter().enumerate().map(one).collect()
}

/// See [`Broadcast::timeline`]; `offset` lies between the links' clock and the stream's start.
fn timeline(after: &Emulation, offset: Duration, recorded: &Recorded, began: Instant) -> Vec<Vec<u64>> {
    let slot = |time: Duration| (time.as_secs_f64() / Emulation::SLOT.as_secs_f64()) as usize;
    let link =
        |link: &crate::LinkRun| link.up_timeline.iter().skip(slot(offset)).map(|size| size.bytes()).collect();
    let mut all: Vec<Vec<u64>> = after.links.iter().map(link).collect();
    let mut arrived = Vec::new();
    for seen in &recorded.packets {
        let at = slot(seen.at.saturating_duration_since(began));
        if arrived.len() <= at {
            arrived.resize(at + 1, 0);
        }
        if let Some(slot) = arrived.get_mut(at) {
            *slot += 1;
        }
    }
    all.push(arrived);
    all
}

/// Lets links fail and work again at their times, until ffmpeg ends; false: the user wants an end.
fn fail(
    lab: &Lab,
    links: &[LinkSpec],
    cuts: &[Cut],
    ffmpeg: &mut Child,
    began: Instant,
    limit: Duration,
) -> Result<bool, LabError> {
    let mut todo: Vec<(Duration, &Cut, bool)> =
        cuts.iter().flat_map(|cut| [(cut.at, cut, false), (cut.at + cut.length, cut, true)]).collect();
    todo.sort_by_key(|(at, ..)| *at);
    let mut todo = todo.into_iter().peekable();
    while ffmpeg.try_wait().map_err(LabError::at("ffmpeg"))?.is_none() {
        if marline_sys::signal::caught().is_some() {
            return Ok(false);
        }
        if began.elapsed() > limit {
            // Its end is told as a failure of its own.
            let _ = ffmpeg.kill();
        }
        while let Some((_, cut, works)) = todo.next_if(|(at, ..)| *at <= began.elapsed()) {
            let Some(link) = links.get(cut.link) else { continue };
            match cut.how {
                How::Carrier => lab.set_device(&link.name, works)?,
                How::Silent => lab.change(&link.name, if works { Change::Back } else { Change::Down })?,
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Rule 4.
fn drain(ingest: &Ingest, sent: usize) {
    let (mut count, mut since) = (ingest.count(), Instant::now());
    while count < sent && since.elapsed() < DRAIN {
        std::thread::sleep(Duration::from_millis(20));
        if ingest.count() != count {
            (count, since) = (ingest.count(), Instant::now());
        }
    }
}

/// Rule 1.
fn forwarder(lab: &Lab, fleet: &Fleet) -> Result<Member, LabError> {
    let (edge, port) = EDGE.split_once(':').unwrap_or_default();
    let mut command = Command::new("socat");
    // One way may last longer than the other; and it says when it listens.
    command.args(["-dd", "-t", "60", &format!("TCP-LISTEN:1935,bind={FORWARDER},fork,reuseaddr")]);
    command.arg(format!("PROXY:{edge}:{SERVER}:1935,proxyport={port}"));
    Member::start("socat", fleet.folder(), &mut command, |command| lab.spawn(command))?.ready("listening on")
}

fn encoder_said(ffmpeg: &mut Child) -> std::sync::mpsc::Receiver<String> {
    let (done, said) = std::sync::mpsc::channel();
    if let Some(mut errors) = ffmpeg.stderr.take() {
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = std::io::Read::read_to_string(&mut errors, &mut text);
            let _ = done.send(text);
        });
    }
    said
}

/// A running ffmpeg, which does not outlast its broadcast.
struct Encoder(Child);

impl Drop for Encoder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Where socat listens, at the client's end.
const FORWARDER: &str = "127.0.0.1";
/// A pause of the machine that counts in a stall.
const TOO_LATE: Duration = Duration::from_millis(200);
/// chosen: longer than both floors for stalls together.
const AFTERMATH: Duration = Duration::from_secs(4);
/// chosen: longer than TCP's longest pause over a link that works.
const DRAIN: Duration = Duration::from_secs(10);
/// chosen: an encoder that is so much later than its stream has been given up by its network.
const PATIENCE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_failures_lie_within_the_stream_and_apart() {
        let [first, second] = two_cuts(Duration::from_secs(60), [How::Carrier, How::Silent]);
        assert_eq!((first.at, first.length), (Duration::from_secs(15), Duration::from_secs(10)));
        assert!(first.at + first.length < second.at && second.at + second.length < Duration::from_secs(60));
        assert_ne!(first.link, second.link);
    }

    #[test]
    fn a_broadcast_is_whole_only_if_nothing_is_wrong() {
        let good = Broadcast {
            received: Received { packets_sent: 2, packets_received: 2, ..Received::default() },
            dropped: Some(0),
            behind_s: 0.0,
            stall_s: 0.0,
            delay_s: 0.0,
            cuts: Vec::new(),
            links: vec![("a".into(), 30), ("b".into(), 10)],
            timeline: Vec::new(),
            disconnects: 0,
            relay: None,
            failed: None,
            suspect: None,
        };
        assert!(good.is_whole() && good.share(0) == 0.75 && good.share(2) == 0.0);
        let missing = Received { missing: 1, ..good.received };
        for bad in [
            Broadcast { received: missing, ..good.clone() },
            Broadcast { dropped: Some(1), ..good.clone() },
            Broadcast { dropped: None, ..good.clone() },
            Broadcast { disconnects: 1, ..good.clone() },
            Broadcast { failed: Some("x".into()), ..good.clone() },
        ] {
            assert!(!bad.is_whole(), "{bad:?}");
        }
    }
}
