//! Rules of the machine, each tested with a short history of kernel events.
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
