//! Renewal: a member that presents a certificate near its end gets a new one for the same name, addresses and key.
//!
//! The presented certificate was verified by TLS. The new one has the same lifetime.
//!
//! 1. The requesting member chooses nothing: name, addresses, key and lifetime are those of the presented certificate.
//! 2. A renewal is possible only in the last third of the lifetime, and at most [`MAX_RENEWALS`] times. A response may
//!    be lost, so once is not enough; but the holder of a stolen certificate must not fill the issued log.
//! 3. Revocation is checked under the same lock under which certificates are revoked, so no revocation is missed.
//! 4. The issued log records the serial number of the presented certificate with the new one. Revoking a certificate
//!    also revokes those that renewed it (`revoke`).
//!
//! A new key for each renewal was rejected: key and certificate are two files, and a crash between them would leave a
//! host without either.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::SubjectPublicKeyInfo;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::atomic_file::DirLock;
use super::crl::CLOCK_SKEW;
use super::error::RenewError;
use super::ids::Serial;
use super::issued_log;
use super::timestamp::UtcSeconds;
use super::{Address, Authority, CaError, CertTemplate, IssuedChain};
use crate::identity::Identity;

/// Rule 2. Our choice: with a certificate of a month, one for each day that is left.
const MAX_RENEWALS: usize = 10;

/// Validity period of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Time of issue.
    pub issued_at: UtcSeconds,
    /// End of the validity.
    pub not_after: UtcSeconds,
}

impl Validity {
    /// Reads the validity of a certificate.
    ///
    /// # Errors
    /// If the certificate cannot be parsed.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
        Ok(Self::parsed(&parsed))
    }

    fn parsed(parsed: &X509Certificate<'_>) -> Self {
        let at = |time: i64| UtcSeconds::from_unix(u64::try_from(time).unwrap_or_default());
        let validity = parsed.validity();
        // The certificate itself begins ten minutes earlier, to tolerate clock differences.
        Self {
            issued_at: at(validity.not_before.timestamp()).saturating_add(CLOCK_SKEW),
            not_after: at(validity.not_after.timestamp()),
        }
    }

    /// Total lifetime from the time of issue.
    pub fn lifetime(self) -> Duration {
        self.not_after.since_epoch().saturating_sub(self.issued_at.since_epoch())
    }

    /// When renewal becomes possible: a third of the lifetime is left.
    pub fn renewal_due(self) -> UtcSeconds {
        self.not_after.saturating_sub(self.lifetime() / 3)
    }
}

impl Authority {
    /// Issues the successor of the presented certificate.
    ///
    /// # Errors
    /// If it is too early, the certificate is no longer accepted, or a file operation fails.
    pub fn renew(&self, presented: &CertificateDer<'_>, now: UtcSeconds) -> Result<IssuedChain, RenewError> {
        let not_allowed = |text: String| RenewError::NotAllowed(text);
        let (_, parsed) =
            x509_parser::parse_x509_certificate(presented).map_err(|error| not_allowed(error.to_string()))?;
        self.check_signed(&parsed)?;
        let identity = Identity::of(presented).map_err(not_allowed)?;
        let validity = Validity::parsed(&parsed);
        if validity.not_after < now {
            return Err(not_allowed(format!(
                "{identity}: the certificate expired at {}: enrol again",
                validity.not_after
            )));
        }
        if now < validity.renewal_due() {
            return Err(RenewError::NotDue(format!(
                "{identity}: it is renewed from {} on",
                validity.renewal_due()
            )));
        }
        if self.not_after() <= validity.not_after {
            let text = format!("{identity}: the authority itself ends at {}", self.not_after());
            return Err(RenewError::NotDue(text));
        }
        let serial = Serial::of(parsed.raw_serial()).ok_or_else(|| {
            not_allowed("its serial number is not of the form that this authority issues".to_owned())
        })?;
        let template = CertTemplate::new(identity.clone(), addresses(&parsed)?, validity.lifetime())?;
        let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw).map_err(CaError::from)?;
        let (certificate, mut issued) = self.sign_unrecorded(&template, &key, now)?;
        issued.renews = Some(serial);
        let _lock = DirLock::acquire(&self.dir)?;
        if self.crl()?.revoked.contains_key(serial.as_bytes()) {
            return Err(not_allowed(format!("{identity}: the certificate has been revoked")));
        }
        let renewals = issued_log::read_records(&self.dir)?.iter().filter(|one| one.renews == Some(serial)).count();
        if renewals >= MAX_RENEWALS {
            return Err(not_allowed(format!(
                "{identity}: the certificate was already renewed {MAX_RENEWALS} times: enrol again"
            )));
        }
        issued_log::append_record(&self.dir, &issued)?;
        Ok(IssuedChain { certificate, issuer: self.certificate.clone(), record: issued })
    }

    fn check_signed(&self, certificate: &X509Certificate<'_>) -> Result<(), RenewError> {
        let authority = x509_parser::parse_x509_certificate(&self.certificate);
        let (_, authority) = authority.map_err(|error| CaError::Library(error.to_string()))?;
        let other_authority = |_| RenewError::NotAllowed("the certificate is not from this authority".to_owned());
        certificate.verify_signature(Some(authority.public_key())).map_err(other_authority)
    }
}

/// Addresses of the member, from the certificate's alternative names.
fn addresses(parsed: &X509Certificate<'_>) -> Result<Vec<Address>, CaError> {
    let wrong = |error: String| CaError::Library(format!("invalid alternative names in the certificate: {error}"));
    let names = parsed.subject_alternative_name().map_err(|error| wrong(error.to_string()))?;
    let names = names.into_iter().flat_map(|extension| &extension.value.general_names);
    let address = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => parse_ip(bytes).map(|ip| ip.to_string()),
        _ => None,
    };
    names.filter_map(address).map(|text| text.parse().map_err(wrong)).collect()
}

fn parse_ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

#[cfg(test)]
mod tests {
    use super::super::{CertRequest, CertState, KeyWithRequest, RevocationFile};
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> UtcSeconds {
        "2026-10-02T12:00:00Z".parse().unwrap()
    }

    fn template() -> CertTemplate {
        let addresses = ["r.example", "192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
        CertTemplate::new("marline://relay/fra-1".parse().unwrap(), addresses.into(), 30 * DAY).unwrap()
    }

    fn fresh() -> (tempfile::TempDir, Authority, IssuedChain) {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", now()).unwrap();
        let request = CertRequest::parse(KeyWithRequest::generate().unwrap().request.as_bytes()).unwrap();
        let chain = authority.issue(&template(), &request, now()).unwrap();
        (dir, authority, chain)
    }

    #[test]
    fn a_certificate_near_its_end_is_renewed_with_the_same_contents() {
        let (_dir, authority, chain) = fresh();
        let validity = Validity::of(&chain.certificate).unwrap();
        assert_eq!(
            (validity.issued_at, validity.not_after, validity.renewal_due()),
            (now(), now().saturating_add(30 * DAY), now().saturating_add(20 * DAY))
        );
        let later = now().saturating_add(21 * DAY);
        let next = authority.renew(&chain.certificate, later).unwrap();
        assert_eq!(
            Validity::of(&next.certificate).unwrap(),
            Validity { issued_at: later, not_after: later.saturating_add(30 * DAY) }
        );
        let key = |certificate: &CertificateDer<'_>| {
            let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
            (parsed.public_key().raw.to_vec(), addresses(&parsed).unwrap(), Identity::of(certificate).unwrap())
        };
        assert_eq!(key(&next.certificate), key(&chain.certificate));
        assert_eq!(key(&next.certificate).1, template().addresses());
        let list = authority.issued_certs(later).unwrap();
        assert_eq!((list.len(), list[1].0.renews), (2, Some(chain.record.serial)));
        assert_eq!(list[1].0, next.record);
        // The renewed certificate can be renewed in turn.
        let last = authority.renew(&next.certificate, later.saturating_add(25 * DAY)).unwrap();
        assert_eq!(last.record.renews, Some(next.record.serial));
    }

    #[test]
    fn early_expired_revoked_and_foreign_certificates_are_not_renewed() {
        let (_dir, authority, chain) = fresh();
        let message = |shown: &CertificateDer<'_>, at: UtcSeconds| authority.renew(shown, at).unwrap_err();
        assert!(matches!(message(&chain.certificate, now().saturating_add(19 * DAY)), RenewError::NotDue(_)));
        let over = message(&chain.certificate, now().saturating_add(31 * DAY));
        assert!(matches!(&over, RenewError::NotAllowed(text) if text.contains("expired at")), "{over}");
        let (_other, _, foreign) = fresh();
        let strange = message(&foreign.certificate, now().saturating_add(21 * DAY));
        assert!(strange.to_string().contains("not from this authority"), "{strange}");
        authority.revoke(chain.record.serial, now()).unwrap();
        let revoked = message(&chain.certificate, now().saturating_add(21 * DAY));
        assert!(revoked.to_string().contains("has been revoked"), "{revoked}");
        assert_eq!(authority.issued_certs(now()).unwrap().len(), 1, "no further certificate was issued");
    }

    #[test]
    fn a_lost_renewal_may_be_repeated_a_limited_number_of_times() {
        let (_dir, authority, chain) = fresh();
        let later = now().saturating_add(21 * DAY);
        for _ in 0..MAX_RENEWALS {
            authority.renew(&chain.certificate, later).unwrap();
        }
        assert!(authority.renew(&chain.certificate, later).unwrap_err().to_string().contains("enrol again"));
        assert_eq!(authority.issued_certs(later).unwrap().len(), MAX_RENEWALS + 1);
    }

    #[test]
    fn revoking_a_certificate_revokes_its_renewals() {
        let (_dir, authority, chain) = fresh();
        let later = now().saturating_add(21 * DAY);
        let next = authority.renew(&chain.certificate, later).unwrap();
        let last = authority.renew(&next.certificate, later.saturating_add(21 * DAY)).unwrap();
        authority.revoke(next.record.serial, later.saturating_add(21 * DAY)).unwrap();
        let states: Vec<CertState> = authority
            .issued_certs(later.saturating_add(21 * DAY))
            .unwrap()
            .into_iter()
            .map(|(_, state)| state)
            .collect();
        assert_eq!(states, [CertState::Expired, CertState::Revoked, CertState::Revoked]);
        let list = RevocationFile::open(&authority.crl_path(), authority.certificate()).unwrap();
        assert!(list.is_revoked(last.record.serial.as_bytes()) && !list.is_revoked(chain.record.serial.as_bytes()));
    }

    #[test]
    fn a_certificate_is_not_renewed_beyond_the_end_of_its_authority() {
        let (_dir, authority, _) = fresh();
        let late = authority.not_after().saturating_sub(25 * DAY);
        let request = CertRequest::parse(KeyWithRequest::generate().unwrap().request.as_bytes()).unwrap();
        let chain = authority.issue(&template(), &request, late).unwrap();
        let message = authority.renew(&chain.certificate, late.saturating_add(20 * DAY)).unwrap_err();
        assert!(
            matches!(&message, RenewError::NotDue(text) if text.contains("the authority itself ends")),
            "{message}"
        );
    }
}
