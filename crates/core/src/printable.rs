//! Escapes text from outside before it reaches a terminal, a log or an error line.
//!
//! Servers, certificates, playlists, Redis, other hosts and the kernel's interface names supply text that marline shows. Raw
//! control characters in it let a stranger move the cursor, hide or forge lines; bidirectional and zero-width characters make a
//! line read differently from what it says. [`printable`] replaces each of them by its code point, as `\u009b`.
//!
//! The form is JSON's (RFC 8259 section 7), with surrogate pairs above U+FFFF. A JSON text contains such characters only within
//! strings, so the same function serves tables and `--json`, and programs read the original text.
//!
//! Callers escape at the point of output, not where text arrives: comparisons and files need the original.

use alloc::borrow::Cow;
use alloc::format;
use alloc::string::String;
use core::fmt::Write as _;

/// Returns `text` as one line: control characters (line ends included), invisible and reordering characters become
/// `\uXXXX`.
pub fn printable(text: &str) -> Cow<'_, str> {
    escape_chars(text, is_unprintable)
}

/// Like [`printable`] for text of several lines: line feeds stay.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    escape_chars(text, |c| c != '\n' && is_unprintable(c))
}

fn escape_chars(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    let Some(first) = text.find(&is_escaped) else { return Cow::Borrowed(text) };
    let (clean, remaining) = text.split_at(first);
    let mut out = String::with_capacity(text.len() + 16);
    out += clean;
    for c in remaining.chars() {
        if is_escaped(c) {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}");
            }
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Returns `text` with the login and the query of each URL replaced, by `MASKED` and `…`. Error messages repeat
/// what a user typed, and other people read logs.
///
/// - The login is the text between `//` and the last `@` of the authority.
/// - The query: signed URLs carry their secret there (S3, CloudFront, Azure SAS). A URL is a word with `://` in it, or a path with a
///   query, as requests are logged.
pub fn mask_secrets(text: &str) -> String {
    mask_queries(&mask_logins(text))
}

/// Masks the login, but no query, of a value that should be one URL and may be malformed: everything up to its last `@`
/// may be a login, except for a scheme.
pub fn mask_value(value: &str) -> Cow<'_, str> {
    let Some(login) = value.rfind('@').filter(|at| value[..*at].contains(':')) else { return Cow::Borrowed(value) };
    let scheme = value[..login].find("://").map_or(0, |at| at + 3);
    Cow::Owned(format!("{}{MASKED}{}", &value[..scheme], &value[login..]))
}

fn mask_logins(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut remaining = text;
    while let Some(at) = remaining.find("//") {
        let (before, after) = remaining.split_at(at + 2);
        out += before;
        let authority = after.find(|c: char| "/?#".contains(c) || c.is_whitespace()).unwrap_or(after.len());
        remaining = match after[..authority].rfind('@') {
            Some(login) => {
                out += MASKED;
                &after[login..]
            }
            None => after,
        };
    }
    out + remaining
}

fn mask_queries(text: &str) -> String {
    let is_quote = |c: char| matches!(c, '"' | '`' | '<' | '>' | '\'');
    let mut out = String::with_capacity(text.len());
    // Whitespace and quotes end a URL in prose.
    for token in text.split_inclusive(|c: char| c.is_whitespace() || is_quote(c)) {
        let start = token.trim_start_matches('(');
        let end = token.find('?').filter(|at| start.starts_with('/') || token[..*at].contains("://"));
        let Some(at) = end else {
            out += token;
            continue;
        };
        let query = &token[at + 1..];
        let is_end = |c: char| c.is_whitespace() || is_quote(c) || matches!(c, ':' | ';' | ',' | ')' | '.');
        // Punctuation at the end belongs to the sentence, not to the query.
        let after = query.trim_end_matches(is_end).len();
        out += &token[..=at];
        if after > 0 {
            out.push('…');
        }
        out += &query[after..];
    }
    out
}

const MASKED: &str = "MASKED";

/// Whether a terminal interprets this character, shows nothing for it, or reorders its neighbors.
///
/// Unicode's general categories Cc, Cf, Zl and Zp, and the letters and marks that are blank by definition. The list is fixed
/// instead of a table of the current Unicode version: what is missing from it is visible or a plain blank.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c,
            // Soft hyphen, grapheme joiner, Arabic letter mark, blank Hangul and Khmer letters, Mongolian separators.
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180b}'..='\u{180f}'
            // Zero-width characters, directional marks, line and paragraph separators, embeddings and overrides.
            | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            // Word joiner, invisible operators, isolates, deprecated format characters.
            | '\u{2060}'..='\u{206f}'
            // Blank Hangul letters, the byte order mark, interlinear annotations.
            | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}'
            // Format controls of shorthand and of music; tags and the rest of the plane of special characters, which is
            // ignored by default.
            | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}'
            // Further format characters: numbers and verses in Arabic and Kaithi, hieroglyphs.
            | '\u{600}'..='\u{605}' | '\u{6dd}' | '\u{70f}' | '\u{890}' | '\u{891}' | '\u{8e2}' | '\u{110bd}' | '\u{110cd}'
            | '\u{13430}'..='\u{1343f}')
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn printable_text_is_not_copied() {
        for text in ["", "eth0: 200 OK", "Straße – 日本語 – 🙂 – عربى", "a\u{a0}b"] {
            assert!(matches!(printable(text), Cow::Borrowed(same) if same == text), "{text}");
        }
    }

    #[test]
    fn control_and_reordering_characters_are_shown_as_code_points() {
        for (text, shown) in [
            ("\u{1b}[2J", "\\u001b[2J"),
            ("\u{9b}31m", "\\u009b31m"),
            ("a\rb\nc\td\0", "a\\u000db\\u000ac\\u0009d\\u0000"),
            ("\u{7f}\u{85}", "\\u007f\\u0085"),
            ("exe\u{202e}gpj", "exe\\u202egpj"),
            ("\u{2066}x\u{2069}\u{61c}", "\\u2066x\\u2069\\u061c"),
            ("a\u{200b}b\u{feff}c\u{ad}d", "a\\u200bb\\ufeffc\\u00add"),
            ("a\u{2028}b\u{2029}c", "a\\u2028b\\u2029c"),
            ("\u{e0041}", "\\udb40\\udc41"),
        ] {
            assert_eq!(printable(text), shown);
        }
        assert_eq!(printable_lines("a\n\u{1b}b\r\n"), "a\n\\u001bb\\u000d\n");
    }

    #[test]
    fn logins_of_urls_are_masked() {
        for (text, shown) in [
            ("rtsp://u:pw@camera/live", "rtsp://MASKED@camera/live"),
            ("http://h/f, http://u:p@w@h/f: 404", "http://h/f, http://MASKED@h/f: 404"),
            ("http://h/path@x: me@example.org", "http://h/path@x: me@example.org"),
        ] {
            assert_eq!(mask_secrets(text), shown);
        }
        for (value, shown) in [
            ("rtsp://u:pw@camera/live", "rtsp://MASKED@camera/live"),
            ("rtsp://u:p w'/x@y@camera/live", "rtsp://MASKED@camera/live"),
            ("u:pw@camera/live", "MASKED@camera/live"),
            ("rtsp:/u:pw@camera", "MASKED@camera"),
            ("me@example.org", "me@example.org"),
            ("10.0.0.1:80", "10.0.0.1:80"),
        ] {
            assert_eq!(mask_value(value), shown);
        }
    }

    #[test]
    fn queries_of_urls_are_masked_and_other_question_marks_are_not() {
        for (text, shown) in [
            ("http://h/f?X-Amz-Signature=abc: connection refused", "http://h/f?…: connection refused"),
            (
                "the redirect (https://h/f?sig=a,b) is not followed.",
                "the redirect (https://h/f?…) is not followed.",
            ),
            ("\"https://h/f?a=1&b=2\" is", "\"https://h/f?…\" is"),
            ("GET /f?token=x HTTP/1.1", "GET /f?… HTTP/1.1"),
            ("https://a/?x https://b/?y", "https://a/?… https://b/?…"),
            ("http://h/f?", "http://h/f?"),
            ("a captive portal?) or not? 3/4", "a captive portal?) or not? 3/4"),
        ] {
            assert_eq!(mask_secrets(text), shown);
        }
    }

    proptest! {
        #[test]
        fn no_unprintable_character_is_left_and_json_keeps_its_meaning(text in any::<String>()) {
            prop_assert!(!printable(&text).chars().any(is_unprintable));
            prop_assert!(!printable_lines(&text).chars().any(|c| c != '\n' && is_unprintable(c)));
            let json = serde_json::to_string_pretty(&[&text]).unwrap();
            let read: Vec<String> = serde_json::from_str(&printable_lines(&json)).unwrap();
            prop_assert_eq!(&read[0], &text);
        }
    }
}
