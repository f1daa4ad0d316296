//! `marline fleet run`: from words to a service that matches edges with relays until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens.
//! 2. A service without a certificate of its own makes one for itself, whose key is nowhere but in memory, and a new one before
//!    that ends.
//! 3. A store that is shared may be away: the service begins without it, and says so. A file of its own must be there.
//! 4. A password is in a file or in the environment, and nowhere else. One that was written elsewhere is not repeated.
//! 5. SIGTERM and SIGINT end it: what is asked is answered, no more is accepted. No stream depends on it.
//! 6. SIGHUP has certificate, key, revocation list and the store's password and authority read again.
//! 7. What is said goes to standard error, one line each.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use marline_core::units::Ratio;
use marline_fleet::ca::{Address, Authority, CertTemplate, UtcSeconds};
use marline_fleet::identity::{Identity, Name, Role};
use marline_fleet::relay::{TrustError, TrustStore};
use marline_fleet::reload::{ReloadRequests, Reloader};
use marline_fleet::renew::{MemberCert, run_renewal, warn_without_crl};
use marline_fleet::service::api_types::Endpoint;
use marline_fleet::service::scheduler::SchedulerConfig;
use marline_fleet::service::store::{EmbeddedStore, RedisNodes, RedisSecrets, RedisStore, Store, StoreUrl};
use marline_fleet::service::{ApiListener, Coordinator, Limits};
use marline_fleet::tls::{ClientAuth, Credentials};
use marline_net::private_file::read_secret;
use tokio::signal::unix::{SignalKind, signal};

use super::ca;
use super::operator::new_runtime;
use crate::args::parse_positive_duration;
use crate::credentials::{CertificateArgs, Member};
use crate::output::say;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;
use crate::{CliError, Secret};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init && marline fleet run --listen 0.0.0.0:4444 --address fleet.example.org
  marline fleet ca issue operator ann
  marline fleet status --fleet https://fleet.example.org:4444 --certificate ann.pem

  marline fleet run --listen 0.0.0.0:4444 --address f2.example.org --store redis://10.0.0.1:6379 --store-password-file pw

Without --certificate the service makes a certificate for itself, and renews it.

Relays and edges announce themselves, again after a restart as well: only what operators said, tokens that were spent and a few
numbers are in the store. Processes that share Redis answer alike, and one of them matches; the password may also stand in
MARLINE_STORE_PASSWORD. docs/fleet.md tells how edges are matched, docs/fleet-api.json describes the API (OpenAPI).

Exit codes: 0 stopped, 1 failed, 64 wrong usage, 77 not permitted.";

/// Words of `marline fleet run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Listen here; may be given several times.
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// The authority's directory [default: /etc/marline/ca for root, otherwise ~/.config/marline/ca].
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<PathBuf>,
    #[command(flatten)]
    certificate: CertificateArgs,
    /// Where the service is reached, for the certificate that it makes: a DNS name or an IP address, without a port; repeat for
    /// more [default: the addresses that it listens on].
    #[arg(long, value_name = "HOST", conflicts_with = "certificate")]
    address: Vec<Address>,
    /// What it is called in that certificate.
    #[arg(long, value_name = "NAME", default_value = "fleet", conflicts_with = "certificate")]
    name: Name,
    /// What has to outlast it: a file, or Redis (7 or newer) for several processes, as redis://HOST:PORT, rediss:// for TLS;
    /// several nodes with commas between them are a cluster [default: fleet.redb in the authority's directory].
    #[arg(long, value_name = "FILE|URL")]
    store: Option<Secret>,
    /// The password of Redis, the first line of this file.
    #[arg(long, value_name = "FILE", requires = "store")]
    store_password_file: Option<PathBuf>,
    /// The authority of Redis's certificate, for rediss:// [default: the system's].
    #[arg(long, value_name = "FILE", requires = "store")]
    store_ca_file: Option<PathBuf>,
    /// Whose relays and edges these are: processes with the same store and region answer for the same ones.
    #[arg(long, value_name = "NAME", default_value = "default")]
    region: Name,
    /// Where the other processes reach this one [default: the first --address or --listen, with the port it listens on].
    #[arg(long, value_name = "HOST:PORT", requires = "store")]
    peer: Option<Endpoint>,
    /// How long requests are gathered before they are matched.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_positive_duration)]
    batch_window: Duration,
    /// The share of each relay that is left for bursts.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    burst_headroom: Ratio,
    /// How often all edges are matched anew.
    #[arg(long, value_name = "TIME", default_value = "30min", value_parser = parse_positive_duration)]
    reallocation_interval: Duration,
}

/// chosen: a month, and a new one with a third of it left.
const CERT_LIFETIME: Duration = Duration::from_secs(30 * 86_400);
const CERT_RENEWAL_AGE: Duration = Duration::from_secs(20 * 86_400);
/// chosen: a clock that was set at the start of a machine makes nobody wait for longer.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// chosen: a request that waits for its window has its answer.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves until stopped.
pub(super) fn run(args: RunArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Fleet);
    let descriptors = marline_net::rlimit::raise_nofile_limit();
    let args = Arc::new(args);
    let config = coordinator_config(&args)?;
    let dir = ca::path(args.ca_dir.clone(), "--ca")?;
    let store_url = parse_store_url(&args, &dir)?;
    let is_shared = matches!(store_url, StoreUrl::Redis(_));
    // Without the authority's key the service signs nothing, and needs a certificate that was issued elsewhere.
    let authority = Authority::open_read_only(&dir).map_err(ca::to_cli_error)?;
    if !authority.can_sign() {
        if !args.certificate.is_given() {
            return Authority::open(&dir).map(drop).map_err(ca::to_cli_error);
        }
        say("the authority's key is not here: certificates are neither issued nor renewed by this service");
    }
    let cli_error = |error: &dyn std::fmt::Display| CliError::failed(error.to_string());
    let identity_source = IdentitySource::from_args(&args, &authority)?;
    let mut roles = vec![Role::Edge, Role::Relay, Role::Operator];
    if is_shared {
        // The processes that share it ask each other.
        roles.push(Role::Fleet);
    }
    let clients = ClientAuth { roles, allow_unauthenticated: true };
    if is_shared {
        // Whatever the port will be.
        peer_endpoint(&args, 1)?;
    }
    let store = open_store(&args, store_url)?;
    check_listen_addrs(&args.listen)?;
    // Last of all: each one is a line that stays, and who is started again and again must not fill the list with them.
    let (credentials, member_cert) = identity_source.credentials(&authority)?;
    let peer = credentials.peer().map_err(|error| cli_error(&error))?;
    let trust = TrustStore::with_clients(credentials.clone(), &authority.crl_path(), clients)
        .map_err(|error| cli_error(&error))?;
    let coordinator = Coordinator::open(config, &peer.identity.name, store, authority, trust.subscribe());
    let coordinator = coordinator.map_err(|error| cli_error(&error))?;
    new_runtime()?.block_on(async {
        let listen_for = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
        let (mut term, mut int) = (listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?);
        let (mut reload_signal, reloader) = (ReloadSignal::register()?, Reloader::new());
        let limits = Limits::default().fit_descriptors(descriptors);
        let listener = ApiListener::open(Arc::clone(&coordinator), &args.listen, limits).await;
        let listener = listener.map_err(|error| cli_error(&error))?;
        let listens: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
        if let Some(port) = listener.addresses().first().map(SocketAddr::port).filter(|_| is_shared) {
            coordinator.set_address(&peer_endpoint(&args, port)?);
        }
        say(&format!("{} listens on {}", peer.identity, listens.join(", ")));
        let stop_requested = async {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        };
        let outcome = tokio::select! {
            () = listener.serve(stop_requested, SHUTDOWN_TIMEOUT) => Ok(()),
            never = coordinator.run() => match never {},
            never = trust.run() => match never {},
            () = report_store_errors(&coordinator) => Ok(()),
            () = renew_own_certificate(&trust, &args, &dir), if !args.certificate.is_given() => Ok(()),
            never = keep_credentials_fresh(&trust, member_cert, credentials, &dir, reloader.subscribe()) => match never {},
            never = async {
                loop {
                    reload_signal.recv().await;
                    reloader.request();
                    reload_store_secrets(&coordinator, &args).await;
                }
            } => match never {},
        };
        coordinator.resign().await;
        outcome
    })
}

/// Rule 4: the library that reads words would repeat them.
fn parse_store_url(args: &RunArgs, dir: &Path) -> Result<StoreUrl, CliError> {
    let Some(store) = &args.store else { return Ok(StoreUrl::File(dir.join("fleet.redb"))) };
    store.expose().parse().map_err(|error| CliError::usage(format!("--store: {error}")))
}

fn open_store(args: &RunArgs, store_url: StoreUrl) -> Result<Box<dyn Store>, CliError> {
    let cli_error = |error: &dyn std::fmt::Display| CliError::failed(error.to_string());
    match store_url {
        StoreUrl::File(_)
            if args.store_password_file.is_some() || args.store_ca_file.is_some() || args.peer.is_some() =>
        {
            Err(CliError::usage(
                "--store-password-file, --store-ca-file and --peer are for a store of several: redis://HOST:PORT",
            ))
        }
        StoreUrl::File(path) => Ok(Box::new(EmbeddedStore::open(&path).map_err(|error| cli_error(&error))?)),
        StoreUrl::Redis(nodes) => {
            let secrets = store_secrets(args, &nodes)?;
            let store = RedisStore::new(nodes, args.region.clone(), secrets).map_err(|error| cli_error(&error))?;
            Ok(Box::new(store))
        }
    }
}

/// Rule 4.
fn store_secrets(args: &RunArgs, nodes: &RedisNodes) -> Result<RedisSecrets, CliError> {
    let read_file =
        |path: &Path| std::fs::read(path).map_err(|error| CliError::usage(format!("{}: {error}", path.display())));
    let password = match &args.store_password_file {
        Some(path) => {
            let bytes =
                read_secret(path).map_err(|error| CliError::usage(format!("--store-password-file {error}")))?;
            let text = String::from_utf8(bytes)
                .map_err(|_| CliError::usage(format!("{}: no text, and so no password", path.display())))?;
            let line = text.lines().next().unwrap_or_default().to_owned();
            if line.is_empty() {
                return Err(CliError::usage(format!(
                    "{}: its first line is empty, and no password",
                    path.display()
                )));
            }
            Some(line)
        }
        None => std::env::var("MARLINE_STORE_PASSWORD").ok().filter(|text| !text.is_empty()),
    };
    if args.store_ca_file.is_some() && !nodes.tls {
        return Err(CliError::usage(format!("--store-ca: {nodes} is not asked by TLS; write rediss://")));
    }
    let authority = args.store_ca_file.as_deref().map(read_file).transpose()?;
    Ok(RedisSecrets { password, authority })
}

/// Where other processes reach this one.
fn peer_endpoint(args: &RunArgs, port: u16) -> Result<Endpoint, CliError> {
    if let Some(peer) = &args.peer {
        return Ok(peer.clone());
    }
    let given_host = args.address.first().map(ToString::to_string);
    let specific_ip = |address: &SocketAddr| Some(address.ip()).filter(|ip| !ip.is_unspecified());
    let host = given_host.or_else(|| args.listen.first().and_then(specific_ip).map(|ip| ip.to_string()));
    let no_address_text =
        "it listens on all addresses: say by --peer or --address where the other processes reach this one";
    let host = host.ok_or_else(|| CliError::usage(no_address_text))?;
    let text = if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    text.parse().map_err(CliError::usage)
}

fn coordinator_config(args: &RunArgs) -> Result<SchedulerConfig, CliError> {
    if args.burst_headroom >= Ratio::ONE {
        return Err(CliError::usage(format!(
            "--burst-headroom {}: less than 100% leaves something for edges",
            args.burst_headroom
        )));
    }
    // A request waits for two seconds (docs/fleet.md).
    if args.batch_window > Duration::from_secs(1) {
        return Err(CliError::usage("--window: a second at most, for edges wait for it"));
    }
    let SchedulerConfig { heartbeat, lease, .. } = SchedulerConfig::default();
    if args.reallocation_interval < lease {
        return Err(CliError::usage(format!(
            "--reallocate: not more often than each {lease:?}; heartbeats come each {heartbeat:?}"
        )));
    }
    Ok(SchedulerConfig {
        window: args.batch_window,
        threshold: args.burst_headroom,
        reallocation_interval: args.reallocation_interval,
        ..SchedulerConfig::default()
    })
}

/// Whether somebody listens there already.
fn check_listen_addrs(listen: &[SocketAddr]) -> Result<(), CliError> {
    for address in listen {
        let bound = std::net::TcpListener::bind(address);
        drop(bound.map_err(|error| CliError::failed(format!("listen on {address}: {error}")))?);
    }
    Ok(())
}

/// What it shows to others.
enum IdentitySource {
    /// What was named.
    Named(Box<Member>),
    /// What it makes for itself.
    SelfIssued(CertTemplate),
}

impl IdentitySource {
    fn from_args(args: &RunArgs, authority: &Authority) -> Result<Self, CliError> {
        match args.certificate.read_member(authority_bundle(authority), Role::Fleet)? {
            Some(member) => Ok(Self::Named(Box::new(member))),
            None => own_template(args).map(Self::SelfIssued),
        }
    }

    /// With where they stand, if they were named.
    fn credentials(self, authority: &Authority) -> Result<(Credentials, Option<MemberCert>), CliError> {
        match self {
            Self::Named(member) => Ok((member.credentials, Some(member.renewable))),
            Self::SelfIssued(grant) => Ok((issue_credentials(&grant, authority)?, None)),
        }
    }
}

/// The certificates of the authority, first in the file, and of others that are trusted while it is replaced.
fn authority_bundle(authority: &Authority) -> PathBuf {
    authority.crl_path().with_file_name("ca.pem")
}

fn own_template(args: &RunArgs) -> Result<CertTemplate, CliError> {
    let mut addresses = args.address.clone();
    if addresses.is_empty() {
        let specific_ip = |address: &SocketAddr| Some(address.ip()).filter(|ip: &IpAddr| !ip.is_unspecified());
        let hosts = args.listen.iter().filter_map(specific_ip).map(|ip| ip.to_string());
        addresses = hosts.map(|text| text.parse()).collect::<Result<_, String>>().map_err(CliError::usage)?;
        addresses.dedup();
    }
    if addresses.is_empty() {
        return Err(CliError::usage(
            "it listens on all addresses: say by --address where it is reached, for its certificate",
        ));
    }
    let identity = Identity { role: Role::Fleet, name: args.name.clone() };
    CertTemplate::new(identity, addresses, CERT_LIFETIME).map_err(|error| CliError::usage(error.to_string()))
}

fn issue_credentials(grant: &CertTemplate, authority: &Authority) -> Result<Credentials, CliError> {
    let (chain, key) = authority.issue_with_key(grant, UtcSeconds::now()).map_err(ca::to_cli_error)?;
    let credentials = Credentials::new(chain.certificate, &key, chain.issuer);
    let credentials = credentials.and_then(|own| own.with_bundle(&authority_bundle(authority)));
    credentials.map_err(|error| CliError::failed(error.to_string()))
}

/// Whether a certificate that was made then is to be made anew: it is old, or the calendar has gone back behind it, as it does where
/// it is set after the start. Others might not take it yet, or no longer.
fn is_renewal_due(issued_at: UtcSeconds, now: UtcSeconds) -> bool {
    now < issued_at || now >= issued_at.saturating_add(CERT_RENEWAL_AGE)
}

/// Rule 2.
async fn renew_own_certificate(trust: &TrustStore, args: &Arc<RunArgs>, dir: &Path) {
    let (mut issued_at, mut last_error) = (UtcSeconds::now(), String::new());
    loop {
        tokio::time::sleep(RENEWAL_CHECK_INTERVAL).await;
        let now = UtcSeconds::now();
        if !is_renewal_due(issued_at, now) {
            continue;
        }
        let (args, dir) = (Arc::clone(args), dir.to_owned());
        // Who holds the directory's lock, or its disk, holds up this thread and not the service.
        let task = tokio::task::spawn_blocking(move || {
            let renewed = own_template(&args)
                .and_then(|grant| issue_credentials(&grant, &Authority::open(&dir).map_err(ca::to_cli_error)?));
            renewed.map_err(|exit| exit.message.unwrap_or_default())
        });
        let renewed = task.await.unwrap_or_else(|error| Err(error.to_string()));
        match renewed.and_then(|own| trust.install(own).map_err(|error| error.to_string())) {
            Ok(()) => (issued_at, last_error) = (now, String::new()),
            // Until it ends there is a third of its life for a disk to have room again.
            Err(error) if error != last_error => {
                say(&format!("its certificate cannot be renewed, which is tried again: {error}"));
                last_error = error;
            }
            Err(_) => {}
        }
    }
}

/// A certificate that was named is changed by whoever made it: another one that is put there counts, and that it ends is said.
/// On request its files and the revocation list are read again.
async fn keep_credentials_fresh(
    trust: &TrustStore,
    member_cert: Option<MemberCert>,
    credentials: Credentials,
    dir: &Path,
    mut reload_requests: ReloadRequests,
) -> Infallible {
    let Some(member_files) = member_cert else {
        let bundle = dir.join("ca.pem");
        warn_without_crl(&bundle, &credentials);
        loop {
            reload_requests.requested().await;
            let credentials = trust.credentials().with_bundle(&bundle).map_err(TrustError::from);
            match credentials.and_then(|credentials| trust.install(credentials)) {
                Ok(()) => {
                    say("SIGHUP: authorities and the revocation list are read again");
                    warn_without_crl(&bundle, &trust.credentials());
                }
                Err(error) => say(&format!("SIGHUP: {error}: what was read before stays in force")),
            }
        }
    };
    let install = |own: &Credentials| trust.install(own.clone()).map_err(|error| error.to_string());
    run_renewal(None, &member_files, credentials, reload_requests, install).await
}

/// The password and the authority of Redis, again. Files that are no good change nothing.
async fn reload_store_secrets(coordinator: &Arc<Coordinator>, args: &RunArgs) {
    let Some(Ok(StoreUrl::Redis(nodes))) = args.store.as_ref().map(|store| store.expose().parse()) else { return };
    match store_secrets(args, &nodes) {
        Ok(secrets) => coordinator.set_secrets(secrets).await,
        Err(exit) => {
            say(&format!("SIGHUP: {}: what was read before stays in force", exit.message.unwrap_or_default()))
        }
    }
}

/// Says when the store stops answering, and when it answers again.
async fn report_store_errors(coordinator: &Coordinator) {
    let mut store_error = coordinator.errors();
    // The desk lives as long as this.
    while store_error.changed().await.is_ok() {
        match &*store_error.borrow_and_update() {
            Some(error) => say(&format!("{error}; the service goes on, but what operators say may not outlast it")),
            None => say("the store answers again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_made_anew_in_time_and_when_the_clock_was_set() {
        let made: UtcSeconds = "2026-10-02T12:00:00Z".parse().unwrap();
        let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
        assert!(!is_renewal_due(made, made) && !is_renewal_due(made, made.saturating_add(day * 19)));
        assert!(is_renewal_due(made, made.saturating_add(day * 20)), "with a third of its life left");
        assert!(is_renewal_due(made, made.saturating_sub(hour)), "it would not be valid yet for others");
        // A machine that began in 1970, until somebody told it the time.
        assert!(is_renewal_due("1970-01-01T00:00:07Z".parse().unwrap(), made));
    }
}
