//! Issuing certificates: combines a template and a public key into a certificate.
//!
//! 1. The names are those of the template: its identity as the only URI, its addresses as DNS names and IP addresses.
//! 2. Every certificate can be used by clients (`clientAuth`); those of server roles also by servers (`serverAuth`).
//! 3. The validity begins ten minutes early, for hosts whose clock is behind, and ends no later than the authority's.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::atomic_file::{self, DirLock};
use super::cert_template::is_server_role;
use super::crl::CLOCK_SKEW;
use super::csr::{CertRequest, KeyPem};
use super::ids::{Fingerprint, Serial};
use super::issued_log::{self, IssuedCert};
use super::timestamp::UtcSeconds;
use super::{Address, Authority, CaError, CertTemplate};
use crate::identity::Name;

/// A certificate with that of its issuer.
#[derive(Clone, Debug)]
pub struct IssuedChain {
    /// The issued certificate.
    pub certificate: CertificateDer<'static>,
    /// Certificate of the authority that signed it.
    pub issuer: CertificateDer<'static>,
    /// Its record in the issued log.
    pub record: IssuedCert,
}

impl IssuedChain {
    /// Both certificates as PEM. The authority's comes last, so that a member that knows only its fingerprint can
    /// verify the first.
    pub fn pem(&self) -> String {
        pem(&self.certificate) + &pem(&self.issuer)
    }
}

impl Authority {
    /// Certifies the key of a request.
    ///
    /// # Errors
    /// If the authority has expired, or a file operation fails.
    pub fn issue(
        &self,
        template: &CertTemplate,
        request: &CertRequest,
        now: UtcSeconds,
    ) -> Result<IssuedChain, CaError> {
        self.certify(template, request.public_key(), now)
    }

    /// Creates a key and certifies it, for members that are set up by hand.
    ///
    /// # Errors
    /// As [`Authority::issue`].
    pub fn issue_with_key(
        &self,
        template: &CertTemplate,
        now: UtcSeconds,
    ) -> Result<(IssuedChain, KeyPem), CaError> {
        let key = KeyPair::generate()?;
        Ok((self.certify(template, &key, now)?, KeyPem::of(&key)))
    }

    fn certify(
        &self,
        template: &CertTemplate,
        key: &impl PublicKeyData,
        now: UtcSeconds,
    ) -> Result<IssuedChain, CaError> {
        let (certificate, issued) = self.sign_unrecorded(template, key, now)?;
        let _lock = DirLock::acquire(&self.dir)?;
        issued_log::append_record(&self.dir, &issued)?;
        Ok(IssuedChain { certificate, issuer: self.certificate.clone(), record: issued })
    }

    /// Signs a certificate without recording it. The caller must record it before anybody sees it.
    pub(super) fn sign_unrecorded(
        &self,
        template: &CertTemplate,
        key: &impl PublicKeyData,
        now: UtcSeconds,
    ) -> Result<(CertificateDer<'static>, IssuedCert), CaError> {
        if now >= self.not_after {
            let expired = format!(
                "this authority expired at {}: create a new one and enrol all members again",
                self.not_after
            );
            return Err(CaError::Refused(expired));
        }
        let issued = IssuedCert {
            serial: Serial::random()?,
            identity: template.identity().clone(),
            not_before: now.saturating_sub(CLOCK_SKEW),
            not_after: now.saturating_add(template.lifetime()).min(self.not_after),
            renews: None,
        };
        let certificate = cert_params(&issued, template.addresses())?.signed_by(key, self.signer()?)?;
        Ok((certificate.into(), issued))
    }
}

fn cert_params(issued: &IssuedCert, addresses: &[Address]) -> Result<CertificateParams, CaError> {
    let identity = &issued.identity;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, identity.name.as_str());
    params.serial_number = Some(SerialNumber::from_slice(issued.serial.as_bytes()));
    params.not_before = rcgen::date_time_ymd(1970, 1, 1) + issued.not_before.since_epoch();
    params.not_after = rcgen::date_time_ymd(1970, 1, 1) + issued.not_after.since_epoch();
    params.is_ca = IsCa::ExplicitNoCa;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    if is_server_role(identity.role) {
        params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
    }
    params.subject_alt_names.push(SanType::URI(identity.to_string().try_into()?));
    for address in addresses {
        params.subject_alt_names.push(match address.as_str().parse() {
            Ok(ip) => SanType::IpAddress(ip),
            Err(_) => SanType::DnsName(address.as_str().try_into()?),
        });
    }
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// The files of one member in a directory: NAME.pem, NAME.key and ca.pem.
#[derive(Clone, Debug)]
pub struct MemberFiles {
    /// Path of the certificate, followed by its authority's.
    pub certificate: PathBuf,
    /// Path of the private key, which only its owner may read.
    pub key: PathBuf,
    /// Path of the authority's certificate, or of a bundle.
    pub authority: PathBuf,
}

impl MemberFiles {
    /// Paths of the files of the member `name`, existing or not.
    ///
    /// # Errors
    /// If the name is that of a file of the authority.
    pub fn of(dir: &Path, name: &Name) -> Result<Self, CaError> {
        if let "ca" | "revoked" = name.as_str() {
            let taken = format!("`{name}` cannot be used as a name: {name}.pem is a file of the authority");
            return Err(CaError::Refused(taken));
        }
        let file = |kind: &str| dir.join(format!("{name}.{kind}"));
        Ok(Self { certificate: file("pem"), key: file("key"), authority: dir.join("ca.pem") })
    }

    /// Checks that the files can be created, before a certificate is issued that could not be stored.
    ///
    /// # Errors
    /// If one of them exists already, except a ca.pem that contains the same authority.
    pub fn check_can_write(&self, authority: &CertificateDer<'_>, with_key: bool) -> Result<(), CaError> {
        self.check_free(Fingerprint::of(authority), with_key).map(|_| ())
    }

    /// The same for a member with a token and no certificate yet, which knows the authority by its fingerprint.
    pub(crate) fn check_absent(&self, authority: Fingerprint) -> Result<(), CaError> {
        self.check_free(authority, true).map(|_| ())
    }

    /// Checks that certificate and key do not exist, and that a ca.pem contains this authority. Returns the text of ca.pem.
    fn check_free(&self, authority: Fingerprint, with_key: bool) -> Result<Option<String>, CaError> {
        let taken = |path: &Path| Err(CaError::Exists { path: path.into(), help: EXISTS_HELP });
        let key = Some(&self.key).filter(|_| with_key);
        if let Some(path) = [Some(&self.certificate), key].into_iter().flatten().find(|path| is_taken(path)) {
            return taken(path);
        }
        let existing = atomic_file::read(&self.authority)?;
        if existing.as_ref().is_some_and(|existing| !contains_authority(existing, authority)) {
            return taken(&self.authority);
        }
        Ok(existing)
    }

    /// Replaces the certificate atomically by a renewed one for the same key.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn replace_certificate(&self, chain: &str) -> Result<(), CaError> {
        atomic_file::replace(&self.certificate, chain.as_bytes(), atomic_file::PUBLIC_MODE)
    }

    /// Writes the files. The certificate is written last, so that once it exists all files are complete.
    ///
    /// # Errors
    /// As [`MemberFiles::check_can_write`], or if a file operation fails.
    pub fn write(&self, chain: &IssuedChain, key: Option<&KeyPem>) -> Result<(), CaError> {
        self.write_parts(&chain.pem(), (&chain.issuer, &pem(&chain.issuer)), key).map(|_| ())
    }

    /// The same for enrolment, where the certificate arrives as text and possibly with a bundle of other authorities.
    /// Everything is checked before the first file is created. Returns whether an existing ca.pem, which is kept, contains
    /// other authorities than the bundle.
    pub(crate) fn write_parts(
        &self,
        chain: &str,
        (authority, bundle): (&CertificateDer<'_>, &str),
        key: Option<&KeyPem>,
    ) -> Result<bool, CaError> {
        let existing = self.check_free(Fingerprint::of(authority), key.is_some())?;
        if let Some(key) = key {
            atomic_file::create(&self.key, key.reveal().as_bytes(), atomic_file::SECRET_MODE, EXISTS_HELP)?;
        }
        if existing.is_none() {
            atomic_file::create(&self.authority, bundle.as_bytes(), atomic_file::PUBLIC_MODE, EXISTS_HELP)?;
        }
        atomic_file::create(&self.certificate, chain.as_bytes(), atomic_file::PUBLIC_MODE, EXISTS_HELP)?;
        Ok(existing.is_some_and(|existing| authority_fingerprints(&existing) != authority_fingerprints(bundle)))
    }
}

/// Whether a file, or a symbolic link to a missing file, exists at the path. Neither can be created again.
fn is_taken(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// Whether a `ca.pem`, which may be a bundle, contains this authority.
fn contains_authority(text: &str, authority: Fingerprint) -> bool {
    authority_fingerprints(text).contains(&authority)
}

/// Fingerprints of the authorities in a file or a bundle.
fn authority_fingerprints(text: &str) -> BTreeSet<Fingerprint> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .flatten()
        .map(|certificate| Fingerprint::of(&certificate))
        .collect()
}

const EXISTS_HELP: &str = "move it away, or name another directory";

pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    pem_encode("CERTIFICATE", certificate)
}

/// PEM encoding (RFC 7468) with lines of 64 characters.
pub(crate) fn pem_encode(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut remaining = text.as_str();
    while !remaining.is_empty() {
        let (line, after) = remaining.split_at(remaining.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        remaining = after;
    }
    pem + &format!("-----END {label}-----\n")
}
