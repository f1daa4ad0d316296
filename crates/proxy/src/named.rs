//! What a list names: whether a request is for one of its addresses, kept in little memory.
//!
//! A list may lead no further into local networks than its own server is. Addresses that the proxy has replaced say so
//! themselves ([`marks`](super::marks)). For as long as a list is followed, the same holds for its addresses without a mark,
//! as a program requests them that makes addresses itself. So the hash of each address is kept; where that is too much, or
//! where players make addresses out of templates, the hash of each host with its port.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use url::Url;

/// The addresses of a list.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Named {
    /// None: only the hosts count.
    urls: Option<BTreeSet<u64>>,
    /// Hosts with their ports. None: they are too many.
    hosts: Option<BTreeSet<u64>>,
    /// Hosts with a template in them: what stands before and behind it.
    templates: Vec<(String, String)>,
    /// Hosts of what the proxy did not take for an address, although a player may.
    unread: BTreeSet<u64>,
    has_templates: bool,
}

impl Named {
    /// Of a list whose addresses are requested as they are.
    pub(super) fn exact() -> Self {
        Self { urls: Some(BTreeSet::new()), has_templates: false, ..Self::by_host() }
    }

    /// Of a list with templates.
    pub(super) fn by_host() -> Self {
        Self { urls: None, hosts: Some(BTreeSet::new()), has_templates: true, ..Self::default() }
    }

    /// One more address.
    pub(super) fn add(&mut self, url: &Url) {
        let host = host_of(url);
        match host.split_once('$').zip(host.rsplit_once('$')).filter(|_| self.has_templates) {
            Some(((before, _), (_, behind))) => {
                let template = (before.to_owned(), behind.to_owned());
                let is_new = self.templates.len() < MOST_TEMPLATES && !self.templates.contains(&template);
                self.templates.extend(is_new.then_some(template));
            }
            None => insert(&mut self.hosts, hash(&host), MOST_HOSTS),
        }
        insert(&mut self.urls, hash_of(url), MOST_URLS);
    }

    /// One more that the proxy did not take for an address.
    pub(super) fn add_unread(&mut self, url: &Url) {
        if self.unread.len() < MOST_UNREAD {
            self.unread.insert(hash(&host_of(url)));
        }
    }

    /// Whether a request for this may be for one of them.
    pub(super) fn contains(&self, url: &Url) -> bool {
        let host = host_of(url);
        let is_read = match (&self.urls, &self.hosts) {
            (Some(urls), _) => urls.contains(&hash_of(url)),
            (None, Some(hosts)) => hosts.contains(&hash(&host)),
            (None, None) => false,
        };
        let is_made = |(before, behind): &(String, String)| {
            host.len() >= before.len() + behind.len() && host.starts_with(before) && host.ends_with(behind)
        };
        is_read || self.unread.contains(&hash(&host)) || self.templates.iter().any(is_made)
    }

    /// Keeps the hosts only.
    pub(super) fn shorten(&mut self) {
        self.urls = None;
    }

    /// The memory it takes up, in bytes.
    pub(super) fn size(&self) -> usize {
        let of = |set: &Option<BTreeSet<u64>>| set.as_ref().map_or(0, BTreeSet::len);
        (of(&self.urls) + of(&self.hosts) + self.unread.len()) * ENTRY
            + self.templates.iter().map(|(before, behind)| before.len() + behind.len() + ENTRY).sum::<usize>()
    }
}

/// The host of a URL with its port.
fn host_of(url: &Url) -> String {
    format!("{}:{}", url.host_str().unwrap_or_default(), url.port_or_known_default().unwrap_or_default())
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
const MOST_TEMPLATES: usize = 64;
const MOST_UNREAD: usize = 1000;
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
        assert!(named.contains(&url("http://192.168.1.1/")) && !named.contains(&url("http://192.168.1.2/key")));
        assert!(!named.contains(&url("http://192.168.1.1:8080/key")), "another port is another service");
    }

    #[test]
    fn a_template_in_a_host_names_what_it_can_become_and_an_odd_host_names_itself() {
        let mut template = Named::by_host();
        template.add(&url("https://h/$Number$.m4s"));
        assert!(template.contains(&url("https://h/7.m4s")) && !template.contains(&url("https://g/7.m4s")));
        template.add(&url("http://192.168.1.$Number$/x"));
        assert!(
            template.contains(&url("http://192.168.1.7/x")) && !template.contains(&url("http://192.168.2.7/x"))
        );
        let mut odd = Named::exact();
        odd.add(&url("http://a$b/x"));
        assert!(odd.contains(&url("http://a$b/x")) && !odd.contains(&url("http://ab/x")));
        odd.shorten();
        assert!(!odd.contains(&url("http://192.168.1.7/x")));
    }

    #[test]
    fn too_many_are_known_by_less() {
        let mut named = Named::exact();
        (0..=MOST_URLS).for_each(|n| named.add(&url(&format!("https://h/{n}"))));
        assert!(named.contains(&url("https://h/other")) && !named.contains(&url("https://g/0")));
        assert!(named.size() < 100);
        (0..=MOST_HOSTS).for_each(|n| named.add(&url(&format!("https://h{n}/"))));
        assert!(!named.contains(&url("https://g/0")) && named.size() == 0);
    }
}
