//! Taking certificates back.
//!
//! 1. A new list takes the old one's place whole, with the next number.
//! 2. What was revoked stays on the list until a day after it has expired, then it opens no door anyway.
//! 3. To revoke twice is no error, and changes nothing.
//! 4. With a certificate goes what it was renewed to ([`Authority::renew`]): who has stolen the first one may have the others.
//! 5. Several machines with copies of one authority may each take somebody back before they hear of each other. Lists are put
//!    together then ([`Authority::take_list`]): who stands on either stands on the next one.

use std::collections::BTreeMap;
use std::time::Duration;

use super::crl::{self, Crl};
use super::files::{self, Lock};
use super::list::{self, Issued};
use super::numbers::Serial;
use super::stamp::Stamp;
use super::{Authority, CaError};
use crate::identity::Identity;

impl Authority {
    /// Takes one certificate back; what it was.
    ///
    /// # Errors
    /// No such certificate was issued here, it has expired, or a file refuses.
    pub fn revoke(&self, serial: Serial, now: Stamp) -> Result<Issued, CaError> {
        let _lock = Lock::take(&self.dir)?;
        let issued = list::read(&self.dir)?;
        let unknown = || CaError::Refused(format!("no certificate {serial} was issued here"));
        let one = issued.iter().find(|issued| issued.serial == serial).ok_or_else(unknown)?.clone();
        if one.not_after < now {
            return Err(CaError::Refused(format!("certificate {serial} has expired, there is nothing to revoke")));
        }
        self.take_back(&issued, std::slice::from_ref(&one), now)?;
        Ok(one)
    }

    /// Takes back every certificate of somebody that has not expired; which they were. Also those that were revoked before.
    ///
    /// # Errors
    /// There is none, or a file refuses.
    pub fn revoke_name(&self, identity: &Identity, now: Stamp) -> Result<Vec<Issued>, CaError> {
        let _lock = Lock::take(&self.dir)?;
        let issued = list::read(&self.dir)?;
        let is_theirs = |one: &&Issued| one.identity == *identity && one.not_after >= now;
        let theirs: Vec<Issued> = issued.iter().filter(is_theirs).cloned().collect();
        if theirs.is_empty() {
            return Err(CaError::Refused(format!("{identity} has no certificate that is valid")));
        }
        self.take_back(&issued, &theirs, now)?;
        Ok(theirs)
    }

    /// Puts another machine's list of this authority and ours together; whether ours is a new one. Where neither says it all, the new
    /// one has a greater number than both, so that it takes the place of either.
    ///
    /// # Errors
    /// It is damaged or signed by somebody else, or a file refuses.
    pub fn take_list(&self, pem: &str, now: Stamp) -> Result<bool, CaError> {
        let path = crl::path(&self.dir);
        let other = Crl::parse(pem.as_bytes(), &self.certificate);
        let other = other.map_err(|text| CaError::damaged(&path, format!("a list that was sent: {text}")))?;
        let _lock = Lock::take(&self.dir)?;
        let own = self.crl()?;
        let mut both = own.revoked.clone();
        for (serial, since) in &other.revoked {
            both.entry(serial.clone()).or_insert(*since);
        }
        with_renewals(&mut both, &list::read(&self.dir)?, now);
        let (says_all, other_says_all) = (both.len() == own.revoked.len(), both.len() == other.revoked.len());
        if says_all && (own.number > other.number || (other_says_all && own.number == other.number)) {
            return Ok(false);
        }
        files::sweep(&self.dir)?;
        if other_says_all && other.number > own.number {
            files::replace(&path, pem.as_bytes(), files::OPEN)?;
        } else {
            let number = own.number.max(other.number).saturating_add(1);
            let new = crl::sign(self.signer()?, number, &both, now)?;
            files::replace(&path, new.as_bytes(), files::OPEN)?;
        }
        Ok(true)
    }

    pub(super) fn crl(&self) -> Result<Crl, CaError> {
        let path = crl::path(&self.dir);
        let missing =
            || CaError::damaged(&path, "it is missing: put it back from a copy, else the revoked are let in");
        let pem = files::read(&path)?.ok_or_else(missing)?;
        Crl::parse(pem.as_bytes(), &self.certificate).map_err(|text| CaError::damaged(&path, text))
    }

    fn take_back(&self, issued: &[Issued], back: &[Issued], now: Stamp) -> Result<(), CaError> {
        let old = self.crl()?;
        let ends: BTreeMap<&[u8], Stamp> =
            issued.iter().map(|issued| (issued.serial.as_bytes(), issued.not_after)).collect();
        // What is not on the list of what was issued never leaves: nobody knows when it ends.
        let still = |serial: &[u8]| ends.get(serial).is_none_or(|end| end.after(KEPT) >= now);
        let mut revoked = old.revoked.clone();
        revoked.retain(|serial, _| still(serial));
        for issued in back {
            revoked.entry(issued.serial.as_bytes().to_vec()).or_insert(now);
        }
        with_renewals(&mut revoked, issued, now);
        if revoked.keys().all(|serial| old.revoked.contains_key(serial)) {
            return Ok(());
        }
        files::sweep(&self.dir)?;
        let pem = crl::sign(self.signer()?, old.number.saturating_add(1), &revoked, now)?;
        files::replace(&crl::path(&self.dir), pem.as_bytes(), files::OPEN)
    }
}

/// Rule 4. The list of what was issued is in the order of time.
fn with_renewals(revoked: &mut BTreeMap<Vec<u8>, Stamp>, issued: &[Issued], now: Stamp) {
    for one in issued.iter().filter(|one| one.not_after >= now) {
        if one.renews.is_some_and(|shown| revoked.contains_key(shown.as_bytes())) {
            revoked.entry(one.serial.as_bytes().to_vec()).or_insert(now);
        }
    }
}

const KEPT: Duration = Duration::from_secs(86_400);
