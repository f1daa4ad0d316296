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
//! - [`relay_selection`]: which relays an edge measures, requests from the service and uses
//! - [`live_priority`]: how much the other flows of an edge may send while a live stream runs
//! - [`fair_share`]: divides a capacity: reservations first, the rest in equal parts
//! - [`udp_link`]: the link for LAN packets that no tunnel carries
//! - [`scheduling`]: which edge gets which relay, matched by [`assign`](crate::assign)
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
