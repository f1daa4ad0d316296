//! Tests of `marline get`: they run the built program over real sockets, mostly against servers and links that misbehave.
//!
//! Each test defines what the server or the link does, and checks the bytes of the file (or that there is no file), the exit
//! code, the one line of explanation and the JSON report. `program` also replays the decision log of every run.
#![allow(clippy::unwrap_used, reason = "a missing prerequisite has to fail the test")]

mod batch;
mod broken;
mod crashes;
mod links;
mod mirrors;
mod mixed;
mod mptcp;
mod network;
mod nginx;
mod odd;
mod odd_servers;
mod odd_storms;
mod portals;
mod program;
mod proxies;
mod ranges;
mod real;
mod requests;
mod server;
mod single_file;
mod targets;
mod unprintable;
mod urls;
