//! Syncs files in a background thread, so that the driver does not wait for the disk.
//!
//! One thread with a small stack, started with the first sync (never, for a download of less than a few seconds),
//! runs one sync at a time. The driver starts one with [`FsyncThread::start`] and polls for the result with
//! [`FsyncThread::poll_result`]. The result wakes no task, because nothing waits for it urgently.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use marline_net::atomic_file::sync_directory;

/// Enough for a thread that is three system calls deep.
const STACK_SIZE: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct FsyncThread {
    thread: Option<SyncThread>,
    /// Result of a sync that was done without the thread.
    inline_result: Option<io::Result<()>>,
}

#[derive(Debug)]
struct SyncThread {
    jobs: SyncSender<SyncJob>,
    results: Receiver<io::Result<()>>,
    is_busy: bool,
}

#[derive(Clone, Debug)]
struct SyncJob {
    file: Arc<File>,
    dir: Option<PathBuf>,
}

impl SyncJob {
    fn run(&self) -> io::Result<()> {
        self.dir.as_deref().map_or(Ok(()), sync_directory)?;
        // fsync, like `FileSystem::sync`.
        self.file.sync_all()
    }
}

impl FsyncThread {
    /// Starts a sync. The result of the previous one must have been taken.
    pub(super) fn start(&mut self, file: Arc<File>, dir: Option<PathBuf>) {
        let job = SyncJob { file, dir };
        if self.thread.is_none() {
            self.thread = SyncThread::spawn().ok();
        }
        match &mut self.thread {
            Some(thread) if !thread.is_busy && thread.jobs.send(job.clone()).is_ok() => thread.is_busy = true,
            // No thread could be started: a stall is better than a `synced` record without a sync.
            _ => self.inline_result = Some(job.run()),
        }
    }

    /// The result of the last sync, once it has finished.
    pub(super) fn poll_result(&mut self) -> Option<io::Result<()>> {
        if let Some(done) = self.inline_result.take() {
            return Some(done);
        }
        let thread = self.thread.as_mut().filter(|thread| thread.is_busy)?;
        let result = match thread.results.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the sync thread has ended")),
            Ok(result) => result,
        };
        thread.is_busy = false;
        Some(result)
    }
}

impl SyncThread {
    fn spawn() -> io::Result<Self> {
        let (jobs, inbox) = sync_channel::<SyncJob>(1);
        let (outbox, results) = sync_channel(1);
        std::thread::Builder::new().name("marline-sync".into()).stack_size(STACK_SIZE).spawn(move || {
            for job in inbox {
                if outbox.send(job.run()).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { jobs, results, is_busy: false })
    }
}
