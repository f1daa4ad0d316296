//! Random histories of downloads, kills, power failures, full and failing disks, on a model of a file system.
//!
//! After each crash the file is opened again, and three things must hold, whatever happened before. Every recorded
//! byte is stored. The final name refers to a complete file or an older one. A kill costs no more than the bytes
//! that were not recorded yet.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;

use marline_core::fetch::{RangeSet, Resume, Validator};
use marline_core::units::{DataSize, Instant};
use proptest::prelude::*;

use super::fake_fs::{FakeFs, TestRng};
use super::partial_file::PartialFile;
use super::paths::DownloadPaths;
use super::{StoreError, resume};

const TOTAL: u64 = 6 << 20;
const URL_DIGEST: [u8; 32] = [7; 32];

#[derive(Clone, Debug)]
enum Step {
    /// The next piece of a connection arrives.
    Write { conn: u8, len: u32 },
    /// Time passes.
    Tick { millis: u16 },
    /// The file changes on the server.
    Change,
    /// kill -9, with or without dropping the page cache.
    Kill { caches: bool },
    /// The power fails.
    PowerFailure,
    /// The user interrupts the run (SIGINT).
    Suspend,
    /// The disk becomes full after `free_bytes` more bytes, which ends the run.
    DiskFull { free_bytes: u32 },
    /// The next sync fails.
    FailNextSync,
    /// All missing bytes arrive.
    Finish,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        30 => (0..4_u8, 1..300_000_u32).prop_map(|(conn, len)| Step::Write { conn, len }),
        20 => (0..2500_u16).prop_map(|millis| Step::Tick { millis }),
        1 => Just(Step::Change),
        3 => any::<bool>().prop_map(|caches| Step::Kill { caches }),
        4 => Just(Step::PowerFailure),
        1 => Just(Step::Suspend),
        1 => (0..400_000_u32).prop_map(|free_bytes| Step::DiskFull { free_bytes }),
        1 => Just(Step::FailNextSync),
        1 => Just(Step::Finish),
    ]
}

/// Contents of the file's `version` on the server. No byte is zero, so that a hole is visible. The period is a
/// prime, so that no two pages are equal.
fn content(version: u64, start: u64, end: u64) -> Vec<u8> {
    const PERIOD: u64 = 65_521;
    static TABLE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let rng = TestRng::new(5);
        (0..PERIOD).map(|_| rng.next_below(255) as u8 + 1).collect()
    });
    let mut from = (start + version * 7919) % PERIOD;
    let mut bytes = Vec::with_capacity((end - start) as usize);
    while (bytes.len() as u64) < end - start {
        let len = (PERIOD - from).min(end - start - bytes.len() as u64);
        bytes.extend_from_slice(&TABLE[from as usize..(from + len) as usize]);
        from = 0;
    }
    bytes
}

/// The state of the server, the disk, and one run of the program.
struct CrashHistory {
    fs: FakeFs,
    part: Option<PartialFile<FakeFs>>,
    version: u64,
    now: Instant,
    /// Next byte of each connection.
    cursors: [u64; 4],
    /// Ranges that this run considers stored.
    stored: RangeSet,
    /// Whether no run has ended with an error (a failed sync) since the file was last complete. Otherwise a kill may cost
    /// more bytes.
    no_run_failed: bool,
    /// Ranges that were on the disk at the last power failure, and so must survive the next one.
    durable: RangeSet,
}

fn path() -> &'static Path {
    Path::new("/d/file")
}

impl CrashHistory {
    fn new(seed: u64) -> Self {
        let fs = FakeFs::new(seed);
        fs.write_file(path(), &content(0, 0, 1000));
        let mut history = Self {
            fs,
            part: None,
            version: 1,
            now: Instant::ZERO,
            cursors: [0, 1, 2, 3].map(|i| i * TOTAL / 4),
            stored: RangeSet::default(),
            no_run_failed: true,
            durable: RangeSet::default(),
        };
        history.reopen();
        history
    }

    fn validator(&self) -> Validator {
        Validator::Etag(format!("\"{}\"", self.version))
    }

    /// Starts a new run, and checks the state that it finds.
    fn reopen(&mut self) {
        self.part = None;
        self.fs.kill();
        self.check_final_name();
        let open = || PartialFile::open(self.fs.clone(), DownloadPaths::new(path(), 255), &[URL_DIGEST]);
        // A failing sync may affect the opening. The second attempt finds what is left.
        let (mut part, found) = open().or_else(|_| open()).unwrap();
        let (resume, _) = resume::ExistingDownload::into_resume(found, &[URL_DIGEST]);
        let stored = resume.as_ref().map(|resume| self.check(resume)).unwrap_or_default();
        match resume {
            Some(resume) if resume.validator != self.validator() => part.restart().unwrap(),
            Some(_) => self.stored = stored,
            None => self.stored = RangeSet::default(),
        }
        if part.on_identified(Some(DataSize::from_bytes(TOTAL)), Some(&self.validator())).is_err() {
            panic!("the file cannot be identified");
        }
        self.part = Some(part);
    }

    /// Checks that every recorded byte is stored.
    fn check(&self, resume: &Resume) -> RangeSet {
        let version: u64 = resume.validator.if_range_value().trim_matches('"').parse().unwrap();
        let stored = self.fs.bytes(Path::new("/d/file.part")).unwrap();
        for span in &resume.ranges {
            let (start, end) = (span.start as usize, span.end as usize);
            assert!(stored[start..end] == content(version, span.start, span.end), "{span} is not there");
        }
        resume.ranges.iter().copied().collect()
    }

    fn check_final_name(&self) {
        let Some(bytes) = self.fs.bytes(path()) else { panic!("the older file is gone") };
        let is_old = bytes == content(0, 0, 1000);
        let is_complete = || (1..=self.version).any(|version| bytes == content(version, 0, TOTAL));
        assert!(is_old || is_complete(), "half a file under the final name: {} bytes", bytes.len());
    }

    fn write_range(&mut self, start: u64, end: u64) -> Result<(), StoreError> {
        let bytes = content(self.version, start, end);
        let Some(part) = &mut self.part else { return Ok(()) };
        part.write(start, &bytes)?;
        self.stored.insert(marline_core::fetch::ByteRange::new(start, end));
        Ok(())
    }

    fn apply(&mut self, step: &Step) {
        let done = match *step {
            Step::Write { conn, len } => self.receive(conn, len),
            Step::Tick { millis } => {
                self.now += Duration::from_millis(u64::from(millis));
                self.part.as_mut().map_or(Ok(()), |part| part.tick(self.now))
            }
            Step::Change => {
                self.version += 1;
                self.part.as_mut().unwrap().restart().unwrap();
                self.stored = RangeSet::default();
                self.durable = RangeSet::default();
                let (total, validator) = (DataSize::from_bytes(TOTAL), self.validator());
                self.part.as_mut().unwrap().on_identified(Some(total), Some(&validator))
            }
            Step::Kill { caches } => {
                let before = self.stored.len();
                if caches {
                    self.fs.drop_caches();
                }
                self.reopen();
                let lost = before - self.stored.len();
                assert!(!self.no_run_failed || lost < DataSize::from_mib(4), "{lost} lost by a kill");
                Ok(())
            }
            Step::PowerFailure => {
                self.cut_power();
                Ok(())
            }
            Step::Suspend => {
                let (part, before) = (self.part.take().unwrap(), self.stored.len());
                match part.suspend() {
                    Ok(resumed) => {
                        self.cut_power();
                        assert_eq!(resumed, !before.is_zero());
                        assert_eq!(self.stored.len(), before, "lost although it was made safe");
                    }
                    Err(_) => self.fail_sync(),
                }
                Ok(())
            }
            Step::DiskFull { free_bytes } => {
                self.fs.set_free_space(Some(u64::from(free_bytes)));
                let mut conn = 0;
                while self.stored.missing_before(TOTAL) > DataSize::ZERO && self.receive(conn, 200_000).is_ok() {
                    conn = (conn + 1) % 4;
                }
                // If the disk is full and fails as well, the journal cannot be rewritten, so no byte is certain to
                // survive.
                if matches!(self.part.take().unwrap().suspend(), Err(StoreError::SyncFailed { .. })) {
                    self.durable = RangeSet::default();
                }
                self.fs.set_free_space(None);
                self.fs.stop_failing();
                self.reopen();
                Ok(())
            }
            Step::FailNextSync => {
                self.fs.fail_next_sync();
                Ok(())
            }
            Step::Finish => self.finish(),
        };
        if done.is_err() {
            self.fail_sync();
        }
    }

    /// The power fails. Bytes that survived one failure must survive the next.
    fn cut_power(&mut self) {
        self.fs.cut_power();
        self.reopen();
        let safe = std::mem::replace(&mut self.durable, self.stored.clone());
        assert!(safe.iter().all(|span| self.stored.end_of_run(span.start) >= span.end), "lost from the disk");
    }

    /// The run ends after an error, a failed sync, as the driver would end it, and the page cache is dropped.
    fn fail_sync(&mut self) {
        self.no_run_failed = false;
        self.durable = RangeSet::default();
        if let Some(part) = self.part.take() {
            let _ = part.suspend();
        }
        self.fs.stop_failing();
        self.fs.drop_caches();
        self.reopen();
    }

    fn receive(&mut self, conn: u8, len: u32) -> Result<(), StoreError> {
        let conn = usize::from(conn);
        let Some(gap) = self.stored.next_gap(self.cursors[conn], TOTAL).or_else(|| self.stored.next_gap(0, TOTAL))
        else {
            return Ok(());
        };
        let end = gap.end.min(gap.start + u64::from(len));
        self.cursors[conn] = end % TOTAL;
        self.write_range(gap.start, end)
    }

    fn finish(&mut self) -> Result<(), StoreError> {
        while let Some(gap) = self.stored.next_gap(0, TOTAL) {
            self.write_range(gap.start, gap.end.min(gap.start + 250_000))?;
        }
        let mut part = self.part.take().unwrap();
        part.complete_and_sync()?;
        part.publish()?;
        assert!(self.fs.bytes(path()).unwrap() == content(self.version, 0, TOTAL));
        let names = self.fs.names();
        assert_eq!(names, [path()], "no other file is left");
        self.version += 1;
        self.no_run_failed = true;
        self.durable = RangeSet::default();
        self.reopen();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn every_recorded_byte_is_stored_after_any_history(seed: u64, steps in prop::collection::vec(step(), 1..60)) {
        let mut history = CrashHistory::new(seed);
        for step in &steps {
            history.apply(step);
        }
        history.fs.stop_failing();
        while history.finish().is_err() {
            history.fail_sync();
        }
    }
}

#[test]
fn a_kill_at_any_write_costs_less_than_four_mebibytes() {
    for seed in 0..50 {
        let rng = TestRng::new(seed);
        let mut history = CrashHistory::new(seed);
        for _ in 0..5 + rng.next_below(60) {
            history.apply(&Step::Write { conn: rng.next_below(4) as u8, len: 100_000 });
            history.apply(&Step::Tick { millis: 20 });
        }
        history.apply(&Step::Kill { caches: rng.next_below(2) == 0 });
    }
}
