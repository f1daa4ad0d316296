//! How a server is reached: through which proxy, and over which version of IP.
//!
//! 1. The user names a proxy, so it may have any address. What the proxy is asked for has to pass the address guard: a
//!    redirect does not lead to this machine or to a private network through a proxy either. A name that the proxy
//!    resolves cannot be checked here; `localhost` can.
//! 2. With `socks5://` the name is resolved over the link, and the proxy gets an address that has passed the guard.

use std::net::IpAddr;

use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_net::dns::{ResolveError, Resolver};
use marline_net::egress::EgressPolicy;
use marline_net::http::{Proxy, ProxyResponseTimer, ProxyRules, Tunnel, is_loopback_url, resolver_host};
use marline_net::links::Interface;
use url::{Host, Url};

use super::connections::DNS_TIMEOUT;

/// How servers are reached.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Which URLs go through which proxy.
    pub proxies: ProxyRules,
    /// The only version of IP to use; none: both. Behind a proxy it is the version that is spoken to the proxy.
    pub ip_version: Option<IpVersion>,
}

/// A version of IP.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IpVersion {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl IpVersion {
    /// Whether an address is of this version.
    pub fn matches(self, address: IpAddr) -> bool {
        match self {
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

impl ConnectOptions {
    /// Whether what is connected to for this URL is on this very machine, where no link leads.
    pub(super) fn is_local(&self, url: &Url) -> bool {
        self.proxies.proxy_for(url).map_or_else(|| is_loopback_url(url), |proxy| proxy.is_local())
    }

    /// The addresses that may be used.
    ///
    /// # Errors
    /// There are some, but none of the version that the user wants.
    pub(super) fn filter_addresses(
        &self,
        host: &str,
        mut addresses: Vec<IpAddr>,
    ) -> Result<Vec<IpAddr>, ConnError> {
        let Some(version) = self.ip_version else { return Ok(addresses) };
        addresses.retain(|address| version.matches(*address));
        if addresses.is_empty() {
            let text = format!("{host} has no {} address on this link", version.name());
            return Err(ConnError { kind: ConnErrorKind::Unreachable, text });
        }
        Ok(addresses)
    }
}

/// Why a proxy is not asked.
pub(super) enum TunnelTargetError {
    /// The name has no address.
    Dns(ResolveError),
    /// What led to the host may not lead there.
    Forbidden(ConnError),
}

/// What to ask the proxy for, so that a URL's host is reached: a tunnel; none: requests in absolute form need none.
pub(super) async fn tunnel_to(
    proxy: &Proxy,
    url: &Url,
    egress: EgressPolicy,
    resolver: &Resolver,
    interface: Option<&Interface>,
    response_timer: ProxyResponseTimer,
) -> Result<Option<Tunnel>, TunnelTargetError> {
    let host = resolver_host(url);
    let port = url.port_or_known_default().unwrap_or(80);
    let check = |address: IpAddr| {
        egress.check((address, port).into()).map_err(|why| {
            TunnelTargetError::Forbidden(ConnError { kind: ConnErrorKind::Forbidden, text: why.describe(&host) })
        })
    };
    let target = match url.host() {
        Some(Host::Ipv4(address)) => check(address.into()).map(|()| host.clone())?,
        Some(Host::Ipv6(address)) => check(address.into()).map(|()| host.clone())?,
        _ if is_loopback_url(url) => check(IpAddr::from([127, 0, 0, 1])).map(|()| host.clone())?,
        _ if proxy.resolves_names() => host.clone(),
        _ => {
            let resolution = resolver.resolve_for(egress.requester(), &host, interface, DNS_TIMEOUT).await;
            let addresses = resolution.map_err(TunnelTargetError::Dns)?.addresses;
            let first = addresses.iter().find(|address| check(**address).is_ok());
            match (first, addresses.first()) {
                (Some(address), _) => address.to_string(),
                (None, Some(address)) => check(*address).map(|()| host.clone())?,
                (None, None) => host.clone(),
            }
        }
    };
    Ok((!proxy.uses_absolute_form(url)).then(|| Tunnel {
        proxy: proxy.clone(),
        host: target,
        port,
        response_timer,
    }))
}

#[cfg(test)]
mod tests {
    use marline_net::http::ProxySettings;

    use super::*;

    fn proxy(text: &str) -> ProxyRules {
        let settings = ProxySettings { proxy: Some(text.to_owned()), no_proxy: None };
        ProxyRules::new(&settings, |_| None).unwrap()
    }

    fn tunnel_target(proxies: &str, url: &str, right: EgressPolicy) -> Result<Option<(String, u16)>, String> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let url: Url = url.parse().unwrap();
        let proxy = proxy(proxies).proxy_for(&url).unwrap();
        let resolver = Resolver::new();
        let tunnel = runtime
            .block_on(tunnel_to(&proxy, &url, right, &resolver, None, ProxyResponseTimer::default()))
            .map_err(|why| match why {
                TunnelTargetError::Dns(why) => why.message,
                TunnelTargetError::Forbidden(trouble) => trouble.text,
            })?;
        Ok(tunnel.map(|tunnel| (tunnel.host, tunnel.port)))
    }

    #[test]
    fn the_proxy_is_asked_for_what_the_url_names() {
        let user = EgressPolicy::user();
        for (proxy, url, want) in [
            ("http://p", "http://h.example/f", None),
            ("http://p", "https://h.example/f", Some(("h.example", 443))),
            ("http://p", "https://[2001:db8::1]:8443/f", Some(("2001:db8::1", 8443))),
            ("socks5h://p", "http://h.example:81/f", Some(("h.example", 81))),
            ("socks5://p", "http://localhost/f", Some(("localhost", 80))),
            ("socks5://p", "http://192.0.2.1/f", Some(("192.0.2.1", 80))),
        ] {
            let want = want.map(|(host, port)| (host.to_owned(), port));
            assert_eq!(tunnel_target(proxy, url, user), Ok(want), "{proxy} {url}");
        }
    }

    #[test]
    fn a_redirect_reaches_nothing_private_through_a_proxy() {
        let led = EgressPolicy::user().referred_by("198.51.100.1".parse::<IpAddr>().ok());
        for proxy in ["http://p", "socks5h://p", "socks5://p"] {
            for host in
                ["127.0.0.1", "localhost", "a.localhost", "10.0.0.1", "[::1]", "169.254.169.254", "[fd00::1]"]
            {
                for scheme in ["http", "https"] {
                    let refused = tunnel_target(proxy, &format!("{scheme}://{host}/f"), led).unwrap_err();
                    assert!(refused.contains("refused"), "{proxy} {host}: {refused}");
                }
            }
            assert!(tunnel_target(proxy, "http://192.0.2.1/f", led).is_ok());
        }
    }

    #[test]
    fn only_addresses_of_the_wanted_version_are_used() {
        let all: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).to_vec();
        let of = |version| {
            ConnectOptions { ip_version: version, ..ConnectOptions::default() }
                .filter_addresses("h", all.clone())
                .unwrap()
        };
        assert_eq!(of(None), all);
        assert_eq!(of(Some(IpVersion::V4)), all[..1]);
        assert_eq!(of(Some(IpVersion::V6)), all[1..]);
        let route = ConnectOptions { ip_version: Some(IpVersion::V6), ..ConnectOptions::default() };
        assert!(route.filter_addresses("h", all[..1].to_vec()).unwrap_err().text.contains("no IPv6 address"));
    }

    #[test]
    fn a_proxy_decides_whether_a_link_is_needed() {
        let route = |text| ConnectOptions { proxies: proxy(text), ip_version: None };
        let far: Url = "http://h.example/f".parse().unwrap();
        assert!(route("http://127.0.0.1:3128").is_local(&far));
        assert!(!route("http://192.0.2.1:3128").is_local(&far));
        assert!(!ConnectOptions::default().is_local(&far));
        assert!(ConnectOptions::default().is_local(&"http://localhost/f".parse().unwrap()));
    }
}
