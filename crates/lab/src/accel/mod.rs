//! A lab for `marline accel`: a good link that has troubles, a thin one beside it, and a server that knows of neither.
//!
//! In: a [`World`], who helps, how long. Out: what arrived when, whether each byte was right, what the sender's TCP says of
//! itself, what the links lost, what the accelerator says and costs.
//!
//! ```text
//! client ──primary (20 Mbit/s, 4 ms)──▶ gateways ──wan (the rest of its round trip)───▶ server: nginx, kernel TCP
//!        └─cell (900 / 400 kbit/s, 30 ms)─▶        ──wan-cell (the rest of its own)───▶
//! ```
//!
//! 1. The sender is a stock kernel's TCP behind a stock nginx, and the receiver is curl: neither is ours.
//! 2. Links' other ends are gateways that are near, so that a blackout of the first hop is not a blackout of the way: what is
//!    asked of the gateway is answered in [`topology::NEAR`] and not in a round trip to the server.
//! 3. Loss is towards the client alone (`uploss=0%`), or from it alone where data goes up: lost ACKs cost a sender
//!    nearly nothing, and the figures are held beside others that were made so.
//! 4. What arrives is compared byte by byte with what is served, as it arrives.
//! 5. Everything is fresh in each trial: namespaces, metrics of TCP, the accelerator.

pub(crate) mod blackouts;
mod bpf;
pub(crate) mod daemon;
pub(crate) mod download;
pub(crate) mod tcp_info_sampler;
pub(crate) mod topology;
pub(crate) mod trial;
mod trial_env;
pub(crate) mod udp;
pub(crate) mod upload;

pub(crate) use bpf::Bpf;
pub(crate) use daemon::Contender;
pub(crate) use topology::{Medium, Queue, Topology};
pub(crate) use trial::{Stream, Trial, TrialResult};
pub(crate) use trial_env::TrialEnv;
