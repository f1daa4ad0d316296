//! TCP acceleration for unmodified programs and servers: `marline accel`, the driver of [`marline_core::accel`].
//!
//! Packets of a primary link pass the machine, which repairs random loss, outages and ACK contention with the help of other
//! links. The machine decides; devices, sockets, rules and the kernel's refusals stay here. All is as before when an
//! [`Engine`] is dropped.
//!
//! Main types: [`Setup`] and [`Wanted`] say what is to be accelerated, [`Engine`] is the thread that does it, [`Flows`]
//! selects the flows, [`status::Status`] is what `marline accel status` shows.
//!
//! 1. Held is only what is small and leaves over the primary link (NFQUEUE, by `rules`); what arrives is only observed, when
//!    the machine needs it. Where offloading alone is wanted, the kernel does it by itself (`steering`, with BPF).
//! 2. Without the process packets pass untouched, at once and however it ended.
//! 3. Packets have a thread of their own (`engine`); the control socket has not.
//! 4. Data that was acknowledged before it arrived is written down (`ledger`); a process that outlives this one repairs those
//!    flows (`keeper`).
//! 5. Ranges are fetched from servers on another thread: each [`Errand`] goes there by a channel, and its result comes back by
//!    a [`Bell`].
//!
//! Where to start reading: `engine` (the event loop), `works` (a packet through the machine), `queue` and `rules` (how packets
//! are held), `raw` (how they are sent), [`streaming`] (RTSP and RTP).

pub(crate) mod bpf;
mod capture;
pub mod control;
mod crash_repair;
mod driver;
mod error;
mod flow_filter;
mod gateway_probe;
mod iptables;
mod links;
mod nfqueue;
mod packet_loop;
mod pending_file;
mod poller;
pub(crate) mod range_client;
mod raw_socket;
mod requirements;
mod reserved_ports;
pub mod status;
pub mod streaming;
#[cfg(test)]
mod tests;

pub use crash_repair::{RepairReport, run_repair};
pub use driver::FetchCommand;
pub use error::AccelError;
pub use flow_filter::FlowFilter;
pub use links::{AccelLink, LinkArg, resolve_links};
pub use packet_loop::{Engine, EngineConfig, LoopHandle};
pub use pending_file::{orphaned_path, pending_path};
pub use range_client::{FetchCallback, LinkDevices, run_range_client};
pub use requirements::{Requirement, check_requirements};

/// Removes what runs that were killed have left; the devices that it was for. Rules that a process serves stay.
///
/// # Errors
/// A privilege is missing; something is there and stays.
pub fn restore() -> Result<Vec<String>, AccelError> {
    requirements::check_privileges()?;
    let removed = iptables::orphaned_devices();
    for device in &removed {
        iptables::remove_orphaned(device)?;
    }
    Ok(removed)
}

/// Access to the private parsers, for the fuzz targets alone: no part of what this crate promises.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::range_client::fuzzing::byte_ranges;
}
