//! Which URL a request for `/https://host/path?query` means.
//!
//! In: the path and query of a request to the media port. Out: the URL, and the login that it carries (which is taken
//! out of it), or one line that says what is wrong.
//!
//! 1. Everything behind the first slash is the URL, its query included; nothing is decoded, so nothing changes.
//! 2. Some programs make one slash of two: `/https:/host/path` is understood as well.
//! 3. What the message repeats of the target carries no login.

use std::borrow::Cow;

use percent_encoding::percent_decode_str;
use url::Url;

/// The target of a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MediaUrl {
    pub(super) url: Url,
    /// User and password of the URL.
    pub(super) login: Option<(String, String)>,
}

/// Reads a target.
///
/// # Errors
/// One line for the person who made the address.
pub(super) fn parse(path_and_query: &str) -> Result<MediaUrl, String> {
    const USAGE: &str = "write http://ADDRESS/https://host/path";
    let text = path_and_query.strip_prefix('/').unwrap_or(path_and_query);
    if text.len() > MAX_URL_BYTES {
        return Err(format!("the URL has more than {MAX_URL_BYTES} bytes"));
    }
    let Some((scheme, after_scheme)) = text.split_once(":/") else {
        return Err(format!("the path is no URL: {USAGE}"));
    };
    let scheme = scheme.to_ascii_lowercase();
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(format!("only http and https can be played: {USAGE}"));
    }
    let after_slashes = after_scheme.strip_prefix('/').unwrap_or(after_scheme);
    // The URL standard would take the first part of the path for the host.
    if after_slashes.is_empty() || after_slashes.starts_with(['/', '\\', '?', '#']) {
        return Err(format!("there is no host in the URL: {USAGE}"));
    }
    let mut url = Url::parse(&format!("{scheme}://{after_slashes}"))
        .map_err(|error| format!("the path is no URL: {error}: {USAGE}"))?;
    let login = (!url.username().is_empty() || url.password().is_some())
        .then(|| (percent_decoded(url.username()), percent_decoded(url.password().unwrap_or_default())));
    // Both can only fail for URLs that have no host.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    Ok(MediaUrl { url, login })
}

/// The longest URL that is played. Many are remembered, each several times; servers take no more than half of it.
pub(super) const MAX_URL_BYTES: usize = 16 * 1024;

/// A URL as it may be shown: without login and query, where tokens live.
pub(super) fn redacted(url: &Url) -> String {
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    if url.query().is_some() {
        url.set_query(Some("…"));
        return url.as_str().replace("?%E2%80%A6", "?…");
    }
    url.into()
}

/// A text without its percent signs, as far as it is UTF-8 then.
pub(super) fn percent_decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8().map_or_else(|_| text.to_owned(), Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_what_stands_behind_the_slash() {
        for (path, url) in [
            ("/https://h.example/a/b.mp4?x=1&y=https://z/", "https://h.example/a/b.mp4?x=1&y=https://z/"),
            ("/http://h:81/%2F%20", "http://h:81/%2F%20"),
            ("/https:/h/a", "https://h/a"),
            ("/HTTPS://h", "https://h/"),
            ("/http://[::1]:8/x#part", "http://[::1]:8/x"),
        ] {
            assert_eq!(parse(path).unwrap().url.as_str(), url, "{path}");
        }
    }

    #[test]
    fn a_url_has_a_length_that_servers_take() {
        let url = format!("/https://h/{}", "x".repeat(MAX_URL_BYTES));
        assert!(parse(&url).is_err() && parse(&url[..MAX_URL_BYTES]).is_ok());
    }

    #[test]
    fn what_is_no_url_is_refused_in_one_line() {
        for path in
            ["/", "/favicon.ico", "/ftp://h/x", "/https://", "/https:///x", "/http://h:99999/", "/file:///etc"]
        {
            let line = parse(path).unwrap_err();
            assert!(!line.contains('\n') && line.contains("write http://"), "{path}: {line}");
        }
    }

    #[test]
    fn a_login_is_taken_out_and_never_shown() {
        let target = parse("/https://me%40home:p%3Aw@h/f?token=secret").unwrap();
        assert_eq!(target.url.as_str(), "https://h/f?token=secret");
        assert_eq!(target.login, Some(("me@home".into(), "p:w".into())));
        assert_eq!(redacted(&target.url), "https://h/f?…");
        assert!(!parse("/https://me:secret@h:99999/").unwrap_err().contains("secret"));
    }
}
