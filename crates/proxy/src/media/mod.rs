//! The media port: requests of players for media and playlists.

pub(crate) mod format_detection;
pub(crate) mod handler;
pub(crate) mod index_page;
pub(crate) mod playlist_fetch;
pub(crate) mod playlist_handler;
pub(crate) mod prefetch;
