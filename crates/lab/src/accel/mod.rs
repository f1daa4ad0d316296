//! A lab for `marline accel`: an impaired primary link, a thin second one, and a server that knows of neither.
//!
//! A [`Trial`] takes a [`Topology`], a [`Contender`] and a duration. Its [`TrialResult`] has what arrived when, whether
//! each byte was correct, TCP_INFO of the sender, losses of the links, and status and cost of the accelerator.
//!
//! ```text
//! client ──primary (20 Mbit/s, 4 ms)──▶ gateways ──wan (the rest of its round trip)───▶ server: nginx, kernel TCP
//!        └─cell (900 / 400 kbit/s, 30 ms)─▶        ──wan-cell (the rest of its own)───▶
//! ```
//!
//! 1. The sender is a stock kernel's TCP with a stock nginx, and the receiver is curl.
//! 2. The other ends of links are near gateways, as outages affect the first hop only: a gateway answers a probe within
//!    [`topology::GATEWAY_RTT`], not within a round trip to the server.
//! 3. Loss is towards the client only (`uploss=0%`), or from it only for uploads: lost ACKs cost a sender nearly
//!    nothing, and the published figures were measured so.
//! 4. Received bytes are compared with the served file as they arrive.
//! 5. Everything is new in each trial: namespaces, TCP metrics, the accelerator.

mod bpf;
pub(crate) mod daemon;
pub(crate) mod download;
pub(crate) mod outages;
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
