//! Parses the mirrors (RFC 6249) and digests (RFC 9530, RFC 3230) of a file from the fields of a response.
//!
//! Only strong digests count. `Digest` is obsolete, and some servers send it for a part instead of the whole. So it
//! counts only together with mirrors, as in RFC 6249. `Repr-Digest` by definition covers the whole file.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use url::Url;

use super::ResponseMeta;
use crate::checksum::Checksum;

impl ResponseMeta {
    /// The mirrors of the file that the response lists, the preferred ones first (RFC 6249 section 3.1); `base` is
    /// the URL of the response.
    pub fn mirrors(&self, base: &Url) -> Vec<Url> {
        let mut mirrors: Vec<(u32, Url)> = Vec::new();
        for link in self.links.iter().flat_map(|field| split_unquoted(field, ',')) {
            let mut parts = split_unquoted(link, ';');
            let target = parts.next().and_then(|part| part.trim().strip_prefix('<')?.strip_suffix('>'));
            let Some(url) = target.and_then(|target| base.join(target.trim()).ok()) else { continue };
            let (mut is_duplicate, mut priority) = (false, DEFAULT_PRIORITY);
            for (name, value) in parts.filter_map(|part| part.split_once('=')) {
                let value = value.trim().trim_matches('"');
                if name.trim().eq_ignore_ascii_case("rel") {
                    is_duplicate |=
                        value.split_ascii_whitespace().any(|relation| relation.eq_ignore_ascii_case("duplicate"));
                } else if name.trim().eq_ignore_ascii_case("pri") {
                    priority = value.parse().unwrap_or(DEFAULT_PRIORITY);
                }
            }
            if is_duplicate && matches!(url.scheme(), "http" | "https") && mirrors.len() < MAX_MIRRORS {
                mirrors.push((priority, url));
            }
        }
        mirrors.sort_by_key(|(priority, _)| *priority);
        mirrors.into_iter().map(|(_, url)| url).collect()
    }

    /// The digest of the whole file that the response states.
    pub fn full_digest(&self) -> Option<Checksum> {
        let parse_digest = |fields: &[String], quote: &str| {
            let values: Vec<(String, Vec<u8>)> = fields
                .iter()
                .flat_map(|field| field.split(','))
                .filter_map(|part| {
                    let (name, value) = part.trim().split_once('=')?;
                    let value = value.strip_prefix(quote)?.strip_suffix(quote)?;
                    Some((name.trim().to_ascii_lowercase(), STANDARD.decode(value).ok()?))
                })
                .collect();
            let by_algorithm = |name: &str, len: usize| {
                values
                    .iter()
                    .find(|(algorithm, value)| algorithm == name && value.len() == len)
                    .map(|(_, value)| value.clone())
            };
            by_algorithm("sha-512", 64)
                .map(Checksum::Sha512)
                .or_else(|| by_algorithm("sha-256", 32).map(Checksum::Sha256))
        };
        let legacy =
            || parse_digest(&self.digests, "").filter(|_| self.links.iter().any(|link| link.contains("duplicate")));
        parse_digest(&self.repr_digests, ":").or_else(legacy)
    }
}

/// Splits the value of a field at a separator, but not within `<…>` or quotes.
fn split_unquoted(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let (mut in_target, mut in_quotes, mut is_escaped) = (false, false, false);
    text.split(move |c: char| {
        match c {
            _ if std::mem::take(&mut is_escaped) => return false,
            '\\' if in_quotes => is_escaped = true,
            '"' if !in_target => in_quotes = !in_quotes,
            '<' if !in_quotes => in_target = true,
            '>' if !in_quotes => in_target = false,
            _ => {}
        }
        c == separator && !in_target && !in_quotes
    })
}

/// Maximum number of mirrors of one response.
const MAX_MIRRORS: usize = 32;
/// RFC 6249 section 3.1: mirrors without a priority come last.
const DEFAULT_PRIORITY: u32 = 999_999;

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(links: &[&str]) -> Vec<String> {
        let meta = ResponseMeta {
            links: links.iter().map(|link| (*link).to_owned()).collect(),
            ..ResponseMeta::default()
        };
        let base = "http://h.example/d/f".parse().unwrap();
        meta.mirrors(&base).into_iter().map(String::from).collect()
    }

    #[test]
    fn mirrors_are_returned_in_the_order_of_their_priorities() {
        let links = [
            "<http://b.example/f,1;x>; rel=duplicate; pri=2; geo=de, </other>; rel=\"preload duplicate\"; pri=1",
            "<http://c.example/f>;rel=\"duplicate\",<http://d.example/f>; title=\"a, b; rel=duplicate\"; rel=next",
            "<ftp://e.example/f>; rel=duplicate, http://g.example/f; rel=duplicate, <http://i.example>",
            "<http://h.example:99999/>; rel=duplicate, <",
        ];
        assert_eq!(urls(&links), ["http://h.example/other", "http://b.example/f,1;x", "http://c.example/f"]);
        let many =
            (0..100).map(|n| format!("<http://m{n}.example/f>; rel=duplicate")).collect::<Vec<_>>().join(",");
        assert_eq!(urls(&[&many]).len(), MAX_MIRRORS);
    }

    #[test]
    fn only_strong_digests_of_the_whole_count() {
        let (short, long) = (STANDARD.encode([7; 32]), STANDARD.encode([9; 64]));
        let digest = |repr: &str, legacy: &str, link: &str| {
            let to_values = |text: &str| if text.is_empty() { Vec::new() } else { vec![text.to_owned()] };
            ResponseMeta {
                repr_digests: to_values(repr),
                digests: to_values(legacy),
                links: to_values(link),
                ..ResponseMeta::default()
            }
            .full_digest()
        };
        let sha256 = Some(Checksum::Sha256(vec![7; 32]));
        assert_eq!(digest(&format!("md5=:AAAA:, sha-256=:{short}:"), "", ""), sha256);
        assert_eq!(
            digest(&format!("sha-256=:{short}:,sha-512=:{long}:"), "", ""),
            Some(Checksum::Sha512(vec![9; 64]))
        );
        assert_eq!(digest(&format!("sha-256={short}"), "", ""), None);
        assert_eq!(digest("sha-256=:AAAA:", "", ""), None);
        let legacy = format!("MD5=AAAA,SHA-256={short}");
        assert_eq!(digest("", &legacy, ""), None);
        assert_eq!(digest("", &legacy, "<http://b/f>; rel=duplicate"), sha256);
    }
}
