//! The certificate authority of a fleet: one key that says who is who, in one directory.
//!
//! In: who shall be let in, and a public key. Out: a certificate, or the refusal. What an authority has:
//!
//! | file | what | secret |
//! |---|---|---|
//! | ca.pem | its own certificate, ten years | no: everybody has it |
//! | ca.key | the private key, PKCS #8 | yes: whoever has it is the fleet |
//! | issued.jsonl | every certificate: serial, identity, from, to | no |
//! | revoked.pem | the revocation list | no: everybody fetches it |
//! | spent | nonces of tokens that were used and would not have expired | no |
//!
//! 1. ECDSA P-256 throughout; one level, no intermediates (`pathlen:0`): who revokes reaches everybody at the next fetch
//!    of one small list, and a stolen CA key is a new fleet either way.
//! 2. A certificate is on the list of what was issued, and a token among those spent, and both on the disk, before anybody
//!    sees the certificate.
//! 3. ca.pem comes last when an authority is made: while it is missing nothing was signed, and `init` takes up what is there.
//! 4. Processes take turns by the directory's lock: a daemon that enrols and an operator's command share one directory.
//! 5. Nothing here waits for a network; files are synced, so that a call may take tens of milliseconds of a disk.
//!
//! A CA in the cloud, or step-ca beside it, was not used: the fleet must come up on one box without anybody's account, and
//! what is needed of a CA fits in this folder.

#[cfg(test)]
mod changed;
mod crl;
mod enrol;
mod error;
mod files;
mod grant;
mod issue;
mod list;
mod numbers;
mod renew;
mod request;
mod revocations;
mod revoke;
mod spent;
mod stamp;
#[cfg(test)]
mod tests;
mod text;
mod token;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

pub(crate) use self::crl::Crl;
pub use self::enrol::Spent;
pub use self::error::{CaError, EnrolError, RenewError};
pub use self::grant::{Address, Grant};
pub use self::issue::{Chain, MemberFiles};
pub(crate) use self::issue::{armoured, pem};
pub use self::list::{Issued, State};
pub use self::numbers::{Fingerprint, Nonce, Serial};
pub use self::renew::Span;
pub use self::request::{KeyPem, NewKey, Request};
pub use self::revocations::Revocations;
pub use self::spent::SpentFile;
pub use self::stamp::Stamp;
pub use self::token::{Token, TokenText};

use marline_net::private_file::{SecretError, read_secret};

use self::files::Lock;

/// An authority, open for work. Clones are not made: processes and threads share the directory instead.
pub struct Authority {
    dir: PathBuf,
    certificate: CertificateDer<'static>,
    /// None: its key is kept elsewhere, and it signs nothing here.
    signer: Option<Issuer<'static, KeyPair>>,
    not_after: Stamp,
}

impl Authority {
    /// Makes an authority called `name` in `dir`, or finishes one whose making was interrupted.
    ///
    /// # Errors
    /// There is one already, it lost its certificate, `name` is none, or a file refuses.
    pub fn init(dir: &Path, name: &str, now: Stamp) -> Result<Self, CaError> {
        if !(1..=LONGEST_NAME).contains(&name.chars().count()) || name.chars().any(char::is_control) {
            let wrong = format!("`{name}` is no name of an authority: 1 to {LONGEST_NAME} characters");
            return Err(CaError::Refused(wrong));
        }
        files::make_dir(dir)?;
        files::check_mode(dir, 0o022, "write into", 0o700)?;
        files::check_owner(dir)?;
        let _lock = Lock::take(dir)?;
        files::sweep(dir)?;
        if certificate_path(dir).exists() {
            let help = "take another --dir, or move this authority away first";
            return Err(CaError::Exists { path: certificate_path(dir), help });
        }
        if list::path(dir).exists() && !list::read(dir)?.is_empty() {
            let lost =
                "it is missing, and certificates were issued: put it back, every member of the fleet has a copy";
            return Err(CaError::damaged(certificate_path(dir), lost));
        }
        let key = match files::read(&key_path(dir))? {
            Some(_) => read_key(dir)?,
            None => {
                let key = KeyPair::generate()?;
                files::create(&key_path(dir), key.serialize_pem().as_bytes(), files::SECRET, "")?;
                key
            }
        };
        let params = params(name, now)?;
        let pem = params.self_signed(&key)?.pem();
        let issuer = Issuer::new(params, key);
        files::replace(&list::path(dir), b"", files::OPEN)?;
        let empty = crl::sign(&issuer, 1, &BTreeMap::new(), now)?;
        files::replace(&crl::path(dir), empty.as_bytes(), files::OPEN)?;
        files::create(&certificate_path(dir), pem.as_bytes(), files::OPEN, "")?;
        Self::open(dir)
    }

    /// Opens the authority in `dir`.
    ///
    /// # Errors
    /// There is none or half of one, its files do not fit together, its key is not there, or others may read it.
    pub fn open(dir: &Path) -> Result<Self, CaError> {
        let authority = Self::open_to_serve(dir)?;
        authority.signer()?;
        Ok(authority)
    }

    /// Opens the authority in `dir`, whose key may be kept elsewhere: then it serves its certificate and its revocation list, and signs
    /// nothing.
    ///
    /// # Errors
    /// As [`open`](Self::open), but for a key that is not there.
    pub fn open_to_serve(dir: &Path) -> Result<Self, CaError> {
        let path = certificate_path(dir);
        let Some(pem) = files::read(&path)? else {
            let half = key_path(dir).exists();
            return Err(if half {
                CaError::HalfMade { dir: dir.into() }
            } else {
                CaError::Absent { dir: dir.into() }
            });
        };
        files::check_mode(dir, 0o022, "write into", 0o700)?;
        files::check_owner(dir)?;
        let key = match read_key(dir) {
            Ok(key) => Some(key),
            Err(CaError::KeyAway { .. }) => None,
            Err(error) => return Err(error),
        };
        let certificate =
            CertificateDer::from_pem_slice(pem.as_bytes()).map_err(|error| CaError::damaged(&path, error))?;
        let not_after = check(&certificate, key.as_ref()).map_err(|text| CaError::damaged(&path, text))?;
        let signer = key.map(|key| Issuer::from_ca_cert_der(&certificate, key)).transpose()?;
        Ok(Self { dir: dir.into(), certificate, signer, not_after })
    }

    /// Whether its key is here.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    fn signer(&self) -> Result<&Issuer<'static, KeyPair>, CaError> {
        self.signer.as_ref().ok_or_else(|| CaError::KeyAway { dir: self.dir.clone() })
    }

    /// Its own certificate.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// What tokens carry, so that who enrols knows whom to trust.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// When it ends; no certificate outlives it.
    pub fn not_after(&self) -> Stamp {
        self.not_after
    }

    /// Where its revocation list is.
    pub fn revocations_path(&self) -> PathBuf {
        crl::path(&self.dir)
    }

    /// Every certificate that was issued, the oldest first, and how it stands.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn list(&self, now: Stamp) -> Result<Vec<(Issued, State)>, CaError> {
        let revoked = self.crl()?.revoked;
        let state = |issued: &Issued| match issued {
            _ if issued.not_after < now => State::Expired,
            _ if revoked.contains_key(issued.serial.as_bytes()) => State::Revoked,
            _ => State::Ok,
        };
        Ok(list::read(&self.dir)?.into_iter().map(|issued| (issued.clone(), state(&issued))).collect())
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

fn params(name: &str, now: Stamp) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    params.serial_number = Some(SerialNumber::from_slice(Serial::random()?.as_bytes()));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + now.before(crl::SKEW).since_1970();
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + now.after(LIFE).since_1970();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

fn read_key(dir: &Path) -> Result<KeyPair, CaError> {
    let path = key_path(dir);
    let pem = read_secret(&path).map_err(|error| match error {
        SecretError::File { error, .. } if error.kind() == std::io::ErrorKind::NotFound => {
            CaError::KeyAway { dir: dir.into() }
        }
        SecretError::File { path, error } => CaError::File { path, error },
        SecretError::Open { path, mode } => CaError::Open { path, what: "read", mode, right: 0o600 },
    })?;
    let pem = String::from_utf8(pem).unwrap_or_default();
    // The library's words could repeat a part of the key.
    let key = KeyPair::from_pem(&pem).ok().filter(|key| key.algorithm() == &rcgen::PKCS_ECDSA_P256_SHA256);
    key.ok_or_else(|| CaError::damaged(&path, "it holds no private key of ECDSA P-256 as PEM (PKCS #8)"))
}

/// Until when the certificate is valid, if it is an authority's with this key.
fn check(certificate: &CertificateDer<'_>, key: Option<&KeyPair>) -> Result<Stamp, String> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
    if !parsed.is_ca() {
        return Err("it is no authority's certificate".to_owned());
    }
    if key.is_some_and(|key| parsed.public_key().raw != key.subject_public_key_info()) {
        return Err("ca.key is not the key of this certificate".to_owned());
    }
    Ok(Stamp::from_unix(u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or_default()))
}

/// How long an authority lives.
const LIFE: Duration = Duration::from_secs(3650 * 86_400);
/// RFC 5280 A.1, ub-common-name.
const LONGEST_NAME: usize = 64;
