//! `marline get` against servers and links that misbehave, as a user meets them: the built program, real sockets.
//!
//! Each test says what the server or the link does, and checks the file's bytes (or that there is no file), the exit
//! code, the one line of explanation, and the report. `program` replays every log of decisions on the way.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

mod broken;
mod copies;
mod crashes;
mod links;
mod mixed;
mod mptcp;
mod network;
mod nginx;
mod odd;
mod odd_servers;
mod odd_storms;
mod places;
mod portals;
mod program;
mod ranges;
mod real;
mod requests;
mod server;
mod targets;
mod upstream;
