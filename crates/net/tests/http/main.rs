//! HTTP connections against real sockets: servers that follow a script, and a real nginx.

mod acceptor;
mod driver;
mod nginx;
mod scripted;
mod streams;
