//! How servers are reached: directly or through a proxy, over IPv4 or IPv6.
//!
//! 1. The user names the proxy, so it may have any address. The target that the proxy connects to must pass the
//!    egress policy: a redirect must not lead to this host or to a private network through a proxy either. A name
//!    that the proxy resolves cannot be checked here, except `localhost`.
//! 2. With `socks5://` the name is resolved over the link, and the proxy gets an address that the egress policy
//!    allows.

use std::net::IpAddr;
use std::time::Duration;

use marline_core::fetch::{ConnError, ConnErrorKind};
use marline_net::dns::{ResolveError, Resolver};
use marline_net::egress::EgressPolicy;
use marline_net::http::{Proxy, ProxyResponseTimer, ProxyRules, Tunnel, is_loopback_url, resolver_host};
use marline_net::links::Interface;
use url::{Host, Url};

/// Options for opening connections.
#[derive(Clone, Debug, Default)]
pub struct ConnectOptions {
    /// Decides which proxy a URL uses.
    pub proxies: ProxyRules,
    /// The only IP version to use; none: both. With a proxy, it applies to the connection to the proxy.
    pub ip_version: Option<IpVersion>,
}

/// Version of the Internet Protocol.
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
    /// Whether the connection for this URL (to the server or its proxy) ends on this host, where no link leads.
    pub(super) fn is_local(&self, url: &Url) -> bool {
        self.proxies.proxy_for(url).map_or_else(|| is_loopback_url(url), |proxy| proxy.is_local())
    }

    /// The addresses of the allowed IP version.
    ///
    /// # Errors
    /// None of the given addresses has the required version.
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

/// Why no target could be determined for a proxy.
pub(super) enum TunnelTargetError {
    /// The name has no address.
    Dns(ResolveError),
    /// The egress policy does not allow the host.
    Forbidden(ConnError),
}

/// The tunnel to request from the proxy for a URL; none: the proxy gets requests in absolute form and needs no
/// tunnel.
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
        // The proxy resolves the name (http, socks5h), so there is no address to check.
        _ if proxy.resolves_names() => host.clone(),
        _ => {
            let resolution = resolver.resolve_for(egress.requester(), &host, interface, DNS_TIMEOUT).await;
            let addresses = resolution.map_err(TunnelTargetError::Dns)?.addresses;
            let first = addresses.iter().find(|address| check(**address).is_ok());
            // Without an allowed address, the check of the first one yields the error. Without any address, the
            // proxy decides.
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

/// Maximum time of resolving a name over a link. Our choice: the default timeout of resolv.conf(5).
pub(super) const DNS_TIMEOUT: Duration = Duration::from_secs(5);

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
                TunnelTargetError::Forbidden(error) => error.text,
            })?;
        Ok(tunnel.map(|tunnel| (tunnel.host, tunnel.port)))
    }

    #[test]
    fn the_proxy_gets_the_target_of_the_url() {
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
        let redirected = EgressPolicy::user().referred_by("198.51.100.1".parse::<IpAddr>().ok());
        for proxy in ["http://p", "socks5h://p", "socks5://p"] {
            for host in
                ["127.0.0.1", "localhost", "a.localhost", "10.0.0.1", "[::1]", "169.254.169.254", "[fd00::1]"]
            {
                for scheme in ["http", "https"] {
                    let refused = tunnel_target(proxy, &format!("{scheme}://{host}/f"), redirected).unwrap_err();
                    assert!(refused.contains("refused"), "{proxy} {host}: {refused}");
                }
            }
            assert!(tunnel_target(proxy, "http://192.0.2.1/f", redirected).is_ok());
        }
    }

    #[test]
    fn only_addresses_of_the_required_version_are_used() {
        let all: Vec<IpAddr> = ["192.0.2.1", "2001:db8::1"].map(|text| text.parse().unwrap()).to_vec();
        let of = |version| {
            ConnectOptions { ip_version: version, ..ConnectOptions::default() }
                .filter_addresses("h", all.clone())
                .unwrap()
        };
        assert_eq!(of(None), all);
        assert_eq!(of(Some(IpVersion::V4)), all[..1]);
        assert_eq!(of(Some(IpVersion::V6)), all[1..]);
        let options = ConnectOptions { ip_version: Some(IpVersion::V6), ..ConnectOptions::default() };
        assert!(options.filter_addresses("h", all[..1].to_vec()).unwrap_err().text.contains("no IPv6 address"));
    }

    #[test]
    fn a_proxy_decides_whether_a_link_is_needed() {
        let options_with_proxy = |text| ConnectOptions { proxies: proxy(text), ip_version: None };
        let url: Url = "http://h.example/f".parse().unwrap();
        assert!(options_with_proxy("http://127.0.0.1:3128").is_local(&url));
        assert!(!options_with_proxy("http://192.0.2.1:3128").is_local(&url));
        assert!(!ConnectOptions::default().is_local(&url));
        assert!(ConnectOptions::default().is_local(&"http://localhost/f".parse().unwrap()));
    }
}
