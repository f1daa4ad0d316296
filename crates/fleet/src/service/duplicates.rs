//! Detects certificates that several processes use at the same time, such as a copied memory card or a backup that runs beside the
//! original.
//!
//! Relays and edges send a random instance number, made when the process starts, with each report. If an instance reports again after
//! another instance of the same member has reported, both are running: a restarted process never uses its old number again.
//! Addresses are no evidence, because an edge reaches the service over each of its links. They are only reported.
//!
//! The result is a warning for operators. It affects no decision: all instances are served.

use std::collections::BTreeMap;
use std::net::IpAddr;

use marline_core::units::{Duration, Instant};

use crate::ca::Nonce;
use crate::identity::Identity;

/// A change in the state of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Several processes use its certificate, at these addresses.
    Duplicated(Vec<IpAddr>),
    /// Only one process uses it again.
    Resolved,
}

/// The instances of all members: one entry for each member with a certificate, at most [`MAX_INSTANCES`] instances for each.
#[derive(Debug, Default)]
pub(super) struct Duplicates(BTreeMap<Identity, Member>);

#[derive(Debug, Default)]
struct Member {
    /// In the order of their last reports, the most recent one last.
    instances: Vec<InstanceReport>,
    /// How often an instance other than the most recent one reported again.
    returns: u32,
    is_reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct InstanceReport {
    instance: Nonce,
    address: IpAddr,
    seen_at: Instant,
}

/// How long an instance counts as running after its last report. Our choice: twelve heartbeats.
const WINDOW: Duration = Duration::from_secs(60);
/// Returns that count as evidence. Our choice: a late request of a process that has just ended causes two: its own, and the next one of
/// its successor.
const MIN_RETURNS: u32 = 3;
/// Our choice: two addresses are enough for an operator to find the machines.
const MAX_INSTANCES: usize = 4;

impl Duplicates {
    /// Records a report of a member.
    pub(super) fn note(
        &mut self,
        identity: &Identity,
        instance: Nonce,
        address: IpAddr,
        now: Instant,
    ) -> Option<Change> {
        let member = self.0.entry(identity.clone()).or_default();
        member.expire(now);
        let report = InstanceReport { instance, address: address.to_canonical(), seen_at: now };
        match member.instances.iter().position(|other| other.instance == instance) {
            Some(at) => {
                // Not the most recent instance: another one has reported since, so both are running.
                let is_last = at + 1 == member.instances.len();
                member.instances.remove(at);
                member.returns = member.returns.saturating_add(u32::from(!is_last));
            }
            None if member.instances.len() >= MAX_INSTANCES => drop(member.instances.remove(0)),
            None => {}
        }
        member.instances.push(report);
        let is_duplicated = member.returns >= MIN_RETURNS && member.instances.len() > 1;
        if is_duplicated == member.is_reported {
            return None;
        }
        member.is_reported = is_duplicated;
        Some(if is_duplicated { Change::Duplicated(member.addresses()) } else { Change::Resolved })
    }

    /// The addresses of the processes that use a member's certificate at the same time; empty: only one process does.
    pub(super) fn addresses_in_use(&mut self, identity: &Identity, now: Instant) -> Vec<IpAddr> {
        let Some(member) = self.0.get_mut(identity) else { return Vec::new() };
        let is_duplicated =
            member.is_reported && member.instances.iter().filter(|report| report.is_recent(now)).count() > 1;
        if is_duplicated { member.addresses() } else { Vec::new() }
    }
}

impl Member {
    fn expire(&mut self, now: Instant) {
        self.instances.retain(|report| report.is_recent(now));
        if self.instances.len() < 2 {
            self.returns = 0;
        }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.instances.iter().map(|report| report.address).collect()
    }
}

impl InstanceReport {
    fn is_recent(&self, now: Instant) -> bool {
        now.since(self.seen_at) <= WINDOW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct World {
        duplicates: Duplicates,
        now: Instant,
        edge: Identity,
    }

    impl World {
        fn new() -> Self {
            Self {
                duplicates: Duplicates::default(),
                now: Instant::default(),
                edge: "marline://edge/cam-7".parse().unwrap(),
            }
        }

        /// A report, five seconds after the last one.
        fn report(&mut self, instance: u8, from: &str) -> Option<Change> {
            self.now += Duration::from_secs(5);
            let instance = format!("{instance:032x}").parse().unwrap();
            self.duplicates.note(&self.edge, instance, from.parse().unwrap(), self.now)
        }
    }

    #[test]
    fn two_processes_with_one_certificate_are_reported_once_and_their_end_once() {
        let mut world = World::new();
        for (instance, from) in [(2, "198.51.100.2"), (1, "192.0.2.1"), (2, "198.51.100.2"), (1, "192.0.2.1")] {
            assert_eq!(world.report(instance, from), None);
        }
        let addresses: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "198.51.100.2".parse().unwrap()];
        assert_eq!(world.report(2, "198.51.100.2"), Some(Change::Duplicated(addresses)));
        let edge = world.edge.clone();
        assert_eq!(world.duplicates.addresses_in_use(&edge, world.now).len(), 2);
        for _ in 0..20 {
            assert_eq!(world.report(1, "192.0.2.1"), None);
            assert_eq!(world.report(2, "198.51.100.2"), None);
        }
        let changes: Vec<Change> = (0..20).filter_map(|_| world.report(2, "198.51.100.2")).collect();
        assert_eq!(changes, [Change::Resolved]);
        assert!(world.duplicates.addresses_in_use(&edge, world.now).is_empty());
    }

    #[test]
    fn one_process_that_uses_several_links_is_not_reported() {
        let mut world = World::new();
        for _ in 0..50 {
            for from in ["192.0.2.1", "198.51.100.2", "2001:db8::7"] {
                assert_eq!(world.report(1, from), None);
            }
        }
        assert!(world.duplicates.addresses_in_use(&world.edge.clone(), world.now).is_empty());
    }

    #[test]
    fn a_process_that_is_restarted_again_and_again_is_not_reported() {
        let mut world = World::new();
        for instance in 0..100 {
            for _ in 0..instance % 3 + 1 {
                assert_eq!(world.report(instance, "192.0.2.1"), None);
            }
        }
        // A late request of the previous process.
        assert_eq!(world.report(98, "192.0.2.1"), None);
        assert_eq!(world.report(99, "192.0.2.1"), None);
    }

    #[test]
    fn three_copies_behind_one_address_are_reported() {
        let mut world = World::new();
        let changes: Vec<Change> =
            (0..4).flat_map(|_| [1, 2, 3]).filter_map(|instance| world.report(instance, "192.0.2.1")).collect();
        assert!(
            matches!(changes.as_slice(), [Change::Duplicated(addresses)] if addresses.len() == 3),
            "{changes:?}"
        );
    }
}
