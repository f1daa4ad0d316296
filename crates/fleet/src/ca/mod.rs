//! The certificate authority of a fleet: one key that certifies the identities of all members, in one directory.
//!
//! It issues certificates for public keys of authorized members, and keeps:
//!
//! | file | contents | secret |
//! |---|---|---|
//! | ca.pem | its own certificate, valid for ten years | no: every member has it |
//! | ca.key | the private key, PKCS #8 | yes: its holder controls the fleet |
//! | issued.jsonl | every issued certificate: serial, identity, validity | no |
//! | revoked.pem | the revocation list | no: every member fetches it |
//! | spent | nonces of used tokens that have not expired yet | no |
//!
//! 1. ECDSA P-256 throughout, and one level without intermediates (`pathlen:0`). A revocation reaches every member at
//!    the next fetch of one small list, and a stolen CA key requires a new fleet in any case.
//! 2. Before anybody sees a certificate, it is recorded in the issued log and its token among the used ones, both
//!    synced to the disk.
//! 3. When an authority is created, ca.pem is written last. While it is missing, nothing was signed, and `init`
//!    continues with the existing files.
//! 4. Processes serialize their changes by a lock of the directory: a daemon that enrols members and an operator's
//!    command share one directory.
//! 5. Nothing here waits for a network. Files are synced, so a call may take tens of milliseconds of disk time.
//!
//! A cloud CA, or step-ca as a separate service, was rejected: the fleet must start on one host without any account,
//! and the required functions of a CA fit in this folder.
//!
//! - `token`, `used_tokens`, `enrol`: a token is exchanged for a certificate, once
//! - `cert_template`, `csr`, `issue`, `issued_log`: what a certificate contains, for which key, and its record
//! - `renew`: the successor of a certificate
//! - `crl`, `crl_file`, `revoke`: the revocation list, the file from which servers read it, and its new entries
//! - `atomic_file`, `serde_text`, `ids`, `timestamp`, `error`: files, text forms, numbers, times and errors

mod atomic_file;
mod cert_template;
mod crl;
mod crl_file;
mod csr;
mod enrol;
mod error;
mod ids;
mod issue;
mod issued_log;
#[cfg(test)]
mod mutation_tests;
mod renew;
mod revoke;
mod serde_text;
#[cfg(test)]
mod tests;
mod timestamp;
mod token;
mod used_tokens;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub use marline_core::fleet::Address;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

pub use self::cert_template::CertTemplate;
pub(crate) use self::crl::Crl;
pub use self::crl_file::RevocationFile;
pub use self::csr::{CertRequest, KeyPem, KeyWithRequest};
pub use self::enrol::UsedTokens;
pub use self::error::{CaError, EnrolError, RenewError};
pub use self::ids::{Fingerprint, Nonce, Serial};
pub use self::issue::{IssuedChain, MemberFiles};
pub(crate) use self::issue::{pem, pem_encode};
pub use self::issued_log::{CertState, IssuedCert};
pub use self::renew::Validity;
pub use self::timestamp::UtcSeconds;
pub use self::token::{Token, TokenText};
pub use self::used_tokens::UsedTokensFile;

use marline_net::private_file::{SecretError, read_secret};

use self::atomic_file::DirLock;

/// An open certificate authority. It has no `Clone`: processes and threads share its directory instead.
pub struct Authority {
    dir: PathBuf,
    certificate: CertificateDer<'static>,
    /// `None` if the key is kept elsewhere; then this authority cannot sign here.
    signer: Option<Issuer<'static, KeyPair>>,
    not_after: UtcSeconds,
}

impl Authority {
    /// Creates an authority called `name` in `dir`, or completes an interrupted creation.
    ///
    /// # Errors
    /// If there is an authority already, it has lost its certificate, `name` is invalid, or a file operation fails.
    pub fn init(dir: &Path, name: &str, now: UtcSeconds) -> Result<Self, CaError> {
        if !(1..=MAX_NAME_LEN).contains(&name.chars().count()) || name.chars().any(char::is_control) {
            let wrong = format!("`{name}` is not a valid name of an authority: use 1 to {MAX_NAME_LEN} characters");
            return Err(CaError::Refused(wrong));
        }
        atomic_file::make_dir(dir)?;
        atomic_file::check_mode(dir, 0o022, "write into", 0o700)?;
        atomic_file::check_owner(dir)?;
        let _lock = DirLock::acquire(dir)?;
        atomic_file::remove_temp_files(dir)?;
        if certificate_path(dir).exists() {
            let help = "use another --dir, or move this authority away first";
            return Err(CaError::Exists { path: certificate_path(dir), help });
        }
        if issued_log::log_path(dir).exists() && !issued_log::read_records(dir)?.is_empty() {
            let lost =
                "it is missing, and certificates were issued: restore it; every member of the fleet has a copy";
            return Err(CaError::damaged(certificate_path(dir), lost));
        }
        let key = match atomic_file::read(&key_path(dir))? {
            Some(_) => read_key(dir)?,
            None => {
                let key = KeyPair::generate()?;
                atomic_file::create(&key_path(dir), key.serialize_pem().as_bytes(), atomic_file::SECRET_MODE, "")?;
                key
            }
        };
        let params = ca_params(name, now)?;
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        atomic_file::replace(&issued_log::log_path(dir), b"", atomic_file::PUBLIC_MODE)?;
        let empty = crl::sign(&issuer, 1, &BTreeMap::new(), now)?;
        atomic_file::replace(&crl::path(dir), empty.as_bytes(), atomic_file::PUBLIC_MODE)?;
        atomic_file::create(&certificate_path(dir), pem.as_bytes(), atomic_file::PUBLIC_MODE, "")?;
        Self::open(dir)
    }

    /// Opens the authority in `dir` for signing.
    ///
    /// # Errors
    /// If there is none or an incomplete one, its files contradict each other, its key is missing, or others may read
    /// it.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        let authority = Self::open_read_only(dir)?;
        authority.signer()?;
        Ok(authority)
    }

    /// Opens the authority in `dir`, whose key may be kept elsewhere. Without the key it serves its certificate and its
    /// revocation list, and signs nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open), except for a missing key.
    pub fn open_read_only(dir: &Path) -> Result<Self, CaError> {
        let path = certificate_path(dir);
        let Some(pem) = atomic_file::read(&path)? else {
            let has_key = key_path(dir).exists();
            return Err(if has_key {
                CaError::Incomplete { dir: dir.into() }
            } else {
                CaError::Absent { dir: dir.into() }
            });
        };
        atomic_file::check_mode(dir, 0o022, "write into", 0o700)?;
        atomic_file::check_owner(dir)?;
        let key = match read_key(dir) {
            Ok(key) => Some(key),
            Err(CaError::KeyMissing { .. }) => None,
            Err(error) => return Err(error),
        };
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| CaError::damaged(&path, error))?;
        let not_after =
            check_certificate(&certificate, key.as_ref()).map_err(|text| CaError::damaged(&path, text))?;
        let signer = key.map(|key| Issuer::from_ca_cert_der(&certificate, key)).transpose()?;
        Ok(Self { dir: dir.into(), certificate, signer, not_after })
    }

    /// Whether its key is available, so that it can sign.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    fn signer(&self) -> Result<&Issuer<'static, KeyPair>, CaError> {
        self.signer.as_ref().ok_or_else(|| CaError::KeyMissing { dir: self.dir.clone() })
    }

    /// The authority's own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Fingerprint of its certificate. Tokens contain it, so that a new member knows which authority to trust.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// End of its validity; no certificate outlives it.
    pub fn not_after(&self) -> UtcSeconds {
        self.not_after
    }

    /// Path of its revocation list.
    pub fn crl_path(&self) -> PathBuf {
        crl::path(&self.dir)
    }

    /// All issued certificates, oldest first, with their states.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn issued_certs(&self, now: UtcSeconds) -> Result<Vec<(IssuedCert, CertState)>, CaError> {
        let revoked = self.crl()?.revoked;
        let state = |issued: &IssuedCert| match issued {
            _ if issued.not_after < now => CertState::Expired,
            _ if revoked.contains_key(issued.serial.as_bytes()) => CertState::Revoked,
            _ => CertState::Valid,
        };
        Ok(issued_log::read_records(&self.dir)?
            .into_iter()
            .map(|issued| (issued.clone(), state(&issued)))
            .collect())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").field("dir", &self.dir).field("key", &"MASKED").finish_non_exhaustive()
    }
}

fn certificate_path(dir: &Path) -> PathBuf {
    dir.join("ca.pem")
}

fn key_path(dir: &Path) -> PathBuf {
    dir.join("ca.key")
}

fn ca_params(name: &str, now: UtcSeconds) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from_slice(Serial::random()?.as_bytes()));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + now.saturating_sub(crl::CLOCK_SKEW).since_epoch();
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now.saturating_add(LIFETIME).since_epoch();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn read_key(dir: &Path) -> Result<KeyPair, CaError> {
    let path = key_path(dir);
    let pem = read_secret(&path).map_err(|error| match error {
        SecretError::File { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            CaError::KeyMissing { dir: dir.into() }
        }
        SecretError::File { path, error } => CaError::File { path, error },
        SecretError::Exposed { path, mode } => {
            CaError::TooPermissive { path, action: "read", mode, required_mode: 0o600 }
        }
    })?;
    let pem = String::from_utf8(pem).unwrap_or_default();
    // The library's error messages could repeat a part of the key.
    let key = KeyPair::from_pem(&pem).ok().filter(|key| key.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256);
    key.ok_or_else(|| CaError::damaged(&path, "it holds no private key of ECDSA P-256 as PEM (PKCS #8)"))
}

/// Returns the end of the certificate's validity, if it is a CA certificate with this key.
fn check_certificate(certificate: &CertificateDer<'_>, key: Option<&KeyPair>) -> Result<UtcSeconds, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    if !parsed.is_ca() {
        return Err("it is not a CA certificate".to_owned());
    }
    if key.is_some_and(|key| parsed.public_key().raw != key.subject_public_key_info()) {
        return Err("ca.key is not the key of this certificate".to_owned());
    }
    Ok(UtcSeconds::from_unix(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default()))
}

/// Lifetime of an authority's certificate: ten years.
const LIFETIME: Duration = Duration::from_secs(3650 * 86_400);
/// Longest name in characters (RFC 5280 A.1, ub-common-name).
const MAX_NAME_LEN: usize = 64;
