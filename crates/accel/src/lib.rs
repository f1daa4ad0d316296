//! TCP acceleration for unmodified programs and servers: `marline accel`, the driver of [`marline_core::accel`].
//!
//! Packets of a primary link pass the machine, which repairs random loss, outages and ACK contention, with secondary
//! links where there are any. The machine decides; devices, sockets, packet rules and errors of the kernel are handled
//! here. When an [`Engine`] is dropped, everything is as before.
//!
//! Main types: [`EngineConfig`] and [`LinkArg`] say what is to be accelerated, [`Engine`] is the thread that does it,
//! [`FlowFilter`] selects the flows, [`status::Status`] is what `marline accel status` shows.
//!
//! 1. Only small packets that leave over the primary link are held (NFQUEUE, by `iptables`), and pure ACKs that come
//!    for uploads; other packets are only captured, when the machine needs it. Where ACK offload alone is wanted, a BPF
//!    program does it in the kernel (`bpf`).
//! 2. Without the process packets pass untouched, at once and however it ended.
//! 3. Packets have a thread of their own (`packet_loop`); the control socket does not run on it.
//! 4. Data that was acknowledged before it arrived is written down (`pending_file`); a process that outlives this one
//!    repairs those flows (`crash_repair`).
//! 5. Ranges are fetched from servers on another thread: each [`FetchCommand`] goes there by a channel, and its result
//!    comes back by a [`LoopHandle`].
//!
//! Where to start reading: `packet_loop` (the event loop), `driver` (a packet through the machine), `nfqueue` and
//! `iptables` (how packets are held) and `raw_socket` (how they are sent).

pub(crate) mod bpf;
mod capture;
pub mod control;
mod crash_repair;
mod driver;
mod engine_config;
mod error;
mod flow_filter;
mod gateway_probe;
mod iptables;
mod links;
mod nfqueue;
mod packet_loop;
mod pending_file;
mod poller;
mod privileges;
pub(crate) mod range_client;
mod raw_socket;
mod requirements;
mod reserved_ports;
pub mod status;
#[cfg(test)]
mod tests;

pub use crash_repair::{RepairReport, run_repair};
pub use driver::FetchCommand;
pub use engine_config::EngineConfig;
pub use error::AccelError;
pub use flow_filter::FlowFilter;
pub use links::{AccelLink, LinkArg, resolve_links};
pub use packet_loop::{Engine, LoopHandle};
pub use pending_file::{orphaned_path, pending_path};
pub use range_client::{FetchCallback, LinkDevices, run_range_client};
pub use requirements::{Requirement, check_requirements};

/// Removes the packet rules that killed runs have left. Returns the devices they were for. Rules that a process serves
/// stay.
///
/// # Errors
/// A privilege is missing; rules exist and cannot be removed.
pub fn restore() -> Result<Vec<String>, AccelError> {
    privileges::check_privileges()?;
    let removed = iptables::orphaned_devices();
    for device in &removed {
        iptables::remove_orphaned(device)?;
    }
    Ok(removed)
}

/// Access to the private parsers, for the fuzz targets alone: not part of the API of this crate.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::range_client::fuzzing::byte_ranges;
}
