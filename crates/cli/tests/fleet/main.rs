//! A fleet as processes: `marline fleet`, `marline relay` and `marline edge`, mostly over the loopback interface.
//!
//! `members` creates the certificates of a fleet and starts its daemons.
#![cfg(feature = "fleet")]
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

mod ca;
mod edge_reasons;
mod failover;
mod members;
mod offline_root;
mod privileges;
mod quick_start;
mod relay;
mod service;
mod sighup;
mod tunnels;
