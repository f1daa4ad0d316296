//! Names asked per link, so that each link may use its own CDN edge.
//!
//! In: a host's name and the link that will carry the connection. Out: its addresses, in the order in which to try
//! them, and who gave them.

mod answer;
mod resolver;

pub use answer::{Answer, Source};
pub use resolver::Resolver;
