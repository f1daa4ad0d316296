//! Playlists and manifests: recognized, decoded, parsed, and rewritten. HLS and DASH; other formats are passed on with marks.

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
