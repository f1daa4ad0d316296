//! `marline proxy` as players and programs meet it: the built program, real sockets, nginx, curl.
//!
//! Servers, networks and nginx are those of the faults' tests; what those need and these do not is left unused.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]
#![allow(dead_code, reason = "servers and networks are shared with the faults' tests, which need more of them")]

mod bad_input;
mod calm;
mod clients;
mod command;
mod credentials;
mod first_bytes;
mod guard;
mod hostile;
mod lan;
mod links;
mod lists;
mod media;
mod memory;
#[path = "../faults/network.rs"]
mod network;
#[path = "../faults/nginx.rs"]
mod nginx;
mod page;
mod players;
#[path = "../faults/program.rs"]
mod program;
mod proxy;
mod recognized;
mod segments;
#[path = "../faults/server.rs"]
mod server;
mod status;
mod tunnels;
mod watching;
