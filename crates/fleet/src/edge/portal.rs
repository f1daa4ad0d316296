//! A request of plain HTTP over one link, whose answer a captive portal gives in the place of the server.
//!
//! The server of the URL answers with 204 (No Content). A portal answers with a redirect or a page, as it must for browsers to show it. The
//! request is bound to the link's device, its name is looked up at the link's own name servers, it takes at most [`TIME`], and no more than a
//! head is read. Where these give no address, or a private one for a name that has a public one, as a portal's do, the request goes to the
//! address at which the server answered last: a portal answers there as well. It is in clear, which is its purpose: it names the program (`User-Agent`) and nothing that identifies the edge. What a DHCP server says of a portal (RFC 8910) was not used: it
//! does not say whether the link is still captive, and few networks say it.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use marline_core::fetch::{Ask, ReqId};
use marline_core::link_choice::PortalAnswer;
use marline_core::units::DataSize;
use marline_net::http::{Connection, Event, Get, Sink};
use marline_net::links::Interface;
use tokio::time::timeout;
use url::Url;

use super::dial::{By, connect};
use crate::race::race;
use crate::starts::Starts;

/// Whether captive portals are looked for by requests, and with which URL.
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
    /// What is requested unless something else is said: it answers each request with 204, and Android devices request it on each network.
    pub const DEFAULT: &str = "http://connectivitycheck.gstatic.com/generate_204";

    /// None is sent.
    pub const OFF: Self = Self(None);
}

/// Finds portals.
#[derive(Debug)]
pub(super) struct Portals {
    target: Option<Target>,
    /// Where the server has answered last.
    known: Mutex<Vec<SocketAddr>>,
}

impl Portals {
    pub(super) fn new(probe: &PortalProbe) -> Self {
        Self { target: probe.0.clone(), known: Mutex::default() }
    }

    pub(super) fn is_off(&self) -> bool {
        self.target.is_none()
    }

    /// What answers over this link.
    pub(super) async fn probe(&self, link: &Interface, starts: &Starts) -> PortalAnswer {
        let Some(target) = &self.target else { return PortalAnswer::Nothing };
        match timeout(TIME, self.status(target, link, starts)).await {
            Ok(Ok(status)) => judge(status),
            Ok(Err(error)) => {
                tracing::debug!(link = link.name, %error, "no answer to the portal probe");
                PortalAnswer::Nothing
            }
            Err(_) => PortalAnswer::Nothing,
        }
    }

    /// The status of the answer.
    async fn status(&self, target: &Target, link: &Interface, starts: &Starts) -> io::Result<u16> {
        let found = starts.addresses(None, (&target.host, target.port), link).await;
        let mut addresses = found.or_else(|error| {
            let known = self.known().clone();
            if known.is_empty() { Err(error) } else { Ok(known) }
        })?;
        // A name server of the link does not make this request lead to this machine or into a LAN of it.
        addresses.retain(|address| starts.is_behind_links(address.ip()));
        addresses.truncate(ADDRESSES);
        let status = target.status(&Starts::of_families(addresses.clone(), link)?, link).await?;
        if judge(status) == PortalAnswer::Open {
            *self.known() = addresses;
        }
        Ok(status)
    }

    fn known(&self) -> MutexGuard<'_, Vec<SocketAddr>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        let host = host.ok_or_else(|| format!("`{text}`: a URL with http:// and without a login is needed"))?;
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
    /// The status of the answer that comes from one of these addresses.
    async fn status(&self, addresses: &[SocketAddr], link: &Interface) -> io::Result<u16> {
        let by = By { device: Some(link.name.clone()), plain: true, ..By::default() };
        let mut connection = Connection::over(race(addresses, |address| connect(address, by.clone())).await?)?;
        let (path_and_query, authority) = (self.path_and_query.clone(), self.authority.clone());
        let get = Get { path_and_query, authority, ask: Ask::Whole, if_range: None, headers: Vec::new() };
        connection.request(ReqId(0), &get);
        let mut scratch = vec![0; HEAD];
        match poll_fn(|cx| connection.poll_event(cx, &mut scratch, &mut Unread, DataSize::ZERO)).await {
            Event::Head { head, .. } => Ok(head.status),
            Event::Closed { trouble } | Event::Aborted { trouble, .. } => Err(io::Error::other(trouble.text)),
            Event::Data { .. } | Event::End { .. } => Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

/// What a status shows. A server or a proxy that has no answer just now is no portal, but 511 is one (RFC 6585, section 6).
fn judge(status: u16) -> PortalAnswer {
    match status {
        204 => PortalAnswer::Open,
        500..=599 if status != 511 => PortalAnswer::Nothing,
        _ => PortalAnswer::Captive,
    }
}

/// No body is accepted.
struct Unread;

impl Sink for Unread {
    fn body(&mut self, _: ReqId, _: &[u8]) {}
}

/// chosen: a link that takes longer for a name and two round trips is not waited for.
const TIME: Duration = Duration::from_secs(5);
/// chosen: a name may have many.
const ADDRESSES: usize = 4;
/// Read at once.
const HEAD: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_url_is_one_of_plain_http_or_off() {
        let target = |text: &str| text.parse::<PortalProbe>().map(|probe| probe.0);
        let of = target("http://[2001:db8::1]:8080/a?b=c#d").unwrap().unwrap();
        assert_eq!((&*of.host, of.port, &*of.authority), ("2001:db8::1", 8080, "[2001:db8::1]:8080"));
        assert_eq!(of.path_and_query, "/a?b=c");
        let of = target(PortalProbe::DEFAULT).unwrap().unwrap();
        assert_eq!((&*of.authority, of.port), ("connectivitycheck.gstatic.com", 80));
        assert_eq!(target("off"), Ok(None));
        for wrong in
            ["", "on", "https://example.org/", "http://user@example.org/", "http://u:p@example.org/", "ftp://h/"]
        {
            assert!(target(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_status_of_the_server_itself_or_of_an_overloaded_one_is_no_portal() {
        for (status, answer) in [
            (204, PortalAnswer::Open),
            (200, PortalAnswer::Captive),
            (302, PortalAnswer::Captive),
            (403, PortalAnswer::Captive),
            (511, PortalAnswer::Captive),
            (502, PortalAnswer::Nothing),
            (504, PortalAnswer::Nothing),
        ] {
            assert_eq!(judge(status), answer, "{status}");
        }
    }
}
