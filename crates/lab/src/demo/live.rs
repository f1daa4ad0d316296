//! `marline-lab demo live`: a live broadcast over three uplinks, none of which could carry it, two of which fail meanwhile.
//!
//! In: links, a rate, a length. Out: a table of what arrived; the exit code says whether it was everything.
//!
//! 1. Nothing but marline, ffmpeg, socat and nginx takes part, each as distributions have it; see [`crate::live`].
//! 2. The first link's device goes down after a quarter of the stream, the second one falls silent after three fifths; each
//!    works again after a sixth. `--cut none` leaves them alone.
//! 3. The exit code is 0 if every packet that ffmpeg sent was recorded, in order, over one RTMP connection, and ffmpeg has
//!    dropped no frame; else 1. How long the stall was is printed and decides nothing: machines differ.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use marline_core::units::{Bitrate, DataSize};
use marline_sim::spec::LinkSpec;
use serde_json::json;

use crate::evidence::{By, Machine};
use crate::fleet::{Assign, Setting, Through};
use crate::live::{self, Broadcast, Cut, How, Show, broadcast, two_cuts};
use crate::page::Table;
use crate::result_file::ResultFile;
use crate::runner::command::{begin, print, say};
use crate::{Congestion, LabError};

/// `marline-lab demo live`.
#[derive(Clone, Debug, Args)]
pub(super) struct LiveArgs {
    /// So long is the stream.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..))]
    seconds: u32,
    /// An uplink; may be given several times [default: three of 4 Mbit/s up].
    #[arg(long = "link", visible_alias = "links", value_name = "LINK", num_args = 1..)]
    links: Vec<LinkSpec>,
    /// Picture and sound together.
    #[arg(long, value_name = "RATE", default_value = "5200kbit/s")]
    bitrate: Bitrate,
    /// How the links fail, the first and then the second one.
    #[arg(long, value_enum, default_value_t = Cuts::Both)]
    cut: Cuts,
    /// Relays.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..9))]
    relays: u8,
    /// Who says which relay is used: the fleet's service, or the edge's command line.
    #[arg(long, value_enum, default_value_t = ASSIGN)]
    assign: Assign,
    /// How ffmpeg reaches the edge: by socat and the edge's proxy, or not knowing of it, in a LAN whose gateway the edge is.
    #[arg(long, value_enum, default_value_t = THROUGH)]
    through: Through,
    /// Congestion control at both ends: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    cc: Congestion,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Who assigns unless told otherwise.
const ASSIGN: Assign = Assign::Fleet;
/// How ffmpeg reaches the edge unless told otherwise.
const THROUGH: Through = Through::Lan;

/// How links fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum Cuts {
    /// They do not.
    None,
    /// Their devices go down.
    Carrier,
    /// They lose everything without a word.
    Silent,
    /// One so, the other one so.
    Both,
}

/// What it is without `--link`: 4 Mbit/s up each, so that none carries the stream and any two do.
const LINKS: [&str; 3] = [
    "wifi,rate=12Mbit/s,up=4Mbit/s,rtt=30ms",
    "lte-a,rate=20Mbit/s,up=4Mbit/s,rtt=50ms",
    "lte-b,rate=20Mbit/s,up=4Mbit/s,rtt=80ms",
];

/// Does it, and gives the exit code.
pub(super) fn run(args: &LiveArgs) -> Result<u8, LabError> {
    let mut links = args.links.clone();
    if links.is_empty() {
        links =
            LINKS.iter().map(|words| words.parse().expect("links that are written here are understood")).collect();
    }
    let show = Show { length: Duration::from_secs(args.seconds.into()), rate: args.bitrate };
    let cuts = cuts(args.cut, show.length, links.len())?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    live::check_installed()?;
    let program = crate::program::marline()?;
    announce(args, &links, &cuts);
    let setting = Setting {
        links: &links,
        relays: args.relays,
        assign: args.assign,
        through: args.through,
        congestion: args.cc,
        seed: 1,
        program: Path::new(&program),
    };
    let Some(broadcast) = broadcast(&setting, show, &cuts)? else {
        say("interrupted");
        return Ok(130);
    };
    print(&format!("\n{}", table(&broadcast).plain()));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command,
            "seed": setting.seed,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": Machine::here(),
            "links": links.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "bitrate_bps": args.bitrate.bits_per_sec(),
            "seconds": args.seconds,
            "whole": broadcast.is_whole(),
            "broadcast": broadcast,
        });
        file.write(&format!("{record:#}\n"))?;
    }
    let good = broadcast.is_whole();
    print(if good {
        "Everything that was sent was received."
    } else {
        "NOT everything that was sent was received."
    });
    Ok(u8::from(!good))
}

fn cuts(cuts: Cuts, length: Duration, links: usize) -> Result<Vec<Cut>, LabError> {
    let how = match cuts {
        Cuts::None => return Ok(Vec::new()),
        Cuts::Carrier => [How::Carrier; 2],
        Cuts::Silent => [How::Silent; 2],
        Cuts::Both => [How::Carrier, How::Silent],
    };
    if links < 2 {
        return Err(LabError::Spec(
            "two links fail in turn: name two or more with --link, or say --cut none".into(),
        ));
    }
    Ok(two_cuts(length, how).to_vec())
}

fn announce(args: &LiveArgs, links: &[LinkSpec], cuts: &[Cut]) {
    let links_said: Vec<String> = links.iter().map(|link| format!("  {link}")).collect();
    print(&format!(
        "{} s of live video at {}, pushed by ffmpeg over RTMP through marline edge and one of {} relays to nginx:\n{}",
        args.seconds,
        args.bitrate,
        args.relays,
        links_said.join("\n")
    ));
    for cut in cuts {
        let name = links.get(cut.link).map_or("?", |link| &link.name);
        let (from, to) = (cut.at.as_secs_f64(), (cut.at + cut.length).as_secs_f64());
        print(&format!("  from {from:.0} s to {to:.0} s {name} fails ({})", cut.how.name()));
    }
}

/// What arrived, and what it cost.
fn table(broadcast: &Broadcast) -> Table {
    let received = &broadcast.received;
    let row = |what: &str, value: String| vec![what.to_owned(), value];
    let mut rows = vec![
        row("frames sent", received.frames_sent.to_string()),
        row("frames received", received.frames_received.to_string()),
        row("packets sent, with sound", received.packets_sent.to_string()),
        row("packets missing or changed", received.missing.to_string()),
        row("packets that were not sent so", received.foreign.to_string()),
        row(
            "frames dropped by the encoder",
            broadcast.dropped.map_or("unknown".into(), |frames| frames.to_string()),
        ),
        row("encoder behind the camera, at most", format!("{:.2} s", broadcast.behind_s)),
        row("RTMP disconnects", broadcast.disconnects.to_string()),
        row("longest stall at the receiver", format!("{:.2} s", broadcast.stall_s)),
        row("delay that a viewer must buffer", format!("{:.2} s", broadcast.delay_s)),
    ];
    for felt in &broadcast.cuts {
        let what = format!("stall when {} failed ({})", felt.link, felt.how.name());
        rows.push(row(&what, format!("{:.2} s", felt.stall_s)));
    }
    for (at, (name, bytes)) in broadcast.links.iter().enumerate() {
        let share = broadcast.share(at) * 100.0;
        rows.push(row(&format!("over {name}"), format!("{share:.1} %, {}", DataSize::from_bytes(*bytes))));
    }
    rows.push(row("relay", broadcast.relay.clone().unwrap_or_else(|| "none: directly".into())));
    let doubts = [("failed", &broadcast.failed), ("suspect", &broadcast.suspect)];
    rows.extend(doubts.iter().filter_map(|(what, why)| Some(row(what, why.as_ref()?.clone()))));
    Table { head: ["what", "value"].map(str::to_owned).to_vec(), rows, note: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_carries_the_default_stream_and_any_two_do() {
        let links: Vec<LinkSpec> = LINKS.iter().map(|words| words.parse().unwrap()).collect();
        assert_eq!(links.len(), 3);
        assert!(LINKS.iter().all(|words| words.contains("up=4Mbit/s")));
        // With 1448 of 1500 bytes, RTMP's, TLS's and TCP's heads.
        let needed = 5.2 * 1500.0 / 1448.0 * 1.02;
        assert!(needed > 4.0 * 1.3 && needed < 8.0 * 0.85);
    }

    #[test]
    fn a_single_link_cannot_fail_in_turn() {
        let length = Duration::from_secs(10);
        assert!(cuts(Cuts::Both, length, 1).is_err());
        assert!(cuts(Cuts::None, length, 1).unwrap().is_empty());
        let both = cuts(Cuts::Both, length, 3).unwrap();
        assert_eq!((both[0].how, both[1].how), (How::Carrier, How::Silent));
    }
}
