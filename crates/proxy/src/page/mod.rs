//! The status port: status, events and the player page.

pub(crate) mod player_page;
pub(crate) mod status;
