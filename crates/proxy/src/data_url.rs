//! Playlists and manifests within `data:` URLs (RFC 2397), which would reach a player unread.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;

use super::beginning::{Beginning, End, Verdict};
use super::playlist_answer::Kind;
use super::recognize::{Look, look};
use super::target::decoded;

/// Whether a reference is a `data:` URL with a playlist or a manifest in it, by its type or its first bytes.
pub(super) fn holds_a_list(reference: &str) -> bool {
    let Some((scheme, rest)) = reference.trim_start().split_once(':') else { return false };
    let Some((described, content)) = rest.split_once(',').filter(|_| scheme.eq_ignore_ascii_case("data")) else {
        return false;
    };
    if Kind::typed(described).is_some() {
        return true;
    }
    let is_base64 = described.split(';').any(|word| word.trim().eq_ignore_ascii_case("base64"));
    let mut end = content.len().min(MOST);
    while !content.is_char_boundary(end) {
        end -= 1;
    }
    let begins = content.get(..end).unwrap_or_default();
    // Without half of an encoded byte.
    let begins = begins.rfind('%').and_then(|at| begins.get(..at).filter(|_| at + 3 > end)).unwrap_or(begins);
    let text = decoded(begins);
    let is_list = |bytes: &[u8]| {
        let verdict = Beginning::new(None, None, 0).decide_at_end(bytes, End::Part);
        matches!(verdict, Verdict::List(_)) || end < content.len() && look(bytes) == Look::Unsure
    };
    if !is_base64 {
        // Not every player decodes percent signs.
        return is_list(text.as_bytes()) || is_list(begins.as_bytes());
    }
    let mut letters: Vec<u8> =
        text.bytes().filter(|byte| byte.is_ascii_alphanumeric() || b"+/".contains(byte)).collect();
    letters.truncate(letters.len() / 4 * 4);
    STANDARD_NO_PAD.decode(letters).is_ok_and(|bytes| is_list(&bytes))
}

/// So much of the content is looked at.
pub(super) const MOST: usize = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_in_data_are_known_by_type_or_content_and_keys_are_none() {
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        for (reference, is) in [
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
            assert_eq!(holds_a_list(&reference), is, "{reference:.80}");
        }
    }
}
