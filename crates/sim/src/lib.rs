//! What would happen: links, servers and players in virtual time.
//!
//! One link model serves two masters: this crate drives it in virtual time, the lab in real time over TUN devices. It
//! knows no clock and no socket; packets and times go in, packets and times come out.
//!
//! [`spec`] says how a link is written, [`link`] is a running one, on a rate, on a [`trace`] or on a shared 802.11
//! [`wifi_mac`]; [`rng`] is where chance comes from, [`rate_process`] how rates wander,
//! [`lower_bound`] what could have been carried at best, [`clairvoyant`] how a clairvoyant would have played a video. [`tcp`] is
//! what runs over a link, and a [`http_sim`] is a client, its links and a server, with one of core's machines in it; [`mptcp_sim`]
//! is another one, of MPTCP connections. [`fleet`] draws relays and boxes to be matched.
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
