//! Parser for Metalink files (RFC 5854): lists of files with their mirrors, sizes and digests. Version 3 of the
//! format is accepted as well.
//!
//! 1. The name of a file is a path below a directory that the user chooses. A name that leaves it is rejected (RFC
//!    5854 section 4.1.2.1). Each component is made safe like a name from a server ([`sanitize_name`]): no hidden
//!    file, no option, no extension of unfinished downloads.
//! 2. Only `http` and `https` URLs are used, in the order of preference, at most [`MAX_URLS`] for each file.
//! 3. SHA-256 and SHA-512 are accepted for the full file. For pieces SHA-1 is accepted as well, because most files
//!    have no other. The strongest available digest is used.
//! 4. A Metalink file often comes from another party. So its URLs may lead to this host or a private network only
//!    if the first URL does ([`EgressPolicy`]). A host name counts as a public address.
//! 5. A file that cannot be used does not prevent the download of the others.
//!
//! The result is never larger than the text. So the caller's limit for the text also limits the memory.

use std::net::IpAddr;

use data_encoding::HEXLOWER_PERMISSIVE;
use marline_core::units::DataSize;
use marline_net::egress::EgressPolicy;
use marline_net::http::is_loopback_url;
use quick_xml::Reader;
use quick_xml::escape::resolve_predefined_entity;
use quick_xml::events::{BytesStart, Event};
use url::{Host, Url};

use crate::name::sanitize_name;
use crate::{Checksum, Digests, MirrorUrl, PieceDigests, PieceHash};

/// One file of a Metalink file.
#[derive(Clone)]
pub struct MetalinkFile {
    /// Relative path; each component is a safe name.
    pub name: String,
    /// URLs of the file, the preferred ones first; at least one.
    pub mirrors: Vec<MirrorUrl>,
    /// Digests and size, as far as they are given.
    pub digests: Digests,
}

/// Contents of a Metalink file.
#[derive(Clone, Default)]
pub struct Metalink {
    /// The files that can be downloaded; at least one.
    pub files: Vec<MetalinkFile>,
    /// Errors of the files that cannot be downloaded, each with the file's name.
    pub rejected: Vec<MetalinkError>,
    /// What was changed or ignored, one line for each message for the user.
    pub notes: Vec<String>,
}

/// Why a Metalink file, or one file of it, cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct MetalinkError(String);

/// Parses a Metalink file.
///
/// # Errors
/// The text is not well-formed XML, or none of its files can be used. A file cannot be used without a relative path
/// or without a usable URL, or if its pieces do not match its size and there is no digest of the full file.
pub fn parse(text: &str) -> Result<Metalink, MetalinkError> {
    let mut reader = Reader::from_str(text.trim_start_matches('\u{feff}'));
    reader.config_mut().check_comments = false;
    let mut metalink = Metalink::default();
    let (mut draft, mut path, mut content) = (None::<FileBuilder>, Vec::<String>::new(), String::new());
    loop {
        let at = reader.buffer_position();
        let event = reader.read_event().map_err(|error| MetalinkError(format!("not XML: byte {at}: {error}")))?;
        match event {
            Event::Start(start) => {
                content.clear();
                path.push(local_name(&start));
                if path.len() > MAX_DEPTH {
                    return Err(MetalinkError("its elements are nested too deeply".to_owned()));
                }
                start_element(&start, &path, &mut draft, &mut metalink);
            }
            Event::Text(text) => content.push_str(&text),
            Event::CData(text) => content.push_str(&text),
            Event::GeneralRef(reference) => {
                let known = || resolve_predefined_entity(&reference).map(str::to_owned);
                let number = || reference.resolve_char_ref().ok().flatten().map(String::from);
                content.push_str(&known().or_else(number).unwrap_or_default());
            }
            Event::End(_) => {
                let name = path.pop().unwrap_or_default();
                if name == "file" {
                    match draft.take().map(|draft| draft.finish(&mut metalink.notes)) {
                        Some(Ok(file)) => metalink.files.push(file),
                        Some(Err(why)) => metalink.rejected.push(why),
                        None => {}
                    }
                } else if let Some(draft) = &mut draft {
                    draft.end_element(&name, path.last().map_or("", String::as_str), content.trim());
                }
                content.clear();
            }
            // Rejected, because a document type declaration can define entities that expand without limit.
            Event::DocType(_) => return Err(MetalinkError("it has a document type declaration".to_owned())),
            Event::Eof => break,
            Event::Empty(_) | Event::Comment(_) | Event::Decl(_) | Event::PI(_) => {}
        }
    }
    if !path.is_empty() {
        return Err(MetalinkError(format!(
            "not XML: the element `{}` is not closed",
            path.last().map_or("", String::as_str)
        )));
    }
    if metalink.files.is_empty() {
        let why = metalink.rejected.into_iter().next();
        return Err(why.unwrap_or_else(|| MetalinkError("it describes no file".to_owned())));
    }
    Ok(metalink)
}

/// Processes a start tag. A `file` element begins a new [`FileBuilder`]; attributes of its child elements are
/// remembered until their end tags.
fn start_element(
    start: &BytesStart<'_>,
    path: &[String],
    draft: &mut Option<FileBuilder>,
    metalink: &mut Metalink,
) {
    let name = path.last().map_or("", String::as_str);
    if name == "file" {
        let name = attribute(start, "name").unwrap_or_default();
        let parts = name.split('/').map(sanitize_name).collect::<Option<Vec<_>>>();
        let Some(parts) = parts.filter(|_| is_relative_path(&name)) else {
            *draft = None;
            metalink
                .rejected
                .push(MetalinkError(format!("`{name}` is not a file path below the target directory")));
            return;
        };
        let names: Vec<&str> = parts.iter().map(|part| part.name.as_str()).collect();
        let name = names.join("/");
        metalink.notes.extend(parts.into_iter().filter_map(|part| part.note));
        *draft = Some(FileBuilder { name, ..FileBuilder::default() });
        return;
    }
    let Some(draft) = draft else { return };
    match name {
        "url" => {
            // In version 4, 1 is the best priority; in version 3, 100 is the best preference.
            let number = |name| attribute(start, name).and_then(|text| text.trim().parse::<u32>().ok());
            let preference = number("preference").map(|best| 1_000_000 - best.min(1_000_000));
            draft.priority = number("priority").or(preference).unwrap_or(DEFAULT_PRIORITY);
        }
        "hash" => draft.hash = attribute(start, "type").and_then(|text| parse_hash_type(&text)),
        "pieces" => {
            let size =
                attribute(start, "length").and_then(|text| text.trim().parse().ok()).filter(|size| *size > 0);
            let function = attribute(start, "type").and_then(|text| parse_hash_type(&text));
            draft.current_pieces = size.zip(function).map(|(size, function)| PieceDigests {
                size: DataSize::from_bytes(size),
                hash: function,
                digests: Vec::new(),
            });
        }
        _ => {}
    }
}

/// A file whose element has not ended yet.
#[derive(Default)]
struct FileBuilder {
    name: String,
    size: Option<u64>,
    urls: Vec<(u32, Url)>,
    full_digest: Option<Checksum>,
    pieces: Option<PieceDigests>,
    /// Attributes of the current `url` and `hash` elements.
    priority: u32,
    hash: Option<PieceHash>,
    /// The `pieces` element that is being parsed.
    current_pieces: Option<PieceDigests>,
}

impl FileBuilder {
    /// Processes the end tag of a child element.
    fn end_element(&mut self, name: &str, within: &str, content: &str) {
        match name {
            "size" => self.size = content.parse().ok(),
            "url" => {
                let url = Url::parse(content).ok();
                let usable = url.filter(|url| matches!(url.scheme(), "http" | "https") && url.host().is_some());
                self.urls.extend(usable.map(|url| (self.priority, url)));
            }
            "hash" if within == "pieces" => {
                if let Some(pieces) = &mut self.current_pieces {
                    pieces.digests.push(parse_hex(content));
                }
            }
            "hash" => {
                let is_better = !matches!(self.full_digest, Some(Checksum::Sha512(_)));
                let digest = parse_hex(content);
                match self.hash.take().filter(|function| is_better && function.len() == digest.len()) {
                    Some(PieceHash::Sha512) => self.full_digest = Some(Checksum::Sha512(digest)),
                    Some(PieceHash::Sha256) => self.full_digest = Some(Checksum::Sha256(digest)),
                    _ => {}
                }
            }
            "pieces" => {
                let strength = |pieces: &PieceDigests| pieces.hash.len();
                if let Some(pieces) = self.current_pieces.take()
                    && self.pieces.as_ref().is_none_or(|known| strength(known) < strength(&pieces))
                {
                    self.pieces = Some(pieces);
                }
            }
            _ => {}
        }
    }

    fn finish(mut self, notes: &mut Vec<String>) -> Result<MetalinkFile, MetalinkError> {
        let file_error = |why: &str| MetalinkError(format!("the file `{}` {why}", self.name));
        if let Some(pieces) = &self.pieces {
            let are_valid = pieces.digests.iter().all(|digest| digest.len() == pieces.hash.len());
            let count = self.size.map(|size| size.div_ceil(pieces.size.bytes()));
            let fits = are_valid && count == Some(pieces.digests.len() as u64);
            if !fits && self.size.is_some() && self.full_digest.is_none() {
                // Without the pieces nothing could verify the file, although its author intended that.
                return Err(file_error("has pieces that do not add up to its size"));
            }
            if !fits {
                let why = if self.size.is_none() { "it has no size" } else { "they do not add up to its size" };
                notes.push(format!("the piece hashes of `{}` are not used: {why}", self.name));
                self.pieces = None;
            }
        }
        self.urls.sort_by_key(|(priority, _)| *priority);
        let Some((_, first)) = self.urls.first() else { return Err(file_error("has no http or https URL")) };
        let egress = egress_for(first);
        let to_mirror = |mut url: Url| {
            let login = (!url.username().is_empty())
                .then(|| (url.username().to_owned(), url.password().unwrap_or_default().to_owned()));
            // Neither call can fail for a URL with a host.
            let _ = url.set_username("");
            let _ = url.set_password(None);
            url.set_fragment(None);
            MirrorUrl { login, is_untrusted: true, egress, ..MirrorUrl::from_user(url) }
        };
        Ok(MetalinkFile {
            mirrors: self.urls.into_iter().take(MAX_URLS).map(|(_, url)| to_mirror(url)).collect(),
            digests: Digests {
                full_file: self.full_digest,
                pieces: self.pieces,
                size: self.size.map(DataSize::from_bytes),
            },
            name: self.name,
        })
    }
}

/// Which addresses the URLs of a file may be connected to. `first` is the first of these URLs.
fn egress_for(first: &Url) -> EgressPolicy {
    let address = match first.host() {
        Some(Host::Ipv4(address)) => Some(address.into()),
        Some(Host::Ipv6(address)) => Some(address.into()),
        _ => is_loopback_url(first).then(|| IpAddr::from([127, 0, 0, 1])),
    };
    EgressPolicy::user().referred_by(address)
}

fn local_name(start: &BytesStart<'_>) -> String {
    start.local_name().as_ref().to_owned()
}

fn attribute(start: &BytesStart<'_>, name: &str) -> Option<String> {
    let mut attributes = start.attributes();
    let mut matching = attributes
        .with_checks(false)
        .filter_map(Result::ok)
        .filter(|attribute| attribute.key.local_name().as_ref() == name);
    let value = matching.next()?;
    quick_xml::escape::unescape(&value.value).ok().map(std::borrow::Cow::into_owned)
}

/// Parses the name of a hash function: `sha-256`, as registered by IANA, or `sha256`.
fn parse_hash_type(name: &str) -> Option<PieceHash> {
    match name.trim().to_ascii_lowercase().as_str() {
        "sha-1" | "sha1" => Some(PieceHash::Sha1),
        "sha-256" | "sha256" => Some(PieceHash::Sha256),
        "sha-512" | "sha512" => Some(PieceHash::Sha512),
        _ => None,
    }
}

/// Decodes hexadecimal digits; empty if the text is something else.
fn parse_hex(hex: &str) -> Vec<u8> {
    HEXLOWER_PERMISSIVE.decode(hex.as_bytes()).unwrap_or_default()
}

/// Whether a name is a relative path that does not leave its directory.
fn is_relative_path(name: &str) -> bool {
    let parts = || name.split('/');
    !name.is_empty()
        && !name.chars().any(|c| c.is_control() || c == '\\')
        && parts().all(|part| !part.is_empty() && part != "." && part != "..")
}

/// Maximum number of URLs that are used for each file.
pub const MAX_URLS: usize = 32;
/// Maximum nesting of elements; RFC 5854 needs four levels.
const MAX_DEPTH: usize = 32;
/// RFC 5854 section 4.2.16.1: a URL without a priority comes last.
const DEFAULT_PRIORITY: u32 = 999_999;

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    fn parse_files(inner: &str) -> Result<Vec<MetalinkFile>, String> {
        let text = format!(
            "<?xml version=\"1.0\"?>\n<metalink xmlns=\"urn:ietf:params:xml:ns:metalink\"><file name=\"d/a.iso\">{inner}</file>\
             </metalink>"
        );
        parse(&text).map(|link| link.files).map_err(|error| error.to_string())
    }

    fn parse_error(inner: &str) -> String {
        parse_files(inner).err().unwrap()
    }

    #[test]
    fn urls_size_and_digests_are_parsed() {
        let sha1 = "a".repeat(40);
        let file = parse_files(&format!(
            "<size>30</size><hash type=\"md5\">00</hash><hash type=\"sha-256\"> {DIGEST} </hash>\
             <pieces length=\"20\" type=\"sha-1\"><hash>{sha1}</hash><hash>{sha1}</hash></pieces>\
             <url>ftp://h/f</url><url priority=\"2\">https://me:pw@b.example/f?a=1&amp;b=2#x</url>\
             <url><![CDATA[http://c.example/f]]></url><url priority=\"1\" location=\"de\">http://a.example/f</url>\
             <metaurl mediatype=\"torrent\">http://t.example/f.torrent</metaurl>"
        ))
        .unwrap()
        .remove(0);
        let urls: Vec<&str> = file.mirrors.iter().map(|mirror| mirror.url.as_str()).collect();
        assert_eq!(urls, ["http://a.example/f", "https://b.example/f?a=1&b=2", "http://c.example/f"]);
        assert!(file.mirrors.iter().all(|mirror| mirror.is_untrusted));
        assert_eq!(file.mirrors[1].login, Some(("me".into(), "pw".into())));
        assert_eq!((file.name.as_str(), file.digests.size), ("d/a.iso", Some(DataSize::from_bytes(30))));
        assert_eq!(file.digests.full_file, Some(format!("sha256={DIGEST}").parse().unwrap()));
        let pieces = file.digests.pieces.unwrap();
        assert_eq!((pieces.size.bytes(), pieces.hash, pieces.digests.len()), (20, PieceHash::Sha1, 2));
    }

    #[test]
    fn version_3_is_accepted() {
        let text = format!(
            "<metalink version=\"3.0\" xmlns=\"http://www.metalinker.org/\"><files><file name=\"f\"><verification>\
             <hash type=\"sha256\">{DIGEST}</hash></verification><resources>\
             <url type=\"http\" preference=\"10\">http://b/f</url><url preference=\"90\">http://a/f</url></resources></file>\
             <file name=\"g\"><resources><url>http://a/g</url></resources></file></files></metalink>"
        );
        let files = parse(&text).unwrap().files;
        assert_eq!(files.len(), 2);
        assert_eq!(files[0].mirrors[0].url.as_str(), "http://a/f");
        assert!(files[0].digests.full_file.is_some() && files[1].digests.full_file.is_none());
    }

    #[test]
    fn the_error_names_the_problem() {
        for (inner, expected) in [
            ("", "`d/a.iso` has no http or https URL"),
            ("<url>ftp://h/f</url>", "has no http or https URL"),
            (
                "<url>http://h/f</url><size>30</size><pieces length=\"20\" type=\"sha-1\"></pieces>",
                "do not add up to its size",
            ),
            ("<url>", "not XML"),
        ] {
            assert!(parse_error(inner).contains(expected), "{inner}: {}", parse_error(inner));
        }
        for name in ["../x", "/etc/passwd", "a/../b", "a//b", "", "a\\b", "a&#10;b", "."] {
            let text = format!("<metalink><file name=\"{name}\"><url>http://h/f</url></file></metalink>");
            assert!(parse(&text).err().unwrap().to_string().contains("not a file path"), "{name}");
        }
        for text in ["", "<metalink/>", "<html>", "no XML", "<!DOCTYPE x [<!ENTITY a \"b\">]><metalink></metalink>"]
        {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"<a>".repeat(100_000)).is_err());
    }

    #[test]
    fn each_component_of_a_name_is_made_safe() {
        for (name, becomes) in [
            (".bashrc", "bashrc"),
            (".ssh/authorized_keys", "ssh/authorized_keys"),
            ("-rf", "rf"),
            ("a/~x", "a/x"),
            ("x.part.journal", "x.part.journal.download"),
            ("a.part/b", "a.part.download/b"),
            ("d/a.iso", "d/a.iso"),
        ] {
            let text = format!("<metalink><file name=\"{name}\"><url>http://h/f</url></file></metalink>");
            let link = parse(&text).unwrap();
            assert_eq!(link.files[0].name, becomes);
            assert_eq!(link.notes.is_empty(), name == becomes, "{:?}", link.notes);
        }
        for name in ["...", ". /x", "a/--"] {
            let text = format!("<metalink><file name=\"{name}\"><url>http://h/f</url></file></metalink>");
            assert!(parse(&text).is_err(), "{name}");
        }
    }

    #[test]
    fn unusable_files_do_not_affect_the_others() {
        let pieces = |count| {
            format!(
                "<pieces length=\"20\" type=\"sha-1\">{}</pieces>",
                format!("<hash>{}</hash>", "a".repeat(40)).repeat(count)
            )
        };
        let hash_element = format!("<hash type=\"sha-256\">{DIGEST}</hash>");
        let text = format!(
            "<metalink><file name=\"ftp\"><url>ftp://h/f</url></file><file name=\"../n\"><url>http://h/f</url></file>\
             <file name=\"wrong\"><url>http://h/f</url><size>100</size>{two}</file>\
             <file name=\"whole\"><url>http://h/f</url><size>100</size>{hash_element}{two}</file>\
             <file name=\"unsized\"><url>http://h/f</url>{two}</file></metalink>",
            two = pieces(2)
        );
        let link = parse(&text).unwrap();
        let names: Vec<&str> = link.files.iter().map(|file| file.name.as_str()).collect();
        assert_eq!(names, ["whole", "unsized"]);
        assert!(link.files.iter().all(|file| file.digests.pieces.is_none()));
        assert!(link.files[0].digests.full_file.is_some());
        assert_eq!((link.rejected.len(), link.notes.len()), (3, 2), "{:?}", link.notes);
    }

    #[test]
    fn mirrors_may_be_local_only_if_the_first_url_is() {
        let allows = |first: &str, address: &str| {
            let file =
                parse_files(&format!("<url priority=\"1\">http://{first}/f</url><url>http://b.example/f</url>"))
                    .unwrap();
            let address: IpAddr = address.parse().unwrap();
            file[0].mirrors.iter().all(|mirror| mirror.egress.check((address, 80).into()).is_ok())
        };
        assert!(!allows("a.example", "127.0.0.1") && !allows("a.example", "10.0.0.1"));
        assert!(!allows("192.0.2.1", "169.254.169.254"));
        assert!(allows("127.0.0.1", "127.0.0.1") && allows("localhost", "127.0.0.1"));
        assert!(allows("10.1.1.1", "10.0.0.1") && !allows("10.1.1.1", "127.0.0.1"));
        assert!(allows("a.example", "192.0.2.7"));
    }
}
