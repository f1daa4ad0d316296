//! Renewing: who shows a certificate that ends soon gets one for the same name, the same addresses and the same key.
//!
//! In: a certificate that TLS has verified. Out: the next one, as long as the first; or why not.
//!
//! 1. Who asks chooses nothing of it: name, addresses, key and life are those of the certificate that it shows.
//! 2. Only in the last third of its life, and no more than [`MOST`] times: an answer may be lost on its way, and who has a stolen
//!    certificate must not fill the list of what was issued.
//! 3. Whether it was taken back is looked up under the lock under which others are taken back: one of both sees the other.
//! 4. The new one stands on the list of what was issued with the number of the one that was shown: who takes that back takes
//!    back with it what came of it (`revoke`).
//!
//! A new key each time was not used: key and certificate are two files, and a crash between them would leave a box without either.

use std::net::IpAddr;
use std::time::Duration;

use rcgen::SubjectPublicKeyInfo;
use rustls::pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;

use super::crl::SKEW;
use super::error::RenewError;
use super::files::Lock;
use super::list;
use super::numbers::Serial;
use super::stamp::Stamp;
use super::{Address, Authority, CaError, Chain, Grant};
use crate::identity::Identity;

/// Rule 2. chosen: with a month's certificate one for each day that is left.
const MOST: usize = 10;

/// From when to when a certificate counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// When it was made.
    pub made: Stamp,
    /// When it ends.
    pub ends: Stamp,
}

impl Span {
    /// What stands in a certificate.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|error| error.to_string())?;
        Ok(Self::parsed(&parsed))
    }

    fn parsed(parsed: &X509Certificate<'_>) -> Self {
        let at = |time: i64| Stamp::from_unix(u64::try_from(time).unwrap_or_default());
        let validity = parsed.validity();
        // Others may take it ten minutes earlier, for their clocks' sake.
        Self { made: at(validity.not_before.timestamp()).after(SKEW), ends: at(validity.not_after.timestamp()) }
    }

    /// How long it counts in all.
    pub fn life(self) -> Duration {
        self.ends.since_1970().saturating_sub(self.made.since_1970())
    }

    /// From when on it is renewed: a third of its life is left.
    pub fn due(self) -> Stamp {
        self.ends.before(self.life() / 3)
    }
}

impl Authority {
    /// The next certificate of who shows this one.
    ///
    /// # Errors
    /// It is not time yet, the certificate opens no door any more, or a file refuses.
    pub fn renew(&self, shown: &CertificateDer<'_>, now: Stamp) -> Result<Chain, RenewError> {
        let not = |text: String| RenewError::NotAllowed(text);
        let (_, parsed) = x509_parser::parse_x509_certificate(shown).map_err(|error| not(error.to_string()))?;
        self.has_signed(&parsed)?;
        let identity = Identity::of(shown).map_err(not)?;
        let span = Span::parsed(&parsed);
        if span.ends < now {
            return Err(not(format!("{identity}: the certificate ended at {}: enrol again", span.ends)));
        }
        if now < span.due() {
            return Err(RenewError::NotDue(format!("{identity}: it is renewed from {} on", span.due())));
        }
        if self.not_after() <= span.ends {
            let with = format!("{identity}: the authority itself ends at {}", self.not_after());
            return Err(RenewError::NotDue(with));
        }
        let serial = Serial::of(parsed.raw_serial()).ok_or_else(|| not("its number is none of ours".to_owned()))?;
        let grant = Grant::new(identity.clone(), addresses(&parsed)?, span.life())?;
        let key = SubjectPublicKeyInfo::from_der(parsed.public_key().raw).map_err(CaError::from)?;
        let (certificate, mut issued) = self.made(&grant, &key, now)?;
        issued.renews = Some(serial);
        let _lock = Lock::take(&self.dir)?;
        if self.crl()?.revoked.contains_key(serial.as_bytes()) {
            return Err(not(format!("{identity}: the certificate has been revoked")));
        }
        let before = list::read(&self.dir)?.iter().filter(|one| one.renews == Some(serial)).count();
        if before >= MOST {
            return Err(not(format!("{identity}: it was renewed {MOST} times already: enrol again")));
        }
        list::record(&self.dir, &issued)?;
        Ok(Chain { certificate, authority: self.certificate.clone(), issued })
    }

    fn has_signed(&self, one: &X509Certificate<'_>) -> Result<(), RenewError> {
        let own = x509_parser::parse_x509_certificate(&self.certificate);
        let (_, own) = own.map_err(|error| CaError::Library(error.to_string()))?;
        let strange = |_| RenewError::NotAllowed("the certificate is not from this authority".to_owned());
        one.verify_signature(Some(own.public_key())).map_err(strange)
    }
}

/// Where it is reached, as it stands in the certificate.
fn addresses(parsed: &X509Certificate<'_>) -> Result<Vec<Address>, CaError> {
    let wrong = |error: String| CaError::Library(format!("the certificate's names: {error}"));
    let names = parsed.subject_alternative_name().map_err(|error| wrong(error.to_string()))?;
    let names = names.into_iter().flat_map(|extension| &extension.value.general_names);
    let address = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => ip(bytes).map(|ip| ip.to_string()),
        _ => None,
    };
    names.filter_map(address).map(|text| text.parse().map_err(wrong)).collect()
}

fn ip(bytes: &[u8]) -> Option<IpAddr> {
    let four = <[u8; 4]>::try_from(bytes).map(IpAddr::from).ok();
    four.or_else(|| <[u8; 16]>::try_from(bytes).map(IpAddr::from).ok())
}

#[cfg(test)]
mod tests {
    use super::super::{NewKey, Request, Revocations, State};
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    fn now() -> Stamp {
        "2026-10-02T12:00:00Z".parse().unwrap()
    }

    fn grant() -> Grant {
        let addresses = ["r.example", "192.0.2.1", "2001:db8::1"].map(|address| address.parse().unwrap());
        Grant::new("marline://relay/fra-1".parse().unwrap(), addresses.into(), 30 * DAY).unwrap()
    }

    fn fresh() -> (tempfile::TempDir, Authority, Chain) {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::init(&dir.path().join("ca"), "test", now()).unwrap();
        let request = Request::parse(NewKey::generate().unwrap().request.as_bytes()).unwrap();
        let chain = authority.issue(&grant(), &request, now()).unwrap();
        (dir, authority, chain)
    }

    #[test]
    fn what_ends_soon_is_renewed_as_it_was() {
        let (_dir, authority, chain) = fresh();
        let span = Span::of(&chain.certificate).unwrap();
        assert_eq!((span.made, span.ends, span.due()), (now(), now().after(30 * DAY), now().after(20 * DAY)));
        let later = now().after(21 * DAY);
        let next = authority.renew(&chain.certificate, later).unwrap();
        assert_eq!(Span::of(&next.certificate).unwrap(), Span { made: later, ends: later.after(30 * DAY) });
        let key = |certificate: &CertificateDer<'_>| {
            let (_, parsed) = x509_parser::parse_x509_certificate(certificate).unwrap();
            (parsed.public_key().raw.to_vec(), addresses(&parsed).unwrap(), Identity::of(certificate).unwrap())
        };
        assert_eq!(key(&next.certificate), key(&chain.certificate));
        assert_eq!(key(&next.certificate).1, grant().addresses());
        let list = authority.list(later).unwrap();
        assert_eq!((list.len(), list[1].0.renews), (2, Some(chain.issued.serial)));
        assert_eq!(list[1].0, next.issued);
        // And that one in its turn.
        let last = authority.renew(&next.certificate, later.after(25 * DAY)).unwrap();
        assert_eq!(last.issued.renews, Some(next.issued.serial));
    }

    #[test]
    fn what_is_young_or_over_or_revoked_or_strange_is_not() {
        let (_dir, authority, chain) = fresh();
        let said = |shown: &CertificateDer<'_>, at: Stamp| authority.renew(shown, at).unwrap_err();
        assert!(matches!(said(&chain.certificate, now().after(19 * DAY)), RenewError::NotDue(_)));
        let over = said(&chain.certificate, now().after(31 * DAY));
        assert!(matches!(&over, RenewError::NotAllowed(text) if text.contains("ended at")), "{over}");
        let (_other, _, strange) = fresh();
        let strange = said(&strange.certificate, now().after(21 * DAY));
        assert!(strange.to_string().contains("not from this authority"), "{strange}");
        authority.revoke(chain.issued.serial, now()).unwrap();
        let revoked = said(&chain.certificate, now().after(21 * DAY));
        assert!(revoked.to_string().contains("has been revoked"), "{revoked}");
        assert_eq!(authority.list(now()).unwrap().len(), 1, "and none of it was issued");
    }

    #[test]
    fn an_answer_that_was_lost_may_be_asked_for_again_but_not_for_ever() {
        let (_dir, authority, chain) = fresh();
        let later = now().after(21 * DAY);
        for _ in 0..MOST {
            authority.renew(&chain.certificate, later).unwrap();
        }
        assert!(authority.renew(&chain.certificate, later).unwrap_err().to_string().contains("enrol again"));
        assert_eq!(authority.list(later).unwrap().len(), MOST + 1);
    }

    #[test]
    fn who_takes_a_certificate_back_takes_back_what_came_of_it() {
        let (_dir, authority, chain) = fresh();
        let later = now().after(21 * DAY);
        let next = authority.renew(&chain.certificate, later).unwrap();
        let last = authority.renew(&next.certificate, later.after(21 * DAY)).unwrap();
        authority.revoke(next.issued.serial, later.after(21 * DAY)).unwrap();
        let states: Vec<State> =
            authority.list(later.after(21 * DAY)).unwrap().into_iter().map(|(_, state)| state).collect();
        assert_eq!(states, [State::Expired, State::Revoked, State::Revoked]);
        let list = Revocations::open(&authority.revocations_path(), authority.certificate()).unwrap();
        assert!(list.is_revoked(last.issued.serial.as_bytes()) && !list.is_revoked(chain.issued.serial.as_bytes()));
    }

    #[test]
    fn the_last_certificate_ends_with_its_authority() {
        let (_dir, authority, _) = fresh();
        let late = authority.not_after().before(25 * DAY);
        let request = Request::parse(NewKey::generate().unwrap().request.as_bytes()).unwrap();
        let chain = authority.issue(&grant(), &request, late).unwrap();
        let said = authority.renew(&chain.certificate, late.after(20 * DAY)).unwrap_err();
        assert!(matches!(&said, RenewError::NotDue(text) if text.contains("the authority itself ends")), "{said}");
    }
}
