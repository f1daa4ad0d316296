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

use super::mpv::Mpv;
use super::session::Sessions;

/// Listens to whatever mpv has this socket, for ever.
pub(super) async fn run(sessions: Rc<Sessions>, path: &Path) {
    loop {
        if let Ok(stream) = UnixStream::connect(path).await {
            tracing::info!(socket = %path.display(), "mpv");
            if let Err(why) = listen(&sessions, stream).await {
                tracing::info!(socket = %path.display(), %why, "mpv is gone");
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

async fn listen(sessions: &Sessions, mut stream: UnixStream) -> std::io::Result<()> {
    let (read, mut write) = stream.split();
    write.write_all(Mpv::greeting().as_bytes()).await?;
    let mut lines = BufReader::new(read);
    let (mut mpv, mut line) = (Mpv::default(), Vec::new());
    let mut tell = tokio::time::interval(TELL_EVERY);
    tell.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        // What was read of a line stays in it when the clock comes first.
        let mut rest = (&mut lines).take(LONGEST - line.len() as u64);
        let heard = tokio::select! {
            read = rest.read_until(b'\n', &mut line) => Some(read?),
            _ = tell.tick() => None,
        };
        let changed = match heard {
            Some(0) => return Ok(()),
            Some(_) => {
                let changed = mpv.hear(sessions.now(), &String::from_utf8_lossy(&line));
                line.clear();
                changed
            }
            None => true,
        };
        if let Some((url, told)) = mpv.stands(sessions.now()).filter(|_| changed) {
            sessions.stands(url, &told);
        }
    }
}

const AGAIN: Duration = Duration::from_secs(1);
const TELL_EVERY: Duration = Duration::from_millis(500);
/// chosen: a path may be long; what is longer is read in parts, which nobody understands.
const LONGEST: u64 = 64 * 1024;
