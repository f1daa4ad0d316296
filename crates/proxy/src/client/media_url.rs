//! Parses the target of a media request: the URL in `/https://host/path?query`.
//!
//! The login is removed from the URL and returned separately.
//!
//! 1. Everything after the first slash is the URL, including its query. Nothing is decoded, so nothing changes.
//! 2. Some programs merge two slashes into one, so `/https:/host/path` is accepted as well.
//! 3. Error messages that repeat the target contain no login.

use marline_net::http::take_login;
use url::Url;

/// The target of a media request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct MediaUrl {
    pub(crate) url: Url,
    /// User and password of the URL, percent-decoded.
    pub(crate) login: Option<(String, String)>,
}

/// Parses the path and query of a request.
///
/// # Errors
/// One line for the person who wrote the URL.
pub(crate) fn parse(path_and_query: &str) -> Result<MediaUrl, String> {
    const USAGE: &str = "write http://ADDRESS/https://host/path";
    let text = path_and_query.strip_prefix('/').unwrap_or(path_and_query);
    if text.len() > MAX_URL_BYTES {
        return Err(format!("the URL has more than {MAX_URL_BYTES} bytes"));
    }
    let Some((scheme, after_scheme)) = text.split_once(":/") else {
        return Err(format!("the path is not a URL: {USAGE}"));
    };
    let scheme = scheme.to_ascii_lowercase();
    if !matches!(scheme.as_str(), "http" | "https") {
        return Err(format!("only http and https URLs can be played: {USAGE}"));
    }
    let after_slashes = after_scheme.strip_prefix('/').unwrap_or(after_scheme);
    // The URL standard would take the first segment of the path for the host.
    if after_slashes.is_empty() || after_slashes.starts_with(['/', '\\', '?', '#']) {
        return Err(format!("the URL has no host: {USAGE}"));
    }
    let mut url = Url::parse(&format!("{scheme}://{after_slashes}"))
        .map_err(|error| format!("the path is not a valid URL: {error}: {USAGE}"))?;
    let login = take_login(&mut url);
    url.set_fragment(None);
    Ok(MediaUrl { url, login })
}

/// The longest URL that is accepted, in bytes. It is bounded because many URLs are remembered, each several times.
/// Servers accept at most half of it.
pub(crate) const MAX_URL_BYTES: usize = 16 * 1024;

/// A URL for display: without its login and query, which may contain secrets.
pub(crate) fn redacted(url: &Url) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_after_the_first_slash_is_the_url() {
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
    fn a_url_longer_than_the_limit_is_refused() {
        let url = format!("/https://h/{}", "x".repeat(MAX_URL_BYTES));
        assert!(parse(&url).is_err() && parse(&url[..MAX_URL_BYTES]).is_ok());
    }

    #[test]
    fn an_invalid_url_is_refused_with_one_line_of_text() {
        for path in
            ["/", "/favicon.ico", "/ftp://h/x", "/https://", "/https:///x", "/http://h:99999/", "/file:///etc"]
        {
            let line = parse(path).unwrap_err();
            assert!(!line.contains('\n') && line.contains("write http://"), "{path}: {line}");
        }
    }

    #[test]
    fn a_login_is_removed_and_never_shown() {
        let target = parse("/https://me%40home:p%3Aw@h/f?token=secret").unwrap();
        assert_eq!(target.url.as_str(), "https://h/f?token=secret");
        assert_eq!(target.login, Some(("me@home".into(), "p:w".into())));
        assert_eq!(redacted(&target.url), "https://h/f?…");
        assert!(!parse("/https://me:secret@h:99999/").unwrap_err().contains("secret"));
    }
}
