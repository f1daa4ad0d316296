//! Rules of the machine, each by a short history of what the kernel would tell.
extern crate std;

mod black_holes;
mod edges;
mod host;
mod links;
mod outages;
mod pauses;
mod properties;
mod rules;
mod stand_ins;
mod trials;
mod world;
