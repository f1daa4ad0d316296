//! Reads the state of an mpv from its IPC socket, and reports it with the URL that it plays.
//!
//! Passes on a report at every change and twice a second. The socket may appear after the proxy and
//! disappear with each mpv, so the proxy tries to connect once a second, indefinitely. It sends mpv nothing but
//! requests to observe properties.

use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::MissedTickBehavior;
use url::Url;

use super::mpv::MpvState;
use super::report::PlayerReport;
use crate::clock::Clock;

/// Connects to the socket again and again. Never returns.
pub(crate) async fn run(clock: Clock, path: &Path, on_report: impl Fn(&Url, &PlayerReport)) {
    loop {
        if let Ok(stream) = UnixStream::connect(path).await {
            tracing::info!(socket = %path.display(), "connected to mpv");
            if let Err(error) = run_connection(clock, stream, &on_report).await {
                tracing::info!(socket = %path.display(), %error, "connection to mpv failed");
            }
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

async fn run_connection(
    clock: Clock,
    mut stream: UnixStream,
    on_report: &impl Fn(&Url, &PlayerReport),
) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    write.write_all(MpvState::observe_commands().as_bytes()).await?;
    let mut lines = BufReader::new(read);
    let (mut state, mut line) = (MpvState::default(), Vec::new());
    let mut report_timer = tokio::time::interval(REPORT_INTERVAL);
    report_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // If the timer fires first, the part of the line that was read stays in `line`.
        let mut line_reader = (&mut lines).take(MAX_LINE - line.len() as u64);
        let bytes_read = tokio::select! {
            read = line_reader.read_until(b'\n', &mut line) => Some(read?),
            _ = report_timer.tick() => None,
        };
        let has_changed = match bytes_read {
            Some(0) => return Ok(()),
            Some(_) => {
                let changed = state.on_line(clock.now(), &String::from_utf8_lossy(&line));
                line.clear();
                changed
            }
            None => true,
        };
        if let Some((url, report)) = state.report(clock.now()).filter(|_| has_changed) {
            on_report(url, &report);
        }
    }
}

const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// Our choice: longer than any path. Longer lines are read in parts, which are then not valid JSON.
const MAX_LINE: u64 = 64 * 1024;
