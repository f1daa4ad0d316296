//! Chooses the name of a downloaded file, from Content-Disposition (RFC 6266) or the URL.
//!
//! The server is not trusted. A name from it cannot leave the directory that the user chose, hide the file, look
//! like an option to another program, send control characters to a terminal, be displayed differently from what it
//! is, or be the name of an unfinished download.
//!
//! 1. `filename*` (RFC 8187) is preferred to `filename`, then comes the last path segment of the URL, then
//!    `download`.
//! 2. Only the text after the last `/` or `\` is used (RFC 6266 section 4.3). Control, format and invisible
//!    characters are removed. So are leading dots, dashes, tildes and spaces, and trailing dots and spaces.
//! 3. A name is at most [`MAX_NAME_LEN`] bytes long. It is cut between characters and before the extension.
//! 4. A name that ends in one of [`PART_SUFFIXES`] gets [`SAFE_SUFFIX`] appended. Case folding and compatibility
//!    mapping, which some file systems apply, are taken into account.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use icu_normalizer::ComposingNormalizerBorrowed;
use icu_properties::props::{DefaultIgnorableCodePoint, GeneralCategory};
use icu_properties::{CodePointMapData, CodePointSetData};
use marline_net::http::percent_decoded;
use percent_encoding::percent_decode_str;
use url::Url;

/// Length of the longest suffix that is added to the final name.
pub(crate) const MAX_SUFFIX_LEN: usize = ".part.journal.new".len();

/// Maximum length of a suggested file name in bytes, such that the names of the unfinished file fit as well
/// (NAME_MAX of Linux is 255).
pub const MAX_NAME_LEN: usize = 255 - MAX_SUFFIX_LEN;

/// Suffixes of the unfinished file and its journals. A name from a server or a URL never ends in one of them.
pub(crate) const PART_SUFFIXES: [&str; 3] = [".part", ".part.journal", ".part.journal.new"];

/// A file name, and a note for the user if the name was changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SuggestedName {
    /// Not empty, at most [`MAX_NAME_LEN`] bytes.
    pub name: String,
    /// Why the name differs from the suggested one, in one line.
    pub note: Option<String>,
}

/// The name of a file. Not empty, at most [`MAX_NAME_LEN`] bytes.
pub fn file_name(disposition: Option<&str>, url: &Url) -> String {
    suggest_name(disposition, url).name
}

/// The name of a file, with a note if it differs from the suggested one.
pub fn suggest_name(disposition: Option<&str>, url: &Url) -> SuggestedName {
    let params = disposition.map(disposition_parameters).unwrap_or_default();
    let value =
        |name: &str| params.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str());
    let extended = value("filename*").and_then(decode_extended);
    let segment = url.path_segments().and_then(|mut segments| segments.next_back());
    let candidates = [
        extended,
        value("filename").map(decode_plain),
        segment.map(|segment| String::from_utf8_lossy(&percent_decode(segment)).into_owned()),
    ];
    let found = candidates.into_iter().flatten().find_map(|name| sanitize_name(&name));
    found.unwrap_or_else(|| SuggestedName { name: "download".to_owned(), note: None })
}

/// Makes an untrusted name safe; none if nothing of it remains.
pub fn sanitize_name(text: &str) -> Option<SuggestedName> {
    let last_segment = text.rsplit(['/', '\\']).next().unwrap_or_default();
    let clean = clean(last_segment);
    let shortened = shorten_name(&clean, MAX_NAME_LEN);
    // Shortening may leave a space at the end.
    let name = trim_name_end(&shortened).to_owned();
    if name.is_empty() {
        return None;
    }
    let (name, why) = if has_reserved_suffix(&name) {
        (with_safe_suffix(&name), "this extension is reserved for unfinished downloads")
    } else if shortened.len() < clean.len() {
        (name, "it is too long")
    } else if name != last_segment {
        (name, "some of its characters are not safe in a file name")
    } else {
        return Some(SuggestedName { name, note: None });
    };
    let note = format!("the name {} is changed to {}: {why}", quote_name(last_segment), quote_name(&name));
    Some(SuggestedName { name, note: Some(note) })
}

/// Whether a name ends like that of an unfinished file, on a file system that folds case, maps compatibility
/// characters, or drops trailing dots and spaces.
pub(crate) fn has_reserved_suffix(name: &str) -> bool {
    let folded: String =
        ComposingNormalizerBorrowed::new_nfkc().normalize(name).chars().flat_map(char::to_lowercase).collect();
    let folded = trim_name_end(&folded);
    PART_SUFFIXES.iter().any(|ending| folded.ends_with(ending))
}

/// Shortens a name to `max_len` bytes, and keeps a short extension.
pub(crate) fn shorten_name(name: &str, max_len: usize) -> String {
    if name.len() <= max_len {
        return name.to_owned();
    }
    let extension =
        extension(name).filter(|extension| extension.len() <= MAX_EXTENSION_LEN.min(max_len / 2)).unwrap_or("");
    format!("{}{extension}", truncate(name, max_len - extension.len()))
}

/// Quotes a name for a message: escaped, and shortened in the middle.
pub(crate) fn quote_name(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let text = |chars: &[char]| {
        let escaped = |c: &char| match visible_char(*c) {
            Some(visible) if visible == *c => c.escape_debug().collect::<String>(),
            _ => c.escape_unicode().collect(),
        };
        chars.iter().map(escaped).collect::<String>()
    };
    if chars.len() <= MAX_QUOTED_CHARS {
        return format!("\"{}\"", text(&chars));
    }
    // The end is kept, because the extension is the most informative part.
    format!(
        "\"{}...{}\"",
        text(&chars[..MAX_QUOTED_CHARS - MAX_EXTENSION_LEN]),
        text(&chars[chars.len() - MAX_EXTENSION_LEN..])
    )
}

/// The parameters after the disposition type, without quotes and escapes.
fn disposition_parameters(field: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let Some((_, mut remaining)) = field.split_once(';') else { return found };
    while let Some((name, after)) = remaining.split_once('=') {
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => unquote(quoted),
            None => {
                let (value, next) = after.split_once(';').unwrap_or((after, ""));
                (value.trim().to_owned(), next)
            }
        };
        // A parameter without a value may precede this one.
        let name = name.rsplit(';').next().unwrap_or(name);
        found.push((name.trim().to_owned(), value));
        remaining = next;
    }
    found
}

/// The text up to the closing quote, and the text after the next semicolon.
fn unquote(quoted: &str) -> (String, &str) {
    let mut value = String::new();
    let mut chars = quoted.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                let remaining = &quoted[at + 1..];
                return (value, remaining.split_once(';').map_or("", |(_, next)| next));
            }
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

/// Decodes `UTF-8'en'na%C3%AFve` (RFC 8187 §3.2.1). ISO-8859-1 is decoded as well, other charsets are not.
fn decode_extended(text: &str) -> Option<String> {
    let mut parts = text.splitn(3, '\'');
    let (charset, _, value) = (parts.next()?, parts.next()?, parts.next()?);
    decode_charset(charset, percent_decode(value))
}

fn decode_charset(charset: &str, bytes: Vec<u8>) -> Option<String> {
    if charset.eq_ignore_ascii_case("utf-8") {
        String::from_utf8(bytes).ok()
    } else if charset.eq_ignore_ascii_case("iso-8859-1") {
        Some(bytes.into_iter().map(char::from).collect())
    } else {
        None
    }
}

/// Decodes `%41` to `A`. A percent sign without two hexadecimal digits is kept.
fn percent_decode(text: &str) -> Vec<u8> {
    percent_decode_str(text).collect()
}

/// Decodes a plain `filename`. RFC 6266 defines no encoding for it, but servers use those of URLs and of mail (RFC
/// 2047), and browsers decode both.
fn decode_plain(text: &str) -> String {
    if let Some(words) = decode_encoded_words(text) {
        return words;
    }
    percent_decoded(text)
}

/// Decodes one or more `=?UTF-8?B?...?=`, separated by spaces; none if the text is anything else.
fn decode_encoded_words(text: &str) -> Option<String> {
    let words: Option<Vec<String>> = text.split_ascii_whitespace().map(decode_encoded_word).collect();
    words.filter(|words| !words.is_empty()).map(|words| words.concat())
}

fn decode_encoded_word(word: &str) -> Option<String> {
    let mut parts = word.strip_prefix("=?")?.strip_suffix("?=")?.splitn(3, '?');
    let (charset, encoding, value) = (parts.next()?, parts.next()?, parts.next()?);
    let bytes = if encoding.eq_ignore_ascii_case("b") {
        STANDARD.decode(value).ok()?
    } else if encoding.eq_ignore_ascii_case("q") {
        // Quoted-printable uses `=` where URLs use `%`, so a literal percent sign is escaped first.
        percent_decode(&value.replace('%', "%25").replace('=', "%").replace('_', " "))
    } else {
        return None;
    };
    decode_charset(charset, bytes)
}

/// Removes characters that a name must not contain, begin with or end with.
fn clean(name: &str) -> String {
    let visible: String = name.chars().filter_map(visible_char).collect();
    let clean = trim_name_end(visible.trim_start_matches(['.', '-', '~', ' ']));
    // On FAT, `UBUNTU~1.PAR` is the short name of `ubuntu.iso.part`.
    if is_fat_alias(clean) { clean.replace('~', "_") } else { clean.to_owned() }
}

/// Maps a character: invisible ones are removed, and spaces of any width become a plain space.
fn visible_char(c: char) -> Option<char> {
    use GeneralCategory as Kind;
    match CodePointMapData::<Kind>::new().get(c) {
        Kind::Control | Kind::Format | Kind::LineSeparator | Kind::ParagraphSeparator => None,
        _ if CodePointSetData::new::<DefaultIgnorableCodePoint>().contains(c) => None,
        Kind::SpaceSeparator => Some(' '),
        // The empty Braille pattern looks like a space.
        _ if c == '\u{2800}' => Some(' '),
        _ => Some(c),
    }
}

/// Removes trailing dots and spaces, which FAT drops.
fn trim_name_end(name: &str) -> &str {
    name.trim_end_matches(|c: char| c == '.' || c.is_whitespace())
}

/// Whether a name has the form of the short names that FAT generates for long ones.
fn is_fat_alias(name: &str) -> bool {
    let (stem, extension) = name.split_once('.').unwrap_or((name, ""));
    let number = stem.rsplit_once('~').map(|(_, number)| number);
    let numbered = number.is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()));
    numbered && stem.len() <= 8 && extension.len() <= 3
}

/// Appends a suffix to a reserved name, so that it is no longer reserved.
fn with_safe_suffix(name: &str) -> String {
    format!("{}{SAFE_SUFFIX}", trim_name_end(truncate(name, MAX_NAME_LEN - SAFE_SUFFIX.len())))
}

/// The extension with its dot; both extensions for `.tar.gz` and the like.
fn extension(name: &str) -> Option<&str> {
    let at = name.rfind('.')?;
    let tar = name[..at].strip_suffix(".tar").map(str::len);
    Some(&name[tar.unwrap_or(at)..])
}

/// The first `max_len` bytes of a text, cut at a character boundary.
pub(crate) fn truncate(text: &str, max_len: usize) -> &str {
    let mut end = max_len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Appended to a name that is reserved for unfinished files.
const SAFE_SUFFIX: &str = ".download";
/// Maximum length of an extension. Our choice: longer than `.flatpakref` and `.AppImage.zsync`.
const MAX_EXTENSION_LEN: usize = 16;
/// Maximum number of characters of a name in a message.
const MAX_QUOTED_CHARS: usize = 80;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn name(disposition: Option<&str>, url: &str) -> String {
        file_name(disposition, &Url::parse(url).expect("a URL"))
    }

    #[test]
    fn the_preferred_name_is_used() {
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
            (Some("attachment; filename=\"na%C3%AFve%20100%.txt\""), "na\u{ef}ve 100%.txt"),
            (Some("attachment; filename=\"%FF.txt\""), "%FF.txt"),
            (Some("attachment; filename=\"=?UTF-8?B?bmHDr3ZlLnR4dA==?=\""), "na\u{ef}ve.txt"),
            (
                Some("attachment; filename=\"=?utf-8?q?na=C3=AFve_?= =?iso-8859-1?Q?=A3.txt?=\""),
                "na\u{ef}ve \u{a3}.txt",
            ),
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
    fn spaces_of_any_width_are_trimmed() {
        let field = "attachment; filename=\"\u{3000}.\u{a0}.\u{2003}a\u{a0}\"";
        assert_eq!(name(Some(field), "http://h/"), "a");
        let field = format!("attachment; filename=\"{}\u{2003}{}\"", "x".repeat(237), "y".repeat(20));
        assert_eq!(name(Some(&field), "http://h/"), "x".repeat(237));
    }

    #[test]
    fn names_of_unfinished_downloads_cannot_be_suggested() {
        for bad in [
            "ubuntu.iso.part",
            "ubuntu.iso.part.journal",
            "ubuntu.iso.part.journal.new",
            "UBUNTU.ISO.PART",
            "ubuntu.iso.Part.JOURNAL",
            "ubuntu.iso.part.",
            "ubuntu.iso.part. . ",
            "ubuntu.iso.part\u{a0}",
            "ubuntu.iso.part\u{200b}",
            "ubuntu.iso.pa\u{ad}rt",
            "ubuntu.iso.\u{feff}part",
            "ubuntu.iso.par\u{fe0f}t",
            "ubuntu.iso.\u{e0070}part",
            "ubuntu.iso\u{ff0e}\u{ff50}\u{ff41}\u{ff52}\u{ff54}",
            "ubuntu.iso\u{2024}part",
            "ubuntu.iso.\u{1d429}art",
            ".part",
            "../ubuntu.iso.part",
            "evil\\ubuntu.iso.part",
        ] {
            let SuggestedName { name, note } = sanitize_name(bad).unwrap();
            assert!(!has_reserved_suffix(&name) && !name.is_empty(), "{bad:?}: {name:?}");
            assert!(
                note.is_some_and(|note| note.contains(&format!("{name:?}")) && !note.contains('\n')),
                "{bad:?}"
            );
            let encoded: String = bad.bytes().map(percent_encoding::percent_encode_byte).collect();
            let fields = [
                format!("attachment; filename*=UTF-8''{encoded}"),
                format!("attachment; filename={encoded}"),
                format!("attachment; filename=\"{}\"", bad.replace('\\', "\\\\")),
                format!("attachment; filename=\"=?UTF-8?B?{}?=\"", STANDARD.encode(bad)),
            ];
            for field in fields {
                let name = super::file_name(Some(&field), &Url::parse("http://h/").unwrap());
                assert!(!has_reserved_suffix(&name), "{field}: {name}");
            }
            let name = super::file_name(None, &Url::parse(&format!("http://h/{encoded}")).unwrap());
            assert!(!has_reserved_suffix(&name), "{encoded}: {name}");
        }
        assert_eq!(name(None, "http://h/plant/ubuntu.iso.part"), "ubuntu.iso.part.download");
        assert_eq!(name(None, "http://h/a.part1.rar"), "a.part1.rar");
        assert_eq!(name(None, "http://h/UBUNTU~1.PAR"), "UBUNTU_1.PAR");
        assert_eq!(name(None, "http://h/notes~2024.txt"), "notes~2024.txt");
        // Shortening must not produce a reserved name either.
        let long = format!("{}.part", "x".repeat(400));
        let cut = sanitize_name(&long).unwrap().name;
        assert!(cut.len() <= MAX_NAME_LEN && cut.ends_with("x.download"), "{cut}");
    }

    #[test]
    fn a_name_is_no_option_and_is_displayed_as_it_is() {
        for (bad, want) in [
            ("-rf", "rf"),
            ("--help", "help"),
            ("~root", "root"),
            ("-.~ x", "x"),
            ("a\u{202e}gpj.exe", "agpj.exe"),
            ("a\u{2066}b\u{2069}\u{61c}\u{200e}c", "abc"),
            ("a\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}b", "ab"),
            ("a\u{2028}b\u{2029}c\u{85}d\u{9b}e\u{7f}f", "abcdef"),
            ("a\u{3164}\u{115f}\u{17b4}\u{180e}b\u{e0041}", "ab"),
            ("a\u{3000}b\u{2800}c\u{a0}", "a b c"),
            ("a.txt. .", "a.txt"),
        ] {
            let SuggestedName { name, note } = sanitize_name(bad).unwrap();
            assert_eq!(name, want, "{bad:?}");
            let note = note.unwrap();
            assert!(note.chars().all(|c| c.is_ascii() && !c.is_control()), "{note}");
        }
        for unusable_name in ["", "-", "...", " ", "\u{200b}", "\u{202e}\u{2028}", "-~.", "a/"] {
            assert_eq!(sanitize_name(unusable_name), None, "{unusable_name:?}");
            let field = format!("attachment; filename=\"{unusable_name}\"");
            assert_eq!(name(Some(&field), "http://h/"), "download");
        }
        assert_eq!(sanitize_name("na\u{ef}ve \u{6587}.txt").unwrap().note, None);
    }

    #[test]
    fn a_long_name_keeps_its_extension() {
        let long = format!("attachment; filename={}.tar", "\u{e9}".repeat(300));
        let got = name(Some(&long), "http://h/");
        assert!(got.len() <= MAX_NAME_LEN && got.len() > MAX_NAME_LEN - 5 && got.ends_with(".tar"), "{got}");
        let got = sanitize_name(&format!("{}.iso", "x".repeat(245))).unwrap();
        assert_eq!(got.name, format!("{}.iso", "x".repeat(MAX_NAME_LEN - 4)));
        assert!(got.note.unwrap().ends_with("it is too long"));
        assert!(shorten_name(&format!("{}.tar.zst", "x".repeat(300)), 126).ends_with("x.tar.zst"));
        assert_eq!(shorten_name(&format!("a.{}", "x".repeat(300)), 20), format!("a.{}", "x".repeat(18)));
    }

    proptest! {
        #[test]
        fn any_input_gives_a_safe_name(field in ".{0,300}", path in "[!-~]{0,300}") {
            let Ok(url) = Url::parse(&format!("http://h/{path}")) else { return Ok(()) };
            let name = file_name(Some(&format!("attachment; filename=\"{field}\"")), &url);
            prop_assert!(!name.is_empty() && name.len() <= MAX_NAME_LEN && !name.starts_with(['.', '-', '~', ' ']));
            prop_assert!(!name.contains(['/', '\\']) && !name.chars().any(char::is_control));
            prop_assert!(!has_reserved_suffix(&name) && trim_name_end(&name) == name);
            prop_assert_eq!(sanitize_name(&name), Some(SuggestedName { name, note: None }));
        }
    }
}
