//! The user's key for the MACs of journals. It proves that resume state was written by this user, and not planted
//! by someone else.
//!
//! The key has 32 random bytes, in `$XDG_STATE_HOME/marline/resume.key` (default: `~/.local/state`). The file is
//! created once and atomically, with mode 0600, in a directory with mode 0700. A key that another user could have
//! read or replaced is not used. Without a key no download is resumed, and nothing else changes.
//!
//! The kernel's keyring was rejected, because it does not survive a reboot.

use std::ffi::OsString;
use std::fs::{DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use hmac::{Hmac, Mac as _};
use rustix::fs::{Mode, OFlags};
use sha2::Sha256;

use marline_core::wire::download_journal::Mac;

use marline_net::atomic_file::create_new_in;
use marline_net::random::random_bytes;

const FILE_NAME: &str = "resume.key";
const KEY_LEN: usize = 32;

/// A key for message authentication codes: HMAC-SHA256 (RFC 2104), truncated to 128 bits.
#[derive(Clone)]
pub(crate) struct MacKey(Hmac<Sha256>);

/// Why there is no key. The text follows "the download cannot be resumed if it is interrupted: " and the like.
#[derive(Debug, thiserror::Error)]
pub(crate) enum KeyError {
    #[error("there is no directory for this user's key: set XDG_STATE_HOME or HOME")]
    NoHome,
    #[error("there is no directory for this user's key: {0} belongs to another user")]
    OtherUser(PathBuf),
    #[error("this user's key is not safe: others have access to {0}; remove it")]
    Exposed(PathBuf),
    #[error("this user's key is damaged: remove {0}")]
    Damaged(PathBuf),
    #[error("this user's key cannot be read or created: {path}: {why}")]
    Io { path: PathBuf, why: io::Error },
}

impl MacKey {
    /// The key of the user who runs this program. It is created if there is none, and read once for each process.
    pub(crate) fn load() -> Result<Self, KeyError> {
        static KEY: OnceLock<MacKey> = OnceLock::new();
        if let Some(key) = KEY.get() {
            return Ok(key.clone());
        }
        let key = Self::load_from(&state_home(env_var)?)?;
        Ok(KEY.get_or_init(|| key).clone())
    }

    /// Derives a key for one purpose, so that a MAC made for one purpose is never valid for another.
    pub(crate) fn for_purpose(&self, purpose: &str) -> Self {
        let mut mac = self.0.clone();
        mac.update(purpose.as_bytes());
        Self::from_bytes(&mac.finalize().into_bytes())
    }

    /// The MAC of these bytes.
    pub(crate) fn mac(&self, bytes: &[u8]) -> Mac {
        let mut mac = self.0.clone();
        mac.update(bytes);
        *mac.finalize().into_bytes().first_chunk().unwrap_or(&[0; 16])
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Self {
        // HMAC accepts keys of any length. The error exists only for other algorithms.
        Self(Hmac::new_from_slice(bytes).unwrap_or_else(|_| Hmac::new(&Default::default())))
    }

    /// Loads or creates the key below this state directory.
    fn load_from(state: &Path) -> Result<Self, KeyError> {
        let (dir, path) = open_state_dir(state)?;
        let path = path.join(FILE_NAME);
        let io_error = |path: &Path| {
            let path = path.to_owned();
            move |why: io::Error| KeyError::Io { path, why }
        };
        if let Some(key) = read_key(&dir, &path)? {
            return Ok(key);
        }
        create_key(&dir).map_err(io_error(&path))?;
        // Another process may have created the key first. Then that key is used.
        read_key(&dir, &path)?.ok_or_else(|| io_error(&path)(io::ErrorKind::NotFound.into()))
    }
}

impl std::fmt::Debug for MacKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key([redacted])")
    }
}

/// This user's state directory of marline. It is created if it is missing.
pub(super) fn state_dir() -> Result<PathBuf, KeyError> {
    open_state_dir(&state_home(env_var)?).map(|(_, path)| path)
}

/// Opens marline's directory below this state directory, and checks that no other user can write to it.
fn open_state_dir(state: &Path) -> Result<(File, PathBuf), KeyError> {
    let path = state.join("marline");
    let io_error = |why: io::Error| KeyError::Io { path: path.clone(), why };
    create_state_dir(&path)?;
    let dir = File::open(&path).map_err(io_error)?;
    let meta = dir.metadata().map_err(io_error)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyError::OtherUser(path));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(KeyError::Exposed(path));
    }
    Ok((dir, path))
}

/// The state directory (XDG Base Directory Specification), from the environment.
fn state_home(set: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf, KeyError> {
    let set = |name| set(name).map(PathBuf::from).filter(|path| path.is_absolute());
    if let Some(state) = set("XDG_STATE_HOME") {
        return Ok(state);
    }
    // A home directory that does not exist (`/nonexistent` of system users) is not created.
    let home = set("HOME").filter(|home| home.is_dir()).ok_or(KeyError::NoHome)?;
    Ok(home.join(".local/state"))
}

/// Reads an environment variable. Tests, and the processes that they start, use another directory than the
/// developer.
fn env_var(name: &str) -> Option<OsString> {
    if cfg!(test) {
        return Some(
            std::env::temp_dir().join(format!("marline-test-{}", rustix::process::geteuid().as_raw())).into(),
        );
    }
    std::env::var_os(name)
}

/// Creates the directory and its missing parents.
fn create_state_dir(dir: &Path) -> Result<(), KeyError> {
    let missing: Vec<&Path> = dir.ancestors().take_while(|dir| !dir.is_dir()).collect();
    let existing = dir.ancestors().nth(missing.len()).unwrap_or(Path::new("/"));
    let owner = existing.metadata().map_or(0, |meta| meta.uid());
    // Root with the HOME of another user (sudo -E) creates no directory there, because the user could not remove
    // it.
    if !missing.is_empty() && rustix::process::geteuid().is_root() && owner != 0 {
        return Err(KeyError::OtherUser(existing.to_owned()));
    }
    for dir in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => {
                return Err(KeyError::Io { path: dir.to_owned(), why: e });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Reads the key from the directory; none: there is no key yet.
fn read_key(dir: &File, path: &Path) -> Result<Option<MacKey>, KeyError> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let io_error = |why: io::Error| KeyError::Io { path: path.to_owned(), why };
    let file = match rustix::fs::openat(dir, FILE_NAME, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(e) => return Err(io_error(e.into())),
    };
    let meta = file.metadata().map_err(io_error)?;
    if meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyError::OtherUser(path.to_owned()));
    }
    if meta.mode() & 0o077 != 0 || meta.nlink() != 1 {
        return Err(KeyError::Exposed(path.to_owned()));
    }
    let mut bytes = Vec::with_capacity(KEY_LEN + 1);
    if meta.is_file() {
        file.take(KEY_LEN as u64 + 1).read_to_end(&mut bytes).map_err(io_error)?;
    }
    if bytes.len() != KEY_LEN {
        return Err(KeyError::Damaged(path.to_owned()));
    }
    Ok(Some(MacKey::from_bytes(&bytes)))
}

/// Creates a key, and never replaces that of another process. A file with two names is rejected on reading, so the
/// file has one name at any time. Only on file systems without a suitable rename does it have two for a moment.
fn create_key(dir: &File) -> io::Result<()> {
    match create_new_in(dir, FILE_NAME.as_ref(), &random_bytes::<KEY_LEN>()?, 0o600) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().mode() & 0o777
    }

    #[test]
    fn the_mac_matches_rfc_4231() {
        // Test case 2 of section 4.3, truncated to 128 bits.
        let key = MacKey::from_bytes(b"Jefe");
        let code = key.mac(b"what do ya want for nothing?");
        assert_eq!(code, 0x5bdc_c146_bf60_754e_6a04_2426_0895_75c7_u128.to_be_bytes());
        assert_ne!(key.for_purpose("a").mac(b""), key.for_purpose("b").mac(b""));
    }

    #[test]
    fn a_key_is_created_once_and_readable_only_by_its_user() {
        let home = tempfile::tempdir().unwrap();
        let state = home.path().join(".local/state");
        let made = MacKey::load_from(&state).unwrap();
        let dir = state.join("marline");
        assert_eq!((mode(&dir), mode(&dir.join(FILE_NAME)), mode(&state)), (0o700, 0o600, 0o700));
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no other file is left");
        assert_eq!(MacKey::load_from(&state).unwrap().mac(b"x"), made.mac(b"x"));
        let other = tempfile::tempdir().unwrap();
        assert_ne!(MacKey::load_from(other.path()).unwrap().mac(b"x"), made.mac(b"x"));
    }

    #[test]
    fn concurrent_processes_use_one_key() {
        for _ in 0..50 {
            let home = tempfile::tempdir().unwrap();
            let keys: Vec<Mac> = std::thread::scope(|scope| {
                let make = || MacKey::load_from(home.path()).unwrap().mac(b"x");
                let threads: Vec<_> = (0..8).map(|_| scope.spawn(make)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]));
        }
    }

    #[test]
    fn a_key_that_others_could_have_read_or_replaced_is_not_used() {
        let damages: [fn(&Path); 7] = [
            |key| std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o640)).unwrap(),
            |key| {
                let dir = key.parent().unwrap();
                std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o770)).unwrap();
            },
            |key| std::fs::hard_link(key, key.with_extension("copy")).unwrap(),
            |key| {
                std::fs::rename(key, key.with_extension("real")).unwrap();
                symlink(key.with_extension("real"), key).unwrap();
            },
            |key| std::fs::write(key, [0; 31]).unwrap(),
            |key| std::fs::write(key, [0; 33]).unwrap(),
            |key| {
                std::fs::remove_file(key).unwrap();
                rustix::fs::mknodat(rustix::fs::CWD, key, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
            },
        ];
        for (n, spoil) in damages.into_iter().enumerate() {
            let home = tempfile::tempdir().unwrap();
            MacKey::load_from(home.path()).unwrap();
            let key = home.path().join("marline").join(FILE_NAME);
            spoil(&key);
            assert!(MacKey::load_from(home.path()).is_err(), "{n}");
        }
        if rustix::process::geteuid().is_root() {
            let home = tempfile::tempdir().unwrap();
            MacKey::load_from(home.path()).unwrap();
            let key = home.path().join("marline").join(FILE_NAME);
            std::os::unix::fs::chown(&key, Some(65534), None).unwrap();
            assert!(matches!(MacKey::load_from(home.path()), Err(KeyError::OtherUser(_))));
            std::os::unix::fs::chown(home.path(), Some(65534), None).unwrap();
            let new = home.path().join("state");
            assert!(
                matches!(MacKey::load_from(&new), Err(KeyError::OtherUser(_))),
                "nothing is created in another user's home"
            );
        }
    }

    #[test]
    fn the_environment_selects_the_state_directory() {
        let home = tempfile::tempdir().unwrap();
        let at = |state: &str, name: &str| {
            let value = if name == "XDG_STATE_HOME" { state.into() } else { home.path().as_os_str().to_owned() };
            Some(value)
        };
        assert_eq!(state_home(|name| at("/state", name)).unwrap(), Path::new("/state"));
        for ignored in ["", "relative/path"] {
            assert_eq!(state_home(|name| at(ignored, name)).unwrap(), home.path().join(".local/state"));
        }
        assert!(matches!(state_home(|_| None), Err(KeyError::NoHome)));
        let home = |name: &str| (name == "HOME").then(|| OsString::from("/nonexistent"));
        assert!(matches!(state_home(home), Err(KeyError::NoHome)));
    }

    #[test]
    fn a_key_is_never_shown() {
        assert_eq!(format!("{:?}", MacKey::from_bytes(&[1; 32])), "Key([redacted])");
    }
}
