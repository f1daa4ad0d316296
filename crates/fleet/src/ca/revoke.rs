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

use super::atomic_file::{self, DirLock};
use super::crl::{self, Crl};
use super::ids::Serial;
use super::issued_log::{self, IssuedCert};
use super::timestamp::UtcSeconds;
use super::{Authority, CaError};
use crate::identity::Identity;

impl Authority {
    /// Takes one certificate back; what it was.
    ///
    /// # Errors
    /// No such certificate was issued here, it has expired, or a file refuses.
    pub fn revoke(&self, serial: Serial, now: UtcSeconds) -> Result<IssuedCert, CaError> {
        let _lock = DirLock::acquire(&self.dir)?;
        let issued = issued_log::read_records(&self.dir)?;
        let unknown = || CaError::Refused(format!("no certificate {serial} was issued here"));
        let one = issued.iter().find(|issued| issued.serial == serial).ok_or_else(unknown)?.clone();
        if one.not_after < now {
            return Err(CaError::Refused(format!("certificate {serial} has expired, there is nothing to revoke")));
        }
        self.publish_revocations(&issued, std::slice::from_ref(&one), now)?;
        Ok(one)
    }

    /// Takes back every certificate of somebody that has not expired; which they were. Also those that were revoked before.
    ///
    /// # Errors
    /// There is none, or a file refuses.
    pub fn revoke_name(&self, identity: &Identity, now: UtcSeconds) -> Result<Vec<IssuedCert>, CaError> {
        let _lock = DirLock::acquire(&self.dir)?;
        let issued = issued_log::read_records(&self.dir)?;
        let is_valid_of_member = |one: &&IssuedCert| one.identity == *identity && one.not_after >= now;
        let revoked_certs: Vec<IssuedCert> = issued.iter().filter(is_valid_of_member).cloned().collect();
        if revoked_certs.is_empty() {
            return Err(CaError::Refused(format!("{identity} has no certificate that is valid")));
        }
        self.publish_revocations(&issued, &revoked_certs, now)?;
        Ok(revoked_certs)
    }

    /// Puts another machine's list of this authority and ours together; whether ours is a new one. Where neither says it all, the new
    /// one has a greater number than both, so that it takes the place of either.
    ///
    /// # Errors
    /// It is damaged or signed by somebody else, or a file refuses.
    pub fn merge_crl(&self, pem: &str, now: UtcSeconds) -> Result<bool, CaError> {
        let path = crl::path(&self.dir);
        let other = Crl::parse(pem.as_bytes(), &self.certificate);
        let other = other.map_err(|text| CaError::damaged(&path, format!("a list that was sent: {text}")))?;
        let _lock = DirLock::acquire(&self.dir)?;
        let own_crl = self.crl()?;
        let mut merged = own_crl.revoked.clone();
        for (serial, since) in &other.revoked {
            merged.entry(serial.clone()).or_insert(*since);
        }
        add_renewals(&mut merged, &issued_log::read_records(&self.dir)?, now);
        let (own_is_complete, other_is_complete) =
            (merged.len() == own_crl.revoked.len(), merged.len() == other.revoked.len());
        if own_is_complete
            && (own_crl.number > other.number || (other_is_complete && own_crl.number == other.number))
        {
            return Ok(false);
        }
        atomic_file::remove_temp_files(&self.dir)?;
        if other_is_complete && other.number > own_crl.number {
            atomic_file::replace(&path, pem.as_bytes(), atomic_file::PUBLIC_MODE)?;
        } else {
            let number = own_crl.number.max(other.number).saturating_add(1);
            let new = crl::sign(self.signer()?, number, &merged, now)?;
            atomic_file::replace(&path, new.as_bytes(), atomic_file::PUBLIC_MODE)?;
        }
        Ok(true)
    }

    pub(super) fn crl(&self) -> Result<Crl, CaError> {
        let path = crl::path(&self.dir);
        let missing =
            || CaError::damaged(&path, "it is missing: put it back from a copy, else the revoked are let in");
        let pem = atomic_file::read(&path)?.ok_or_else(missing)?;
        Crl::parse(pem.as_bytes(), &self.certificate).map_err(|text| CaError::damaged(&path, text))
    }

    fn publish_revocations(
        &self,
        issued: &[IssuedCert],
        to_revoke: &[IssuedCert],
        now: UtcSeconds,
    ) -> Result<(), CaError> {
        let old = self.crl()?;
        let ends: BTreeMap<&[u8], UtcSeconds> =
            issued.iter().map(|issued| (issued.serial.as_bytes(), issued.not_after)).collect();
        // What is not on the list of what was issued never leaves: nobody knows when it ends.
        let is_retained = |serial: &[u8]| ends.get(serial).is_none_or(|end| end.saturating_add(RETENTION) >= now);
        let mut revoked = old.revoked.clone();
        revoked.retain(|serial, _| is_retained(serial));
        for issued in to_revoke {
            revoked.entry(issued.serial.as_bytes().to_vec()).or_insert(now);
        }
        add_renewals(&mut revoked, issued, now);
        if revoked.keys().all(|serial| old.revoked.contains_key(serial)) {
            return Ok(());
        }
        atomic_file::remove_temp_files(&self.dir)?;
        let pem = crl::sign(self.signer()?, old.number.saturating_add(1), &revoked, now)?;
        atomic_file::replace(&crl::path(&self.dir), pem.as_bytes(), atomic_file::PUBLIC_MODE)
    }
}

/// Rule 4. The list of what was issued is in the order of time.
fn add_renewals(revoked: &mut BTreeMap<Vec<u8>, UtcSeconds>, issued: &[IssuedCert], now: UtcSeconds) {
    for one in issued.iter().filter(|one| one.not_after >= now) {
        if one.renews.is_some_and(|renewed_serial| revoked.contains_key(renewed_serial.as_bytes())) {
            revoked.entry(one.serial.as_bytes().to_vec()).or_insert(now);
        }
    }
}

const RETENTION: Duration = Duration::from_secs(86_400);
