//! Waits for the disk so that the pump need not.
//!
//! One thread with a small stack, made when the first sync is asked for (never, for a download of less than a few
//! seconds), and one sync at a time. The pump asks with [`Syncer::start`] and looks for the answer with
//! [`Syncer::result`] whenever it has a moment; nothing wakes it, because nothing is urgent about a sync.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

use marline_net::atomic_file::sync_directory;

/// What the thread needs: three system calls deep.
const STACK_SIZE: usize = 64 * 1024;

#[derive(Debug, Default)]
pub(super) struct FsyncThread {
    thread: Option<SyncThread>,
    /// The result of a sync that had to be done without the thread.
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
        // As `Disk::sync`.
        self.file.sync_all()
    }
}

impl FsyncThread {
    /// Asks for a sync. Must not be called before the result of the last one was taken.
    pub(super) fn start(&mut self, file: Arc<File>, dir: Option<PathBuf>) {
        let job = SyncJob { file, dir };
        if self.thread.is_none() {
            self.thread = SyncThread::spawn().ok();
        }
        match &mut self.thread {
            Some(thread) if !thread.is_busy && thread.jobs.send(job.clone()).is_ok() => thread.is_busy = true,
            // No thread can be had: a stall is better than a claim without a sync.
            _ => self.inline_result = Some(job.run()),
        }
    }

    /// The result of the last sync, once it is there.
    pub(super) fn poll_result(&mut self) -> Option<io::Result<()>> {
        if let Some(done) = self.inline_result.take() {
            return Some(done);
        }
        let thread = self.thread.as_mut().filter(|thread| thread.is_busy)?;
        let result = match thread.results.try_recv() {
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => Err(io::Error::other("the syncing thread is gone")),
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
