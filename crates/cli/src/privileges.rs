//! Privileges of daemons: what a daemon does not need is given up before it starts a thread or speaks to anyone.
//!
//! `sudo marline edge` has all of root's capabilities, and a flaw in a parser would have them, too. [`privileges`] sets `no_new_privs` and
//! takes every other capability out of the bounding, permitted, effective, inheritable and ambient sets. Threads and children (nft,
//! iptables) inherit that, and nothing brings a capability back. The sets are those of the systemd units (a test compares them).
//!
//! What this does not do: uid 0 still owns root's files, and keeps CAP_DAC_OVERRIDE because certificates, state and logs may belong to
//! the user who ran `sudo`. A user of its own, a read-only file system and a filter of system calls are the unit's matter: a daemon
//! that is started by hand cannot know which directories its options will name after a reload.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// A command that runs until it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(all(feature = "fleet", feature = "accel")),
    allow(dead_code, reason = "the binary for a small box has fewer daemons")
)]
pub(crate) enum Daemon {
    Accel,
    Edge,
    Fleet,
    Paths,
    /// Also `accel rtp`.
    Proxy,
    Relay,
}

impl Daemon {
    /// The capabilities that it uses if it has them.
    const fn needed_capabilities(self) -> CapabilitySet {
        // Ports below 1024; routes, rules, buffers beyond the usual limit, congestion controls that need a permission; sockets that
        // are moved to another link (before Linux 5.7).
        let network = CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_ADMIN);
        match self {
            Self::Fleet => CapabilitySet::NET_BIND_SERVICE,
            // The relay sets buffers and the congestion control of each connection, so it cannot give NET_ADMIN up after its start.
            Self::Relay => network,
            Self::Edge | Self::Paths | Self::Proxy => network.union(CapabilitySet::NET_RAW),
            // Packets, the BPF program, and the priority of the thread that handles packets.
            Self::Accel => network
                .union(CapabilitySet::NET_RAW)
                .union(CapabilitySet::BPF)
                .union(CapabilitySet::PERFMON)
                .union(CapabilitySet::SYS_NICE),
        }
    }
}

/// Gives up what this daemon does not need. To be called while the process has one thread. A kernel that refuses a part of it changes
/// nothing for the daemon's work, so nothing is reported but to the log.
pub(crate) fn drop_privileges(daemon: Daemon) {
    let mut keep = daemon.needed_capabilities();
    if rustix::process::geteuid().is_root() {
        keep |= CapabilitySet::DAC_OVERRIDE;
    }
    if let Err(error) = set_no_new_privs(true) {
        tracing::warn!(%error, "no_new_privs cannot be set");
    }
    for capability in known_capabilities() {
        if keep.contains(capability) {
            continue;
        }
        // Without CAP_SETPCAP it stays; no_new_privs keeps children from gaining by it.
        let _ = remove_capability_from_bounding_set(capability);
        if capability_is_in_ambient_set(capability).unwrap_or_default() {
            let _ = configure_capability_in_ambient_set(capability, false);
        }
    }
    let result = capabilities(None).and_then(|sets| {
        let CapabilitySets { effective, permitted, inheritable } = sets;
        let sets = CapabilitySets {
            effective: effective & keep,
            permitted: permitted & keep,
            inheritable: inheritable & keep,
        };
        set_capabilities(None, sets)
    });
    if let Err(error) = result {
        tracing::warn!(%error, "capabilities cannot be given up");
    }
}

/// All that this kernel knows.
fn known_capabilities() -> impl Iterator<Item = CapabilitySet> {
    let single = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    single.take_while(|capability| capability_is_in_bounding_set(*capability) != Err(Errno::INVAL))
}
