//! `marline fleet run`: from words to a service that matches edges with relays until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens.
//! 2. A service without a certificate of its own makes one for itself, whose key is nowhere but in memory, and a new one before
//!    that ends.
//! 3. SIGTERM and SIGINT end it: what is asked is answered, no more is accepted. No stream depends on it.
//! 4. What is said goes to standard error, one line each.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::units::Ratio;
use marline_fleet::ca::{Address, Authority, Grant, Stamp};
use marline_fleet::identity::{Identity, Name, Role};
use marline_fleet::relay::Trust;
use marline_fleet::service::machine::Config;
use marline_fleet::service::store::Embedded;
use marline_fleet::service::{Counter, Desk, Limits};
use marline_fleet::tls::{Clients, Credentials};
use tokio::signal::unix::{SignalKind, signal};

use super::ask::{credentials, runtime};
use super::ca::{self, say};
use crate::Exit;
use crate::args::positive_duration;

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init && marline fleet run --listen 0.0.0.0:4444 --address fleet.example.org
  marline fleet ca issue operator ann
  marline fleet status --fleet https://fleet.example.org:4444 --certificate ann.pem

Relays and edges announce themselves, again after a restart as well: only what operators said, tokens that were spent and a few
numbers are in the store. docs/fleet.md tells how edges are matched, docs/fleet-api.json describes the API (OpenAPI).

Exit codes: 0 stopped, 1 failed, 64 wrong usage, 77 not permitted.";

/// Words of `marline fleet run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Listen here; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// The authority's directory [default: /etc/marline/ca for root, otherwise ~/.config/marline/ca].
    #[arg(long, value_name = "DIR")]
    ca: Option<PathBuf>,
    /// This service's certificate [default: it makes one for itself].
    #[arg(long, value_name = "FILE")]
    certificate: Option<PathBuf>,
    /// Its key [default: beside the certificate, NAME.key].
    #[arg(long, value_name = "FILE", requires = "certificate")]
    key: Option<PathBuf>,
    /// Where the service is reached, for the certificate that it makes: a DNS name or an IP address, without a port; repeat for
    /// more [default: the addresses that it listens on].
    #[arg(long, value_name = "HOST", conflicts_with = "certificate")]
    address: Vec<Address>,
    /// What it is called in that certificate.
    #[arg(long, value_name = "NAME", default_value = "fleet", conflicts_with = "certificate")]
    name: Name,
    /// What has to outlast it, in one file [default: fleet.redb in the authority's directory].
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// How long requests are gathered before they are matched.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = positive_duration)]
    window: Duration,
    /// The share of each relay that is left for bursts.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    threshold: Ratio,
    /// How often all edges are matched anew.
    #[arg(long, value_name = "TIME", default_value = "30min", value_parser = positive_duration)]
    reallocate: Duration,
}

/// chosen: a month, and a new one with a third of it left.
const LIFE: Duration = Duration::from_secs(30 * 86_400);
const RENEW: Duration = Duration::from_secs(20 * 86_400);
/// chosen: a request that waits for its window has its answer.
const LONGEST_END: Duration = Duration::from_secs(5);

/// Serves until stopped.
pub(super) fn run(args: RunArgs) -> Result<(), Exit> {
    marline_net::descriptors::raise();
    let config = config(&args)?;
    let dir = ca::path(args.ca.clone(), "--ca")?;
    let authority = Authority::open(&dir).map_err(ca::exit)?;
    let own = own(&args, &authority)?;
    let failed = |error: &dyn std::fmt::Display| Exit::failed(error.to_string());
    let peer = own.peer().map_err(|error| failed(&error))?;
    if peer.identity.role != Role::Fleet {
        return Err(Exit::usage(format!(
            "the certificate is one of {}, and not of a fleet's service",
            peer.identity
        )));
    }
    let clients = Clients { roles: vec![Role::Edge, Role::Relay, Role::Operator], strangers: true };
    let trust = Trust::of(own, &authority.revocations_path(), clients).map_err(|error| failed(&error))?;
    let store = args.store.clone().unwrap_or_else(|| dir.join("fleet.redb"));
    let store = Box::new(Embedded::open(&store).map_err(|error| failed(&error))?);
    let desk = Desk::open(config, &peer.identity.name, store, authority, trust.newest());
    let desk = desk.map_err(|error| failed(&error))?;
    runtime()?.block_on(async {
        let ear = |kind| signal(kind).map_err(|error| Exit::failed(format!("signals: {error}")));
        let (mut term, mut int) = (ear(SignalKind::terminate())?, ear(SignalKind::interrupt())?);
        let counter = Counter::open(std::sync::Arc::clone(&desk), &args.listen, Limits::default()).await;
        let counter = counter.map_err(|error| failed(&error))?;
        let listens: Vec<String> = counter.addresses().iter().map(ToString::to_string).collect();
        say(&format!("{} listens on {}", peer.identity, listens.join(", ")));
        let end = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        tokio::select! {
            () = counter.attend(end, LONGEST_END) => Ok(()),
            never = desk.keep() => match never {},
            never = trust.keep() => match never {},
            () = tell(&desk) => Ok(()),
            () = renew(&trust, &args, &dir), if args.certificate.is_none() => Ok(()),
        }
    })
}

fn config(args: &RunArgs) -> Result<Config, Exit> {
    if args.threshold >= Ratio::ONE {
        return Err(Exit::usage(format!(
            "--threshold {}: less than 100% leaves something for edges",
            args.threshold
        )));
    }
    // A request waits for two seconds (docs/fleet.md).
    if args.window > Duration::from_secs(1) {
        return Err(Exit::usage("--window: a second at most, for edges wait for it"));
    }
    let Config { heartbeat, lease, .. } = Config::default();
    if args.reallocate < lease {
        return Err(Exit::usage(format!(
            "--reallocate: not more often than each {lease:?}; heartbeats come each {heartbeat:?}"
        )));
    }
    Ok(Config { window: args.window, threshold: args.threshold, reallocate: args.reallocate, ..Config::default() })
}

/// What it shows to others.
fn own(args: &RunArgs, authority: &Authority) -> Result<Credentials, Exit> {
    if let Some(certificate) = &args.certificate {
        return credentials(certificate, args.key.as_deref(), None);
    }
    let mut addresses = args.address.clone();
    if addresses.is_empty() {
        let plain = |address: &SocketAddr| Some(address.ip()).filter(|ip: &IpAddr| !ip.is_unspecified());
        let named = args.listen.iter().filter_map(plain).map(|ip| ip.to_string());
        addresses = named.map(|text| text.parse()).collect::<Result<_, String>>().map_err(Exit::usage)?;
        addresses.dedup();
    }
    if addresses.is_empty() {
        return Err(Exit::usage(
            "it listens on all addresses: say by --address where it is reached, for its certificate",
        ));
    }
    let identity = Identity { role: Role::Fleet, name: args.name.clone() };
    let grant = Grant::new(identity, addresses, LIFE).map_err(|error| Exit::usage(error.to_string()))?;
    let (chain, key) = authority.issue_with_key(&grant, Stamp::now()).map_err(ca::exit)?;
    Credentials::new(chain.certificate, &key, chain.authority).map_err(|error| Exit::failed(error.to_string()))
}

/// Rule 2.
async fn renew(trust: &Trust, args: &RunArgs, dir: &std::path::Path) {
    loop {
        tokio::time::sleep(RENEW).await;
        let renewed = Authority::open(dir).map_err(ca::exit).and_then(|authority| own(args, &authority));
        let renewed = renewed.map_err(|exit| exit.line.unwrap_or_default());
        if let Err(error) = renewed.and_then(|own| trust.renew(own).map_err(|error| error.to_string())) {
            say(&format!("its certificate cannot be renewed: {error}"));
        }
    }
}

/// Says when the store stops answering, and when it answers again.
async fn tell(desk: &Desk) {
    let mut trouble = desk.trouble();
    // The desk lives as long as this.
    while trouble.changed().await.is_ok() {
        match &*trouble.borrow_and_update() {
            Some(error) => {
                say(&format!("{error}; the service goes on, but what operators say does not outlast it"))
            }
            None => say("the store answers again"),
        }
    }
}
