//! Drives the accelerator of [`marline_core::accel`] on this machine: flows of unmodified programs to unmodified servers.
//!
//! In: a primary link, links that help, which flows are meant. Out: packets that leave are led through the machine, packets
//! more go over any of the links or into the own stack, and all is as before when an [`Engine`] is dropped.
//!
//! 1. Held is only what is small and leaves over the primary link (NFQUEUE, by `rules`); what comes is only looked at,
//!    when the machine wants to see it.
//!    Where offloading alone is wanted, the kernel does it by itself (`steering`).
//! 2. Without the process packets pass untouched, at once and however it ended.
//! 3. The machine decides, this room acts: devices, sockets, rules and the kernel's refusals stay here.
//! 4. Packets have a thread of their own (`engine`); the control socket has not.
//! 5. What a flow was told that it has and has not is written down (`ledger`); who outlives this process pays it (`keeper`).
//! 6. Getting bytes from servers is not done on that thread: [`Errand`]s go out by a channel, answers come back by a
//!    [`Bell`].

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
pub mod streaming;
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
