//! Tests of HTTP connections on real sockets, against scripted servers and a real nginx.

mod acceptor;
mod driver;
mod nginx;
mod scripted;
mod streams;
