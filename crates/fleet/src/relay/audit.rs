//! Audit log of the relay: one JSON line for each flow that an edge requests, carried or refused.
//!
//! A thread of its own writes. Flows pass their records through a bounded queue and never wait. If the disk is full or too slow, records
//! are lost, the relay continues, and the next written line states how many are missing. A line is written completely or not at all.
//!
//! Only the owner may read the file (mode 0600), because it shows which edge has reached which host. After the file was renamed,
//! [`AuditLog::reopen`] (SIGHUP) starts a new one.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use marline_net::printable::printable;
use marline_net::private_file::append_log;
use serde::Serialize;

use crate::ca::UtcSeconds;
use crate::identity::Name;
use crate::tunnel::{Problem, Target};

/// Records that wait for the disk. Our choice: one second of a busy relay, some megabytes.
const QUEUE_LEN: usize = 8192;

/// One flow, from its request to its end.
#[derive(Debug, Serialize)]
pub(super) struct FlowRecord {
    /// When the edge requested the flow, in UTC.
    time: String,
    edge: Name,
    /// `HOST:PORT`; none: the request could not be parsed.
    target: Option<String>,
    /// The address that the relay has connected to, or that a rule has refused.
    pub(super) address: Option<SocketAddr>,
    verdict: Verdict,
    /// The rule that has refused the flow, or the error type of RFC 9209; none: the flow was carried.
    pub(super) rule: Option<&'static str>,
    /// The error text of a refusal, or why a carried flow was interrupted.
    reason: Option<String>,
    up_bytes: u64,
    down_bytes: u64,
    duration_ms: u64,
    #[serde(skip)]
    started_at: Instant,
}

#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Allowed,
    Refused,
    /// The rules allow the flow, but it could not be carried.
    Failed,
}

impl FlowRecord {
    /// A flow of this edge that begins now.
    pub(super) fn new(edge: &Name) -> Self {
        Self {
            time: UtcSeconds::now().to_string(),
            edge: edge.clone(),
            target: None,
            address: None,
            verdict: Verdict::Allowed,
            rule: None,
            reason: None,
            up_bytes: 0,
            down_bytes: 0,
            duration_ms: 0,
            started_at: Instant::now(),
        }
    }

    pub(super) fn set_target(&mut self, target: &Target) {
        self.target = Some(target.authority());
    }

    /// Records the problem with which the relay has responded.
    pub(super) fn set_refused(&mut self, problem: &Problem) {
        use crate::tunnel::Status;
        self.verdict = match problem.status {
            Status::BadGateway | Status::GatewayTimeout | Status::RequestTimeout => Verdict::Failed,
            _ => Verdict::Refused,
        };
        self.rule = self.rule.or(Some(problem.error));
        self.reason = Some(problem.details.clone());
    }

    /// Records the carried bytes; `broken`: the error that interrupted the flow.
    pub(super) fn set_carried(&mut self, [up, down]: [u64; 2], broken: Option<&io::Error>) {
        (self.up_bytes, self.down_bytes) = (up, down);
        self.reason = broken.map(ToString::to_string);
    }
}

enum Message {
    Record(Box<FlowRecord>),
    Reopen,
    Stop,
}

/// The audit log. [`AuditLog::finish`] writes the waiting records and ends it.
#[derive(Debug)]
pub struct AuditLog {
    queue: SyncSender<Message>,
    lost: Arc<AtomicU64>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Message")
    }
}

impl AuditLog {
    /// Appends to this file, and creates it if necessary.
    ///
    /// # Errors
    /// The file cannot be opened, or another user could have created it.
    pub fn open(path: &Path) -> io::Result<Arc<Self>> {
        let (queue, records) = sync_channel(QUEUE_LEN);
        let lost = Arc::new(AtomicU64::new(0));
        let writer = Writer {
            path: path.to_owned(),
            file: Some(append_log(path)?),
            lost: Arc::clone(&lost),
            is_failing: false,
        };
        let writer = std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(&records))?;
        Ok(Arc::new(Self { queue, lost, writer: Mutex::new(Some(writer)) }))
    }

    /// Reopens the file by its name, after the old file was renamed.
    pub fn reopen(&self) {
        // If the queue is full, the disk does not respond; the request is dropped, and SIGHUP must be repeated.
        let _ = self.queue.try_send(Message::Reopen);
    }

    /// Writes the waiting records and stops the thread.
    pub fn finish(&self) {
        if self.queue.send(Message::Stop).is_ok()
            && let Some(writer) = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take()
        {
            let _ = writer.join();
        }
    }

    pub(super) fn write(&self, mut flow: FlowRecord) {
        flow.duration_ms = u64::try_from(flow.started_at.elapsed().as_millis()).unwrap_or(u64::MAX);
        if let Err(TrySendError::Full(_)) = self.queue.try_send(Message::Record(Box::new(flow))) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

struct Writer {
    path: PathBuf,
    file: Option<File>,
    /// Records that could not be written since the last successful write.
    lost: Arc<AtomicU64>,
    is_failing: bool,
}

impl Writer {
    fn run(mut self, records: &Receiver<Message>) {
        while let Ok(message) = records.recv() {
            match message {
                Message::Record(flow) => self.write_record(&flow),
                Message::Reopen => self.reopen(),
                Message::Stop => return,
            }
        }
    }

    fn reopen(&mut self) {
        match append_log(&self.path) {
            Ok(file) => self.file = Some(file),
            Err(error) => self.note_failure(&error),
        }
    }

    fn write_record(&mut self, flow: &FlowRecord) {
        if self.file.is_none() {
            self.reopen();
        }
        let lost = self.lost.swap(0, Ordering::Relaxed);
        let mut text = String::new();
        if lost > 0 {
            let time = UtcSeconds::now();
            text += &format!("{{\"time\":\"{time}\",\"verdict\":\"lost\",\"count\":{lost}}}\n");
        }
        // Hosts are validated and error texts are the relay's own; JSON escapes all other characters.
        text += &printable(&serde_json::to_string(flow).unwrap_or_default());
        text.push('\n');
        match self.append(text.as_bytes()) {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    tracing::warn!(
                        "audit log {}: writing succeeds again; the log states how many records were lost",
                        self.path.display()
                    );
                }
            }
            Err(error) => {
                self.lost.fetch_add(lost + 1, Ordering::Relaxed);
                self.note_failure(&error);
            }
        }
    }

    /// Appends the bytes; after a failure the file is cut back to its previous length.
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let file = self.file.as_mut().ok_or(io::ErrorKind::NotFound)?;
        let old_len = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        let written = file.write_all(bytes);
        if let (Err(_), Some(before)) = (&written, old_len) {
            let _ = file.set_len(before);
        }
        written
    }

    /// Logs a failure once, until writing succeeds again.
    fn note_failure(&mut self, error: &io::Error) {
        if !std::mem::replace(&mut self.is_failing, true) {
            tracing::warn!(
                "audit log {}: {error}: records are lost until writing succeeds; the relay continues",
                self.path.display()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(host: &str) -> FlowRecord {
        let mut flow = FlowRecord::new(&"cam-7".parse().unwrap());
        flow.set_target(&Target { host: host.to_owned(), port: 443 });
        flow
    }

    fn lines(path: &Path) -> Vec<serde_json::Value> {
        std::fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn after_a_rename_a_new_file_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let (path, rotated) = (dir.path().join("audit"), dir.path().join("audit.1"));
        let log = AuditLog::open(&path).unwrap();
        log.write(flow("a.example"));
        while !path.exists() || lines(&path).is_empty() {
            std::thread::yield_now();
        }
        std::fs::rename(&path, &rotated).unwrap();
        log.reopen();
        log.write(flow("b.example"));
        log.finish();
        assert_eq!(lines(&rotated)[0]["target"], "a.example:443");
        assert_eq!(lines(&path)[0]["target"], "b.example:443");
    }

    #[test]
    fn a_full_disk_loses_lines_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("audit");
        let lost = Arc::new(AtomicU64::new(0));
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut writer =
            Writer { path: path.clone(), file: Some(full), lost: Arc::clone(&lost), is_failing: false };
        writer.write_record(&flow("a.example"));
        writer.write_record(&flow("b.example"));
        assert_eq!((lost.load(Ordering::Relaxed), writer.is_failing), (2, true));
        writer.reopen();
        writer.write_record(&flow("c.example"));
        let lines = lines(&path);
        assert_eq!((&lines[0]["verdict"], &lines[0]["count"]), (&"lost".into(), &2.into()));
        assert_eq!((&lines[1]["target"], writer.is_failing), (&"c.example:443".into(), false));
    }

    #[test]
    fn a_full_queue_delays_no_flow() {
        let (queue, lines) = sync_channel(1);
        let log = AuditLog { queue, lost: Arc::default(), writer: Mutex::new(None) };
        for _ in 0..100 {
            log.write(flow("a.example"));
        }
        assert_eq!(log.lost.load(Ordering::Relaxed), 99);
        drop(lines);
    }
}
