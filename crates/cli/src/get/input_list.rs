//! Parser of URL lists (`-i`) in the format of aria2, and reader of Metalink files.
//!
//! Each line is one download; several URLs separated by tabs are mirrors of one file. Lines that begin with white space are
//! options of the line before: `out=NAME`, `dir=DIR` and `checksum=sha-256=HEX`. Lines that begin with `#` and empty lines
//! are skipped.
//!
//! Lists often come from other people, so they must not overwrite arbitrary files of the user. Therefore `out` is a relative
//! path below `dir` without `..`; no part of it begins with a dot, a dash or a tilde, or has a suffix of unfinished files; and
//! existing files are not replaced. `dir` may be any directory.

use std::io::Read;
use std::path::{Component, Path, PathBuf};

use marline_download::{Checksum, Digests, MirrorUrl, metalink, sanitize_name};

use ::url::Url;

use super::url::parse_url;
use crate::CliError;

/// One file to download, from a list, a Metalink file or the command line.
#[derive(Clone, Default)]
pub(super) struct ListEntry {
    /// URLs of the file, the preferred one first.
    pub(super) sources: Vec<MirrorUrl>,
    /// Name of the file below the directory (`out=`, or that of the Metalink file).
    pub(super) out: Option<PathBuf>,
    /// Directory of this file (`dir=`), in place of `--dir`.
    pub(super) dir: Option<PathBuf>,
    /// Checksums that the file must have.
    pub(super) digests: Digests,
}

/// Notices about the lists and Metalink files that were read.
#[derive(Default)]
pub(super) struct InputNotices {
    /// Notices about changed or ignored parts.
    pub(super) notes: Vec<String>,
    /// Files of Metalink files that are not downloaded, with the reason.
    pub(super) skipped: Vec<String>,
}

/// Reads the files of a list; `-` is standard input.
pub(super) fn read_list(path: &Path) -> Result<Vec<ListEntry>, CliError> {
    let (name, text) = read_input(path);
    let text = text.map_err(|error| CliError::usage(format!("{name}: {error}: cannot read --input-file")))?;
    let entries = parse(&name, &text)?;
    if entries.is_empty() {
        return Err(CliError::usage(format!("{name}: the list has no URL")));
    }
    Ok(entries)
}

/// Reads the files of a Metalink file; `-` is standard input.
pub(super) fn read_metalink(path: &Path, notices: &mut InputNotices) -> Result<Vec<ListEntry>, CliError> {
    let (name, text) = read_input(path);
    let text = text.map_err(|error| CliError::usage(format!("{name}: {error}: cannot read --metalink")))?;
    let metalink::Metalink { files, rejected, notes } =
        metalink::parse(&text).map_err(|error| CliError::usage(format!("{name}: {error}")))?;
    notices.skipped.extend(rejected.iter().map(|reason| format!("{name}: {reason}")));
    notices.notes.extend(notes.iter().map(|note| format!("{name}: {note}")));
    if files.len() > MAX_LIST_FILES {
        return Err(CliError::usage(format!("{name}: a Metalink file has at most {MAX_LIST_FILES} files")));
    }
    let entry = |file: metalink::MetalinkFile| ListEntry {
        sources: file.mirrors,
        out: Some(file.name.into()),
        dir: None,
        digests: file.digests,
    };
    Ok(files.into_iter().map(entry).collect())
}

/// Returns the name of the input for messages, and its text.
fn read_input(path: &Path) -> (String, std::io::Result<String>) {
    if path == Path::new("-") {
        return ("standard input".to_owned(), read_bounded(std::io::stdin().lock()));
    }
    (path.display().to_string(), std::fs::File::open(path).and_then(read_bounded))
}

/// Reads a text of at most [`MAX_LIST_BYTES`].
pub(super) fn read_bounded(reader: impl Read) -> std::io::Result<String> {
    String::from_utf8(read_bounded_bytes(reader)?).map_err(|error| {
        let valid_len = error.utf8_error().valid_up_to();
        let valid_bytes = error.as_bytes().iter().take(valid_len);
        let line = 1 + valid_bytes.filter(|byte| **byte == b'\n').count();
        std::io::Error::other(format!("line {line}: not UTF-8"))
    })
}

/// Reads a file of at most [`MAX_LIST_BYTES`].
pub(super) fn read_bounded_bytes(reader: impl Read) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    reader.take(MAX_LIST_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_LIST_BYTES {
        return Err(std::io::Error::other(format!("larger than {MAX_LIST_BYTES} bytes")));
    }
    Ok(bytes)
}

fn parse(name: &str, text: &str) -> Result<Vec<ListEntry>, CliError> {
    let mut entries: Vec<ListEntry> = Vec::new();
    for (n, line) in text.strip_prefix('\u{feff}').unwrap_or(text).lines().enumerate() {
        let usage_error = |problem: String| CliError::usage(format!("{name}: line {}: {problem}", n + 1));
        let content = line.trim();
        if content.starts_with('#') || content.is_empty() {
            continue;
        }
        if line.starts_with([' ', '\t']) {
            let entry =
                entries.last_mut().ok_or_else(|| usage_error("an option without a URL before it".into()))?;
            parse_option(entry, content).map_err(usage_error)?;
            continue;
        }
        if entries.len() >= MAX_LIST_FILES {
            return Err(usage_error(format!("a list has at most {MAX_LIST_FILES} files")));
        }
        let mut entry = ListEntry::default();
        for text in content.split('\t').map(str::trim).filter(|text| !text.is_empty()) {
            let (url, login) = parse_url(text).map_err(|exit| usage_error(exit.message.unwrap_or_default()))?;
            entry.sources.push(MirrorUrl { login, ..MirrorUrl::from_user(url) });
        }
        entries.push(entry);
    }
    Ok(entries)
}

fn parse_option(entry: &mut ListEntry, text: &str) -> Result<(), String> {
    let (name, value) =
        text.split_once('=').ok_or_else(|| format!("`{text}` is not an option: write NAME=VALUE"))?;
    match name.trim() {
        "out" => entry.out = Some(relative_path(value.trim())?),
        "dir" if value.trim().is_empty() => return Err("dir= has no value: name a directory".into()),
        "dir" => entry.dir = Some(value.trim().into()),
        "checksum" => entry.digests.full_file = Some(parse_checksum(value)?),
        option_name => {
            return Err(format!("unknown option `{option_name}`: use out, dir or checksum"));
        }
    }
    Ok(())
}

/// Parses a checksum; aria2 writes `sha-256` for `sha256`.
fn parse_checksum(text: &str) -> Result<Checksum, String> {
    let plain = text.strip_prefix("sha-").map_or_else(|| text.to_owned(), |remaining| format!("sha{remaining}"));
    plain.trim().parse().map_err(|error: marline_download::ParseChecksumError| error.to_string())
}

/// Parses the value of `out=`; see the [module documentation](self) for what is accepted.
fn relative_path(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_relative = path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    let has_file_name = path.file_name().is_some() && !text.ends_with('/') && !text.chars().any(char::is_control);
    if !is_relative || !has_file_name {
        return Err(format!("out={text} is not a file below the directory; set the directory with dir="));
    }
    for part in path.components().filter(|part| matches!(part, Component::Normal(_))) {
        let part = part.as_os_str().to_string_lossy();
        if sanitize_name(&part).is_none_or(|safe| safe.note.is_some()) {
            return Err(format!(
                "out={text}: hidden files, names like options, and names of unfinished files are not allowed; replace `{part}`"
            ));
        }
    }
    Ok(path.to_owned())
}

/// The mirror of a URL from the command line.
pub(super) fn mirror_of(url: Url, login: Option<(String, String)>) -> MirrorUrl {
    MirrorUrl { login, ..MirrorUrl::from_user(url) }
}

/// Largest list, Metalink or netrc file in bytes.
const MAX_LIST_BYTES: u64 = 16 * 1024 * 1024;
/// Most files in one list or Metalink file.
const MAX_LIST_FILES: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::tests::usage_message;

    fn parse_error(text: &str) -> String {
        usage_message(parse("list", text))
    }

    #[test]
    fn a_list_of_aria2_is_parsed() {
        let digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
        let text = format!(
            "\u{feff}# comment\r\n\r\nhttp://a/1\thttp://b/1\r\n  out=one.bin\r\n\tdir=/tmp/x y\n checksum=sha-256={digest}\n\
             https://u:p@c/2\n   \n#\thttp://d/3\n http\n"
        );
        let Err(_) = parse("list", &text) else { panic!("`http` is not an option") };
        let entries = parse("list", text.trim_end_matches(" http\n")).unwrap();
        let urls = |n: usize| entries[n].sources.iter().map(|s| s.url.as_str()).collect::<Vec<_>>();
        assert_eq!((entries.len(), urls(0), urls(1)), (2, vec!["http://a/1", "http://b/1"], vec!["https://c/2"]));
        assert_eq!(entries[0].out.as_deref(), Some(Path::new("one.bin")));
        assert_eq!(entries[0].dir.as_deref(), Some(Path::new("/tmp/x y")));
        assert_eq!(entries[0].digests.full_file, Some(format!("sha256={digest}").parse().unwrap()));
        assert_eq!(entries[1].sources[0].login, Some(("u".into(), "p".into())));
        assert!(entries[1].out.is_none());
    }

    #[test]
    fn an_invalid_list_is_rejected_with_the_line_of_the_mistake() {
        for (text, expected) in [
            ("http://a/1\n  split=5\n", "list: line 2: unknown option `split`: use out, dir"),
            (" out=x\n", "line 1: an option without a URL"),
            ("http://a/1\n  out\n", "line 2: `out` is not an option"),
            ("http://a/1\nftp://a/2\n", "line 2: ftp://a/2: `ftp` is not supported"),
            ("http://me:secret@a:99999/1\n", "MASKED@a:99999"),
            ("http://a/1\n checksum=md5=00\n", "line 2: `md5=00` is not a checksum"),
            ("http://a/1\n dir=\n", "dir= has no value"),
        ] {
            let line = parse_error(text);
            assert!(line.contains(expected) && !line.contains("secret"), "{text}: {line}");
        }
    }

    #[test]
    fn out_stays_below_its_directory() {
        for out in ["../x", "/etc/passwd", "a/../../x", "", "a/", ".", "..", "a\u{7}"] {
            assert!(parse_error(&format!("http://a/1\n out={out}\n")).contains("not a file below"), "{out}");
        }
        for out in [".bashrc", "-rf", "sub/.x", "a.part.journal", "~", "a.PART/b"] {
            assert!(parse_error(&format!("http://a/1\n out={out}\n")).contains("hidden files"), "{out}");
        }
        let entries = parse("l", "http://a/1\n  # a comment\n out = a b.bin\n").unwrap();
        assert_eq!(entries[0].out, Some("a b.bin".into()));
        assert_eq!(parse("l", "http://a/1\n out=sub/x\n").unwrap()[0].out, Some("sub/x".into()));
    }

    #[test]
    fn a_list_has_a_bounded_size() {
        assert!(read_bounded(std::io::repeat(b'a')).is_err());
        let error = read_bounded(&b"http://a/1\n#\xfc\n"[..]).unwrap_err().to_string();
        assert!(error.starts_with("line 2: "), "{error}");
        assert!(parse_error(&"http://a/\n".repeat(MAX_LIST_FILES + 1)).contains("at most"));
    }
}
