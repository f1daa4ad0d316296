//! The URLs that a playlist names, stored as hashes, to decide whether a request is for one of them.
//!
//! A playlist may lead no further into local networks than its own server is. URLs that the proxy has rewritten carry a
//! mark for this ([`marks`](super::marks)). While a playlist is followed, the restriction also
//! applies to its unmarked URLs, which programs request that build URLs themselves. So the hash of each URL is kept. If
//! there are too many, or if players build URLs from templates, only the hash of each host and port is kept.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use url::Url;

/// The URLs of one playlist.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct ListedUrls {
    /// Hashes of URLs; `None`: only hosts are compared.
    url_hashes: Option<BTreeSet<u64>>,
    /// Hashes of hosts with their ports; `None`: there were too many.
    host_hashes: Option<BTreeSet<u64>>,
    /// Hosts that contain a template: the text before and after it.
    host_templates: Vec<(String, String)>,
    /// Hashes of hosts in texts that the proxy did not parse as URLs, although a player may.
    unparsed_host_hashes: BTreeSet<u64>,
    has_templates: bool,
}

impl ListedUrls {
    /// For a playlist whose URLs are requested unchanged.
    pub(crate) fn exact() -> Self {
        Self { url_hashes: Some(BTreeSet::new()), has_templates: false, ..Self::by_host() }
    }

    /// For a playlist with URL templates.
    pub(crate) fn by_host() -> Self {
        Self { url_hashes: None, host_hashes: Some(BTreeSet::new()), has_templates: true, ..Self::default() }
    }

    pub(crate) fn add(&mut self, url: &Url) {
        let host_port = host_and_port(url);
        match host_port.split_once('$').zip(host_port.rsplit_once('$')).filter(|_| self.has_templates) {
            Some(((prefix, _), (_, suffix))) => {
                let template = (prefix.to_owned(), suffix.to_owned());
                let is_new =
                    self.host_templates.len() < MAX_HOST_TEMPLATES && !self.host_templates.contains(&template);
                self.host_templates.extend(is_new.then_some(template));
            }
            None => insert_bounded(&mut self.host_hashes, hash(&host_port), MAX_HOSTS),
        }
        insert_bounded(&mut self.url_hashes, url_hash(url), MAX_URLS);
    }

    /// Adds a text that the proxy did not parse as a URL.
    pub(crate) fn add_unparsed(&mut self, url: &Url) {
        if self.unparsed_host_hashes.len() < MAX_UNPARSED_HOSTS {
            self.unparsed_host_hashes.insert(hash(&host_and_port(url)));
        }
    }

    /// Whether a request for this URL may come from this playlist.
    pub(crate) fn contains(&self, url: &Url) -> bool {
        let host_port = host_and_port(url);
        let is_listed = match (&self.url_hashes, &self.host_hashes) {
            (Some(urls), _) => urls.contains(&url_hash(url)),
            (None, Some(hosts)) => hosts.contains(&hash(&host_port)),
            (None, None) => false,
        };
        let matches_template = |(prefix, suffix): &(String, String)| {
            host_port.len() >= prefix.len() + suffix.len()
                && host_port.starts_with(prefix)
                && host_port.ends_with(suffix)
        };
        is_listed
            || self.unparsed_host_hashes.contains(&hash(&host_port))
            || self.host_templates.iter().any(matches_template)
    }

    /// Forgets the URLs and keeps the hosts.
    pub(crate) fn keep_hosts_only(&mut self) {
        self.url_hashes = None;
    }

    /// The memory that this uses, in bytes.
    pub(crate) fn memory_size(&self) -> usize {
        let len_of = |set: &Option<BTreeSet<u64>>| set.as_ref().map_or(0, BTreeSet::len);
        (len_of(&self.url_hashes) + len_of(&self.host_hashes) + self.unparsed_host_hashes.len()) * ENTRY_SIZE
            + self
                .host_templates
                .iter()
                .map(|(prefix, suffix)| prefix.len() + suffix.len() + ENTRY_SIZE)
                .sum::<usize>()
    }
}

/// The host of a URL, with its port.
fn host_and_port(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
}

fn insert_bounded(set: &mut Option<BTreeSet<u64>>, hash: u64, max_len: usize) {
    if let Some(values) = set {
        values.insert(hash);
        if values.len() > max_len {
            *set = None;
        }
    }
}

/// The hash of a URL without login and fragment, as the proxy identifies resources.
fn url_hash(url: &Url) -> u64 {
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

/// Our choice: as many as segments are remembered.
const MAX_URLS: usize = 20_000;
/// Maximum number of different hosts of one playlist. Our choice: the published playlist of all free television
/// channels names three thousand hosts.
const MAX_HOSTS: usize = 10_000;
const MAX_HOST_TEMPLATES: usize = 64;
const MAX_UNPARSED_HOSTS: usize = 1000;
/// A hash, and its part of a tree node.
const ENTRY_SIZE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn urls_are_matched_exactly_or_by_host() {
        let mut urls = ListedUrls::exact();
        urls.add(&url("http://me:pw@192.168.1.1/key#part"));
        assert!(urls.contains(&url("http://192.168.1.1/key")) && !urls.contains(&url("http://192.168.1.1/")));
        urls.keep_hosts_only();
        assert!(urls.contains(&url("http://192.168.1.1/")) && !urls.contains(&url("http://192.168.1.2/key")));
        assert!(!urls.contains(&url("http://192.168.1.1:8080/key")), "another port is another service");
    }

    #[test]
    fn a_host_template_matches_its_expansions_and_a_plain_host_itself() {
        let mut by_host = ListedUrls::by_host();
        by_host.add(&url("https://h/$Number$.m4s"));
        assert!(by_host.contains(&url("https://h/7.m4s")) && !by_host.contains(&url("https://g/7.m4s")));
        by_host.add(&url("http://192.168.1.$Number$/x"));
        assert!(by_host.contains(&url("http://192.168.1.7/x")) && !by_host.contains(&url("http://192.168.2.7/x")));
        let mut exact = ListedUrls::exact();
        exact.add(&url("http://a$b/x"));
        assert!(exact.contains(&url("http://a$b/x")) && !exact.contains(&url("http://ab/x")));
        exact.keep_hosts_only();
        assert!(!exact.contains(&url("http://192.168.1.7/x")));
    }

    #[test]
    fn beyond_the_limits_urls_are_matched_by_host_and_then_not_at_all() {
        let mut urls = ListedUrls::exact();
        (0..=MAX_URLS).for_each(|n| urls.add(&url(&format!("https://h/{n}"))));
        assert!(urls.contains(&url("https://h/other")) && !urls.contains(&url("https://g/0")));
        assert!(urls.memory_size() < 100);
        (0..=MAX_HOSTS).for_each(|n| urls.add(&url(&format!("https://h{n}/"))));
        assert!(!urls.contains(&url("https://g/0")) && urls.memory_size() == 0);
    }
}
