//! Tests of `marline proxy` with players and other programs: they use the built program, real sockets, nginx and curl.
//!
//! The test server, the networks and nginx are shared with `tests/get`; these tests use only a part of them.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]
#![allow(dead_code, reason = "servers and networks are shared with tests/get, which uses more of them")]

mod bad_input;
mod clients;
mod command;
mod cpu_pressure;
mod credentials;
mod first_bytes;
mod guard;
mod hostile;
mod lan;
mod links;
mod lists;
mod media;
mod memory;
#[path = "../get/network.rs"]
mod network;
#[path = "../get/nginx.rs"]
mod nginx;
mod page;
mod players;
#[path = "../get/program.rs"]
mod program;
mod proxy;
mod recognized;
mod segments;
#[path = "../get/server.rs"]
mod server;
mod status;
mod tunnels;
mod watching;
