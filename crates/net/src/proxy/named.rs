//! What a list names: whether a request is for one of its addresses, kept in little memory.
//!
//! A list may lead no further into local networks than its own server is, whichever of its addresses the player requests: a
//! segment, a key, a map, a part. That must hold as well where segments are too many to be remembered, and after a list has
//! been forgotten to make room for others, and where a player finds addresses that the proxy did not ([`has_unread`]). So the hash of each address is kept, and where that is too much, or where players
//! make addresses themselves out of templates, the hash of each host.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use url::Url;

/// The addresses of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Named {
    /// None: only the hosts count.
    urls: Option<BTreeSet<u64>>,
    /// None: too many; any host may be one of them.
    hosts: Option<BTreeSet<u64>>,
}

impl Named {
    /// Of a list whose addresses are requested as they are.
    pub(super) fn exact() -> Self {
        Self { urls: Some(BTreeSet::new()), ..Self::by_host() }
    }

    /// Of a list with templates.
    pub(super) fn by_host() -> Self {
        Self { urls: None, hosts: Some(BTreeSet::new()) }
    }

    /// Of a list that is not understood: any address may be one of its own.
    pub(super) fn anything() -> Self {
        Self { urls: None, hosts: None }
    }

    /// One more address.
    pub(super) fn add(&mut self, url: &Url) {
        let host = url.host_str().unwrap_or_default();
        insert(&mut self.hosts, hash(host), MOST_HOSTS);
        insert(&mut self.urls, hash_of(url), MOST_URLS);
        // A variable or a template in the host: any host may come of it.
        if host.contains('$') {
            (self.urls, self.hosts) = (None, None);
        }
    }

    /// Whether a request for this may be for one of them.
    pub(super) fn contains(&self, url: &Url) -> bool {
        match (&self.urls, &self.hosts) {
            (Some(urls), _) => urls.contains(&hash_of(url)),
            (None, Some(hosts)) => hosts.contains(&hash(url.host_str().unwrap_or_default())),
            (None, None) => true,
        }
    }

    /// Keeps the hosts only.
    pub(super) fn shorten(&mut self) {
        self.urls = None;
    }

    /// The memory it takes up, in bytes.
    pub(super) fn size(&self) -> usize {
        let of = |set: &Option<BTreeSet<u64>>| set.as_ref().map_or(0, BTreeSet::len);
        (of(&self.urls) + of(&self.hosts)) * ENTRY
    }
}

/// Whether a text that was rewritten still holds an address that a player would ask this proxy for: `/http://…` without the
/// proxy's own `via` before it. Players forgive errors (an odd quote, a missing one, a carriage return as the end of a line)
/// behind which the proxy sees no address, and make addresses out of parts of a manifest.
pub(super) fn has_unread(text: &[u8], via: &str) -> bool {
    let text = String::from_utf8_lossy(text);
    let escaped = ["/http%3a", "/https%3a", "/http:%2f", "/https:%2f"];
    let (lower, via) = (text.to_ascii_lowercase(), via.to_ascii_lowercase());
    if escaped.iter().any(|escaped| lower.contains(escaped)) {
        return true;
    }
    lower.match_indices(":/").any(|(at, _)| {
        let before = lower.get(..at).unwrap_or_default();
        let scheme = before.strip_suffix("https").or_else(|| before.strip_suffix("http"));
        scheme.is_some_and(|before| before.ends_with(['/', '\\']) && !before.ends_with(&via))
    })
}

fn insert(set: &mut Option<BTreeSet<u64>>, hash: u64, most: usize) {
    if let Some(all) = set {
        all.insert(hash);
        if all.len() > most {
            *set = None;
        }
    }
}

/// Without login and fragment, as the proxy knows its resources.
fn hash_of(url: &Url) -> u64 {
    if url.username().is_empty() && url.password().is_none() && url.fragment().is_none() {
        return hash(url.as_str());
    }
    let mut url = url.clone();
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    hash(url.as_str())
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// chosen: as many as segments are remembered.
const MOST_URLS: usize = 20_000;
/// chosen: the published list of all free television channels has three thousand.
const MOST_HOSTS: usize = 10_000;
/// A number, and its part of a node of the tree.
const ENTRY: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_are_known_as_they_are_or_by_their_host() {
        let mut named = Named::exact();
        named.add(&url("http://me:pw@192.168.1.1/key#part"));
        assert!(named.contains(&url("http://192.168.1.1/key")) && !named.contains(&url("http://192.168.1.1/")));
        named.shorten();
        assert!(
            named.contains(&url("http://192.168.1.1:8080/")) && !named.contains(&url("http://192.168.1.2/key"))
        );
        let mut template = Named::by_host();
        template.add(&url("https://h/$Number$.m4s"));
        assert!(template.contains(&url("https://h/7.m4s")) && !template.contains(&url("https://g/7.m4s")));
        template.add(&url("http://192.168.1.$Number$/x"));
        assert!(template.contains(&url("http://192.168.1.7/x")));
    }

    #[test]
    fn an_address_that_was_not_read_is_seen() {
        let via = "http://127.0.0.1:8480/";
        for (text, is_there) in [
            (
                "#EXTM3U\nhttp://127.0.0.1:8480/http://h/1.ts\n#EXT-X-KEY:URI=\"http://127.0.0.1:8480/https://h/k\"",
                false,
            ),
            ("#EXTINF:4 tvg-logo=\"http://logos/1.png\"\n/abs.ts\nrel.ts", false),
            ("#EXTINF:4,\rhttp://127.0.0.1:8480/http://h/1.ts\r/http://10.0.0.1/x", true),
            ("#EXT-X-MAP:URI=/http://127.0.0.1/x", true),
            ("#EXT-X-KEY:URI=/HTTPS://127.0.0.1/x", true),
            ("id=\"/http:/127.0.0.1/x\"", true),
            ("/http%3A//127.0.0.1/x", true),
            ("../../http://127.0.0.1/x", true),
            ("http://other:1/http://127.0.0.1/x", true),
        ] {
            assert_eq!(has_unread(text.as_bytes(), via), is_there, "{text}");
        }
        assert!(Named::anything().contains(&url("http://any/")));
    }

    #[test]
    fn too_many_are_known_by_less() {
        let mut named = Named::exact();
        (0..=MOST_URLS).for_each(|n| named.add(&url(&format!("https://h/{n}"))));
        assert!(named.contains(&url("https://h/other")) && !named.contains(&url("https://g/0")));
        assert!(named.size() < 100);
        (0..=MOST_HOSTS).for_each(|n| named.add(&url(&format!("https://h{n}/"))));
        assert!(named.contains(&url("https://g/0")) && named.size() == 0);
    }
}
