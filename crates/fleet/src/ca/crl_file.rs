//! The revocation list as a server uses it: a file that another process may replace.
//!
//! 1. [`RevocationFile::refresh`] compares the file's time, size and inode, and reads it only if one of them has
//!    changed. One `stat` a second (`list_reload`) is cheap.
//! 2. A file that is missing, damaged, signed by another authority or older than the present list changes nothing. It
//!    is an error to be logged, and revoked members stay revoked.
//! 3. A list received from the fleet service ([`RevocationFile::update`]) applies even if the file cannot be written: a
//!    full disk must not readmit revoked members.
//! 4. rustls checks the list only in full handshakes. For resumed sessions use [`RevocationFile::is_revoked`].

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};

use super::crl::Crl;
use super::{CaError, atomic_file};

/// The file is readable for everybody.
const FILE_MODE: u32 = 0o644;

/// The revocation list of an authority, backed by a file.
#[derive(Clone, Debug)]
pub struct RevocationFile {
    path: PathBuf,
    authority: CertificateDer<'static>,
    file_stat: FileStat,
    crl: Crl,
    /// The newest received list, shared with clones.
    received: Arc<Mutex<Option<Crl>>>,
}

impl RevocationFile {
    /// Reads the list of this authority.
    ///
    /// # Errors
    /// If the file is missing, damaged, or signed by another authority.
    pub fn open(path: &Path, authority: &CertificateDer<'_>) -> Result<Self, CaError> {
        let authority = authority.clone().into_owned();
        let file_stat = FileStat::of(path)?;
        let crl = read_crl(path, &authority)?;
        Ok(Self { path: path.into(), authority, file_stat, crl, received: Arc::default() })
    }

    /// Certificate of the authority that issues the list.
    pub(crate) fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// The list in force.
    pub(crate) fn current(&self) -> &Crl {
        &self.crl
    }

    /// Reads the file again if it has changed, or takes over a received list; returns whether the list is new.
    ///
    /// # Errors
    /// As [`RevocationFile::open`], or if the file is older than the present list, which then stays in force.
    pub fn refresh(&mut self) -> Result<bool, CaError> {
        let sent = self.received.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(sent) = sent.filter(|sent| sent.number > self.crl.number) {
            self.crl = sent;
            return Ok(true);
        }
        if FileStat::of(&self.path)? == self.file_stat { Ok(false) } else { self.reread() }
    }

    /// Reads the file again even if it looks unchanged; returns whether the list is new.
    ///
    /// # Errors
    /// As [`RevocationFile::refresh`].
    pub fn reread(&mut self) -> Result<bool, CaError> {
        let file_stat = FileStat::of(&self.path)?;
        let crl = read_crl(&self.path, &self.authority)?;
        if crl.number < self.crl.number {
            let older =
                format!("list {} is older than list {}, which was read before", crl.number, self.crl.number);
            return Err(CaError::damaged(&self.path, older));
        }
        self.file_stat = file_stat;
        let is_new = crl != self.crl;
        self.crl = crl;
        Ok(is_new)
    }

    /// Writes a received list to the file if it is this authority's and newer; returns whether it was. It takes effect
    /// with the next [`RevocationFile::refresh`] of this value or of a clone.
    ///
    /// # Errors
    /// If the list is damaged or signed by another authority. If the file cannot be written, the list still applies
    /// until the process ends.
    pub fn update(&self, pem: &str) -> Result<bool, CaError> {
        let crl = Crl::parse(pem.as_bytes(), &self.authority);
        let crl =
            crl.map_err(|text| CaError::damaged(&self.path, format!("a received revocation list: {text}")))?;
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

    /// Writes a received list to a file, which need not exist, if the list is this authority's and newer than the file.
    ///
    /// # Errors
    /// If the list is damaged or signed by another authority, or cannot be written.
    pub fn install_if_newer(path: &Path, authority: &CertificateDer<'_>, pem: &str) -> Result<bool, CaError> {
        if path.exists() {
            return Self::open(path, authority)?.update(pem);
        }
        let checked = Crl::parse(pem.as_bytes(), authority);
        checked.map_err(|text| CaError::damaged(path, format!("a received revocation list: {text}")))?;
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            std::fs::create_dir_all(dir).map_err(CaError::file(dir))?;
        }
        atomic_file::replace(path, pem.as_bytes(), FILE_MODE)?;
        Ok(true)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The list as DER, for rustls.
    pub fn crl_der(&self) -> CertificateRevocationListDer<'static> {
        self.crl.der.clone()
    }

    /// Number of the list; newer lists have greater numbers.
    pub fn number(&self) -> u64 {
        self.crl.number
    }

    /// Whether the certificate with this serial number, as encoded in the certificate, is revoked.
    pub fn is_revoked(&self, serial: &[u8]) -> bool {
        self.crl.revoked.contains_key(serial)
    }
}

fn read_crl(path: &Path, authority: &CertificateDer<'_>) -> Result<Crl, CaError> {
    let pem = atomic_file::read(path)?.ok_or_else(|| CaError::damaged(path, "there is no revocation list"))?;
    Crl::parse(pem.as_bytes(), authority).map_err(|text| CaError::damaged(path, text))
}

/// Attributes that reveal a change of the file: modification time to the nanosecond, size, device and inode.
#[derive(Clone, Debug, PartialEq, Eq)]
struct FileStat(i64, i64, u64, u64, u64);

impl FileStat {
    /// Must be read before the file: a change in between is then detected the next time.
    fn of(path: &Path) -> Result<Self, CaError> {
        let fingerprint =
            |meta: Metadata| Self(meta.mtime(), meta.mtime_nsec(), meta.size(), meta.dev(), meta.ino());
        std::fs::metadata(path).map(fingerprint).map_err(CaError::file(path))
    }
}
