//! HTTP connections against real sockets: servers that follow a script, and a real nginx.

mod driver;
mod fallback;
mod fills;
mod nginx;
mod scripted;
mod streams;
