//! Privileges of the daemons: each daemon drops the capabilities that it does not need before it starts a thread or uses
//! the network.
//!
//! `sudo marline edge` starts with all capabilities of root, and an attacker who exploits a parser would get them as well.
//! [`drop_privileges`] sets `no_new_privs` and removes every other capability from the bounding, permitted, effective,
//! inheritable and ambient sets. Threads and children (nft, iptables) inherit this, and no capability can be regained. The
//! remaining capabilities are those of the systemd unit and at most three more, which a daemon that is started by hand may need:
//! CAP_NET_BIND_SERVICE, CAP_NET_RAW and, as root, CAP_DAC_OVERRIDE (a test compares them with the units).
//!
//! Limits: uid 0 still owns root's files, and it keeps CAP_DAC_OVERRIDE because certificates, state and logs may belong to
//! the user who ran `sudo`. A user of its own, a read-only file system and a system call filter are left to the unit: a
//! daemon that is started by hand cannot know which directories its options will name after a reload.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capability_is_in_ambient_set, capability_is_in_bounding_set,
    configure_capability_in_ambient_set, remove_capability_from_bounding_set, set_capabilities, set_no_new_privs,
};

/// A command that runs until it is stopped, and the capabilities that it needs.
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
    /// `marline proxy` and `marline accel rtp`.
    Proxy,
    Relay,
}

impl Daemon {
    /// The capabilities that the daemon uses if it has them.
    const fn needed_capabilities(self) -> CapabilitySet {
        // NET_BIND_SERVICE: ports below 1024. NET_ADMIN: routes, rules, socket buffers above the limit, restricted congestion
        // controls. NET_RAW: SO_BINDTODEVICE on sockets that are bound already, and on all sockets before Linux 5.7.
        let network = CapabilitySet::NET_BIND_SERVICE.union(CapabilitySet::NET_ADMIN);
        match self {
            Self::Fleet => CapabilitySet::NET_BIND_SERVICE,
            // The relay sets the buffers and congestion control of each connection, so it cannot drop NET_ADMIN after its start.
            Self::Relay => network,
            Self::Edge | Self::Paths | Self::Proxy => network.union(CapabilitySet::NET_RAW),
            // Packet capture, the BPF program, and the priority of the thread that handles packets.
            Self::Accel => network
                .union(CapabilitySet::NET_RAW)
                .union(CapabilitySet::BPF)
                .union(CapabilitySet::PERFMON)
                .union(CapabilitySet::SYS_NICE),
        }
    }
}

/// Drops the privileges that this daemon does not need. Must be called while the process has one thread, since other threads would keep
/// theirs. (The path manager of an edge calls it again in its own thread, without effect.) If the kernel refuses, the daemon works all
/// the same, so a failure is only logged.
pub(crate) fn drop_privileges(daemon: Daemon) {
    let mut required = daemon.needed_capabilities();
    if rustix::process::geteuid().is_root() {
        required |= CapabilitySet::DAC_OVERRIDE;
    }
    if let Err(error) = set_no_new_privs(true) {
        tracing::warn!(%error, "cannot set no_new_privs");
    }
    for capability in known_capabilities() {
        if required.contains(capability) {
            continue;
        }
        // Fails without CAP_SETPCAP and the capability stays in the set; no_new_privs keeps children from gaining it.
        let _ = remove_capability_from_bounding_set(capability);
        if capability_is_in_ambient_set(capability).unwrap_or_default() {
            let _ = configure_capability_in_ambient_set(capability, false);
        }
    }
    let result = capabilities(None).and_then(|sets| {
        let CapabilitySets { effective, permitted, inheritable } = sets;
        let sets = CapabilitySets {
            effective: effective & required,
            permitted: permitted & required,
            inheritable: inheritable & required,
        };
        set_capabilities(None, sets)
    });
    if let Err(error) = result {
        tracing::warn!(%error, "cannot drop capabilities");
    }
}

/// All capabilities that this kernel knows.
fn known_capabilities() -> impl Iterator<Item = CapabilitySet> {
    let single = (0..u64::BITS).map(|number| CapabilitySet::from_bits_retain(1 << number));
    single.take_while(|capability| capability_is_in_bounding_set(*capability) != Err(Errno::INVAL))
}
