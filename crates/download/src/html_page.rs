//! Recognizes an HTML page in place of the requested file: a login page, "cannot scan for viruses", an error page
//! with status 200.
//!
//! 1. Both the Content-Type and the first bytes must be those of HTML. Many servers declare files with unknown
//!    extensions as HTML, and a page may have any name.
//! 2. The URL must name another kind of file. A URL without an extension, or with the extension of a page or of a
//!    program that generates pages, may be a page. So may a file that the user has named like a page.
//!
//! The size is no criterion: small files are as common as pages.

use std::path::Path;

use url::Url;

/// The extension of the expected file, if the response is an unexpected page; none: it is no page, or a page is
/// expected. `target_name` is the file that the user has named, `head` the first bytes of the body.
pub(super) fn expected_extension(
    url: &Url,
    target_name: Option<&Path>,
    content_type: Option<&str>,
    head: &[u8],
) -> Option<String> {
    if !is_html(content_type?) || !looks_like_html(head) {
        return None;
    }
    let extension_of = |name: &str| name.rsplit_once('.').map(|(_, kind)| kind.to_ascii_lowercase());
    let of_file = target_name.and_then(Path::file_name).and_then(|name| extension_of(&name.to_string_lossy()));
    if of_file.is_some_and(|kind| is_page_extension(&kind)) {
        return None;
    }
    let kind = extension_of(url.path_segments()?.next_back()?)?;
    (is_extension(&kind) && !is_page_extension(&kind)).then_some(kind)
}

/// Whether the server declares a page although the URL does not name one: it may be an error page in place of the
/// file. The body is not examined, because it has not arrived yet.
pub(super) fn may_be_error_page(url: &Url, content_type: Option<&str>) -> bool {
    let kind = url.path_segments().and_then(|mut path| path.next_back()?.rsplit_once('.').map(|(_, kind)| kind));
    content_type.is_some_and(is_html) && !kind.is_some_and(|kind| is_page_extension(&kind.to_ascii_lowercase()))
}

fn is_html(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim();
    ["text/html", "application/xhtml+xml"].iter().any(|html| media.eq_ignore_ascii_case(html))
}

/// Whether the bytes begin like an HTML document.
fn looks_like_html(head: &[u8]) -> bool {
    let text = String::from_utf8_lossy(head).to_ascii_lowercase();
    let text = text.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    ["<!doctype html", "<html", "<head", "<body", "<title", "<script", "<meta", "<!--"]
        .iter()
        .any(|tag| text.starts_with(tag))
        || (text.starts_with("<?xml") && text.contains("<html"))
}

/// Whether the text after the last dot is an extension at all: `v1.2` and `example.info-page` have none.
fn is_extension(kind: &str) -> bool {
    (1..=11).contains(&kind.len())
        && kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
        && kind.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Whether files with this extension are pages, or programs on the server that generate pages.
fn is_page_extension(kind: &str) -> bool {
    let pages = [
        "html", "htm", "xhtml", "xht", "shtml", "dhtml", "mhtml", "mht", "asp", "aspx", "jsp", "jspx", "jsf",
        "cfm", "cgi", "pl", "py", "rb", "do", "action", "wiki", "com", "org", "net", "io", "dev",
    ];
    pages.contains(&kind) || kind.starts_with("php") || kind.starts_with("phtml")
}

/// Number of bytes at the beginning of a body that are examined.
pub(super) const SNIFF_LEN: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;

    fn expected(url: &str, named: Option<&str>, content_type: &str, head: &str) -> Option<String> {
        expected_extension(&url.parse().unwrap(), named.map(Path::new), Some(content_type), head.as_bytes())
    }

    #[test]
    fn an_unexpected_page_is_recognized_by_name_type_and_bytes() {
        let html = "text/html; charset=utf-8";
        for (url, named, media, head, want) in [
            ("http://h/big.zip", None, html, "<!DOCTYPE html><html>", Some("zip")),
            ("http://h/a/x.tar.gz?dl=1", None, "TEXT/HTML", "\n  <html lang=en>", Some("gz")),
            ("http://h/model.safetensors", None, html, "\u{feff}<!-- login -->", Some("safetensors")),
            ("http://h/x.mp4", Some("film"), html, "<html>", Some("mp4")),
            ("http://h/x.7z", None, "application/xhtml+xml", "<?xml version='1.0'?><html>", Some("7z")),
            // The bytes or the content type are not those of a page.
            ("http://h/big.zip", None, html, "PK\u{3}\u{4}", None),
            ("http://h/big.zip", None, "application/zip", "<html>", None),
            ("http://h/feed.xml", None, html, "<?xml version='1.0'?><rss>", None),
            // A page is expected.
            ("http://h/index.html", None, html, "<html>", None),
            ("http://h/", None, html, "<html>", None),
            ("http://h/download?file=big.zip", None, html, "<html>", None),
            ("http://h/page.php5", None, html, "<html>", None),
            ("http://h/release-1.2", None, html, "<html>", None),
            ("http://h/about/example.com", None, html, "<html>", None),
            ("http://h/big.zip", Some("page.html"), html, "<html>", None),
        ] {
            assert_eq!(expected(url, named, media, head).as_deref(), want, "{url} {named:?} {media} {head}");
        }
        assert_eq!(expected_extension(&"http://h/a.zip".parse().unwrap(), None, None, b"<html>"), None);
    }
}
