//! Detects playlists and manifests within `data:` URLs (RFC 2397), which would reach a player without being rewritten.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use marline_net::http::percent_decoded;

use super::format::PlaylistFormat;
use super::response_sniffer::{BodyEnd, ResponseSniffer, SniffResult};
use super::signature::{Signature, sniff_bytes};

/// Whether a reference is a `data:` URL that contains a playlist or manifest, by its media type or its first bytes.
pub(crate) fn contains_playlist(reference: &str) -> bool {
    let Some((scheme, data)) = reference.trim_start().split_once(':') else { return false };
    let Some((metadata, content)) = data.split_once(',').filter(|_| scheme.eq_ignore_ascii_case("data")) else {
        return false;
    };
    if PlaylistFormat::from_media_type(metadata).is_some() {
        return true;
    }
    let is_base64 = metadata.split(';').any(|parameter| parameter.trim().eq_ignore_ascii_case("base64"));
    let mut prefix_end = content.len().min(MAX_SCANNED);
    while !content.is_char_boundary(prefix_end) {
        prefix_end -= 1;
    }
    let prefix = content.get(..prefix_end).unwrap_or_default();
    // Drop an incomplete percent sequence at the end.
    let prefix =
        prefix.rfind('%').and_then(|at| prefix.get(..at).filter(|_| at + 3 > prefix_end)).unwrap_or(prefix);
    let decoded_prefix = percent_decoded(prefix);
    let is_playlist = |bytes: &[u8]| {
        let result = ResponseSniffer::new(None, None, 0).sniff_at_end(bytes, BodyEnd::Partial);
        matches!(result, SniffResult::Playlist(_))
            || prefix_end < content.len() && sniff_bytes(bytes) == Signature::NeedMore
    };
    if !is_base64 {
        // Some players do not percent-decode the content.
        return is_playlist(decoded_prefix.as_bytes()) || is_playlist(prefix.as_bytes());
    }
    let mut base64_chars: Vec<u8> =
        decoded_prefix.bytes().filter(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte)).collect();
    base64_chars.truncate(base64_chars.len() / 4 * 4);
    STANDARD_NO_PAD.decode(base64_chars).is_ok_and(|bytes| is_playlist(&bytes))
}

/// How much of the content is examined, in bytes.
pub(crate) const MAX_SCANNED: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn playlists_in_data_urls_are_detected_and_keys_are_not() {
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        for (reference, expected) in [
            ("data:application/x-mpegurl,x".to_owned(), true),
            ("DATA:,%23EXTM3U%0Ax".to_owned(), true),
            (format!("data:text/plain;base64,{}", base64("#EXTM3U\n/x\n")), true),
            (format!("data:;base64,{}", base64("<?xml version='1.0'?><MPD></MPD>")), true),
            (format!("data:;base64,{}", base64(&format!("<!--{}--><MPD/>", "x".repeat(5000)))), true),
            (format!("data:,{}%23EXTM3U", "%0A".repeat(1000)), true),
            (format!("data:;base64,{}", base64(&format!("{}#EXTM3U", " ".repeat(2000)))), true),
            ("data:;base64,ICAgICAgICAgICAgICAgIA==".to_owned(), false),
            ("data:text/plain;base64,MDEyMzQ1Njc4OWFiY2RlZg==".to_owned(), false),
            (format!("data:;base64,{}", base64("<WRMHEADER xmlns='x'/>")), false),
            ("data:application/json,{}".to_owned(), false),
            ("data:,".to_owned(), false),
            ("https://h/data:,#EXTM3U".to_owned(), false),
        ] {
            assert_eq!(contains_playlist(&reference), expected, "{reference:.80}");
        }
    }
}
