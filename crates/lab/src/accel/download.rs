//! One download by curl, observed while it runs: how many bytes arrived when, and whether each was correct.
//!
//! 1. Bytes are compared with the file as they arrive, so that a run that is stopped early is judged like a complete
//!    one.
//! 2. A pause lasts from one byte to the next, or to the end of the run; the time before the first byte does not count.
//! 3. curl uses HTTP/1.1: HTTP/2 would add a second window to that of TCP.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::server::Payload;
use crate::{Lab, LabError};

/// Received bytes are counted per time slot of this length.
pub(crate) const SLOT: Duration = Duration::from_millis(50);

/// Progress and result of one download.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Received {
    /// Bytes in each slot since the start of the run.
    pub(crate) slots: Vec<u64>,
    pub(crate) bytes: u64,
    /// The offset of the first byte that differs from the file.
    pub(crate) wrong: Option<u64>,
    pub(crate) is_complete: bool,
    /// When the last byte arrived, since the start of the run.
    pub(crate) last: Option<Duration>,
    /// The longest pause (rule 2).
    pub(crate) pause: Duration,
    /// Error of the socket that ended the download early.
    pub(crate) error: Option<String>,
}

impl Received {
    /// Mean goodput in Mbit/s between two times since the start of the run, by whole slots.
    pub(crate) fn mbps(&self, from: Duration, to: Duration) -> f64 {
        let slot = |at: Duration| (at.as_nanos() / SLOT.as_nanos()) as usize;
        let bytes: u64 = self.slots.iter().take(slot(to)).skip(slot(from)).sum();
        bytes as f64 * 8e-6 / to.saturating_sub(from).as_secs_f64().max(1e-3)
    }

    /// Why it is no result.
    pub(crate) fn problem(&self) -> Option<String> {
        match (self.wrong, &self.error) {
            (Some(at), _) => Some(format!("byte {at} is not the file's")),
            (None, Some(error)) => Some(error.clone()),
            (None, None) => (self.bytes == 0).then(|| "nothing came".to_owned()),
        }
    }

    fn take(&mut self, at: Duration, part: &[u8], file: &File, expected: &mut Vec<u8>) -> io::Result<()> {
        expected.resize(part.len(), 0);
        file.read_exact_at(expected, self.bytes)?;
        if self.wrong.is_none() && expected != part {
            let match_len = part.iter().zip(expected.iter()).take_while(|(one, other)| one == other).count();
            self.wrong = Some(self.bytes + match_len as u64);
        }
        let slot = (at.as_nanos() / SLOT.as_nanos()) as usize;
        self.slots.resize(self.slots.len().max(slot + 1), 0);
        self.slots[slot] += part.len() as u64;
        self.bytes += part.len() as u64;
        self.pause = self.pause.max(self.last.map_or(Duration::ZERO, |last| at.saturating_sub(last)));
        self.last = Some(at);
        Ok(())
    }
}

/// A running download. Dropping it kills curl.
#[derive(Debug)]
pub(crate) struct Download {
    child: Child,
    reader: Option<JoinHandle<io::Result<Received>>>,
    zero: Instant,
    /// Stops a reader that does not read from curl.
    stop: Arc<AtomicBool>,
}

impl Download {
    /// A transfer that is observed by another thread, which ends with `stop`.
    pub(super) fn of(
        child: Child,
        reader: JoinHandle<io::Result<Received>>,
        zero: Instant,
        stop: Arc<AtomicBool>,
    ) -> Self {
        Self { child, reader: Some(reader), zero, stop }
    }

    /// Starts curl; times count from `zero`.
    pub(crate) fn start(
        lab: &Lab,
        secure: bool,
        device: Option<&str>,
        payload: &Payload,
        zero: Instant,
    ) -> Result<Self, LabError> {
        let (plain, tls) = lab.urls().ok_or_else(|| LabError::Server("nothing is served".into()))?;
        let mut command = Command::new("curl");
        command.args(["-sS", "--http1.1"]);
        if let Some(authority) = lab.ca_file() {
            command.arg("--cacert").arg(authority);
        }
        if let Some(device) = device {
            command.args(["--interface", device]);
        }
        command.arg(if secure { tls } else { plain });
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |source| LabError::Start { program: "curl".into(), source };
        let mut child = lab.spawn(&mut command).map_err(failed)?;
        let output = child.stdout.take().ok_or_else(|| failed(io::ErrorKind::BrokenPipe.into()))?;
        let path = payload.path();
        let reader = std::thread::spawn(move || follow(output, &path, zero));
        Ok(Self::of(child, reader, zero, Arc::default()))
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.reader.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Stops it, and returns what has arrived.
    pub(crate) fn end(mut self) -> Result<Received, LabError> {
        let by_itself = self.has_ended();
        if !by_itself {
            let _ = self.child.kill();
            self.stop.store(true, Ordering::Relaxed);
        }
        let ended = self.zero.elapsed();
        let broken = || LabError::Emulator("who follows a download has failed".into());
        let received = self.reader.take().and_then(|reader| reader.join().ok()).ok_or_else(broken)?;
        let mut received = received.map_err(LabError::at_step("following a download"))?;
        if by_itself {
            let status = self.child.wait().map_err(LabError::at_step("curl"))?;
            let mut error_text = String::new();
            if let Some(mut errors) = self.child.stderr.take() {
                let _ = errors.read_to_string(&mut error_text);
            }
            received.is_complete = status.success();
            received.error = (!status.success()).then(|| format!("curl: {status}: {}", error_text.trim()));
        } else if let Some(last) = received.last {
            received.pause = received.pause.max(ended.saturating_sub(last));
        }
        Ok(received)
    }
}

impl Drop for Download {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) fn follow(mut output: impl Read, file: &Path, zero: Instant) -> io::Result<Received> {
    let (file, mut received) = (File::open(file)?, Received::default());
    let (mut buffer, mut expected) = (vec![0; 256 * 1024], Vec::new());
    loop {
        match output.read(&mut buffer) {
            Ok(0) => return Ok(received),
            Ok(length) => {
                received.take(zero.elapsed(), buffer.get(..length).unwrap_or_default(), &file, &mut expected)?
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_byte_is_found_and_pauses_are_between_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"0123456789").unwrap();
        let (file, mut expected) = (File::open(&path).unwrap(), Vec::new());
        let mut received = Received::default();
        let mut take = |at: u64, part: &[u8]| received.take(Duration::from_millis(at), part, &file, &mut expected);
        take(120, b"0123").unwrap();
        take(130, b"45").unwrap();
        take(450, b"6x89").unwrap();
        assert!(take(460, b"more").is_err());
        assert_eq!(received.wrong, Some(7));
        assert_eq!(received.slots, [0, 0, 6, 0, 0, 0, 0, 0, 0, 4]);
        assert_eq!(received.pause, Duration::from_millis(320));
        assert!(received.problem().unwrap().contains("byte 7"));
    }

    #[test]
    fn the_rate_is_that_of_the_requested_time() {
        let received = Received { slots: vec![125_000; 40], bytes: 1, ..Received::default() };
        let s = Duration::from_secs;
        assert!((received.mbps(s(0), s(2)) - 20.0).abs() < 1e-9);
        assert!((received.mbps(s(1), s(2)) - 20.0).abs() < 1e-9);
        assert!((received.mbps(s(1), s(3)) - 10.0).abs() < 1e-9);
        assert_eq!(received.problem(), None);
    }
}
