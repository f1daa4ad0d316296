//! Simulator: links, servers and players in virtual time.
//!
//! The link model is shared: this crate runs it in virtual time, the laboratory in real time over TUN devices. It
//! uses neither clocks nor sockets; packets and times are its inputs and outputs.
//!
//! - Links: [`spec`] is the text format of a link, [`link`] the running link with a rate, a [`trace`] or a shared
//!   802.11 channel ([`wifi_mac`]). [`rng`] provides all random numbers, [`rate_process`] random rates.
//! - Endpoints: [`tcp`] runs over a link. [`http_sim`] simulates a client with its links and a server, driven by
//!   one of core's machines, and [`mptcp_sim`] MPTCP connections. [`fleet`] generates relays and edges for the
//!   assignment problem. [`accel`] simulates TCP acceleration packet by packet.
//! - Bounds: [`lower_bound`] is the shortest possible transfer time, [`clairvoyant`] the best playback with
//!   knowledge of the future.
//! - Tests: [`contract`] checks the rules of a machine, and [`fuzz_fetch`] runs random histories. [`scenario`]
//!   reads the files in `scenarios/`.
pub mod accel;
pub mod clairvoyant;
pub mod contract;
pub mod fleet;
pub mod fuzz_fetch;
pub mod http_sim;
pub mod link;
pub mod lower_bound;
pub mod mptcp_sim;
pub mod rate_process;
pub mod rng;
pub mod scenario;
pub mod spec;
pub mod tcp;
pub mod trace;
pub mod wifi_mac;
