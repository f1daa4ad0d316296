//! The few things that a download asks of a file system, and the real one.
//!
//! Small on purpose: each method is one system call with one clear promise about crashes, so that a model can make
//! and break the same promises (see `model`), and the discipline of [`super::part`] is tested against the worst
//! file system that POSIX allows.
//!
//! 1. What [`Disk::write_at`] has put in place survives the process, not the power.
//! 2. [`Disk::sync`] returns when all that was written to the file before the call survives the power as well.
//! 3. A name made, moved or removed survives the power after [`Disk::sync_dir`]; before, each may or may not.
//! 4. [`Disk::mark`] goes with the file, whatever its name is.
//! 5. No method follows a symbolic link in the last part of a name: what somebody else has put there is not ours.
//! 6. [`Disk::rename`] replaces the new name at once: after any crash it names either the old file or the new one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_core::wire::journal::Life;
use rustix::fs::{AtFlags, CWD, FallocateFlags, FlockOperation, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;

use super::syncer::Syncer;

/// File systems that reserve extents in a millisecond: ext4, XFS, F2FS. Measured for 512 MB in pieces of 64 KiB, CPU
/// without and with: ext4 0.14 to 0.24 s and 0.10 s, 1 ms of it at once. tmpfs, which is not here: 0.18 s and
/// 0.19 s, but 0.14 s of it before the first byte. Btrfs is not here because it would not compress the file.
const RESERVING: [u64; 3] = [0xEF53, 0x5846_5342, 0xF2F5_2010];

/// The attribute that says that an unfinished file is ours, from its first moment: so one that was killed before it had a
/// journal is told from somebody else's file of the same name. An empty journal in its place was not used: it would be
/// one more file to make, sync and remove for every small download.
const MARK: &str = "user.marline.part";

/// `O_NOFOLLOW`, and `O_NONBLOCK`, which means nothing for regular files.
const FOLLOW_NOTHING: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// A file system.
pub(super) trait Disk {
    /// An open file.
    type File;

    /// Opens a regular file for reading and writing; makes it, marked, if it is not there.
    fn open(&self, path: &Path) -> io::Result<Self::File>;
    /// Opens for reading and writing, empty.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Puts our mark on a file; false if this file system has no room for one.
    fn mark(&self, file: &Self::File) -> bool;
    /// Whether our mark is on the file.
    fn is_marked(&self, file: &Self::File) -> bool;
    /// Takes our mark off.
    fn unmark(&self, file: &Self::File);
    /// All bytes of a file, at most `limit` of them; none if it is not there.
    fn read_all(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>>;
    /// Takes the only lock there is on the file; false if somebody has it.
    fn lock(&self, file: &Self::File) -> io::Result<bool>;
    /// Whether the path still names this file.
    fn is_at(&self, file: &Self::File, path: &Path) -> io::Result<bool>;
    /// Puts all the bytes in their place.
    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads some bytes; zero at the end.
    fn read_at(&self, file: &Self::File, at: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// The file's length, and how many bytes of the disk it takes.
    fn len(&self, file: &Self::File) -> io::Result<(u64, u64)>;
    /// Cuts the file, or lengthens it with zeros.
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Waits until the file's bytes and length are on the disk.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// The same, without waiting; one at a time. `dir` first, if there is one.
    fn start_sync(&mut self, file: &Arc<Self::File>, dir: Option<&Path>);
    /// The result of [`Disk::start_sync`], once; none while it runs or when there was none.
    fn synced(&mut self) -> Option<io::Result<()>>;
    /// Waits until the directory's names are on the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Moves a name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Moves a name unless the new one is taken; false if it is.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool>;
    /// Removes a name, if it is there.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// How long unsynced bytes of this file last.
    fn life(&self, file: &Self::File) -> Life;
    /// A number that no other journal has.
    fn nonce(&self) -> u64;
    /// Takes the room for a file of this length, where that costs next to nothing; its length stays.
    fn reserve(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Bytes that this user may still allocate beside the file.
    fn free(&self, file: &Self::File) -> io::Result<u64>;
}

/// The real one.
#[derive(Debug, Default)]
pub(super) struct Os {
    syncer: Syncer,
}

impl Disk for Os {
    type File = File;

    fn open(&self, path: &Path) -> io::Result<File> {
        match options().create_new(true).open(path) {
            Ok(file) => {
                self.mark(&file);
                return Ok(file);
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
        let file = options().create(true).truncate(false).open(path)?;
        if file.metadata()?.is_file() { Ok(file) } else { Err(Errno::NOTSUP.into()) }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        options().create(true).truncate(true).open(path)
    }

    fn mark(&self, file: &File) -> bool {
        rustix::fs::fsetxattr(file, MARK, b"1", XattrFlags::empty()).is_ok()
    }

    fn is_marked(&self, file: &File) -> bool {
        rustix::fs::fgetxattr(file, MARK, &mut [0_u8; 16]).is_ok()
    }

    fn unmark(&self, file: &File) {
        // Where there is none, nothing is to be done; and a complete file is none the worse for it.
        let _ = rustix::fs::fremovexattr(file, MARK);
    }

    fn read_all(&self, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
        use std::io::Read;
        let read = OpenOptions::new().read(true).custom_flags(FOLLOW_NOTHING).open(path);
        let file = match read {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mut bytes = Vec::new();
        file.take(limit).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn lock(&self, file: &File) -> io::Result<bool> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            // Some network file systems have no locks; better to go on than to refuse.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    fn is_at(&self, file: &File, path: &Path) -> io::Result<bool> {
        let (ours, theirs) = (file.metadata()?, std::fs::symlink_metadata(path));
        Ok(theirs.is_ok_and(|theirs| (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino())))
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        file.write_all_at(bytes, at)
    }

    fn read_at(&self, file: &File, at: u64, bytes: &mut [u8]) -> io::Result<usize> {
        file.read_at(bytes, at)
    }

    fn len(&self, file: &File) -> io::Result<(u64, u64)> {
        let meta = file.metadata()?;
        Ok((meta.len(), meta.blocks().saturating_mul(512)))
    }

    fn truncate(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn start_sync(&mut self, file: &Arc<File>, dir: Option<&Path>) {
        self.syncer.start(file.clone(), dir.map(PathBuf::from));
    }

    fn synced(&mut self) -> Option<io::Result<()>> {
        self.syncer.result()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_dir(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool> {
        match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            // Not every file system can do both in one step; there the look comes first.
            Err(Errno::INVAL | Errno::NOSYS) if to.symlink_metadata().is_ok() => Ok(false),
            Err(Errno::INVAL | Errno::NOSYS) => std::fs::rename(from, to).map(|()| true),
            Err(e) => Err(e.into()),
        }
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(()),
        }
    }

    fn life(&self, file: &File) -> Life {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes();
        let namespace = std::fs::metadata("/proc/self/ns/mnt").map_or(0, |meta| meta.ino());
        let mount = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        Life { boot, namespace, mount: mount.map_or(0, |found| found.stx_mnt_id) }
    }

    fn nonce(&self) -> u64 {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        u64::try_from(since).unwrap_or_default().rotate_left(16) ^ u64::from(std::process::id())
    }

    fn reserve(&self, file: &File, len: u64) -> io::Result<()> {
        if !RESERVING.contains(&u64::try_from(rustix::fs::fstatfs(file)?.f_type).unwrap_or_default()) {
            return Ok(());
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
            // An ext4 without extents.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn free(&self, file: &File) -> io::Result<u64> {
        let fs = rustix::fs::fstatvfs(file)?;
        // One without any blocks (ramfs, some in user space) does not count them.
        Ok(if fs.f_blocks == 0 { u64::MAX } else { fs.f_bavail.saturating_mul(fs.f_frsize) })
    }
}

/// For reading and writing. Never waits for the other end of a pipe.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(FOLLOW_NOTHING);
    options
}

/// Waits until a directory's names are on the disk. File systems that cannot do that (some in user space) say
/// EINVAL; nothing more can be had from them.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    match File::open(dir)?.sync_all() {
        Err(e) if e.kind() == io::ErrorKind::InvalidInput => Ok(()),
        done => done,
    }
}
