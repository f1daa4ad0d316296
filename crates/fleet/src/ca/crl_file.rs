//! Who has been taken back, as those see it who let somebody in: a file that somebody else replaces.
//!
//! 1. [`Revocations::refresh`] looks at the file's time, size and inode, and reads it only when one of them has changed: one
//!    `stat` before each connection costs nothing.
//! 2. A file that is missing, damaged, signed by somebody else or older than what was read before changes nothing; it is an
//!    error to be logged, and those revoked stay revoked.
//! 3. A list that was sent ([`Revocations::take`]) counts, though the file may refuse it: a disk that is full lets nobody in again.
//! 4. rustls asks the list only in full handshakes. Who resumes a session is looked up with [`Revocations::is_revoked`].

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use super::crl::Crl;
use super::{CaError, atomic_file};

/// Everybody may read it.
const FILE_MODE: u32 = 0o644;

/// The revocation list in a file.
#[derive(Clone, Debug)]
pub struct RevocationFile {
    path: PathBuf,
    authority: CertificateDer<'static>,
    file_stat: FileStat,
    crl: Crl,
    /// The newest one that was sent; clones share it.
    received: Arc<Mutex<Option<Crl>>>,
}

impl RevocationFile {
    /// Reads the list of this authority.
    ///
    /// # Errors
    /// The file is missing, damaged, or signed by somebody else.
    pub fn open(path: &Path, authority: &CertificateDer<'_>) -> Result<Self, CaError> {
        let authority = authority.clone().into_owned();
        let file_stat = FileStat::of(path)?;
        let crl = read_crl(path, &authority)?;
        Ok(Self { path: path.into(), authority, file_stat, crl, received: Arc::default() })
    }

    /// Whose list it is.
    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The list that counts.
    pub(crate) fn current(&self) -> &Crl {
        &self.crl
    }

    /// Reads the file again if it has changed; whether the list is a new one.
    ///
    /// # Errors
    /// As [`Revocations::open`], or the file is older than what was read before. The list stays as it was.
    pub fn refresh(&mut self) -> Result<bool, CaError> {
        let sent = self.received.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sent) = sent.filter(|sent| sent.number > self.crl.number) {
            self.crl = sent;
            return Ok(true);
        }
        if FileStat::of(&self.path)? == self.file_stat { Ok(false) } else { self.reread() }
    }

    /// Reads the file again, though it looks unchanged; whether the list is a new one.
    ///
    /// # Errors
    /// As [`Revocations::refresh`].
    pub fn reread(&mut self) -> Result<bool, CaError> {
        let file_stat = FileStat::of(&self.path)?;
        let crl = read_crl(&self.path, &self.authority)?;
        if crl.number < self.crl.number {
            let older =
                format!("list {} is older than list {}, which was here before", crl.number, self.crl.number);
            return Err(CaError::damaged(&self.path, older));
        }
        self.file_stat = file_stat;
        let is_new = crl != self.crl;
        self.crl = crl;
        Ok(is_new)
    }

    /// Puts a list that somebody has sent into the file, if it is this authority's and newer; whether it was. It counts from the
    /// next [`Revocations::refresh`] on, of this value or of a clone.
    ///
    /// # Errors
    /// It is damaged or signed by somebody else; or the file cannot be written, and it counts until the process ends.
    pub fn update(&self, pem: &str) -> Result<bool, CaError> {
        let crl = Crl::parse(pem.as_bytes(), &self.authority);
        let crl = crl.map_err(|text| CaError::damaged(&self.path, format!("a list that was sent: {text}")))?;
        if crl.number <= self.crl.number {
            return Ok(false);
        }
        let mut sent = self.received.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.as_ref().is_none_or(|sent| sent.number < crl.number) {
            *sent = Some(crl);
        }
        drop(sent);
        atomic_file::replace(&self.path, pem.as_bytes(), FILE_MODE)?;
        Ok(true)
    }

    /// Puts a list that was sent into a file, new or not, if it is this authority's and newer than what stands there.
    ///
    /// # Errors
    /// It is damaged, somebody else's, or cannot be written.
    pub fn install_if_newer(path: &Path, authority: &CertificateDer<'_>, pem: &str) -> Result<bool, CaError> {
        if path.exists() {
            return Self::open(path, authority)?.update(pem);
        }
        let checked = Crl::parse(pem.as_bytes(), authority);
        checked.map_err(|text| CaError::damaged(path, format!("a list that was sent: {text}")))?;
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(CaError::file(dir))?;
        }
        atomic_file::replace(path, pem.as_bytes(), FILE_MODE)?;
        Ok(true)
    }

    /// Where its file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The list, for rustls.
    pub fn crl_der(&self) -> CertificateRevocationListDer<'static> {
        self.crl.der.clone()
    }

    /// Which list it is; later ones have greater numbers.
    pub fn number(&self) -> u64 {
        self.crl.number
    }

    /// Whether the certificate with this serial, as it stands in the certificate, was taken back.
    pub fn is_revoked(&self, serial: &[u8]) -> bool {
        self.crl.revoked.contains_key(serial)
    }
}

fn read_crl(path: &Path, authority: &CertificateDer<'_>) -> Result<Crl, CaError> {
    let pem = atomic_file::read(path)?.ok_or_else(|| CaError::damaged(path, "there is no revocation list"))?;
    Crl::parse(pem.as_bytes(), authority).map_err(|text| CaError::damaged(path, text))
}

/// By what a change of a file is seen: modification time to the nanosecond, size, device and inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStat(i64, i64, u64, u64, u64);

impl FileStat {
    /// Looked at before the file is read: what changes in between is read at the next look.
    fn of(path: &Path) -> Result<Self, CaError> {
        let of = |meta: Metadata| Self(meta.mtime(), meta.mtime_nsec(), meta.size(), meta.dev(), meta.ino());
        std::fs::metadata(path).map(of).map_err(CaError::file(path))
    }
}
