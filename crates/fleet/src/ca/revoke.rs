//! Revocation of certificates.
//!
//! 1. A new list replaces the old one atomically and has the next number.
//! 2. A revoked certificate stays on the list until a day after its expiry; after that it is rejected anyway.
//! 3. Revoking a certificate twice is not an error and changes nothing.
//! 4. Revoking a certificate also revokes its renewals ([`Authority::renew`]), which may be in the hands of the same
//!    thief.
//! 5. Several hosts with copies of one authority may revoke certificates before they learn of each other's lists. The
//!    lists are then merged ([`Authority::merge_crl`]): the next list contains the entries of both.

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
    /// Revokes one certificate; returns its record.
    ///
    /// # Errors
    /// If the certificate was not issued here or has expired, or a file operation fails.
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

    /// Revokes every certificate of a member that has not expired; returns their records, including those that were
    /// already revoked.
    ///
    /// # Errors
    /// If there is none, or a file operation fails.
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

    /// Merges another host's list of this authority with ours; returns whether ours has changed. Unless the one
    /// with the greater number has all entries, the merged list gets a greater number than both and replaces both.
    ///
    /// # Errors
    /// If the list is damaged or signed by another authority, or a file operation fails.
    pub fn merge_crl(&self, pem: &str, now: UtcSeconds) -> Result<bool, CaError> {
        let path = crl::path(&self.dir);
        let other = Crl::parse(pem.as_bytes(), &self.certificate);
        let other = other.map_err(|text| CaError::damaged(&path, format!("a received revocation list: {text}")))?;
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
        // The other list already contains everything: take it over unchanged, so that all hosts have the same bytes.
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
        let missing = || {
            CaError::damaged(&path, "it is missing: restore it from a copy, otherwise revoked members are accepted")
        };
        let pem = atomic_file::read(&path)?.ok_or_else(missing)?;
        Crl::parse(pem.as_bytes(), &self.certificate).map_err(|text| CaError::damaged(&path, text))
    }

    fn publish_revocations(
        &self,
        issued: &[IssuedCert],
        to_revoke: &[IssuedCert],
        now: UtcSeconds,
    ) -> Result<(), CaError> {
        let previous_crl = self.crl()?;
        let ends: BTreeMap<&[u8], UtcSeconds> =
            issued.iter().map(|issued| (issued.serial.as_bytes(), issued.not_after)).collect();
        // Certificates missing in the issued log stay on the list forever, because their expiry is unknown.
        let is_retained = |serial: &[u8]| ends.get(serial).is_none_or(|end| end.saturating_add(RETENTION) >= now);
        let mut revoked = previous_crl.revoked.clone();
        revoked.retain(|serial, _| is_retained(serial));
        for issued in to_revoke {
            revoked.entry(issued.serial.as_bytes().to_vec()).or_insert(now);
        }
        add_renewals(&mut revoked, issued, now);
        if revoked.keys().all(|serial| previous_crl.revoked.contains_key(serial)) {
            return Ok(());
        }
        atomic_file::remove_temp_files(&self.dir)?;
        let pem = crl::sign(self.signer()?, previous_crl.number.saturating_add(1), &revoked, now)?;
        atomic_file::replace(&crl::path(&self.dir), pem.as_bytes(), atomic_file::PUBLIC_MODE)
    }
}

/// Rule 4. The issued log is in chronological order, so one pass finds chains of renewals.
fn add_renewals(revoked: &mut BTreeMap<Vec<u8>, UtcSeconds>, issued: &[IssuedCert], now: UtcSeconds) {
    for one in issued.iter().filter(|one| one.not_after >= now) {
        if one.renews.is_some_and(|renewed_serial| revoked.contains_key(renewed_serial.as_bytes())) {
            revoked.entry(one.serial.as_bytes().to_vec()).or_insert(now);
        }
    }
}

/// How long an expired certificate stays on the list (rule 2).
const RETENTION: Duration = Duration::from_secs(86_400);
