//! The few things that a download asks of a file system, and the real one.
//!
//! Small on purpose: each method is one system call with one clear promise about crashes, so that a model can make
//! and break the same promises (see `model`), and the discipline of [`super::part`] is tested against the worst
//! file system that POSIX allows.
//!
//! 1. What [`Disk::write_at`] has put in place survives the process, not the power.
//! 2. [`Disk::sync`] returns when all that was written to the file before the call survives the power as well.
//! 3. A name made, moved or removed survives the power after [`Disk::sync_dir`]; before, each may or may not.
//! 4. [`Disk::mark`] and [`Disk::tag`] go with the file, whatever its name is. A tag survives the power after the next
//!    [`Disk::sync`] of the file.
//! 5. No method follows a symbolic link in the last part of a name: what somebody else has put there is not ours.
//! 6. [`Disk::rename`] replaces the new name at once: after any crash it names either the old file or the new one.
//! 7. What a file is and whose it is ([`Custody`]) is read from the open file, not from its name.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use marline_core::units::DataSize;
use marline_core::wire::download_journal::PageCacheEpoch;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FlockOperation, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags,
};
use rustix::io::Errno;
use sha2::{Digest, Sha256};

#[cfg(test)]
use super::fs_quirks;
use super::fsync_thread::FsyncThread;
use super::mac_key::{KeyError, MacKey};
use marline_net::atomic_file::sync_directory;
use marline_net::random::random;

/// File systems that reserve extents in a millisecond: ext4, XFS, F2FS. Measured for 512 MB in pieces of 64 KiB, CPU
/// without and with: ext4 0.14 to 0.24 s and 0.10 s, 1 ms of it at once. tmpfs, which is not here: 0.18 s and
/// 0.19 s, but 0.14 s of it before the first byte. Btrfs is not here because it would not compress the file.
const PREALLOCATING_FS: [u64; 3] = [0xEF53, 0x5846_5342, 0xF2F5_2010];

/// The attribute that says that an unfinished file is ours, from its first moment: so one that was killed before it had a
/// journal is told from somebody else's file of the same name. An empty journal in its place was not used: it would be
/// one more file to make, sync and remove for every small download. Its value is [`MARKED`], or the file's tag.
const PART_XATTR: &str = "user.marline.part";
const PART_XATTR_VALUE: &[u8] = b"1";

/// File systems whose inode numbers may change with each mount: FAT, exFAT, and those in user space.
const UNSTABLE_INODE_FS: [u64; 3] = [FAT_MAGIC, 0x2011_BAB0, 0x6573_5546];

/// FAT (msdos and vfat).
const FAT_MAGIC: u64 = 0x4d44;

/// File systems that are known to take writes at any offset: ext4, XFS, F2FS, Btrfs, tmpfs, ramfs, overlayfs, NFS, FAT,
/// exFAT, NTFS, ZFS. Others are tried with a write beyond the end.
const RANDOM_WRITE_FS: [u64; 12] = [
    0xEF53,
    0x5846_5342,
    0xF2F5_2010,
    0x9123_683E,
    0x0102_1994,
    0x8584_58F6,
    0x794C_7630,
    0x6969,
    FAT_MAGIC,
    0x2011_BAB0,
    0x7366_746E,
    0x2FC1_2FC1,
];
/// Where that write goes.
const PROBE_OFFSET: u64 = 4096;

/// Mode of files that are not finished: another user must not be able to change what is already in place. The complete
/// file has the mode of any new file.
pub(super) const PART_MODE: u32 = 0o644;

/// `O_NOFOLLOW`, and `O_NONBLOCK`, which means nothing for regular files.
pub(super) const NOFOLLOW_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// Who could have written a file that was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ownership {
    /// This user alone.
    Private,
    /// It is this user's, but others could have written to it. The text completes "…, so it is not trusted".
    Shared(&'static str),
    /// It is none of ours: no regular file, or another user's.
    Foreign(&'static str),
}

/// Why a file of some length cannot be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SizeLimit {
    FatFile,
    FileSystem,
    /// The most that this process may write to one file.
    Process(u64),
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FatFile => f.write_str("FAT takes only files of less than 4 GiB"),
            Self::FileSystem => f.write_str("the file system takes only smaller files"),
            Self::Process(max_len) => {
                write!(f, "this process may write only {} to a file (ulimit -f)", DataSize::from_bytes(*max_len))
            }
        }
    }
}

/// A file system.
pub(super) trait FileSystem {
    /// An open file.
    type File;

    /// Opens a regular file for reading and writing; makes it, marked, if it is not there, and says whether it did.
    fn open(&self, path: &Path) -> io::Result<(Self::File, bool)>;
    /// Makes a file for reading and writing. An error if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Who could have written the file.
    fn ownership(&self, file: &Self::File) -> io::Result<Ownership>;
    /// Puts our mark on a file, or leaves the one that is there; false if this file system has no room for one.
    fn set_mark(&self, file: &Self::File) -> bool;
    /// Whether our mark is on the file.
    fn is_marked(&self, file: &Self::File) -> bool;
    /// Makes the mark one that no other file has. Without effect where there is no room for marks.
    fn set_tag(&self, file: &Self::File);
    /// What tells this file from all others as long as it exists: its tag, or else its inode; zero if it has neither.
    fn file_id(&self, file: &Self::File) -> [u8; 16];
    /// The file is complete: takes our mark off, and gives it the mode that a new file has in this directory.
    fn finalize(&self, file: &Self::File, dir: &Path);
    /// The key of this user.
    fn user_key(&self) -> Result<MacKey, KeyError>;
    /// All bytes of a file, at most `limit` of them, and who could have written them; none if it is not there.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Option<(Vec<u8>, Ownership)>>;
    /// Takes the only lock there is on the file; false if somebody has it.
    fn lock(&self, file: &Self::File) -> io::Result<bool>;
    /// Whether the path still names this file.
    fn is_at_path(&self, file: &Self::File, path: &Path) -> io::Result<bool>;
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
    fn poll_sync(&mut self) -> Option<io::Result<()>>;
    /// Waits until the directory's names are on the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Moves a name.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Moves a name unless the new one is taken; false if it is.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool>;
    /// Removes a name, if it is there.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// How long unsynced bytes of this file last.
    fn page_cache_epoch(&self, file: &Self::File) -> PageCacheEpoch;
    /// A number that no other journal has.
    fn nonce(&self) -> u64;
    /// Takes the room for a file of this length, where that costs next to nothing; its length stays.
    fn preallocate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Bytes that this user may still allocate beside the file.
    fn free_bytes(&self, file: &Self::File) -> io::Result<u64>;
    /// Why the file cannot have this length; none: it can, as far as is known beforehand.
    fn size_limit(&self, file: &Self::File, len: u64) -> Option<SizeLimit>;
    /// How many bytes a name may have in this directory.
    fn max_name_len(&self, dir: &Path) -> usize;
    /// Whether a file of this name could be made; an error if the file system does not take the name.
    fn probe_name(&self, path: &Path) -> io::Result<()>;
    /// Whether an empty file takes writes at any offset. The file stays empty.
    fn supports_random_writes(&self, file: &Self::File) -> bool;
}

/// The real one.
#[derive(Debug, Default)]
pub(super) struct OsFileSystem {
    syncer: FsyncThread,
}

impl OsFileSystem {
    /// Whether a file with our mark has this name.
    pub(super) fn is_marked_at(path: &Path) -> bool {
        let file = OpenOptions::new().read(true).custom_flags(NOFOLLOW_FLAGS).open(path);
        file.is_ok_and(|file| Self::default().is_marked(&file))
    }
}

impl FileSystem for OsFileSystem {
    type File = File;

    fn open(&self, path: &Path) -> io::Result<(File, bool)> {
        match self.create(path) {
            Ok(file) => {
                self.set_mark(&file);
                Ok((file, true))
            }
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok((open_options().open(path)?, false)),
            Err(e) => Err(e),
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        #[cfg(test)]
        fs_quirks::check_name(path)?;
        #[cfg(test)]
        if fs_quirks::current_quirks().forbids_read_write {
            return Err(Errno::INVAL.into());
        }
        open_options().create_new(true).mode(PART_MODE).open(path)
    }

    fn ownership(&self, file: &File) -> io::Result<Ownership> {
        file_ownership(file)
    }

    fn set_mark(&self, file: &File) -> bool {
        matches!(
            rustix::fs::fsetxattr(file, PART_XATTR, PART_XATTR_VALUE, XattrFlags::CREATE),
            Ok(()) | Err(Errno::EXIST)
        )
    }

    fn is_marked(&self, file: &File) -> bool {
        let mut tag = [0_u8; 16];
        let len = rustix::fs::fgetxattr(file, PART_XATTR, &mut tag);
        len == Ok(tag.len()) || len == Ok(PART_XATTR_VALUE.len()) && tag.starts_with(PART_XATTR_VALUE)
    }

    fn set_tag(&self, file: &File) {
        // Where that fails, the inode has to do.
        let _ = random::<16>().map(|tag| rustix::fs::fsetxattr(file, PART_XATTR, &tag, XattrFlags::empty()));
    }

    fn file_id(&self, file: &File) -> [u8; 16] {
        let mut tag = [0_u8; 16];
        if rustix::fs::fgetxattr(file, PART_XATTR, &mut tag) == Ok(tag.len()) {
            return tag;
        }
        let renumbered = rustix::fs::fstatfs(file).map(|fs| UNSTABLE_INODE_FS.contains(&fs_magic(&fs)));
        let flags = StatxFlags::INO | StatxFlags::BTIME;
        match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags) {
            Ok(found) if renumbered == Ok(false) => {
                // An inode number is used again; together with the time of birth it is not. The device's number is
                // left out: it changes from boot to boot.
                let mut digest = Sha256::new();
                digest.update(found.stx_ino.to_le_bytes());
                digest.update(found.stx_btime.tv_sec.to_le_bytes());
                digest.update(found.stx_btime.tv_nsec.to_le_bytes());
                *digest.finalize().first_chunk().unwrap_or(&tag)
            }
            _ => [0; 16],
        }
    }

    fn finalize(&self, file: &File, dir: &Path) {
        // Where there is none, nothing is to be done; and a complete file is none the worse for it.
        let _ = rustix::fs::fremovexattr(file, PART_XATTR);
        // The kernel says which mode a new file gets here: by the umask, or by the directory's default ACL.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let probe = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o666)).map(File::from);
        let mode = |file: &File| file.metadata().map(|meta| meta.mode() & 0o777);
        let public = probe.ok().and_then(|probe| mode(&probe).ok()).or_else(|| Some(0o666 & !umask()?));
        if let Some(public) = public.filter(|public| mode(file).is_ok_and(|now| now != *public)) {
            let _ = file.set_permissions(PermissionsExt::from_mode(public));
        }
    }

    fn user_key(&self) -> Result<MacKey, KeyError> {
        MacKey::load()
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Option<(Vec<u8>, Ownership)>> {
        use std::io::Read;
        let read = OpenOptions::new().read(true).custom_flags(NOFOLLOW_FLAGS).open(path);
        let file = match read {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let custody = file_ownership(&file)?;
        let mut bytes = Vec::new();
        if !matches!(custody, Ownership::Foreign(_)) {
            file.take(limit).read_to_end(&mut bytes)?;
        }
        Ok(Some((bytes, custody)))
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

    fn is_at_path(&self, file: &File, path: &Path) -> io::Result<bool> {
        let (own, at_path) = (file.metadata()?, std::fs::symlink_metadata(path));
        Ok(at_path.is_ok_and(|at_path| (at_path.dev(), at_path.ino()) == (own.dev(), own.ino())))
    }

    fn write_at(&self, file: &File, at: u64, bytes: &[u8]) -> io::Result<()> {
        #[cfg(test)]
        if let Some(errno) =
            fs_quirks::current_quirks().seek_errno.filter(|_| file.metadata().is_ok_and(|meta| meta.len() != at))
        {
            return Err(errno.into());
        }
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
        // Not fdatasync: the tag is metadata, and a file that grows needs its metadata anyway.
        file.sync_all()
    }

    fn start_sync(&mut self, file: &Arc<File>, dir: Option<&Path>) {
        self.syncer.start(file.clone(), dir.map(PathBuf::from));
    }

    fn poll_sync(&mut self) -> Option<io::Result<()>> {
        self.syncer.poll_result()
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        sync_directory(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        #[cfg(test)]
        if fs_quirks::current_quirks().forbids_rename {
            return Err(Errno::NOSYS.into());
        }
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

    fn page_cache_epoch(&self, file: &File) -> PageCacheEpoch {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let digits: String = boot.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).unwrap_or_default().to_be_bytes();
        let namespace = std::fs::metadata("/proc/self/ns/mnt").map_or(0, |meta| meta.ino());
        let mount = rustix::fs::statx(file.as_fd(), "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID);
        PageCacheEpoch {
            boot_id: boot,
            mount_namespace: namespace,
            mount: mount.map_or(0, |found| found.stx_mnt_id),
        }
    }

    fn nonce(&self) -> u64 {
        let since = || std::time::UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        random::<16>().map_or_else(|_| since() as u64, |bytes| u128::from_le_bytes(bytes) as u64)
    }

    fn preallocate(&self, file: &File, len: u64) -> io::Result<()> {
        if !PREALLOCATING_FS.contains(&fs_magic(&rustix::fs::fstatfs(file)?)) {
            return Ok(());
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
            // An ext4 without extents.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn free_bytes(&self, file: &File) -> io::Result<u64> {
        let fs = rustix::fs::fstatvfs(file)?;
        // One without any blocks (ramfs, some in user space) does not count them.
        Ok(if fs.f_blocks == 0 { u64::MAX } else { fs.f_bavail.saturating_mul(fs.f_frsize) })
    }

    fn size_limit(&self, file: &File, len: u64) -> Option<SizeLimit> {
        #[cfg(test)]
        if (1..len).contains(&fs_quirks::current_quirks().max_file_len) {
            return Some(SizeLimit::FileSystem);
        }
        if len > u64::from(u32::MAX) && rustix::fs::fstatfs(file).is_ok_and(|fs| fs_magic(&fs) == FAT_MAGIC) {
            return Some(SizeLimit::FatFile);
        }
        // The kernel compares the offset with the file system's limit; all reads and writes here have their own.
        let beyond = rustix::fs::seek(file, SeekFrom::Start(len)) == Err(Errno::INVAL);
        let max_len = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        match max_len.filter(|max_len| *max_len < len) {
            _ if beyond => Some(SizeLimit::FileSystem),
            most => most.map(SizeLimit::Process),
        }
    }

    fn max_name_len(&self, dir: &Path) -> usize {
        // FAT counts characters and says 1530 bytes; the kernel takes 255 of any name.
        let reported = rustix::fs::statvfs(dir).map_or(0, |fs| fs.f_namemax);
        #[cfg(test)]
        let reported = if fs_quirks::current_quirks().reports_max_name {
            fs_quirks::current_quirks().max_name_len as u64
        } else {
            reported
        };
        if reported == 0 { 255 } else { reported.min(255) as usize }
    }

    fn probe_name(&self, path: &Path) -> io::Result<()> {
        match self.create(path) {
            Ok(_) => self.remove(path),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn supports_random_writes(&self, file: &File) -> bool {
        let is_known = rustix::fs::fstatfs(file).is_ok_and(|fs| RANDOM_WRITE_FS.contains(&fs_magic(&fs)));
        #[cfg(test)]
        let is_known = is_known && fs_quirks::current_quirks().seek_errno.is_none();
        is_known || self.write_at(file, PROBE_OFFSET, b"x").and_then(|()| self.truncate(file, 0)).is_ok()
    }
}

/// The file system's number, which the kernel knows it by (statfs(2)).
fn fs_magic(fs: &rustix::fs::StatFs) -> u64 {
    // 32 bits that are signed on some machines.
    u64::from(fs.f_type as u32)
}

/// See [`Disk::custody`].
fn file_ownership(file: &File) -> io::Result<Ownership> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(Ownership::Foreign("something with this name is there that is no regular file"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Ownership::Foreign("a file with this name is there that belongs to another user"));
    }
    if meta.nlink() > 1 {
        return Ok(Ownership::Shared("it has another name as well (a hard link)"));
    }
    let (mode, others) = (meta.mode() & 0o7777, 0o022);
    if mode & others == 0 {
        return Ok(Ownership::Private);
    }
    // FAT and NTFS show one mode for all files: it says nothing, and it cannot be changed.
    let narrowed = file.set_permissions(PermissionsExt::from_mode(mode & !others));
    if narrowed.is_err() || file.metadata()?.mode() & others != 0 {
        return Ok(Ownership::Private);
    }
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    Ok(Ownership::Shared("other users may write to it"))
}

/// The mask of this process. The system call could only change it, for all threads at once.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// For reading and writing. Never waits for the other end of a pipe.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(NOFOLLOW_FLAGS);
    options
}
