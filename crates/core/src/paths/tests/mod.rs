//! Rules of the machine, each by a short history of what the kernel would tell.
extern crate std;

mod edges;
mod properties;
mod rules;
mod world;
