//! Header fields that the user sets for the origin of one URL (`marline play -H`).
//!
//! They may be secrets, and every program of this machine can reach the proxy. So they are sent only for requests whose
//! path begins with a random token, which the player receives as part of the URL. Rewritten URLs in playlists keep it.

use http::header::{HeaderName, HeaderValue};
use url::Url;

use crate::client::token::Token;

/// Header fields for the origin of one URL, with the token that authorizes their use.
#[derive(Clone)]
pub struct OriginHeaders {
    token: Token,
    /// Any URL of the origin.
    pub(crate) url: Url,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
}

impl OriginHeaders {
    /// Header fields, as name and value, for the origin of this URL, with a new token. Invalid fields are dropped; the
    /// command line refuses them earlier.
    ///
    /// # Errors
    /// The system provides no random bytes.
    pub fn new(url: Url, fields: &[(String, String)]) -> std::io::Result<Self> {
        let parse_field = |(name, value): &(String, String)| {
            let mut value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            value.set_sensitive(true);
            Some((HeaderName::from_bytes(name.as_bytes()).ok()?, value))
        };
        Ok(Self { token: Token::new()?, url, headers: fields.iter().filter_map(parse_field).collect() })
    }

    /// The path between the proxy's address and a URL: the token and a slash.
    #[must_use]
    pub fn path_prefix(&self) -> String {
        format!("{}/", self.token.as_str())
    }

    /// The rest of a path that begins with the token; `None` for other paths.
    pub(crate) fn strip_token<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (token, _) = path.strip_prefix('/')?.split_once('/')?;
        self.token.matches(token).then(|| path.get(token.len() + 1..)).flatten()
    }
}

impl std::fmt::Debug for OriginHeaders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&HeaderName> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("OriginHeaders").field("names", &names).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_fields_need_the_token_and_are_never_shown() {
        let fields = [("X-Token".to_owned(), "secret".to_owned())];
        let given = OriginHeaders::new("https://me:pw@h/".parse().unwrap(), &fields).unwrap();
        assert_eq!(given.strip_token(&format!("/{}https://h/f?x", given.path_prefix())), Some("/https://h/f?x"));
        for path in [
            "/",
            "//",
            "/https://h/f",
            &format!("/{}", given.token.as_str()),
            &format!("//{}f", given.path_prefix()),
        ] {
            assert_eq!(given.strip_token(path), None, "{path}");
        }
        assert_eq!(format!("{given:?}"), "OriginHeaders { names: [\"x-token\"], .. }");
    }
}
