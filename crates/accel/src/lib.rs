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
//! are held), `raw` (how they are sent).

mod calls;
pub mod control;
mod engine;
mod error;
pub(crate) mod fill;
mod flows;
mod keeper;
mod ledger;
mod needs;
mod ping;
mod queue;
mod raw;
mod road;
mod rules;
mod sight;
mod sleep;
pub mod status;
mod steer;
mod steering;
#[cfg(test)]
mod tests;
mod works;

pub use engine::{Bell, Engine, Setup};
pub use error::AccelError;
pub use fill::{Answer, Outfit, run_fills};
pub use flows::Flows;
pub use keeper::{Paid, run_keeper};
pub use ledger::{ledger, orphan};
pub use needs::{Need, look};
pub use road::{Road, Wanted, roads};
pub use works::Errand;

/// Removes what runs that were killed have left; the devices that it was for. Rules that a process serves stay.
///
/// # Errors
/// A privilege is missing; something is there and stays.
pub fn restore() -> Result<Vec<String>, AccelError> {
    needs::privileges()?;
    let removed = rules::left_behind();
    for device in &removed {
        rules::sweep(device)?;
    }
    Ok(removed)
}

/// Access to the private parsers, for the fuzz targets alone: no part of what this crate promises.
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::fill::fuzzing::byte_ranges;
}
