//! What a list names: whether a request is for one of its addresses, kept in little memory.
//!
//! A list may lead no further into local networks than its own server is. Addresses that the proxy has replaced say so
//! themselves ([`playlist_marks`](super::playlist_marks)). For as long as a list is followed, the same holds for its addresses without a mark,
//! as a program requests them that makes addresses itself. So the hash of each address is kept; where that is too much, or
//! where players make addresses out of templates, the hash of each host with its port.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use url::Url;

/// The addresses of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct ListedUrls {
    /// None: only the hosts count.
    url_hashes: Option<BTreeSet<u64>>,
    /// Hosts with their ports. None: they are too many.
    host_hashes: Option<BTreeSet<u64>>,
    /// Hosts with a template in them: what stands before and behind it.
    host_templates: Vec<(String, String)>,
    /// Hosts of what the proxy did not take for an address, although a player may.
    unparsed_host_hashes: BTreeSet<u64>,
    has_templates: bool,
}

impl ListedUrls {
    /// Of a list whose addresses are requested as they are.
    pub(super) fn exact() -> Self {
        Self { url_hashes: Some(BTreeSet::new()), has_templates: false, ..Self::by_host() }
    }

    /// Of a list with templates.
    pub(super) fn by_host() -> Self {
        Self { url_hashes: None, host_hashes: Some(BTreeSet::new()), has_templates: true, ..Self::default() }
    }

    /// One more address.
    pub(super) fn add(&mut self, url: &Url) {
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

    /// One more that the proxy did not take for an address.
    pub(super) fn add_unparsed(&mut self, url: &Url) {
        if self.unparsed_host_hashes.len() < MAX_UNPARSED_HOSTS {
            self.unparsed_host_hashes.insert(hash(&host_and_port(url)));
        }
    }

    /// Whether a request for this may be for one of them.
    pub(super) fn contains(&self, url: &Url) -> bool {
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

    /// Keeps the hosts only.
    pub(super) fn keep_hosts_only(&mut self) {
        self.url_hashes = None;
    }

    /// The memory it takes up, in bytes.
    pub(super) fn memory_size(&self) -> usize {
        let len_of = |set: &Option<BTreeSet<u64>>| set.as_ref().map_or(0, BTreeSet::len);
        (len_of(&self.url_hashes) + len_of(&self.host_hashes) + self.unparsed_host_hashes.len()) * ENTRY_SIZE
            + self
                .host_templates
                .iter()
                .map(|(prefix, suffix)| prefix.len() + suffix.len() + ENTRY_SIZE)
                .sum::<usize>()
    }
}

/// The host of a URL with its port.
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

/// Without login and fragment, as the proxy knows its resources.
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

/// chosen: as many as segments are remembered.
const MAX_URLS: usize = 20_000;
/// chosen: the published list of all free television channels has three thousand.
const MAX_HOSTS: usize = 10_000;
const MAX_HOST_TEMPLATES: usize = 64;
const MAX_UNPARSED_HOSTS: usize = 1000;
/// A number, and its part of a node of the tree.
const ENTRY_SIZE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn addresses_are_known_as_they_are_or_by_their_host() {
        let mut urls = ListedUrls::exact();
        urls.add(&url("http://me:pw@192.168.1.1/key#part"));
        assert!(urls.contains(&url("http://192.168.1.1/key")) && !urls.contains(&url("http://192.168.1.1/")));
        urls.keep_hosts_only();
        assert!(urls.contains(&url("http://192.168.1.1/")) && !urls.contains(&url("http://192.168.1.2/key")));
        assert!(!urls.contains(&url("http://192.168.1.1:8080/key")), "another port is another service");
    }

    #[test]
    fn a_template_in_a_host_names_what_it_can_become_and_an_odd_host_names_itself() {
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
    fn too_many_are_known_by_less() {
        let mut urls = ListedUrls::exact();
        (0..=MAX_URLS).for_each(|n| urls.add(&url(&format!("https://h/{n}"))));
        assert!(urls.contains(&url("https://h/other")) && !urls.contains(&url("https://g/0")));
        assert!(urls.memory_size() < 100);
        (0..=MAX_HOSTS).for_each(|n| urls.add(&url(&format!("https://h{n}/"))));
        assert!(!urls.contains(&url("https://g/0")) && urls.memory_size() == 0);
    }
}
