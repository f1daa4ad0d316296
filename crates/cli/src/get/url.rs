//! Parser of URLs from the command line: adds a missing scheme, extracts the login, and masks secrets in errors.

use marline_net::http::take_login;
use marline_net::printable::mask_secrets;
use url::Url;

use crate::CliError;

/// Parses an http or https URL. The login in it is removed and returned separately.
pub(super) fn parse_url(text: &str) -> Result<(Url, Option<(String, String)>), CliError> {
    let with_scheme = with_scheme(text);
    let text = with_scheme.as_str();
    let masked = mask_secrets(text);
    let mut url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => {
            CliError::usage(format!("{masked}: not a URL: it must begin with http:// or https://"))
        }
        error => CliError::usage(format!("{masked}: not a URL: {error}")),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        let scheme = url.scheme();
        return Err(CliError::usage(format!("{masked}: `{scheme}` is not supported: only http and https are")));
    }
    // For `http:/h/x` and `http:///x`, the URL standard would use the first part of the path as the host.
    let after_scheme = text.split_once(':').map_or("", |(_, after)| after);
    if !after_scheme.starts_with("//") || after_scheme[2..].starts_with(['/', '\\']) {
        // In such a text the login is not where `mask_secrets` looks for it, so the whole text is masked.
        let masked_text = if text.contains('@') { "MASKED" } else { &masked };
        return Err(CliError::usage(format!(
            "{masked_text}: not a URL: there must be a host after http:// or https://"
        )));
    }
    let login = take_login(&mut url);
    url.set_fragment(None);
    Ok((url, login))
}

/// Normalizes a URL for a player: with scheme and login, percent-encoded where necessary. A text without a scheme and
/// without `/` is rejected, since it is more likely a local file than a host.
pub(crate) fn playable_url(text: &str) -> Result<String, CliError> {
    if lacks_scheme(text) && !text.contains('/') {
        let line = format!("{}: not a URL: it must begin with http:// or https://", mask_secrets(text));
        return Err(CliError::usage(line));
    }
    parse_url(text)?;
    let url = Url::parse(&with_scheme(text));
    url.map(String::from).map_err(|error| CliError::usage(format!("{}: not a URL: {error}", mask_secrets(text))))
}

fn with_scheme(text: &str) -> String {
    if lacks_scheme(text) { format!("http://{text}") } else { text.to_owned() }
}

/// Whether a text is a URL without a scheme, as copied from a browser: `example.org/f`, `localhost:8080`.
fn lacks_scheme(text: &str) -> bool {
    let authority = text.split(['/', '?', '#']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    if host.starts_with('[') {
        return true;
    }
    let (name, port) = host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port)));
    let has_port = port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let is_name = name.contains('.') || name == "localhost" || has_port;
    is_name && !name.is_empty() && !name.starts_with('.') && (port.is_none() || has_port)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::get::tests::usage_message;

    #[test]
    fn the_login_is_extracted_from_a_url() {
        let (url, login) = parse_url("http://me%40home:p%3Aw@h:8080/f?q#part").unwrap();
        assert_eq!(url.as_str(), "http://h:8080/f?q");
        assert_eq!(login, Some(("me@home".into(), "p:w".into())));
        assert_eq!(parse_url("https://h/").unwrap().1, None);
    }

    #[test]
    fn a_url_without_a_scheme_is_http() {
        for (text, url) in [
            ("example.org/f?q", "http://example.org/f?q"),
            ("example.org", "http://example.org/"),
            ("localhost/f", "http://localhost/f"),
            ("host:8080/f", "http://host:8080/f"),
            ("127.0.0.1:8080", "http://127.0.0.1:8080/"),
            ("[::1]:81/f", "http://[::1]:81/f"),
            ("me:secret@example.org/f", "http://example.org/f"),
        ] {
            assert_eq!(parse_url(text).unwrap().0.as_str(), url, "{text}");
        }
        assert_eq!(parse_url("me:secret@example.org/f").unwrap().1, Some(("me".into(), "secret".into())));
    }

    #[test]
    fn the_url_for_a_player_is_complete_and_has_its_login() {
        for (text, url) in [
            ("https://h/f?x", "https://h/f?x"),
            ("example.org/x", "http://example.org/x"),
            ("me:secret@example.org/x", "http://me:secret@example.org/x"),
            ("host:8080/a<b> c", "http://host:8080/a%3Cb%3E%20c"),
            ("HTTPS://h/f#t=10", "https://h/f#t=10"),
        ] {
            assert_eq!(playable_url(text).unwrap(), url, "{text}");
        }
        for text in ["film.mp4", "h/f", "./film.mp4", "/film.mp4", "ftp://h/f", "https://", "http:/h/f"] {
            let line = usage_message(playable_url(text));
            assert!(
                line.contains("http:// or https://") || line.contains("http and https") || line.contains("host"),
                "{line}"
            );
        }
    }

    #[test]
    fn the_error_for_an_invalid_url_masks_its_password() {
        for (text, expected) in [
            ("example/f", "it must begin with http:// or https://"),
            ("./file", "it must begin with http:// or https://"),
            ("ftp://me:secret@h/f", "ftp://MASKED@h/f: `ftp` is not supported"),
            ("http://", "empty host"),
            ("http://me:secret@h:99999/", "MASKED@h:99999/: not a URL"),
            ("http://me:se@cret@[::1/", "MASKED@[::1/"),
            ("", "not a URL"),
            ("http:///x", "there must be a host"),
            ("https:////h/x", "there must be a host"),
            ("http:/h/x", "there must be a host"),
            ("http:h/x", "there must be a host"),
            ("http:\\\\h/x", "there must be a host"),
            ("http:///me:secret@h/x", "there must be a host"),
        ] {
            let line = usage_message(parse_url(text));
            assert!(line.contains(expected), "{text}: {line}");
            assert!(!line.contains("cret"), "{line}");
        }
    }
}
