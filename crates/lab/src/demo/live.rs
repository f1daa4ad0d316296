//! `marline-lab demo live`: a live broadcast over three uplinks, none of which is fast enough alone; two of them
//! fail during the broadcast.
//!
//! 1. Besides marline only unmodified ffmpeg, socat and nginx take part, as distributions package them; see
//!    [`crate::live`].
//! 2. The device of the first link goes down after a quarter of the stream. The second link drops all packets after
//!    three fifths. Each outage lasts a sixth of the stream. `--cut none` disables both.
//! 3. The exit code is 0 if every packet that ffmpeg sent was recorded, in order and over one RTMP connection, and
//!    ffmpeg dropped no frame; otherwise 1. The length of the stall is printed but does not affect the exit code,
//!    because machines differ.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use marline_core::units::{Bitrate, DataSize};
use marline_sim::spec::LinkSpec;
use serde_json::json;

use crate::fleet::{EdgeAccess, FleetConfig, RelayAssignment};
use crate::html_report::Table;
use crate::live::{self, Broadcast, BroadcastConfig, FailureMode, LinkFailure, broadcast, two_failures};
use crate::result_file::ResultFile;
use crate::results::{Backend, HostInfo};
use crate::runner::command::{notice, prepare_run, print_line};
use crate::{Congestion, LabError};

/// Options of `marline-lab demo live`.
#[derive(Clone, Debug, Args)]
pub(super) struct LiveArgs {
    /// Length of the stream in seconds.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u32).range(4..))]
    seconds: u32,
    /// An uplink; repeatable [default: three of 4 Mbit/s up].
    #[arg(long = "link", visible_alias = "links", value_name = "LINK", num_args = 1..)]
    links: Vec<LinkSpec>,
    /// Rate of video and audio together.
    #[arg(long, value_name = "RATE", default_value = "5200kbit/s")]
    bitrate: Bitrate,
    /// How the first and then the second link fail.
    #[arg(long = "cut", value_enum, default_value_t = FailureChoice::Both)]
    failures: FailureChoice,
    /// Number of relays.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..9))]
    relays: u8,
    /// Who selects the relay: the fleet service, or the command line of the edge.
    #[arg(long = "assign", value_enum, default_value_t = DEFAULT_ASSIGNMENT)]
    relay_assignment: RelayAssignment,
    /// How ffmpeg reaches the edge: through socat and the edge's proxy, or transparently, in a LAN whose gateway is
    /// the edge.
    #[arg(long = "through", value_enum, default_value_t = DEFAULT_ACCESS)]
    edge_access: EdgeAccess,
    /// Congestion control of client and server: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: Congestion,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Default of the relay assignment.
const DEFAULT_ASSIGNMENT: RelayAssignment = RelayAssignment::Fleet;
/// Default of the edge access.
const DEFAULT_ACCESS: EdgeAccess = EdgeAccess::Lan;

/// How the two links fail.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
enum FailureChoice {
    /// No failures.
    None,
    /// Their devices go down.
    Carrier,
    /// They drop all packets; the kernel is not notified.
    Silent,
    /// The first device goes down; the second link drops all packets.
    Both,
}

/// Default links. Each has 4 Mbit/s up, so that no single link carries the stream and any two do.
const DEFAULT_LINKS: [&str; 3] = [
    "wifi,rate=12Mbit/s,up=4Mbit/s,rtt=30ms",
    "lte-a,rate=20Mbit/s,up=4Mbit/s,rtt=50ms",
    "lte-b,rate=20Mbit/s,up=4Mbit/s,rtt=80ms",
];

/// Runs the demonstration and returns the exit code.
pub(super) fn run(args: &LiveArgs) -> Result<u8, LabError> {
    let mut links = args.links.clone();
    if links.is_empty() {
        links = DEFAULT_LINKS.iter().map(|spec| spec.parse().expect("the default links parse")).collect();
    }
    let broadcast_config = BroadcastConfig { length: Duration::from_secs(args.seconds.into()), rate: args.bitrate };
    let failures = failures(args.failures, broadcast_config.length, links.len())?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    live::check_installed()?;
    let program = crate::program::marline()?;
    announce(args, &links, &failures);
    let config = FleetConfig {
        links: &links,
        relays: args.relays,
        assignment: args.relay_assignment,
        access: args.edge_access,
        congestion: args.congestion,
        seed: 1,
        program: Path::new(&program),
    };
    let Some(broadcast) = broadcast(&config, broadcast_config, &failures)? else {
        notice("interrupted");
        return Ok(130);
    };
    print_line(&format!("\n{}", table(&broadcast).to_text()));
    if let Some(file) = file {
        let command: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
        let record = json!({
            "command": command,
            "seed": config.seed,
            "version": env!("CARGO_PKG_VERSION"),
            "machine": HostInfo::current(),
            "links": links.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "bitrate_bps": args.bitrate.bits_per_sec(),
            "seconds": args.seconds,
            "complete": broadcast.is_complete(),
            "broadcast": broadcast,
        });
        file.write(&format!("{record:#}\n"))?;
    }
    let is_complete = broadcast.is_complete();
    print_line(if is_complete {
        "All packets that were sent were received."
    } else {
        "NOT all packets that were sent were received."
    });
    Ok(u8::from(!is_complete))
}

/// The failures of the first and the second link.
fn failures(choice: FailureChoice, length: Duration, links: usize) -> Result<Vec<LinkFailure>, LabError> {
    let modes = match choice {
        FailureChoice::None => return Ok(Vec::new()),
        FailureChoice::Carrier => [FailureMode::CarrierLost; 2],
        FailureChoice::Silent => [FailureMode::Silent; 2],
        FailureChoice::Both => [FailureMode::CarrierLost, FailureMode::Silent],
    };
    if links < 2 {
        return Err(LabError::Spec("two links fail in turn: give two or more with --link, or --cut none".into()));
    }
    Ok(two_failures(length, modes).to_vec())
}

fn announce(args: &LiveArgs, links: &[LinkSpec], failures: &[LinkFailure]) {
    let link_lines: Vec<String> = links.iter().map(|link| format!("  {link}")).collect();
    print_line(&format!(
        "{} s of live video at {}, pushed by ffmpeg over RTMP through marline edge and one of {} relays to nginx:\n{}",
        args.seconds,
        args.bitrate,
        args.relays,
        link_lines.join("\n")
    ));
    for failure in failures {
        let name = links.get(failure.link).map_or("?", |link| &link.name);
        let (start_s, end_s) = (failure.at.as_secs_f64(), (failure.at + failure.length).as_secs_f64());
        print_line(&format!("  from {start_s:.0} s to {end_s:.0} s {name} fails ({})", failure.mode.name()));
    }
}

fn table(broadcast: &Broadcast) -> Table {
    let received = &broadcast.received;
    let row = |label: &str, value: String| vec![label.to_owned(), value];
    let mut rows = vec![
        row("frames sent", received.frames_sent.to_string()),
        row("frames received", received.frames_received.to_string()),
        row("packets sent, with sound", received.packets_sent.to_string()),
        row("packets missing or changed", received.missing.to_string()),
        row("packets received but not sent", received.unexpected.to_string()),
        row(
            "frames dropped by the encoder",
            broadcast.dropped_frames.map_or("unknown".into(), |frames| frames.to_string()),
        ),
        row("largest lag of the encoder behind the camera", format!("{:.2} s", broadcast.encoder_lag_s)),
        row("RTMP disconnects", broadcast.disconnects.to_string()),
        row("longest stall at the receiver", format!("{:.2} s", broadcast.stall_s)),
        row("delay that a player must buffer", format!("{:.2} s", broadcast.required_buffer_s)),
    ];
    for impact in &broadcast.failures {
        let label = format!("stall when {} failed ({})", impact.link, impact.mode.name());
        rows.push(row(&label, format!("{:.2} s", impact.stall_s)));
    }
    for (index, (name, bytes)) in broadcast.links.iter().enumerate() {
        let share = broadcast.link_share(index) * 100.0;
        rows.push(row(&format!("over {name}"), format!("{share:.1} %, {}", DataSize::from_bytes(*bytes))));
    }
    rows.push(row("relay", broadcast.relay.clone().unwrap_or_else(|| "none: directly".into())));
    let notes = [("failed", &broadcast.failed), ("suspect", &broadcast.unreliable_reason)];
    rows.extend(notes.iter().filter_map(|(label, reason)| Some(row(label, reason.as_ref()?.clone()))));
    Table { header: ["what", "value"].map(str::to_owned).to_vec(), rows, note: None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_link_carries_the_default_stream_and_any_two_do() {
        let links: Vec<LinkSpec> = DEFAULT_LINKS.iter().map(|spec| spec.parse().unwrap()).collect();
        assert_eq!(links.len(), 3);
        assert!(DEFAULT_LINKS.iter().all(|words| words.contains("up=4Mbit/s")));
        // An MTU of 1500 carries 1448 bytes of TCP payload; 2 % are headers of TLS and RTMP.
        let needed = 5.2 * 1500.0 / 1448.0 * 1.02;
        assert!(needed > 4.0 * 1.3 && needed < 8.0 * 0.85);
    }

    #[test]
    fn a_single_link_cannot_fail_in_turn() {
        let length = Duration::from_secs(10);
        assert!(failures(FailureChoice::Both, length, 1).is_err());
        assert!(failures(FailureChoice::None, length, 1).unwrap().is_empty());
        let both = failures(FailureChoice::Both, length, 3).unwrap();
        assert_eq!((both[0].mode, both[1].mode), (FailureMode::CarrierLost, FailureMode::Silent));
    }
}
