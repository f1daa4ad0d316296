//! The socket of an mpv: what it says goes to the sessions of the URL that it plays.
//!
//! In: a path. Out: [`Sessions::stands`], at every change and twice a second.
//!
//! The socket may appear later than the proxy and go with each mpv: it is looked for once a second, for ever. mpv is
//! told nothing but what is wanted to know of it.

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::time::MissedTickBehavior;

use super::mpv::MpvState;
use super::session::Sessions;

/// Listens to whatever mpv has this socket, for ever.
pub(super) async fn run(sessions: Rc<Sessions>, path: &Path) {
    loop {
        if let Ok(stream) = UnixStream::connect(path).await {
            tracing::info!(socket = %path.display(), "mpv");
            if let Err(error) = run_connection(&sessions, stream).await {
                tracing::info!(socket = %path.display(), %error, "mpv is gone");
            }
        }
        tokio::time::sleep(RECONNECT_INTERVAL).await;
    }
}

async fn run_connection(sessions: &Sessions, mut stream: UnixStream) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    write.write_all(MpvState::observe_commands().as_bytes()).await?;
    let mut lines = BufReader::new(read);
    let (mut state, mut line) = (MpvState::default(), Vec::new());
    let mut report_timer = tokio::time::interval(REPORT_INTERVAL);
    report_timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // What was read of a line stays in it when the clock comes first.
        let mut line_reader = (&mut lines).take(MAX_LINE - line.len() as u64);
        let bytes_read = tokio::select! {
            read = line_reader.read_until(b'\n', &mut line) => Some(read?),
            _ = report_timer.tick() => None,
        };
        let has_changed = match bytes_read {
            Some(0) => return Ok(()),
            Some(_) => {
                let changed = state.on_line(sessions.now(), &String::from_utf8_lossy(&line));
                line.clear();
                changed
            }
            None => true,
        };
        if let Some((url, report)) = state.report(sessions.now()).filter(|_| has_changed) {
            sessions.on_player_report(url, &report);
        }
    }
}

const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);
const REPORT_INTERVAL: Duration = Duration::from_millis(500);
/// chosen: a path may be long; what is longer is read in parts, which nobody understands.
const MAX_LINE: u64 = 64 * 1024;
