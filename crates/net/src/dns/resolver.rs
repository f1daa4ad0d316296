//! Resolves a name for a link, by the rules of the [module documentation](super).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::lookup_threads::LookupThreads;
use super::message::Family;
use super::nat64::{self, Nat64Prefix};
use super::query::{QueryError, query};
use super::rebinding::RebindingGuard;
use super::servers::{ServerSource, link_servers};
use super::system_paths::SystemPaths;
use super::{Resolution, ResolutionSource, ResolveError, hosts};
use crate::egress::{AddressZone, EgressPolicy};
use crate::links::Interface;

/// Resolves names, each for the link that will carry the connection. One instance serves the whole program, because
/// it caches results.
#[derive(Debug, Default)]
pub struct Resolver {
    paths: SystemPaths,
    /// By name and link index (0: no link): expiry and result.
    cache: Mutex<BTreeMap<(String, u32), (Instant, Resolution)>>,
    /// By link index: expiry and the prefix of the link's NAT64.
    nat64_prefixes: Mutex<BTreeMap<u32, (Instant, Option<Nat64Prefix>)>>,
    /// The zones to which names have resolved.
    rebinding: Mutex<RebindingGuard>,
    /// Threads for look-ups by the system's resolver. Reads of its configuration have their own (`config_threads`).
    system_threads: LookupThreads,
    config_threads: LookupThreads,
}

/// Longest time for which a result is cached. Our choice: a longer download resolves again, so that it notices a CDN
/// node that has moved.
const MAX_TTL: Duration = Duration::from_secs(300);
/// Our choice: connections that open at the same time share one result, even if its time to live is zero.
const MIN_TTL: Duration = Duration::from_secs(2);
/// Our choice: the system's resolver does not report a time to live.
const SYSTEM_TTL: Duration = Duration::from_secs(30);
/// Maximum number of cached results. Our choice: a few pages in a few browsers, over a few links.
pub(super) const MAX_CACHED: usize = 2000;
/// How many servers of a link [`Resolver::can_resolve_over`] and [`Resolver::query_link_servers`] query; an ordinary
/// look-up queries all until its time limit. Our choice: each may take two seconds.
const MAX_SERVERS: usize = 2;
/// Longest name as text, with a final dot (RFC 1035 section 3.1: 253 characters without it).
const MAX_NAME_LEN: usize = 254;

impl Resolver {
    /// Creates a resolver. It reads the system's configuration for each look-up.
    pub fn new() -> Self {
        Self::default()
    }

    /// A resolver that reads its configuration below another root.
    #[cfg(test)]
    pub(super) fn with_paths(paths: SystemPaths) -> Self {
        Self { paths, ..Self::default() }
    }

    /// Like [`resolve_for`](Self::resolve_for), for a connection with this egress policy. If the policy is
    /// restricted, the prefix of the link's NAT64 is discovered before this returns. So an address behind it counts
    /// as the IPv4 address to which it translates ([`egress`](crate::egress)).
    ///
    /// # Errors
    /// As [`resolve_for`](Self::resolve_for).
    pub async fn resolve_checked(
        &self,
        egress: &EgressPolicy,
        host: &str,
        link: Option<&Interface>,
        timeout: Duration,
    ) -> Result<Resolution, ResolveError> {
        let resolution = self.resolve_for(egress.requester(), host, link, timeout).await?;
        let may_be_translated =
            |address: &IpAddr| AddressZone::of(*address) == AddressZone::Internet && address.is_ipv6();
        if let Some(link) = link.filter(|link| link.has_v6())
            && egress.is_restricted()
            && resolution.addresses.iter().any(may_be_translated)
        {
            // If the link's servers do not respond, no NAT64 of this link can be used either.
            let _ = tokio::time::timeout(timeout, self.nat64_prefix(egress.requester(), link)).await;
        }
        Ok(resolution)
    }

    /// Resolves `host` for `link`, or for the machine as a whole without a link. IPv6 literals may have brackets.
    /// `requester` is the remote host that sent the request, if any; its look-ups delay no other host.
    ///
    /// # Errors
    /// The name has no address that the link can reach, or no server responds in time.
    pub async fn resolve_for(
        &self,
        requester: Option<IpAddr>,
        host: &str,
        link: Option<&Interface>,
        timeout: Duration,
    ) -> Result<Resolution, ResolveError> {
        let deadline = Instant::now() + timeout;
        let timed_out = || transient_error(format!("{host}: no answer within {} s", timeout.as_secs_f64()));
        if let Some(address) = parse_literal(host)? {
            let addresses = timeout_at(deadline, self.reachable_over(requester, vec![address], link)).await;
            return non_empty_resolution(addresses.map_err(|_| timed_out())?, ResolutionSource::Literal, host);
        }
        if host.len() > MAX_NAME_LEN {
            return Err(definitive_error("the host name is longer than 253 characters".to_owned()));
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let key = (name.clone(), link.map_or(0, |link| link.index));
        if let Some((expires_at, resolution)) = self.lock_cache().get(&key)
            && Instant::now() < *expires_at
        {
            return Ok(resolution.clone());
        }
        let (resolution, ttl) = timeout_at(deadline, self.look_up(requester, &name, link))
            .await
            .unwrap_or_else(|_| Err(timed_out()))?;
        // The name may be public although this link's server says otherwise, so the guard comes before the cache.
        let resolution = self.filter_rebinding(&name, resolution)?;
        let mut cache = self.lock_cache();
        cache.retain(|_, (expires_at, _)| Instant::now() < *expires_at);
        if resolution.addresses.iter().any(|address| AddressZone::of(*address) == AddressZone::Internet) {
            // A cached result of another link may be local; it must be checked again now that the name is public.
            cache.retain(|(cached_name, _), _| *cached_name != name);
        }
        // The cache is bounded; the entry that expires first makes space.
        if cache.len() >= MAX_CACHED {
            let first_to_expire =
                cache.iter().min_by_key(|(_, (expires_at, _))| *expires_at).map(|(key, _)| key.clone());
            first_to_expire.map(|first_to_expire| cache.remove(&first_to_expire));
        }
        cache.insert(key, (Instant::now() + ttl, resolution.clone()));
        Ok(resolution)
    }

    /// Removes addresses to which the name may not resolve ([`RebindingGuard`]).
    fn filter_rebinding(&self, name: &str, mut resolution: Resolution) -> Result<Resolution, ResolveError> {
        if resolution.source == ResolutionSource::Hosts {
            return Ok(resolution);
        }
        let mut guard = self.rebinding.lock().unwrap_or_else(PoisonError::into_inner);
        let all_addresses = resolution.addresses.clone();
        resolution.addresses = guard.filter(Instant::now(), name, resolution.addresses, AddressZone::of);
        match (all_addresses.first(), resolution.addresses.is_empty()) {
            (Some(address), true) => Err(definitive_error(format!(
                "{name} now resolves to {address}, {}, and resolved to a public address before: refused (DNS rebinding)",
                AddressZone::of(*address).name()
            ))),
            _ => Ok(resolution),
        }
    }

    /// Drops all cached results; to be called when links may have changed.
    pub fn clear_cache(&self) {
        self.lock_cache().clear();
        self.lock_prefixes().clear();
    }

    /// Also drops the zones to which names have resolved; to be called when a link, and with it a network, has
    /// appeared or disappeared.
    pub fn clear_all(&self) {
        self.clear_cache();
        self.rebinding.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn lock_cache(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, u32), (Instant, Resolution)>> {
        // The map is consistent even after a panic: nothing that can panic runs under the lock.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_prefixes(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, (Instant, Option<Nat64Prefix>)>> {
        // As in `lock_cache`.
        self.nat64_prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves a name without the cache; returns the result and how long to cache it.
    async fn look_up(
        &self,
        requester: Option<IpAddr>,
        name: &str,
        link: Option<&Interface>,
    ) -> Result<(Resolution, Duration), ResolveError> {
        let local = hosts::localhost(name).unwrap_or_else(|| hosts::lookup(&self.paths.read("etc/hosts"), name));
        if !local.is_empty() {
            let addresses = self.reachable_over(requester, local, link).await;
            return non_empty_resolution(addresses, ResolutionSource::Hosts, name)
                .map(|resolution| (resolution, MIN_TTL));
        }
        let Some(link) = link else { return self.query_system(requester, name, None).await };
        let families = link_families(link);
        let mut server_error = None;
        if is_public_name(name) {
            for (source, server) in self.link_servers(requester, link).await {
                match self.query_server(source, server, name, link, &families).await {
                    Ok(resolution) => return Ok(resolution),
                    // All servers of the link would respond the same. A link with only IPv6 may still reach IPv4
                    // addresses by NAT64.
                    Err(QueryError::NoAddress(text)) => {
                        if let Some(resolution) = self.query_nat64(requester, (source, server), name, link).await {
                            return Ok(resolution);
                        }
                        server_error = Some(definitive_error(text));
                        break;
                    }
                    Err(QueryError::ServerFailed(text)) => server_error = Some(transient_error(text)),
                }
            }
        }
        let resolution = self.query_system(requester, name, Some(link)).await;
        // The errors of the link's own servers are more informative than the system's.
        resolution.map_err(|system_error| server_error.unwrap_or(system_error))
    }

    async fn query_server(
        &self,
        source: ServerSource,
        server: SocketAddr,
        name: &str,
        link: &Interface,
        families: &[Family],
    ) -> Result<(Resolution, Duration), QueryError> {
        let records = query(server, Some(&link.name), name, families).await.inspect_err(|why| {
            tracing::debug!(link = %link.name, %server, name, ?why, "a DNS server of the link gives no address");
        })?;
        let resolution = Resolution {
            addresses: interleave(records.addresses, link),
            source: source.resolution_source(server, &link.name),
        };
        Ok((resolution, records.ttl.clamp(MIN_TTL, MAX_TTL)))
    }
}

/// IPv4 addresses over links that have only IPv6.
impl Resolver {
    /// The addresses whose family the link has; loopback addresses are always included. If there are none, the IPv4
    /// addresses as translated by the link's NAT64.
    async fn reachable_over(
        &self,
        requester: Option<IpAddr>,
        addresses: Vec<IpAddr>,
        link: Option<&Interface>,
    ) -> Vec<IpAddr> {
        let Some(link) = link else { return addresses };
        let is_of_link = |a: &IpAddr| a.is_loopback() || if a.is_ipv4() { link.has_v4() } else { link.has_v6() };
        let direct: Vec<IpAddr> = addresses.iter().copied().filter(is_of_link).collect();
        if direct.is_empty() { self.translate_nat64(requester, addresses, link).await } else { direct }
    }

    /// IPv4 addresses as translated by the link's NAT64; empty if the link has IPv4 itself or no NAT64.
    async fn translate_nat64(
        &self,
        requester: Option<IpAddr>,
        addresses: Vec<IpAddr>,
        link: &Interface,
    ) -> Vec<IpAddr> {
        if !is_v6_only(link) || !addresses.iter().any(IpAddr::is_ipv4) {
            return Vec::new();
        }
        let Some(prefix) = self.nat64_prefix(requester, link).await else { return Vec::new() };
        let translate = |address| match address {
            IpAddr::V4(v4) => prefix.translate(v4).map(IpAddr::V6),
            IpAddr::V6(_) => None,
        };
        addresses.into_iter().filter_map(translate).collect()
    }

    /// The prefix of the link's NAT64 (RFC 7050), from the link's servers, or from the system's resolver if it has no
    /// servers.
    async fn nat64_prefix(&self, requester: Option<IpAddr>, link: &Interface) -> Option<Nat64Prefix> {
        if let Some((expires_at, prefix)) = self.lock_prefixes().get(&link.index)
            && Instant::now() < *expires_at
        {
            return *prefix;
        }
        let mut prefix = None;
        let servers = self.link_servers(requester, link).await;
        for (_, server) in &servers {
            match query(*server, Some(&link.name), nat64::WELL_KNOWN_NAME, &[Family::V6]).await {
                Ok(records) => prefix = Nat64Prefix::discover(&records.addresses),
                Err(QueryError::ServerFailed(_)) => continue,
                Err(QueryError::NoAddress(_)) => {}
            }
            break;
        }
        if servers.is_empty() {
            let result = self.system_addresses(requester, nat64::WELL_KNOWN_NAME).await;
            prefix = result.ok().and_then(|addresses| Nat64Prefix::discover(&addresses));
        }
        tracing::debug!(link = %link.name, ?prefix, "NAT64 discovery finished");
        if let Some(prefix) = prefix {
            prefix.register();
        }
        self.lock_prefixes().insert(link.index, (Instant::now() + MAX_TTL, prefix));
        prefix
    }

    /// The IPv4 addresses of a name without IPv6 addresses, as translated by the link's NAT64.
    async fn query_nat64(
        &self,
        requester: Option<IpAddr>,
        (source, server): (ServerSource, SocketAddr),
        name: &str,
        link: &Interface,
    ) -> Option<(Resolution, Duration)> {
        if !is_v6_only(link) || self.nat64_prefix(requester, link).await.is_none() {
            return None;
        }
        let records = query(server, Some(&link.name), name, &[Family::V4]).await.ok()?;
        let addresses = self.translate_nat64(requester, records.addresses, link).await;
        let resolution =
            non_empty_resolution(addresses, source.resolution_source(server, &link.name), name).ok()?;
        Some((resolution, records.ttl.clamp(MIN_TTL, MAX_TTL)))
    }
}

impl Resolver {
    /// Whether one of the link's own name servers responds over it; `None`: no server of the link is known. The query
    /// is for a name that all servers know.
    pub async fn can_resolve_over(&self, link: &Interface) -> Option<bool> {
        let servers = self.link_servers(None, link).await;
        for (_, server) in servers.iter().take(MAX_SERVERS) {
            match query(*server, Some(&link.name), nat64::WELL_KNOWN_NAME, &[Family::V4]).await {
                Ok(_) | Err(QueryError::NoAddress(_)) => return Some(true),
                Err(QueryError::ServerFailed(_)) => {}
            }
        }
        (!servers.is_empty()).then_some(false)
    }

    /// Resolves a name by the servers that can be queried over the link only. Neither the system's resolver nor the
    /// rebinding guard is used, so the result is only for requests that expect a forged address, such as the check
    /// for a captive portal. `None`: the servers return no address.
    pub async fn query_link_servers(&self, name: &str, link: &Interface) -> Option<Resolution> {
        let families = link_families(link);
        for (source, server) in self.link_servers(None, link).await.into_iter().take(MAX_SERVERS) {
            match self.query_server(source, server, name, link, &families).await {
                Ok((resolution, _)) => return Some(resolution),
                Err(QueryError::NoAddress(_)) => break,
                Err(QueryError::ServerFailed(_)) => {}
            }
        }
        None
    }

    /// Whether a network service or a DHCP client lists servers of this link, not only `/etc/resolv.conf`.
    pub async fn has_link_servers(&self, link: &Interface) -> bool {
        self.link_servers(None, link).await.first().is_some_and(|(source, _)| *source != ServerSource::ResolvConf)
    }

    /// The servers that can be queried over the link.
    async fn link_servers(&self, requester: Option<IpAddr>, link: &Interface) -> Vec<(ServerSource, SocketAddr)> {
        let (paths, interface) = (self.paths.clone(), link.clone());
        let server_groups =
            self.config_threads.run(requester, move || link_servers(&paths, &interface)).await.flatten();
        server_groups
            .into_iter()
            .flat_map(|(source, group)| group.into_iter().map(move |server| (source, server)))
            .collect()
    }

    /// Queries the system's own resolver; returns those addresses that the link can reach.
    async fn query_system(
        &self,
        requester: Option<IpAddr>,
        name: &str,
        link: Option<&Interface>,
    ) -> Result<(Resolution, Duration), ResolveError> {
        let mut addresses =
            self.reachable_over(requester, self.system_addresses(requester, name).await?, link).await;
        if let Some(link) = link {
            addresses = interleave(addresses, link);
        }
        non_empty_resolution(addresses, ResolutionSource::System, name).map(|resolution| (resolution, SYSTEM_TTL))
    }

    /// All addresses that the system's own resolver returns for a name.
    async fn system_addresses(&self, requester: Option<IpAddr>, name: &str) -> Result<Vec<IpAddr>, ResolveError> {
        let owned_name = name.to_owned();
        let look_up = move || Ok((owned_name.as_str(), 0).to_socket_addrs()?.map(|a| a.ip()).collect());
        let result = self.system_threads.run(requester, look_up).await;
        let no_answer = || std::io::Error::other("no answer");
        result.unwrap_or_else(|| Err(no_answer())).map_err(|error| system_error(name, &error))
    }
}

/// Parses a host that is an address literal.
fn parse_literal(host: &str) -> Result<Option<IpAddr>, ResolveError> {
    let unbracketed = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if unbracketed.contains('%') {
        return Err(definitive_error(format!(
            "{host}: an address with a zone is refused; the link decides the interface"
        )));
    }
    Ok(unbracketed.parse::<IpAddr>().ok().map(|address| address.to_canonical()))
}

/// The address families that the link has.
fn link_families(link: &Interface) -> Vec<Family> {
    let candidates = [(link.has_v4(), Family::V4), (link.has_v6(), Family::V6)];
    candidates.into_iter().filter(|(is_available, _)| *is_available).map(|(_, family)| family).collect()
}

fn is_v6_only(link: &Interface) -> bool {
    link.has_v6() && !link.has_v4()
}

/// Whether public name servers can know the name: single words belong to search domains, and `.local` to mDNS (RFC
/// 6762 section 3).
fn is_public_name(name: &str) -> bool {
    name.contains('.') && !name.ends_with(".local")
}

/// Alternates the two families, the preferred one first (RFC 8305 section 4), without duplicates.
fn interleave(addresses: Vec<IpAddr>, link: &Interface) -> Vec<IpAddr> {
    let (v6, v4): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let (mut first, mut second) = if link.has_public_v6() { (v6, v4) } else { (v4, v6) };
    let longest = first.len().max(second.len());
    first.reverse();
    second.reverse();
    let mut sorted = Vec::new();
    for address in (0..longest).flat_map(|_| [first.pop(), second.pop()]).flatten() {
        if !sorted.contains(&address) {
            sorted.push(address);
        }
    }
    sorted
}

fn non_empty_resolution(
    addresses: Vec<IpAddr>,
    source: ResolutionSource,
    name: &str,
) -> Result<Resolution, ResolveError> {
    if addresses.is_empty() {
        return Err(definitive_error(format!("{name} has no address that this link can use")));
    }
    Ok(Resolution { addresses, source })
}

/// Interprets an error of the system's resolver. The standard library provides only its message, which is not
/// translated here because no locale is set. The texts are those of EAI_NONAME and EAI_NODATA (`gai_strerror`) in
/// glibc and musl.
fn system_error(name: &str, error: &std::io::Error) -> ResolveError {
    let text = error.to_string();
    let not_found_texts = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ];
    if not_found_texts.iter().any(|phrase| text.ends_with(phrase)) {
        return definitive_error(format!("{name}: no such name according to the system's resolver"));
    }
    let reason = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    transient_error(format!("{name}: {reason}"))
}

fn definitive_error(text: String) -> ResolveError {
    ResolveError { message: text, is_definitive: true }
}

fn transient_error(text: String) -> ResolveError {
    ResolveError { message: text, is_definitive: false }
}
