//! Rules of the machine, each by a short history of what the kernel would tell.
extern crate std;

mod black_holes;
mod limits;
mod links;
mod liveness;
mod many_connections;
mod other_initial_link;
mod outages;
mod policies;
mod properties;
mod test_world;
mod trials;
