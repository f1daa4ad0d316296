//! Detects captive portals: sends a plain HTTP request over one link, which a captive portal answers instead of the server.
//!
//! The server of the URL answers with 204 (No Content). A portal answers with a redirect or a page, because browsers must show it, or with
//! 511. Other statuses come from a server or proxy that refuses, and are no evidence of a portal. The request is bound to the link's
//! device, takes at most [`PROBE_TIMEOUT`], and reads no more than the response head.
//!
//! A response shows a portal on a link only if it comes from an address for which the link itself is responsible: one from the link's own
//! DNS servers, from `/etc/hosts`, or given in the URL. A public server of `/etc/resolv.conf` counts only if no link is known to have DNS
//! servers of its own. An address that the system's resolver got over another link may belong to an attacker there, who can imitate a
//! portal for any host.
//!
//! A portal's DNS servers may give private addresses for a name that has led to the Internet before. These addresses are tried as well: the
//! request reveals nothing, and cannot reach a LAN of this host. If the DNS servers give no address, the request goes to the address at
//! which the server has answered over this link before, since a portal answers there as well.
//!
//! The request is unencrypted on purpose. It names the program (`User-Agent`) and nothing that identifies the edge. The captive portal
//! option of DHCP (RFC 8910) is not used: it does not tell whether the link is still captive, and few networks send it.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::fetch::{ReqId, RequestRange};
use marline_core::link_choice::PortalProbeResult;
use marline_core::units::DataSize;
use marline_net::dns::ResolutionSource;
use marline_net::egress::AddressZone;
use marline_net::http::{Connection, Event, GetRequest, Sink};
use marline_net::links::Interface;
use tokio::time::timeout;
use url::Url;

use super::dial::{DialOptions, connect};
use crate::happy_eyeballs::connect_first;
use crate::link_dialer::LinkDialer;

/// Whether captive portals are detected by HTTP requests, and with which URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortalProbe(Option<Target>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    host: String,
    port: u16,
    authority: String,
    path_and_query: String,
}

impl PortalProbe {
    /// The default URL: it answers each request with 204, and Android devices request it on each network.
    pub const DEFAULT: &str = "http://connectivitycheck.gstatic.com/generate_204";

    /// Sends no requests.
    pub const OFF: Self = Self(None);
}

/// Sends portal probes, and caches the server's addresses for each link.
#[derive(Debug)]
pub(super) struct PortalProber {
    target: Option<Target>,
    /// Where the server last answered over each link, by interface index.
    known_addresses: Mutex<BTreeMap<u32, Vec<SocketAddr>>>,
}

impl PortalProber {
    pub(super) fn new(probe: &PortalProbe) -> Self {
        Self { target: probe.0.clone(), known_addresses: Mutex::default() }
    }

    pub(super) fn is_off(&self) -> bool {
        self.target.is_none()
    }

    /// What answers over this link.
    pub(super) async fn probe(&self, link: &Interface, dialer: &LinkDialer) -> PortalProbeResult {
        let Some(target) = &self.target else { return PortalProbeResult::NoResponse };
        match timeout(PROBE_TIMEOUT, self.status(target, link, dialer)).await {
            Ok(Ok((status, is_of_link))) => classify_status(status, is_of_link),
            Ok(Err(error)) => {
                tracing::debug!(link = link.name, %error, "no answer to the portal probe");
                PortalProbeResult::NoResponse
            }
            Err(_) => PortalProbeResult::NoResponse,
        }
    }

    /// The status of the response, and whether the link is responsible for the address that it comes from.
    async fn status(&self, target: &Target, link: &Interface, dialer: &LinkDialer) -> io::Result<(u16, bool)> {
        let (mut addresses, is_of_link) = self.addresses(target, link, dialer).await?;
        // A DNS server of the link must not direct this request to this host or into one of its LANs.
        addresses.retain(|address| dialer.is_behind_links(address.ip()));
        addresses.truncate(MAX_ADDRESSES);
        let status = target.status(&LinkDialer::with_link_families(addresses.clone(), link)?, link).await?;
        if is_of_link && classify_status(status, true) == PortalProbeResult::Open {
            self.known().insert(link.index, addresses);
        }
        Ok((status, is_of_link))
    }

    async fn addresses(
        &self,
        target: &Target,
        link: &Interface,
        dialer: &LinkDialer,
    ) -> io::Result<(Vec<SocketAddr>, bool)> {
        let to = |addresses: Vec<IpAddr>| {
            addresses.into_iter().map(|address| SocketAddr::new(address, target.port)).collect()
        };
        let why = match dialer.resolver.resolve_for(None, &target.host, Some(link), LOOKUP_TIMEOUT).await {
            Ok(answer) => return Ok((to(answer.addresses), is_of_link(&answer.source, dialer).await)),
            Err(why) => why,
        };
        if why.is_definitive
            && let Some(answer) = dialer.resolver.query_link_servers(&target.host, link).await
        {
            return Ok((to(answer.addresses), is_of_link(&answer.source, dialer).await));
        }
        let known = self.known().get(&link.index).cloned();
        known.map(|known| (known, true)).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, why.message))
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<u32, Vec<SocketAddr>>> {
        self.known_addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FromStr for PortalProbe {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::OFF);
        }
        let url = Url::parse(text).map_err(|error| format!("`{text}` is neither a URL nor `off`: {error}"))?;
        let host = url.host_str().filter(|_| url.scheme() == "http" && url.username().is_empty());
        let host = host.filter(|_| url.password().is_none());
        let host = host.ok_or_else(|| {
            format!("`{text}`: the URL must begin with http:// and contain no user name or password")
        })?;
        let authority = url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        let query = url.query().map(|query| format!("?{query}")).unwrap_or_default();
        Ok(Self(Some(Target {
            host: host.trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: url.port_or_known_default().unwrap_or(80),
            authority,
            path_and_query: format!("{}{query}", url.path()),
        })))
    }
}

impl Target {
    /// Sends the request to the first of these addresses that accepts a connection, and returns the response's status.
    async fn status(&self, addresses: &[SocketAddr], link: &Interface) -> io::Result<u16> {
        let by = DialOptions { device: Some(link.name.clone()), plain_tcp: true, ..DialOptions::default() };
        let mut connection =
            Connection::from_socket(connect_first(addresses, |address| connect(address, by.clone())).await?)?;
        let (path_and_query, authority) = (self.path_and_query.clone(), self.authority.clone());
        let get = GetRequest {
            path_and_query,
            authority,
            range: RequestRange::Full,
            if_range: None,
            headers: Vec::new(),
        };
        connection.request(ReqId(0), &get);
        let mut scratch = vec![0; READ_SIZE];
        match poll_fn(|cx| connection.poll_event(cx, &mut scratch, &mut DiscardBody, DataSize::ZERO)).await {
            Event::Head { head, .. } => Ok(head.status),
            Event::Closed { error: trouble } | Event::Aborted { error: trouble, .. } => {
                Err(io::Error::other(trouble.text))
            }
            Event::Data { .. } | Event::End { .. } => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// Whether a link is responsible for an address from this source, which was queried over it.
async fn is_of_link(source: &ResolutionSource, dialer: &LinkDialer) -> bool {
    let mut is_dynamic = false;
    if may_be_of_another_link(source) {
        for link in dialer.links() {
            is_dynamic |= dialer.resolver.has_link_servers(&link).await;
        }
    }
    *source != ResolutionSource::System && !is_dynamic
}

/// A public server of `/etc/resolv.conf` can be one that another link's DHCP server has announced, if some links have such servers. A
/// private one is in the link's network, or the kernel routes it over the link.
fn may_be_of_another_link(source: &ResolutionSource) -> bool {
    matches!(source, ResolutionSource::ResolvConf { server, .. } if AddressZone::of(*server) == AddressZone::Internet)
}

/// What a status shows; `is_of_link`: the link is responsible for the address that it comes from. 511 is defined in RFC 6585 section 6.
fn classify_status(status: u16, is_of_link: bool) -> PortalProbeResult {
    match status {
        204 => PortalProbeResult::Open,
        200..=399 | 511 if is_of_link => PortalProbeResult::Captive,
        _ => PortalProbeResult::NoResponse,
    }
}

/// Discards the response body.
struct DiscardBody;

impl Sink for DiscardBody {
    fn body(&mut self, _: ReqId, _: &[u8]) {}
}

/// Our choice: a link that needs longer for a lookup and two RTTs is not waited for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// Our choice: a DNS server's first answer and a repeated one; the same time is left for the request.
const LOOKUP_TIMEOUT: Duration = Duration::from_millis(2500);
/// Our choice: a name may have many addresses.
const MAX_ADDRESSES: usize = 4;
/// Bytes read at once.
const READ_SIZE: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_plain_http_or_off() {
        let target = |text: &str| text.parse::<PortalProbe>().map(|probe| probe.0);
        let parsed = target("http://[2001:db8::1]:8080/a?b=c#d").unwrap().unwrap();
        assert_eq!((&*parsed.host, parsed.port, &*parsed.authority), ("2001:db8::1", 8080, "[2001:db8::1]:8080"));
        assert_eq!(parsed.path_and_query, "/a?b=c");
        let parsed = target(PortalProbe::DEFAULT).unwrap().unwrap();
        assert_eq!((&*parsed.authority, parsed.port), ("connectivitycheck.gstatic.com", 80));
        assert_eq!(target("off"), Ok(None));
        for wrong in
            ["", "on", "https://example.org/", "http://user@example.org/", "http://u:p@example.org/", "ftp://h/"]
        {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_public_dns_server_without_a_known_link_may_belong_to_another_link() {
        let source_of = |server: &str| ResolutionSource::ResolvConf {
            server: server.parse().unwrap(),
            link: "wan1".to_owned(),
        };
        assert!(
            may_be_of_another_link(&source_of("198.51.100.53"))
                && !may_be_of_another_link(&source_of("192.168.7.1"))
                && !may_be_of_another_link(&source_of("fe80::1"))
        );
        let lease = ResolutionSource::Lease { server: "198.51.100.53".parse().unwrap(), link: "wan1".to_owned() };
        assert!(!may_be_of_another_link(&lease) && !may_be_of_another_link(&ResolutionSource::Literal));
    }

    #[test]
    fn redirects_and_pages_show_a_portal_if_the_link_is_responsible_for_the_address() {
        use PortalProbeResult::{Captive, NoResponse, Open};
        for (status, of_link, of_another) in [
            (204, Open, Open),
            (200, Captive, NoResponse),
            (302, Captive, NoResponse),
            (511, Captive, NoResponse),
            // From a server or proxy that refuses, is overloaded or does not know the URL.
            (400, NoResponse, NoResponse),
            (403, NoResponse, NoResponse),
            (404, NoResponse, NoResponse),
            (429, NoResponse, NoResponse),
            (502, NoResponse, NoResponse),
            (504, NoResponse, NoResponse),
        ] {
            assert_eq!(
                (classify_status(status, true), classify_status(status, false)),
                (of_link, of_another),
                "{status}"
            );
        }
    }
}
