//! Tests of HTTP connections on real sockets, against scripted servers and a real nginx.
//!
//! `driver` polls one connection and starts the servers, `acceptor` configures their TLS. The tests: `nginx` (HTTP/1.1
//! against nginx), `scripted` (servers with unusual or wrong responses), `streams` (HTTP/2).

mod acceptor;
mod driver;
mod nginx;
mod scripted;
mod streams;
