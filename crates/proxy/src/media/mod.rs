//! The media port: requests of players for media and playlists.
//!
//! [`handler`] serves a request, [`format_detection`] decides whether the response is a playlist, [`playlist_fetch`]
//! downloads one and [`playlist_handler`] rewrites and sends it. [`prefetch`] downloads segments before the player
//! requests them. [`index_page`] is the page at `/`.

pub(crate) mod format_detection;
pub(crate) mod handler;
pub(crate) mod index_page;
pub(crate) mod playlist_fetch;
pub(crate) mod playlist_handler;
pub(crate) mod prefetch;
