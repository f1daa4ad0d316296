//! Decisions of bonding through relays: which relay an edge uses, how relays and edges share their capacity, and
//! which link carries what no relay carries (BASS).
//!
//! ```text
//! edge:           relay_selection   live_priority ─▶ fair_share   udp_link
//! relay:          fair_share
//! fleet service:  scheduling ─▶ assign
//! ```
//!
//! The modules with state and time are [`Machine`](crate::machine::Machine)s; the crate `fleet` drives them. What
//! edges, relays and the service send each other is in [`messages`]: values whose JSON form is the API of the
//! service.
//!
//! - [`relay_selection`]: the relay of an edge's stream: measures candidates, keeps the best, and replaces a failed one
//! - [`live_priority`]: which of the edge's flows are live streams, and which wait for them
//! - [`fair_share`]: divides a rate between flows in weighted shares, for pacing
//! - [`udp_link`]: the link for packets that are no TCP and therefore pass no relay
//! - [`scheduling`]: the decisions of the fleet service, with the matching of [`assign`](crate::assign)
//! - `address`, `endpoint`, `name`, `position`: validated values in messages and certificates

mod address;
mod endpoint;
pub mod fair_share;
pub mod live_priority;
pub mod messages;
mod name;
mod position;
pub mod relay_selection;
pub mod scheduling;
pub mod udp_link;

pub use address::Address;
pub use endpoint::{Endpoint, Target};
pub use fair_share::PaceGrant;
pub use name::Name;
pub use position::Position;
