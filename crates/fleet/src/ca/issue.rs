//! Certificates: what a grant and a public key become.
//!
//! 1. The names are the grant's: its identity as the one URI, its addresses as DNS names and IPs.
//! 2. Who connects may present it (`clientAuth`); who is connected to may also serve with it (`serverAuth`).
//! 3. It begins ten minutes early, for boxes whose clock is behind, and ends no later than the authority.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rcgen::{
    CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose,
    PublicKeyData, SanType, SerialNumber,
};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};

use super::atomic_file::{self, DirLock};
use super::cert_template::is_server_role;
use super::crl::CLOCK_SKEW;
use super::csr::{CertRequest, KeyPem};
use super::ids::{Fingerprint, Serial};
use super::issued_log::{self, IssuedCert};
use super::timestamp::UtcSeconds;
use super::{Address, Authority, CaError, CertTemplate};
use crate::identity::Name;

/// A certificate and its authority's.
#[derive(Clone, Debug)]
pub struct IssuedChain {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// Who signed it.
    pub issuer: CertificateDer<'static>,
    /// What stands on the list of what was issued.
    pub record: IssuedCert,
}

impl IssuedChain {
    /// Both as PEM: the authority's comes last, so that who knows no more than its fingerprint can verify the first.
    pub fn pem(&self) -> String {
        pem(&self.certificate) + &pem(&self.issuer)
    }
}

impl Authority {
    /// Certifies the key of a request.
    ///
    /// # Errors
    /// The authority is over, or a file refuses.
    pub fn issue(
        &self,
        template: &CertTemplate,
        request: &CertRequest,
        now: UtcSeconds,
    ) -> Result<IssuedChain, CaError> {
        self.certify(template, request.key(), now)
    }

    /// Makes a key and certifies it, for those who do it by hand.
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

    /// A certificate that does not stand on the list yet, and that nobody may see before it does.
    pub(super) fn sign_unrecorded(
        &self,
        template: &CertTemplate,
        key: &impl PublicKeyData,
        now: UtcSeconds,
    ) -> Result<(CertificateDer<'static>, IssuedCert), CaError> {
        if now >= self.not_after {
            let expired = format!("this authority ended at {}: make a new one and enrol again", self.not_after);
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
        params.subject_alt_names.push(match address.server_name() {
            ServerName::IpAddress(ip) => SanType::IpAddress((*ip).into()),
            name => SanType::DnsName(name.to_str().into_owned().try_into()?),
        });
    }
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}

/// The files of one member in DIR: NAME.pem, NAME.key and ca.pem.
#[derive(Clone, Debug)]
pub struct MemberFiles {
    /// The certificate and its authority's.
    pub certificate: PathBuf,
    /// The private key, for its owner's eyes alone.
    pub key: PathBuf,
    /// The authority's certificate.
    pub authority: PathBuf,
}

impl MemberFiles {
    /// Where they are, or will be.
    ///
    /// # Errors
    /// The member is called as a file of the authority is.
    pub fn of(dir: &Path, name: &Name) -> Result<Self, CaError> {
        if let "ca" | "revoked" = name.as_str() {
            let taken = format!("`{name}` cannot be in files: {name}.pem is the authority's");
            return Err(CaError::Refused(taken));
        }
        let file = |kind: &str| dir.join(format!("{name}.{kind}"));
        Ok(Self { certificate: file("pem"), key: file("key"), authority: dir.join("ca.pem") })
    }

    /// Whether there is room for them, before a certificate is made in vain.
    ///
    /// # Errors
    /// One of them is there already; a ca.pem with the same authority in it may be.
    pub fn check(&self, authority: &CertificateDer<'_>, with_key: bool) -> Result<(), CaError> {
        let taken = |path: &Path| Err(CaError::Exists { path: path.into(), help: EXISTS_HELP });
        if self.certificate.exists() {
            return taken(&self.certificate);
        }
        if with_key && self.key.exists() {
            return taken(&self.key);
        }
        match atomic_file::read(&self.authority)? {
            Some(existing) if !contains_authority(&existing, Fingerprint::of(authority)) => taken(&self.authority),
            _ => Ok(()),
        }
    }

    /// The same for who has a token and no certificate yet: he knows the authority by its fingerprint.
    pub(crate) fn check_absent(&self, authority: Fingerprint) -> Result<(), CaError> {
        let taken = |path: &Path| Err(CaError::Exists { path: path.into(), help: EXISTS_HELP });
        match atomic_file::read(&self.authority)? {
            Some(existing) if !contains_authority(&existing, authority) => taken(&self.authority),
            _ => [&self.certificate, &self.key]
                .into_iter()
                .find(|path| path.exists())
                .map_or(Ok(()), |path| taken(path)),
        }
    }

    /// Puts a renewed certificate in the place of the old one, whole or not at all; its key is the same.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn replace_certificate(&self, chain: &str) -> Result<(), CaError> {
        atomic_file::replace(&self.certificate, chain.as_bytes(), atomic_file::PUBLIC_MODE)
    }

    /// Writes them. The certificate comes last: whoever sees it sees all.
    ///
    /// # Errors
    /// As [`MemberFiles::check`], or a file refuses.
    pub fn write(&self, chain: &IssuedChain, key: Option<&KeyPem>) -> Result<(), CaError> {
        self.write_parts(&chain.pem(), (&chain.issuer, &pem(&chain.issuer)), key)
    }

    /// Whether the `ca.pem` that is there trusts other authorities than this bundle.
    pub(crate) fn has_other_authorities(&self, bundle: &str) -> Result<bool, CaError> {
        let existing = atomic_file::read(&self.authority)?;
        Ok(existing.is_some_and(|existing| authority_fingerprints(&existing) != authority_fingerprints(bundle)))
    }

    /// The same for who enrols, whose certificate came as text, and perhaps with other authorities in a bundle.
    pub(crate) fn write_parts(
        &self,
        chain: &str,
        (authority, bundle): (&CertificateDer<'_>, &str),
        key: Option<&KeyPem>,
    ) -> Result<(), CaError> {
        self.check(authority, key.is_some())?;
        if let Some(key) = key {
            atomic_file::create(&self.key, key.reveal().as_bytes(), atomic_file::SECRET_MODE, EXISTS_HELP)?;
        }
        if atomic_file::read(&self.authority)?.is_none() {
            atomic_file::create(&self.authority, bundle.as_bytes(), atomic_file::PUBLIC_MODE, EXISTS_HELP)?;
        }
        atomic_file::create(&self.certificate, chain.as_bytes(), atomic_file::PUBLIC_MODE, EXISTS_HELP)
    }
}

/// Whether this authority is in a `ca.pem`, alone or in a bundle.
fn contains_authority(text: &str, authority: Fingerprint) -> bool {
    authority_fingerprints(text).contains(&authority)
}

/// The authorities in a file or a bundle.
fn authority_fingerprints(text: &str) -> BTreeSet<Fingerprint> {
    CertificateDer::pem_slice_iter(text.as_bytes())
        .flatten()
        .map(|certificate| Fingerprint::of(&certificate))
        .collect()
}

const EXISTS_HELP: &str = "move it away, or name another directory";

/// A certificate as text.
pub(crate) fn pem(certificate: &CertificateDer<'_>) -> String {
    pem_encode("CERTIFICATE", certificate)
}

/// RFC 7468.
pub(crate) fn pem_encode(label: &str, der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem + &format!("-----END {label}-----\n")
}
