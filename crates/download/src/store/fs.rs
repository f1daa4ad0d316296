//! The file-system operations that a download needs, and their implementation for Linux.
//!
//! The interface is small on purpose: each method is one short operation with one promise about crashes. So a model can
//! keep and break the same promises (`fake_fs`), and the rules of [`super::partial_file`] are tested against the
//! worst file system that POSIX allows.
//!
//! 1. Bytes written by [`FileSystem::write_at`] survive a crash of the process, not a power failure.
//! 2. When [`FileSystem::sync`] returns, all bytes written to the file before the call survive a power failure as
//!    well.
//! 3. A name that was created, renamed or removed survives a power failure after [`FileSystem::sync_dir`]. Before,
//!    each change may or may not survive.
//! 4. [`FileSystem::set_mark`] and [`FileSystem::set_tag`] belong to the file, not to its name. A tag survives a
//!    power failure after the next [`FileSystem::sync`] of the file.
//! 5. No method follows a symbolic link in the last component of a path, because another user may have created it.
//! 6. [`FileSystem::rename`] replaces the target atomically: after any crash the name refers to either the old or
//!    the new file.
//! 7. Type and owner of a file ([`Ownership`]) are read from the open file, not from its path, which could change
//!    in between.

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
use marline_net::random::random_bytes;

/// File systems that allocate extents in a millisecond: ext4, XFS, F2FS. Measured for 512 MB in pieces of 64 KiB,
/// CPU time without and with preallocation: on ext4, 0.14 to 0.24 s and 0.10 s, of which 1 ms is the allocation.
/// tmpfs is not in the list: 0.18 s and 0.19 s, but 0.14 s of that before the first byte. Btrfs is not in the list
/// because it does not compress preallocated files.
const PREALLOCATING_FS: [u64; 3] = [0xEF53, 0x5846_5342, 0xF2F5_2010];

/// Extended attribute that marks an unfinished file as marline's from its creation on. So a file whose run was
/// killed before it had a journal differs from another program's file of the same name. An empty journal as the
/// mark was rejected: it would be one more file to create, sync and remove for every small download. The value is
/// [`PART_XATTR_VALUE`], or the tag of the file.
const PART_XATTR: &str = "user.marline.part";
const PART_XATTR_VALUE: &[u8] = b"1";

/// File systems whose inode numbers may change with each mount: FAT, exFAT, and those in user space (FUSE).
const UNSTABLE_INODE_FS: [u64; 3] = [FAT_MAGIC, 0x2011_BAB0, 0x6573_5546];

/// FAT (msdos and vfat).
const FAT_MAGIC: u64 = 0x4d44;

/// File systems that are known to accept writes at any offset: ext4, XFS, F2FS, Btrfs, tmpfs, ramfs, overlayfs,
/// NFS, FAT, exFAT, NTFS, ZFS. Others are probed with a write beyond the end.
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
/// Offset of the write that probes a file system.
const PROBE_OFFSET: u64 = 4096;

/// Mode of unfinished files: other users must not be able to change bytes that are already stored. The complete
/// file gets the mode of any new file.
pub(super) const PART_MODE: u32 = 0o644;

/// `O_NOFOLLOW`, and `O_NONBLOCK`, which has no effect on regular files but keeps the open of a named pipe from
/// blocking.
pub(super) const NOFOLLOW_FLAGS: i32 = OFlags::NOFOLLOW.union(OFlags::NONBLOCK).bits().cast_signed();

/// Who could have written an existing file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ownership {
    /// Only this user could have written it.
    Private,
    /// The file is this user's, but others could have written to it. The text completes "the file is not trusted:
    /// …".
    Shared(&'static str),
    /// The file is not regular, or belongs to another user. The text names the problem.
    Foreign(&'static str),
}

/// Why a file of some length cannot be stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SizeLimit {
    FatFile,
    FileSystem,
    /// Maximum number of bytes that this process may write to one file (RLIMIT_FSIZE).
    Process(u64),
}

impl fmt::Display for SizeLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::FatFile => f.write_str("FAT stores only files smaller than 4 GiB"),
            Self::FileSystem => f.write_str("the file system stores only smaller files"),
            Self::Process(max_len) => {
                write!(f, "this process may write only {} to a file (ulimit -f)", DataSize::from_bytes(*max_len))
            }
        }
    }
}

/// Operations on a file system.
pub(super) trait FileSystem {
    /// An open file.
    type File;

    /// Opens a regular file for reading and writing. Creates it with the mark if it does not exist, and returns
    /// whether it did.
    fn open(&self, path: &Path) -> io::Result<(Self::File, bool)>;
    /// Creates a file for reading and writing. Fails if the name is taken.
    fn create(&self, path: &Path) -> io::Result<Self::File>;
    /// Who could have written to the file.
    fn ownership(&self, file: &Self::File) -> io::Result<Ownership>;
    /// Sets the mark, or keeps an existing one. False: the file system has no extended attributes.
    fn set_mark(&self, file: &Self::File) -> bool;
    /// Whether the file has the mark.
    fn is_marked(&self, file: &Self::File) -> bool;
    /// Replaces the mark by a unique value. Without effect on file systems without extended attributes.
    fn set_tag(&self, file: &Self::File);
    /// Identifies the file as long as it exists: its tag, otherwise its inode; zero if it has neither.
    fn file_id(&self, file: &Self::File) -> [u8; 16];
    /// Prepares the complete file: removes the mark, and sets the mode that new files have in this directory.
    fn finalize(&self, file: &Self::File, dir: &Path);
    /// The key of this user.
    fn user_key(&self) -> Result<MacKey, KeyError>;
    /// Reads a file, at most `limit` bytes, and determines who could have written it; none: it does not exist.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Option<(Vec<u8>, Ownership)>>;
    /// Takes the exclusive lock of the file without waiting; false: another process holds it.
    fn lock(&self, file: &Self::File) -> io::Result<bool>;
    /// Whether the path still refers to this file.
    fn is_at_path(&self, file: &Self::File, path: &Path) -> io::Result<bool>;
    /// Writes all bytes at an offset.
    fn write_at(&self, file: &Self::File, at: u64, bytes: &[u8]) -> io::Result<()>;
    /// Reads bytes at an offset; zero bytes at the end.
    fn read_at(&self, file: &Self::File, at: u64, bytes: &mut [u8]) -> io::Result<usize>;
    /// The length of the file, and the number of bytes allocated for it.
    fn len(&self, file: &Self::File) -> io::Result<(u64, u64)>;
    /// Truncates the file, or extends it with zeros.
    fn truncate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Waits until bytes and length of the file are on the disk.
    fn sync(&self, file: &Self::File) -> io::Result<()>;
    /// Like [`FileSystem::sync`], without waiting; one at a time. `dir`, if given, is synced first.
    fn start_sync(&mut self, file: &Arc<Self::File>, dir: Option<&Path>);
    /// The result of [`FileSystem::start_sync`], once; none while it runs, or if none was started.
    fn poll_sync(&mut self) -> Option<io::Result<()>>;
    /// Waits until the entries of the directory are on the disk.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Renames a file, and replaces an existing target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Renames a file unless the target exists; false: it exists.
    fn rename_new(&self, from: &Path, to: &Path) -> io::Result<bool>;
    /// Removes a file, if it exists.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// The period during which unsynced bytes of this file survive.
    fn page_cache_epoch(&self, file: &Self::File) -> PageCacheEpoch;
    /// A random number for a journal.
    fn nonce(&self) -> u64;
    /// Allocates space for a file of this length where that is cheap. The length of the file does not change.
    fn preallocate(&self, file: &Self::File, len: u64) -> io::Result<()>;
    /// Bytes that this user may still allocate on the file's file system.
    fn free_bytes(&self, file: &Self::File) -> io::Result<u64>;
    /// Why the file cannot have this length; none: no limit is known beforehand.
    fn size_limit(&self, file: &Self::File, len: u64) -> Option<SizeLimit>;
    /// Maximum length of a file name in this directory, in bytes.
    fn max_name_len(&self, dir: &Path) -> usize;
    /// Tests whether a file of this name could be created. Fails if the file system rejects the name.
    fn probe_name(&self, path: &Path) -> io::Result<()>;
    /// Whether an empty file accepts writes at any offset. The file is empty again afterwards.
    fn supports_random_writes(&self, file: &Self::File) -> bool;
}

/// The file system of the operating system.
#[derive(Debug, Default)]
pub(super) struct OsFileSystem {
    syncer: FsyncThread,
}

impl OsFileSystem {
    /// Whether the path refers to a file with marline's mark.
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
        // If that fails, `file_id` uses the inode.
        let _ = random_bytes::<16>().map(|tag| rustix::fs::fsetxattr(file, PART_XATTR, &tag, XattrFlags::empty()));
    }

    fn file_id(&self, file: &File) -> [u8; 16] {
        let mut tag = [0_u8; 16];
        if rustix::fs::fgetxattr(file, PART_XATTR, &mut tag) == Ok(tag.len()) {
            return tag;
        }
        let has_unstable_inodes = rustix::fs::fstatfs(file).map(|fs| UNSTABLE_INODE_FS.contains(&fs_magic(&fs)));
        let flags = StatxFlags::INO | StatxFlags::BTIME;
        match rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags) {
            Ok(found) if has_unstable_inodes == Ok(false) => {
                // Inode numbers are reused, but not together with the same creation time. The device number is left
                // out, because it changes from boot to boot.
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
        // Errors are ignored: without an attribute there is nothing to remove, and the mark does not harm a
        // complete file.
        let _ = rustix::fs::fremovexattr(file, PART_XATTR);
        // An unnamed temporary file shows which mode a new file gets here, from the umask or the directory's
        // default ACL.
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let probe = rustix::fs::open(dir, flags, Mode::from_raw_mode(0o666)).map(File::from);
        let mode = |file: &File| file.metadata().map(|meta| meta.mode() & 0o777);
        let final_mode = probe.ok().and_then(|probe| mode(&probe).ok()).or_else(|| Some(0o666 & !umask()?));
        if let Some(final_mode) = final_mode.filter(|final_mode| mode(file).is_ok_and(|now| now != *final_mode)) {
            let _ = file.set_permissions(PermissionsExt::from_mode(final_mode));
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
        let ownership = file_ownership(&file)?;
        let mut bytes = Vec::new();
        if !matches!(ownership, Ownership::Foreign(_)) {
            file.take(limit).read_to_end(&mut bytes)?;
        }
        Ok(Some((bytes, ownership)))
    }

    fn lock(&self, file: &File) -> io::Result<bool> {
        match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            // Some network file systems have no locks. A download without a lock is better than none.
            Err(Errno::NOLCK | Errno::OPNOTSUPP | Errno::NOSYS) => Ok(true),
            Err(e) => Err(e.into()),
        }
    }

    fn is_at_path(&self, file: &File, path: &Path) -> io::Result<bool> {
        let (opened, at_path) = (file.metadata()?, std::fs::symlink_metadata(path));
        Ok(at_path.is_ok_and(|at_path| (at_path.dev(), at_path.ino()) == (opened.dev(), opened.ino())))
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
        // fsync, not fdatasync: the tag is metadata, and the metadata of a growing file must be written anyway.
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
            // Not every file system can do both in one step. There, a separate check must suffice.
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
        random_bytes::<16>().map_or_else(|_| since() as u64, |bytes| u128::from_le_bytes(bytes) as u64)
    }

    fn preallocate(&self, file: &File, len: u64) -> io::Result<()> {
        if !PREALLOCATING_FS.contains(&fs_magic(&rustix::fs::fstatfs(file)?)) {
            return Ok(());
        }
        match rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, len) {
            // ext4 without extents does not support it.
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            done => Ok(done?),
        }
    }

    fn free_bytes(&self, file: &File) -> io::Result<u64> {
        let fs = rustix::fs::fstatvfs(file)?;
        // File systems that report no blocks (ramfs, some FUSE file systems) do not count them.
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
        // lseek fails beyond the maximum file size of the file system. Moving the file position is harmless: all
        // reads and writes here have explicit offsets.
        let beyond = rustix::fs::seek(file, SeekFrom::Start(len)) == Err(Errno::INVAL);
        let max_len = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
        match max_len.filter(|max_len| *max_len < len) {
            _ if beyond => Some(SizeLimit::FileSystem),
            most => most.map(SizeLimit::Process),
        }
    }

    fn max_name_len(&self, dir: &Path) -> usize {
        // FAT counts characters and reports 1530 bytes. The kernel accepts at most 255 bytes everywhere.
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

/// The type of the file system (statfs(2)).
fn fs_magic(fs: &rustix::fs::StatFs) -> u64 {
    // The field has 32 bits and is signed on some architectures.
    u64::from(fs.f_type as u32)
}

/// See [`FileSystem::ownership`].
fn file_ownership(file: &File) -> io::Result<Ownership> {
    let meta = file.metadata()?;
    if !meta.is_file() {
        return Ok(Ownership::Foreign("an entry with this name exists and is not a regular file"));
    }
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Ownership::Foreign("a file with this name exists and belongs to another user"));
    }
    if meta.nlink() > 1 {
        return Ok(Ownership::Shared("it has a second name (a hard link)"));
    }
    let (mode, others) = (meta.mode() & 0o7777, 0o022);
    if mode & others == 0 {
        return Ok(Ownership::Private);
    }
    // FAT and NTFS show one mode for all files, which cannot be changed and has no meaning. So a mode that cannot
    // be narrowed is ignored.
    let restricted = file.set_permissions(PermissionsExt::from_mode(mode & !others));
    if restricted.is_err() || file.metadata()?.mode() & others != 0 {
        return Ok(Ownership::Private);
    }
    file.set_permissions(PermissionsExt::from_mode(mode))?;
    Ok(Ownership::Shared("other users may write to it"))
}

/// The umask of this process. umask(2) can only be read by changing it, for all threads at once.
fn umask() -> Option<u32> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Umask:"))?;
    u32::from_str_radix(line.trim(), 8).ok()
}

/// Options for reading and writing. Never waits for the other end of a pipe.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(NOFOLLOW_FLAGS);
    options
}
