//! Resolves a name for a link, by the rules of [the room](super).

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::exchange::{Nothing, ask};
use super::message::Family;
use super::nat64::{self, Prefix};
use super::rebinding::Names;
use super::servers::{Namer, Places, servers};
use super::threads::Threads;
use super::{Answer, NoAddress, Source, hosts};
use crate::links::Interface;
use crate::reach::{Right, Zone};

/// Resolves names, each for the link that will carry the connection. One for a whole run: it keeps what it learnt.
#[derive(Debug, Default)]
pub struct Resolver {
    places: Places,
    /// By name and the link's number (0: none): until when, and what.
    known: Mutex<BTreeMap<(String, u32), (Instant, Answer)>>,
    /// By the link's number: until when, and the prefix of its NAT64.
    prefixes: Mutex<BTreeMap<u32, (Instant, Option<Prefix>)>>,
    /// Where names have led.
    names: Mutex<Names>,
    /// Look-ups by the system, and reads of its configuration.
    system: Threads,
    configuration: Threads,
}

/// chosen: a download that lasts longer asks again, so that an edge that moved is found.
const LONGEST: Duration = Duration::from_secs(300);
/// chosen: connections that open together share one answer, even where its time to live is zero.
const SHORTEST: Duration = Duration::from_secs(2);
/// chosen: the system's resolver does not say how long its answers hold.
const SYSTEM: Duration = Duration::from_secs(30);
/// How many answers are kept. chosen: a few pages of a few browsers, over a few links.
pub(super) const MOST: usize = 2000;
/// chosen: as the system's resolver has it, at most; each may take two seconds.
const MOST_ASKED: usize = 2;
/// RFC 1035 §3.1, as text; a final dot may follow.
const LONGEST_NAME: usize = 254;

impl Resolver {
    /// Reads the system's configuration when it is asked, not before.
    pub fn new() -> Self {
        Self::default()
    }

    /// A resolver for configuration at other places.
    #[cfg(test)]
    pub(super) fn at(places: Places) -> Self {
        Self { places, ..Self::default() }
    }

    /// As [`resolve_for`](Self::resolve_for), for a connection with this right. Where that is restricted, the prefix of the link's NAT64 is learnt before,
    /// so that an address behind it counts as what it translates to ([`reach`](crate::reach)).
    ///
    /// # Errors
    /// As [`resolve_for`](Self::resolve_for).
    pub async fn resolve_with(
        &self,
        right: &Right,
        host: &str,
        link: Option<&Interface>,
        timeout: Duration,
    ) -> Result<Answer, NoAddress> {
        let answer = self.resolve_for(right.host(), host, link, timeout).await?;
        let may_be_translated = |address: &IpAddr| Zone::of(*address) == Zone::Internet && address.is_ipv6();
        if let Some(link) = link.filter(|link| link.has_v6())
            && right.is_restricted()
            && answer.addresses.iter().any(may_be_translated)
        {
            // A link whose servers are silent has no NAT64 that anybody could use.
            let _ = tokio::time::timeout(timeout, self.prefix(right.host(), link)).await;
        }
        Ok(answer)
    }

    /// The addresses of `host` as seen from `link`; from the machine as a whole where there is none. IPv6 literals
    /// may wear brackets. `asker`: another host that asks, which then holds up nobody else.
    ///
    /// # Errors
    /// When the name has no address that the link can reach, or no server answers in time.
    pub async fn resolve_for(
        &self,
        asker: Option<IpAddr>,
        host: &str,
        link: Option<&Interface>,
        timeout: Duration,
    ) -> Result<Answer, NoAddress> {
        let deadline = Instant::now() + timeout;
        let slow = || silence(format!("{host}: no answer within {} s", timeout.as_secs_f64()));
        if let Some(address) = literal(host)? {
            let found = timeout_at(deadline, self.reachable(asker, vec![address], link)).await;
            return some(found.map_err(|_| slow())?, Source::Literal, host);
        }
        if host.len() > LONGEST_NAME {
            return Err(denial("a name of more than 253 letters is none".to_owned()));
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        let key = (name.clone(), link.map_or(0, |link| link.index));
        if let Some((until, answer)) = self.known().get(&key)
            && Instant::now() < *until
        {
            return Ok(answer.clone());
        }
        let (answer, lasts) =
            timeout_at(deadline, self.look_up(asker, &name, link)).await.unwrap_or_else(|_| Err(slow()))?;
        let answer = self.steady(&name, answer)?;
        let mut known = self.known();
        known.retain(|_, (until, _)| Instant::now() < *until);
        if answer.addresses.iter().any(|address| Zone::of(*address) == Zone::Internet) {
            // What another link has answered before may be local, and is judged again.
            known.retain(|(of, _), _| *of != name);
        }
        if known.len() >= MOST {
            let soonest = known.iter().min_by_key(|(_, (until, _))| *until).map(|(key, _)| key.clone());
            soonest.map(|soonest| known.remove(&soonest));
        }
        known.insert(key, (Instant::now() + lasts, answer.clone()));
        Ok(answer)
    }

    /// The answer without addresses that the name cannot mean ([`Names`]).
    fn steady(&self, name: &str, mut answer: Answer) -> Result<Answer, NoAddress> {
        if answer.source == Source::Hosts {
            return Ok(answer);
        }
        let mut names = self.names.lock().unwrap_or_else(PoisonError::into_inner);
        let told = answer.addresses.clone();
        answer.addresses = names.steady(Instant::now(), name, answer.addresses, Zone::of);
        match (told.first(), answer.addresses.is_empty()) {
            (Some(address), true) => Err(denial(format!(
                "{name} leads to {address} now, {}, and led to the Internet before: refused (DNS rebinding)",
                Zone::of(*address).name()
            ))),
            _ => Ok(answer),
        }
    }

    /// Forgets all answers: to be called when links may have changed.
    pub fn forget(&self) {
        self.known().clear();
        self.prefixes().clear();
    }

    /// Forgets where names have led as well: to be called when a link has come or gone, and with it a network.
    pub fn forget_networks(&self) {
        self.forget();
        self.names.lock().unwrap_or_else(PoisonError::into_inner).forget();
    }

    fn known(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, u32), (Instant, Answer)>> {
        // The map is whole whoever panicked: nothing that can panic runs under the lock.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn prefixes(&self) -> std::sync::MutexGuard<'_, BTreeMap<u32, (Instant, Option<Prefix>)>> {
        // As `known`.
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The answer and how long it lasts.
    async fn look_up(
        &self,
        asker: Option<IpAddr>,
        name: &str,
        link: Option<&Interface>,
    ) -> Result<(Answer, Duration), NoAddress> {
        let local = hosts::localhost(name).unwrap_or_else(|| hosts::lookup(&self.places.read("etc/hosts"), name));
        if !local.is_empty() {
            let addresses = self.reachable(asker, local, link).await;
            return some(addresses, Source::Hosts, name).map(|answer| (answer, SHORTEST));
        }
        let Some(link) = link else { return self.ask_system(asker, name, None).await };
        let families = families(link);
        let mut why = None;
        if is_global(name) {
            for (namer, server) in self.servers(asker, link).await {
                match self.ask(namer, server, name, link, &families).await {
                    Ok(answer) => return Ok(answer),
                    Err(Nothing::Denied(text)) => {
                        if let Some(answer) = self.ask_translated(asker, (namer, server), name, link).await {
                            return Ok(answer);
                        }
                        why = Some(denial(text));
                        break;
                    }
                    Err(Nothing::Failed(text)) => why = Some(silence(text)),
                }
            }
        }
        let answer = self.ask_system(asker, name, Some(link)).await;
        // What the link's own servers said tells more than the system's "no".
        answer.map_err(|system| why.unwrap_or(system))
    }

    async fn ask(
        &self,
        namer: Namer,
        server: SocketAddr,
        name: &str,
        link: &Interface,
        families: &[Family],
    ) -> Result<(Answer, Duration), Nothing> {
        let found = ask(server, Some(&link.name), name, families).await.inspect_err(|why| {
            tracing::debug!(link = %link.name, %server, name, ?why, "a DNS server of the link gives no address");
        })?;
        let answer = Answer { addresses: sorted(found.addresses, link), source: namer.source(server, &link.name) };
        Ok((answer, found.ttl.clamp(SHORTEST, LONGEST)))
    }
}

/// Addresses of IPv4 over links that have only IPv6.
impl Resolver {
    /// Those that the link can reach by their family; this machine itself always. If there are none, those of the link's
    /// NAT64.
    async fn reachable(
        &self,
        asker: Option<IpAddr>,
        addresses: Vec<IpAddr>,
        link: Option<&Interface>,
    ) -> Vec<IpAddr> {
        let Some(link) = link else { return addresses };
        let is_of_link = |a: &IpAddr| a.is_loopback() || if a.is_ipv4() { link.has_v4() } else { link.has_v6() };
        let own: Vec<IpAddr> = addresses.iter().copied().filter(is_of_link).collect();
        if own.is_empty() { self.translated(asker, addresses, link).await } else { own }
    }

    /// IPv4 addresses as the link's NAT64 serves them; nothing if the link has IPv4 itself, or no NAT64.
    async fn translated(&self, asker: Option<IpAddr>, addresses: Vec<IpAddr>, link: &Interface) -> Vec<IpAddr> {
        if !lacks_v4(link) || !addresses.iter().any(IpAddr::is_ipv4) {
            return Vec::new();
        }
        let Some(prefix) = self.prefix(asker, link).await else { return Vec::new() };
        let six = |address| match address {
            IpAddr::V4(four) => prefix.translate(four).map(IpAddr::V6),
            IpAddr::V6(_) => None,
        };
        addresses.into_iter().filter_map(six).collect()
    }

    /// The prefix of the link's NAT64 (RFC 7050), from the link's servers; from the system's resolver if it has none.
    async fn prefix(&self, asker: Option<IpAddr>, link: &Interface) -> Option<Prefix> {
        if let Some((until, prefix)) = self.prefixes().get(&link.index)
            && Instant::now() < *until
        {
            return *prefix;
        }
        let mut prefix = None;
        let servers = self.servers(asker, link).await;
        for (_, server) in &servers {
            match ask(*server, Some(&link.name), nat64::KNOWN_NAME, &[Family::V6]).await {
                Ok(found) => prefix = Prefix::of(&found.addresses),
                Err(Nothing::Failed(_)) => continue,
                Err(Nothing::Denied(_)) => {}
            }
            break;
        }
        if servers.is_empty() {
            let found = self.of_system(asker, nat64::KNOWN_NAME).await;
            prefix = found.ok().and_then(|addresses| Prefix::of(&addresses));
        }
        tracing::debug!(link = %link.name, ?prefix, "looked for a NAT64");
        if let Some(prefix) = prefix {
            prefix.learn();
        }
        self.prefixes().insert(link.index, (Instant::now() + LONGEST, prefix));
        prefix
    }

    /// The IPv4 addresses of a name that has no others, as the link's NAT64 serves them.
    async fn ask_translated(
        &self,
        asker: Option<IpAddr>,
        (namer, server): (Namer, SocketAddr),
        name: &str,
        link: &Interface,
    ) -> Option<(Answer, Duration)> {
        if !lacks_v4(link) || self.prefix(asker, link).await.is_none() {
            return None;
        }
        let found = ask(server, Some(&link.name), name, &[Family::V4]).await.ok()?;
        let addresses = self.translated(asker, found.addresses, link).await;
        let answer = some(addresses, namer.source(server, &link.name), name).ok()?;
        Some((answer, found.ttl.clamp(SHORTEST, LONGEST)))
    }
}

impl Resolver {
    /// Whether the link's own name servers give names over it; none: no server of the link is known. They are asked for a name that all
    /// servers know.
    pub async fn gives_names(&self, link: &Interface) -> Option<bool> {
        let servers = self.servers(None, link).await;
        for (_, server) in servers.iter().take(MOST_ASKED) {
            match ask(*server, Some(&link.name), nat64::KNOWN_NAME, &[Family::V4]).await {
                Ok(_) | Err(Nothing::Denied(_)) => return Some(true),
                Err(Nothing::Failed(_)) => {}
            }
        }
        (!servers.is_empty()).then_some(false)
    }

    /// What the servers that can be asked over the link give for a name, whatever it is: neither the system's resolver nor where the name has
    /// led before counts. None: they give nothing. For requests that trust no answer.
    pub async fn given_over(&self, name: &str, link: &Interface) -> Option<Answer> {
        let families = families(link);
        for (namer, server) in self.servers(None, link).await.into_iter().take(MOST_ASKED) {
            match self.ask(namer, server, name, link, &families).await {
                Ok((answer, _)) => return Some(answer),
                Err(Nothing::Denied(_)) => break,
                Err(Nothing::Failed(_)) => {}
            }
        }
        None
    }

    /// Whether a service of this machine names servers of this link, and not `/etc/resolv.conf` alone.
    pub async fn has_own_servers(&self, link: &Interface) -> bool {
        self.servers(None, link).await.first().is_some_and(|(namer, _)| *namer != Namer::ResolvConf)
    }

    /// The servers that can be asked over the link.
    async fn servers(&self, asker: Option<IpAddr>, link: &Interface) -> Vec<(Namer, SocketAddr)> {
        let (places, of) = (self.places.clone(), link.clone());
        let found = self.configuration.run(asker, move || servers(&places, &of)).await.flatten();
        found.into_iter().flat_map(|(namer, all)| all.into_iter().map(move |server| (namer, server))).collect()
    }

    /// The system's own resolver, and those of its addresses that the link can reach.
    async fn ask_system(
        &self,
        asker: Option<IpAddr>,
        name: &str,
        link: Option<&Interface>,
    ) -> Result<(Answer, Duration), NoAddress> {
        let mut addresses = self.reachable(asker, self.of_system(asker, name).await?, link).await;
        if let Some(link) = link {
            addresses = sorted(addresses, link);
        }
        some(addresses, Source::System, name).map(|answer| (answer, SYSTEM))
    }

    /// All addresses that the system's own resolver has for a name.
    async fn of_system(&self, asker: Option<IpAddr>, name: &str) -> Result<Vec<IpAddr>, NoAddress> {
        let asked = name.to_owned();
        let look_up = move || Ok((asked.as_str(), 0).to_socket_addrs()?.map(|a| a.ip()).collect());
        let found = self.system.run(asker, look_up).await;
        let no_answer = || std::io::Error::other("no answer");
        found.unwrap_or_else(|| Err(no_answer())).map_err(|error| of_system(name, &error))
    }
}

/// The host as an address, if it is one.
fn literal(host: &str) -> Result<Option<IpAddr>, NoAddress> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if bare.contains('%') {
        return Err(denial(format!("{host}: an address with a zone is refused; the link decides the interface")));
    }
    Ok(bare.parse::<IpAddr>().ok().map(|address| address.to_canonical()))
}

/// Those that the link has.
fn families(link: &Interface) -> Vec<Family> {
    let all = [(link.has_v4(), Family::V4), (link.has_v6(), Family::V6)];
    all.into_iter().filter(|(has, _)| *has).map(|(_, family)| family).collect()
}

fn lacks_v4(link: &Interface) -> bool {
    link.has_v6() && !link.has_v4()
}

/// Whether name servers of the Internet can know the name: single words belong to search domains, `.local` to mDNS
/// (RFC 6762 §3).
fn is_global(name: &str) -> bool {
    name.contains('.') && !name.ends_with(".local")
}

/// The two families in turn, the better one first (RFC 8305 §4), without doubles.
fn sorted(addresses: Vec<IpAddr>, link: &Interface) -> Vec<IpAddr> {
    let (six, four): (Vec<IpAddr>, Vec<IpAddr>) = addresses.into_iter().partition(IpAddr::is_ipv6);
    let (mut first, mut second) = if link.has_public_v6() { (six, four) } else { (four, six) };
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

fn some(addresses: Vec<IpAddr>, source: Source, name: &str) -> Result<Answer, NoAddress> {
    if addresses.is_empty() {
        return Err(denial(format!("{name} has no address that this link can use")));
    }
    Ok(Answer { addresses, source })
}

/// What the system's resolver means. std gives its words only, which are never translated here: nobody has set a
/// locale (`gai_strerror` of glibc for EAI_NONAME and EAI_NODATA, then of musl).
fn of_system(name: &str, error: &std::io::Error) -> NoAddress {
    let words = error.to_string();
    let noes = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "Name has no usable address",
    ];
    if noes.iter().any(|no| words.ends_with(no)) {
        return denial(format!("{name}: no such name, says the system's resolver"));
    }
    let plain = words.strip_prefix("failed to lookup address information: ").unwrap_or(&words);
    silence(format!("{name}: {plain}"))
}

fn denial(text: String) -> NoAddress {
    NoAddress { text, denied: true }
}

fn silence(text: String) -> NoAddress {
    NoAddress { text, denied: false }
}
