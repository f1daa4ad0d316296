//! The status port: [`status`] checks the token and serves status and events, [`player_page`] serves the player page
//! and receives its reports.

pub(crate) mod player_page;
pub(crate) mod status;
