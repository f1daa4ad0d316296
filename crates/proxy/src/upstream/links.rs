//! The links to the servers, in the order in which a connection should try them.
//!
//! Sessions, playlists and tunnels share one [`LinkSelector`], so each learns from the transfers of the others.

use std::cell::RefCell;
use std::rc::Rc;

use marline_core::fetch::MeteredUse;
use marline_core::proxy::{Candidate, ClientHost, LinkSelector, SpreadMode};
use marline_core::units::Instant;
use marline_download::ClientContext;
use marline_net::http::resolver_host;
use marline_net::links::Interface;
use url::Url;

use super::request_error::RequestError;
use crate::clock::Clock;

/// The links with what is known of them; see the [module documentation](self).
pub(crate) struct UpstreamLinks {
    pub(crate) network: Rc<ClientContext>,
    pub(crate) selector: RefCell<LinkSelector>,
    pub(crate) clock: Clock,
    /// Whether and when metered links are used.
    metered: MeteredUse,
    /// Whether the connections of one client to one host are spread over the links.
    spread_mode: SpreadMode,
}

impl UpstreamLinks {
    pub(crate) fn new(network: Rc<ClientContext>, metered: MeteredUse, spread_mode: SpreadMode) -> Self {
        Self { network, selector: RefCell::default(), clock: Clock::start(), metered, spread_mode }
    }

    /// The interfaces for a connection to the URL's host, the best one first.
    pub(crate) fn ranked_for_url(&self, url: &Url) -> Result<Vec<Option<Interface>>, RequestError> {
        if self.network.needs_no_link(&resolver_host(url)) {
            return Ok(vec![None]);
        }
        let links: Vec<_> = self.ranked_for_host(&(None, resolver_host(url))).into_iter().map(Some).collect();
        if links.is_empty() { Err(RequestError::NoLink("no link can be used now".to_owned())) } else { Ok(links) }
    }

    /// The interfaces for a client's connection to a host, the best one first.
    pub(crate) fn ranked_for_host(&self, key: &ClientHost) -> Vec<Interface> {
        let up_links: Vec<_> = self.network.links().into_iter().filter(|link| link.is_up).collect();
        let candidates: Vec<Candidate> = up_links
            .iter()
            .map(|link| Candidate { name: link.profile.name.clone(), metered: link.profile.metered })
            .collect();
        let policy = (self.metered, self.spread_mode);
        let ranked = self.selector.borrow().rank_links(self.now(), key, &candidates, policy);
        let interface = |name: &String| up_links.iter().find(|link| link.profile.name == *name)?.interface.clone();
        ranked.iter().filter_map(interface).collect()
    }

    /// Time since the proxy started.
    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }
}
