//! What to call a downloaded file.
//!
//! In: a Content-Disposition field (RFC 6266) and the URL. Out: a name for the directory that the user chose, and
//! nothing but a name: the server is not trusted, so it can neither leave the directory nor hide a file nor send
//! control characters to a terminal.
//!
//! 1. `filename*` (RFC 8187) before `filename`, then the last segment of the URL's path, then `download`.
//! 2. Only what follows the last `/` or `\` counts (RFC 6266 §4.3); no control characters, no leading dots, no blanks
//!    around it, at most 255 bytes, cut between characters and before the extension.

use url::Url;

/// The file's name. Never empty, never more than 255 bytes.
pub fn file_name(disposition: Option<&str>, url: &Url) -> String {
    let given = disposition.map(parameters).unwrap_or_default();
    let value =
        |name: &str| given.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
    let extended = value("filename*").and_then(decode_extended);
    let segment = url.path_segments().and_then(|mut segments| segments.next_back());
    let candidates = [
        extended,
        value("filename").map(str::to_owned),
        segment.map(|segment| String::from_utf8_lossy(&percent_decode(segment)).into_owned()),
    ];
    let found = candidates.into_iter().flatten().map(|name| sanitise(&name)).find(|name| !name.is_empty());
    found.unwrap_or_else(|| "download".to_owned())
}

/// The parameters behind the disposition type, quotes and their escapes removed.
fn parameters(field: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let Some((_, mut rest)) = field.split_once(';') else { return found };
    while let Some((name, after)) = rest.split_once('=') {
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, next) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), next)
            }
        };
        // A parameter without a value may stand in front of this one.
        let name = name.rsplit(';').next().unwrap_or(name);
        found.push((name.trim().to_owned(), value));
        rest = next;
    }
    found
}

/// The text up to the closing quote, and what follows the next semicolon.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let rest = &quoted[at + 1..];
                return (value, rest.split_once(';').map_or("", |(_, next)| next));
            }
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

/// `UTF-8'en'na%C3%AFve` (RFC 8187 §3.2.1); ISO-8859-1 is read as well, other charsets are not.
fn decode_extended(text: &str) -> Option<String> {
    let mut parts = text.splitn(3, '\'');
    let (charset, _, value) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = percent_decode(value);
    if charset.eq_ignore_ascii_case("utf-8") {
        String::from_utf8(bytes).ok()
    } else if charset.eq_ignore_ascii_case("iso-8859-1") {
        Some(bytes.into_iter().map(char::from).collect())
    } else {
        None
    }
}

/// `%41` is `A`; a percent sign without two digits stays.
fn percent_decode(text: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (text.as_bytes(), Vec::with_capacity(text.len()), 0);
    let digit = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    while let Some(&byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high << 4 | low) as u8);
                at += 3;
            }
            _ => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// What may be a file's name; empty if nothing is left.
fn sanitise(name: &str) -> String {
    let last = name.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean: String = last.chars().filter(|c| !c.is_control() && !is_deceptive(*c)).collect();
    let clean = clean.trim_start_matches(|c: char| c == '.' || c.is_whitespace()).trim_end();
    // The cut may fall behind a blank.
    shorten(clean, NAME_MOST).trim_end().to_owned()
}

/// Characters that turn the direction of text around, so that `exe.gpj` reads `jpg.exe` (Unicode UAX 9).
fn is_deceptive(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// At most so many bytes, the extension kept if it is a short one.
fn shorten(name: &str, most: usize) -> String {
    if name.len() <= most {
        return name.to_owned();
    }
    let extension = name.rfind('.').map(|at| &name[at..]).filter(|extension| extension.len() <= 16).unwrap_or("");
    let mut end = most - extension.len();
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}{extension}", &name[..end])
}

/// What Linux's file systems take.
const NAME_MOST: usize = 255;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(disposition: Option<&str>, url: &str) -> String {
        file_name(disposition, &Url::parse(url).expect("a URL"))
    }

    #[test]
    fn the_best_name_wins() {
        let url = "http://h/dir/a%20b.iso?x=/y";
        for (field, want) in [
            (None, "a b.iso"),
            (Some("attachment"), "a b.iso"),
            (Some("attachment; filename=plain.txt"), "plain.txt"),
            (Some("attachment; filename = \"with; \\\"quotes\\\".txt\" ; x=y"), "with; \"quotes\".txt"),
            (Some("attachment; filename=old.txt; filename*=UTF-8''na%C3%AFve.txt"), "na\u{ef}ve.txt"),
            (Some("attachment; filename*=iso-8859-1'en'%A3.txt"), "\u{a3}.txt"),
            (Some("attachment; filename*=utf-16''x; filename=y"), "y"),
            (Some("attachment; filename*=UTF-8''%FF; filename=y"), "y"),
            (Some("attachment; FILENAME=x"), "x"),
            (Some("attachment; filename=\"\""), "a b.iso"),
            (Some("attachment; filename=\"unclosed"), "unclosed"),
            (Some("attachment; broken; filename=x"), "x"),
        ] {
            assert_eq!(name(field, url), want, "{field:?}");
        }
        assert_eq!(name(None, "http://h/"), "download");
        assert_eq!(name(None, "http://h"), "download");
        assert_eq!(name(None, "http://h/dir/"), "download");
    }

    #[test]
    fn a_server_cannot_leave_the_directory() {
        for (field, want) in [
            ("attachment; filename=\"../../etc/passwd\"", "passwd"),
            ("attachment; filename=\"..\\\\..\\\\evil.exe\"", "evil.exe"),
            ("attachment; filename=\"..\"", "download"),
            ("attachment; filename=\"/\"", "download"),
            ("attachment; filename=\".bashrc\"", "bashrc"),
            ("attachment; filename*=UTF-8''a%2Fb%00c%1B[2J", "bc[2J"),
            ("attachment; filename*=UTF-8''a%E2%80%AEgpj.exe", "agpj.exe"),
        ] {
            assert_eq!(name(Some(field), "http://h/"), want, "{field}");
        }
        assert_eq!(name(None, "http://h/%2e%2e%2f.x"), "x");
    }

    #[test]
    fn no_blank_of_any_script_hides_a_dot_or_stands_at_the_end() {
        let field = "attachment; filename=\"\u{3000}.\u{a0}.\u{2003}a\u{a0}\"";
        assert_eq!(name(Some(field), "http://h/"), "a");
        let field = format!("attachment; filename=\"{}\u{2003}{}\"", "x".repeat(252), "y".repeat(20));
        assert_eq!(name(Some(&field), "http://h/"), "x".repeat(252));
    }

    #[test]
    fn a_long_name_keeps_its_extension() {
        let long = format!("attachment; filename={}.tar", "\u{e9}".repeat(300));
        let got = name(Some(&long), "http://h/");
        assert!(got.len() <= 255 && got.len() > 250 && got.ends_with(".tar"), "{got}");
    }

    proptest! {
        #[test]
        fn a_name_is_always_only_a_name(field in ".{0,300}", path in "[!-~]{0,300}") {
            let Ok(url) = Url::parse(&format!("http://h/{path}")) else { return Ok(()) };
            let name = file_name(Some(&format!("attachment; filename=\"{field}\"")), &url);
            prop_assert!(!name.is_empty() && name.len() <= 255 && !name.starts_with('.'));
            prop_assert!(!name.contains(['/', '\\']) && !name.chars().any(char::is_control));
        }
    }
}
