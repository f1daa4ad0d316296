//! Certificates that are used by several processes at the same time: a memory card that was copied, a backup that runs beside the
//! original.
//!
//! Relays and edges send a random instance number, made when the process starts, with each report. An instance that is heard again after
//! another one of the same member was heard is evidence that both run: a process that was restarted is never heard again under its old
//! number. Addresses are no evidence, because an edge reaches the service over each of its links. They are only reported.
//!
//! Nothing is decided by this: all instances are served.

use std::collections::BTreeMap;
use std::net::IpAddr;

use marline_core::units::{Duration, Instant};

use crate::ca::Nonce;
use crate::identity::Identity;

/// What changed about a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Several processes use its certificate, at these addresses.
    Duplicated(Vec<IpAddr>),
    /// One process uses it again.
    Resolved,
}

/// The instances of all members. As many members as have a certificate, [`MOST`] instances of each.
#[derive(Debug, Default)]
pub(super) struct Duplicates(BTreeMap<Identity, Member>);

#[derive(Debug, Default)]
struct Member {
    /// The last one heard is the last one here.
    instances: Vec<InstanceReport>,
    /// How often an earlier instance was heard again.
    returns: u32,
    is_reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct InstanceReport {
    instance: Nonce,
    address: IpAddr,
    seen_at: Instant,
}

/// chosen: twelve heartbeats.
const WINDOW: Duration = Duration::from_secs(60);
/// chosen: a request of a process that has just ended, delayed by a slow link, makes two: its own, and that of its successor.
const MIN_RETURNS: u32 = 3;
/// chosen: two addresses are enough to find them.
const MAX_INSTANCES: usize = 4;

impl Duplicates {
    /// A member has reported.
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

    /// The addresses of the processes that use a member's certificate at the same time; empty: there is one process.
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
        fn heard(&mut self, instance: u8, from: &str) -> Option<Change> {
            self.now += Duration::from_secs(5);
            let instance = format!("{instance:032x}").parse().unwrap();
            self.duplicates.note(&self.edge, instance, from.parse().unwrap(), self.now)
        }
    }

    #[test]
    fn two_processes_with_one_certificate_are_reported_once_and_again_when_one_has_ended() {
        let mut world = World::new();
        for (instance, from) in [(2, "198.51.100.2"), (1, "192.0.2.1"), (2, "198.51.100.2"), (1, "192.0.2.1")] {
            assert_eq!(world.heard(instance, from), None);
        }
        let addresses: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "198.51.100.2".parse().unwrap()];
        assert_eq!(world.heard(2, "198.51.100.2"), Some(Change::Duplicated(addresses)));
        let edge = world.edge.clone();
        assert_eq!(world.duplicates.addresses_in_use(&edge, world.now).len(), 2);
        for _ in 0..20 {
            assert_eq!(world.heard(1, "192.0.2.1"), None);
            assert_eq!(world.heard(2, "198.51.100.2"), None);
        }
        let changes: Vec<Change> = (0..20).filter_map(|_| world.heard(2, "198.51.100.2")).collect();
        assert_eq!(changes, [Change::Resolved]);
        assert!(world.duplicates.addresses_in_use(&edge, world.now).is_empty());
    }

    #[test]
    fn one_process_that_uses_several_links_is_not_reported() {
        let mut world = World::new();
        for _ in 0..50 {
            for from in ["192.0.2.1", "198.51.100.2", "2001:db8::7"] {
                assert_eq!(world.heard(1, from), None);
            }
        }
        assert!(world.duplicates.addresses_in_use(&world.edge.clone(), world.now).is_empty());
    }

    #[test]
    fn a_process_that_is_restarted_again_and_again_is_not_reported() {
        let mut world = World::new();
        for instance in 0..100 {
            for _ in 0..instance % 3 + 1 {
                assert_eq!(world.heard(instance, "192.0.2.1"), None);
            }
        }
        // A request of the process before that comes late.
        assert_eq!(world.heard(98, "192.0.2.1"), None);
        assert_eq!(world.heard(99, "192.0.2.1"), None);
    }

    #[test]
    fn three_copies_behind_one_address_are_reported() {
        let mut world = World::new();
        let changes: Vec<Change> =
            (0..4).flat_map(|_| [1, 2, 3]).filter_map(|instance| world.heard(instance, "192.0.2.1")).collect();
        assert!(
            matches!(changes.as_slice(), [Change::Duplicated(addresses)] if addresses.len() == 3),
            "{changes:?}"
        );
    }
}
