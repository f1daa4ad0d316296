//! Playlists and manifests: recognized, decoded, parsed, and rewritten. HLS and DASH; other formats are passed on with
//! marks.
//!
//! - Recognition: [`response_sniffer`] examines the first bytes of a response, [`signature`] classifies them,
//!   [`mod@format`] knows extensions and media types, [`data_url`] finds playlists in `data:` URLs.
//! - Decoding: [`content_coding`] (gzip, Brotli), [`text_encoding`] (characters).
//! - Parsing: [`reader`] runs it on threads within a [`parse_budget`], with [`hls`], or with [`dash`], which uses
//!   [`xml`].
//! - Rewriting: [`url_rewrite`] makes URLs lead to the proxy, [`marks`] records in a URL that a playlist has named it.
//! - What is remembered: [`followed`] (the playlists of each player), [`listed_urls`] (their URLs), [`segment_index`]
//!   (their segments). [`blocking_reload`] recognizes requests whose responses a server delays on purpose.

pub(crate) mod blocking_reload;
pub(crate) mod content_coding;
pub(crate) mod dash;
pub(crate) mod data_url;
pub(crate) mod followed;
pub(crate) mod format;
pub(crate) mod hls;
pub(crate) mod listed_urls;
pub(crate) mod marks;
pub(crate) mod parse_budget;
pub(crate) mod reader;
pub(crate) mod response_sniffer;
pub(crate) mod segment_index;
pub(crate) mod signature;
pub(crate) mod text_encoding;
pub(crate) mod url_rewrite;
pub(crate) mod xml;
