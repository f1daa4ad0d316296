//! The revocation list (RFC 5280 §5) in DIR/revoked.pem: signing and parsing.
//!
//! 1. A list that the authority has not signed is rejected.
//! 2. Each new list has a greater number, so older and newer lists can be distinguished.
//! 3. `nextUpdate` is ten years ahead. How current a list is depends on how often its readers fetch it, and a fleet
//!    without revocations for a month must continue to work.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rcgen::{CertificateRevocationListParams, Issuer, KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use super::timestamp::UtcSeconds;
use super::{CaError, LIFETIME};

/// A revocation list with a verified signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crl {
    pub(crate) der: CertificateRevocationListDer<'static>,
    pub(crate) number: u64,
    /// Serial numbers, as encoded in certificates, with the time of revocation.
    pub(crate) revoked: BTreeMap<Vec<u8>, UtcSeconds>,
}

pub(super) fn path(dir: &Path) -> PathBuf {
    dir.join("revoked.pem")
}

impl Crl {
    /// Parses and verifies a PEM list. Error texts do not contain the file name.
    pub(crate) fn parse(pem: &[u8], authority: &CertificateDer<'_>) -> Result<Self, String> {
        Self::of(CertificateRevocationListDer::from_pem_slice(pem).map_err(|error| error.to_string())?, authority)
    }

    /// Verifies a DER list against this authority.
    pub(crate) fn of(
        der: CertificateRevocationListDer<'static>,
        authority: &CertificateDer<'_>,
    ) -> Result<Self, String> {
        let (number, revoked) = parse_signed(&der, authority)?;
        Ok(Self { der, number, revoked })
    }
}

fn parse_signed(
    der: &[u8],
    authority: &CertificateDer<'_>,
) -> Result<(u64, BTreeMap<Vec<u8>, UtcSeconds>), String> {
    let (_, signer) = x509_parser::parse_x509_certificate(authority).map_err(|error| error.to_string())?;
    let (_, list) =
        CertificateRevocationList::from_der(der).map_err(|error| format!("not a revocation list: {error}"))?;
    let signed =
        list.issuer().as_raw() == signer.subject().as_raw() && list.verify_signature(signer.public_key()).is_ok();
    if !signed {
        return Err("this revocation list is not signed by the authority".to_owned());
    }
    let number = list.crl_number().and_then(|number| u64::try_from(number).ok());
    let number = number.ok_or("this revocation list has no number")?;
    let entry = |entry: &x509_parser::revocation_list::RevokedCertificate<'_>| {
        let since = u64::try_from(entry.revocation_date.timestamp()).unwrap_or_default();
        (entry.raw_serial().to_vec(), UtcSeconds::from_unix(since))
    };
    Ok((number, list.iter_revoked_certificates().map(entry).collect()))
}

/// Signs a new list; returns it as PEM.
pub(super) fn sign(
    issuer: &Issuer<'_, KeyPair>,
    number: u64,
    revoked: &BTreeMap<Vec<u8>, UtcSeconds>,
    now: UtcSeconds,
) -> Result<String, CaError> {
    let entry = |(serial, since): (&Vec<u8>, &UtcSeconds)| RevokedCertParams {
        serial_number: SerialNumber::from_slice(serial),
        revocation_time: rcgen::date_time_ymd(1970, 1, 1) + since.since_epoch(),
        reason_code: None,
        invalidity_date: None,
    };
    let params = CertificateRevocationListParams {
        this_update: rcgen::date_time_ymd(1970, 1, 1) + now.saturating_sub(CLOCK_SKEW).since_epoch(),
        next_update: rcgen::date_time_ymd(1970, 1, 1) + now.saturating_add(LIFETIME).since_epoch(),
        crl_number: SerialNumber::from(number),
        issuing_distribution_point: None,
        revoked_certs: revoked.iter().map(entry).collect(),
        key_identifier_method: KeyIdMethod::Sha256,
    };
    Ok(params.signed_by(issuer)?.pem()?)
}

/// Tolerated difference of clocks: the validity of certificates and lists begins this much in the past. Our
/// choice.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(600);
