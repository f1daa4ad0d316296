//! From words to what an edge is: who it is, whom it trusts, which relays it may use, what it asks the service for.
//!
//! Everything that the user wrote and the files that it names are read here, before anything listens.

use std::path::PathBuf;

use marline_fleet::ca::Fingerprint;
use marline_fleet::edge::{
    AdmissionConfig, ClientTrust, Config, LiveMatch, RelayConfig, StateFile, read_crl, relay_selector,
};
use marline_fleet::identity::{Identity, Role};
use marline_fleet::renew::MemberCert;
use marline_fleet::service::Client;
use marline_fleet::tls::Credentials;

use super::args::{Minimise, RunArgs};
use crate::Exit;
use crate::fleet::unit_state;

/// All of it.
pub(super) struct Terms {
    pub(super) identity: Identity,
    pub(super) own: Credentials,
    /// Where that stands.
    pub(super) files: MemberCert,
    pub(super) trusted: ClientTrust,
    /// The revocation list, there or not.
    pub(super) revoked: PathBuf,
    pub(super) config: Config,
    pub(super) fleet: Option<Fleet>,
    /// Where it is kept what is known, of an edge that asks no service.
    pub(super) state: Option<StateFile>,
}

/// What concerns the service.
pub(super) struct Fleet {
    pub(super) client: Client,
    pub(super) machine: relay_selector::SelectorConfig,
    pub(super) remembered: StateFile,
}

impl Terms {
    pub(super) fn of(args: &RunArgs) -> Result<Self, Exit> {
        let bad = |error: &dyn std::fmt::Display| Exit::usage(error.to_string());
        if args.fleet.is_none() && args.relay.is_empty() {
            return Err(Exit::usage("say --fleet URL, whose service chooses a relay, or --relay HOST[:PORT]"));
        }
        let member = args.files.read(Role::Edge)?;
        let identity = member.identity.clone();
        let state = || match &args.asks.state {
            Some(named) => Ok(named.clone()),
            None => Ok::<_, Exit>(state_dir()?.join(format!("edge-{}.json", identity.name))),
        };
        let revoked = match (&args.fleet, args.revoked.named()) {
            // Without a service nobody brings it.
            (None, Some(_)) => args.revoked.there(&member)?,
            (Some(_), None) if !args.revoked.place(&member).exists() => {
                // Each authority's list is a file of its own: a box that changes its fleet begins anew.
                let fingerprint = Fingerprint::of(member.own.authority()).to_string();
                state()?.with_file_name(format!("revoked-{fingerprint:.16}.pem"))
            }
            _ => args.revoked.place(&member),
        };
        let revocations = read_crl(&member.own, &revoked).map_err(|error| bad(&error))?;
        let trusted = ClientTrust::new(&member.own, revocations).map_err(|error| bad(&error))?;
        if let Some(congestion) = &args.congestion {
            congestion.check().map_err(|error| Exit::usage(format!("--congestion {error}")))?;
        }
        let direct = args.may_go_directly();
        let relays = args.relay.iter().map(|relay| named(relay)).collect::<Result<Vec<_>, _>>()?;
        let guests = AdmissionConfig {
            live_matches: [vec![LiveMatch::rtmp()], args.live.clone()].concat(),
            ..AdmissionConfig::default()
        };
        let config = Config {
            listen: args.listen.clone(),
            relays,
            spare_connections: args.warm,
            allow_direct: direct,
            congestion: args.congestion.clone(),
            lan: !args.lan.is_empty(),
            admission: guests,
            portal_probe: args.portal_probe.clone(),
            local_domains: args.local_domain.clone(),
        };
        let fleet = args.fleet.as_ref().map(|url| {
            let client = member.client(url)?;
            let state = state()?;
            let machine = relay_selector::SelectorConfig {
                origin: args.asks.origin.clone(),
                target_rate: args.asks.wanted,
                position: args.asks.position,
                prefer_near: args.minimise == Some(Minimise::Latency),
                probe_bytes: args.asks.probe_bytes,
                never_direct: !direct,
            };
            Ok::<_, Exit>(Fleet { client, machine, remembered: StateFile::new(&state) })
        });
        let fleet = fleet.transpose()?;
        let state = args.asks.state.as_ref().filter(|_| fleet.is_none()).map(|state| StateFile::new(state));
        Ok(Self { identity, own: member.own, files: member.kept, trusted, revoked, config, fleet, state })
    }
}

/// Where an edge keeps what it has learnt.
fn state_dir() -> Result<PathBuf, Exit> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(unit) = unit_state() {
        return Ok(unit);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/marline".into());
    }
    let own = set("XDG_STATE_HOME").or_else(|| set("HOME").map(|home| home.join(".local/state")));
    let own = own.ok_or_else(|| Exit::usage("there is no home directory to keep anything in: say --state FILE"))?;
    Ok(own.join("marline"))
}

/// A relay's name and its place, as `HOST[:PORT]` names them.
fn named(relay: &str) -> Result<RelayConfig, Exit> {
    let wrong = |why: &dyn std::fmt::Display| Exit::usage(format!("--relay {relay}: {why}"));
    let (host, port) = split(relay).map_err(|why| wrong(&why))?;
    let server = host.to_owned().try_into().map_err(|_| wrong(&"it is no name and no address"))?;
    let authority = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    let place = authority.parse().map_err(|why: String| wrong(&why))?;
    Ok(RelayConfig { label: host.to_owned(), server_name: server, endpoints: vec![place], member: None })
}

fn split(relay: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match relay.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => {
            (host, port.parse().map_err(|_| "after the colon stands a port")?)
        }
        _ => (relay, PORT),
    };
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// chosen: free in IANA's registry, and beside HTTPS's.
const PORT: u16 = 4443;
