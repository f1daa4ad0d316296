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
    Several(Vec<IpAddr>),
    /// One process uses it again.
    One,
}

/// The instances of all members. As many members as have a certificate, [`MOST`] instances of each.
#[derive(Debug, Default)]
pub(super) struct Duplicates(BTreeMap<Identity, Member>);

#[derive(Debug, Default)]
struct Member {
    /// The last one heard is the last one here.
    instances: Vec<Heard>,
    /// How often an earlier instance was heard again.
    returns: u32,
    reported: bool,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    instance: Nonce,
    from: IpAddr,
    at: Instant,
}

/// chosen: twelve heartbeats.
const WINDOW: Duration = Duration::from_secs(60);
/// chosen: a request of a process that has just ended, delayed by a slow link, makes two: its own, and that of its successor.
const RETURNS: u32 = 3;
/// chosen: two addresses are enough to find them.
const MOST: usize = 4;

impl Duplicates {
    /// A member has reported.
    pub(super) fn heard(
        &mut self,
        identity: &Identity,
        instance: Nonce,
        from: IpAddr,
        now: Instant,
    ) -> Option<Change> {
        let member = self.0.entry(identity.clone()).or_default();
        member.expire(now);
        let heard = Heard { instance, from: from.to_canonical(), at: now };
        match member.instances.iter().position(|other| other.instance == instance) {
            Some(at) => {
                let is_last = at + 1 == member.instances.len();
                member.instances.remove(at);
                member.returns = member.returns.saturating_add(u32::from(!is_last));
            }
            None if member.instances.len() >= MOST => drop(member.instances.remove(0)),
            None => {}
        }
        member.instances.push(heard);
        let is_several = member.returns >= RETURNS && member.instances.len() > 1;
        if is_several == member.reported {
            return None;
        }
        member.reported = is_several;
        Some(if is_several { Change::Several(member.addresses()) } else { Change::One })
    }

    /// The addresses of the processes that use a member's certificate at the same time; empty: there is one process.
    pub(super) fn addresses(&mut self, identity: &Identity, now: Instant) -> Vec<IpAddr> {
        let Some(member) = self.0.get_mut(identity) else { return Vec::new() };
        let is_several =
            member.reported && member.instances.iter().filter(|heard| heard.is_recent(now)).count() > 1;
        if is_several { member.addresses() } else { Vec::new() }
    }
}

impl Member {
    fn expire(&mut self, now: Instant) {
        self.instances.retain(|heard| heard.is_recent(now));
        if self.instances.len() < 2 {
            self.returns = 0;
        }
    }

    fn addresses(&self) -> Vec<IpAddr> {
        self.instances.iter().map(|heard| heard.from).collect()
    }
}

impl Heard {
    fn is_recent(&self, now: Instant) -> bool {
        now.since(self.at) <= WINDOW
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
            self.duplicates.heard(&self.edge, instance, from.parse().unwrap(), self.now)
        }
    }

    #[test]
    fn two_processes_with_one_certificate_are_reported_once_and_again_when_one_has_ended() {
        let mut world = World::new();
        for (instance, from) in [(2, "198.51.100.2"), (1, "192.0.2.1"), (2, "198.51.100.2"), (1, "192.0.2.1")] {
            assert_eq!(world.heard(instance, from), None);
        }
        let addresses: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "198.51.100.2".parse().unwrap()];
        assert_eq!(world.heard(2, "198.51.100.2"), Some(Change::Several(addresses)));
        let edge = world.edge.clone();
        assert_eq!(world.duplicates.addresses(&edge, world.now).len(), 2);
        for _ in 0..20 {
            assert_eq!(world.heard(1, "192.0.2.1"), None);
            assert_eq!(world.heard(2, "198.51.100.2"), None);
        }
        let changes: Vec<Change> = (0..20).filter_map(|_| world.heard(2, "198.51.100.2")).collect();
        assert_eq!(changes, [Change::One]);
        assert!(world.duplicates.addresses(&edge, world.now).is_empty());
    }

    #[test]
    fn one_process_that_uses_several_links_is_not_reported() {
        let mut world = World::new();
        for _ in 0..50 {
            for from in ["192.0.2.1", "198.51.100.2", "2001:db8::7"] {
                assert_eq!(world.heard(1, from), None);
            }
        }
        assert!(world.duplicates.addresses(&world.edge.clone(), world.now).is_empty());
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
        assert!(matches!(changes.as_slice(), [Change::Several(addresses)] if addresses.len() == 3), "{changes:?}");
    }
}
