//! `marline fleet run`: sets up the fleet service from its arguments and runs it until it is stopped.
//!
//! 1. All arguments and the files that they name are read before anything listens.
//! 2. Without `--certificate` the service issues a certificate for itself, whose key exists only in memory, and renews it in
//!    time.
//! 3. A shared store may be unreachable at the start: the service starts without it, with a notice. A local store file must be
//!    usable.
//! 4. The password of the store is read from a file or the environment only. If it was written into the URL by mistake, errors
//!    do not repeat it.
//! 5. SIGTERM and SIGINT stop the service: it finishes pending requests and accepts no new ones. Streams continue without it.
//! 6. SIGHUP reloads a named certificate and its key, the trusted authorities, the revocation list, and the password and authority of
//!    the store.
//! 7. Notices go to standard error, one line each.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use marline_core::fleet::scheduling::SchedulerConfig;
use marline_core::units::Ratio;
use marline_fleet::ca::{Address, Authority, CertTemplate, UtcSeconds};
use marline_fleet::identity::{Identity, Name, Role};
use marline_fleet::relay::{TrustError, TrustStore};
use marline_fleet::reload::{ReloadRequests, Reloader};
use marline_fleet::renew::{MemberCert, run_renewal, warn_without_crl};
use marline_fleet::service::api_types::Endpoint;
use marline_fleet::service::store::{EmbeddedStore, RedisNodes, RedisSecrets, RedisStore, Store, StoreUrl};
use marline_fleet::service::{ApiListener, Coordinator, Limits};
use marline_fleet::tls::{ClientAuth, Credentials};
use marline_net::http::host_and_port;
use marline_net::private_file::read_secret;
use tokio::signal::unix::{SignalKind, signal};

use super::ca;
use super::operator::new_runtime;
use crate::args::parse_positive_duration;
use crate::credentials::{CertificateArgs, Member};
use crate::output::print_notice;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;
use crate::{CliError, Secret};

pub(super) const AFTER_HELP: &str = "\
Examples:
  marline fleet ca init && marline fleet run --listen 0.0.0.0:4444 --address fleet.example.org
  marline fleet ca issue operator ann
  marline fleet status --fleet https://fleet.example.org:4444 --certificate ann.pem

  marline fleet run --listen 0.0.0.0:4444 --address f2.example.org --store redis://10.0.0.1:6379 --store-password-file pw

Without --certificate the service issues and renews a certificate for itself.

Relays and edges announce themselves, also after a restart of the service, so the store contains
only drains, used tokens and a few numbers. Several processes may share one Redis: all of them
answer requests, and one of them, the leader, assigns relays. The password of Redis can also be
set by MARLINE_STORE_PASSWORD. docs/fleet.md explains how relays are assigned, docs/fleet-api.json
describes the API (OpenAPI).

Exit codes: 0 stopped, 1 failure, 64 wrong usage, 77 not permitted.";

/// Arguments of `marline fleet run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// Listen here; repeat for more.
    #[arg(long, required = true, value_name = "ADDRESS:PORT")]
    listen: Vec<SocketAddr>,
    /// Directory of the authority [default: /etc/marline/ca for root, otherwise ~/.config/marline/ca].
    #[arg(long, value_name = "DIR")]
    ca_dir: Option<PathBuf>,
    #[command(flatten)]
    certificate: CertificateArgs,
    /// Public DNS name or IP address of the service, without a port, for the certificate that it issues for itself; repeat for
    /// more [default: the addresses of --listen].
    #[arg(long, value_name = "HOST", conflicts_with = "certificate")]
    address: Vec<Address>,
    /// Name of the service in that certificate.
    #[arg(long, value_name = "NAME", default_value = "fleet", conflicts_with = "certificate")]
    name: Name,
    /// Persistent store: a file, or a Redis URL (redis:// or rediss://) [default: fleet.redb in the authority's directory].
    ///
    /// Redis 7 or newer lets several processes of the service share the store: redis://HOST:PORT, or rediss:// for TLS.
    /// Several nodes separated by commas form a cluster.
    #[arg(long, value_name = "FILE|URL")]
    store: Option<Secret>,
    /// Read the password of Redis from the first line of FILE.
    #[arg(long, value_name = "FILE", requires = "store")]
    store_password_file: Option<PathBuf>,
    /// Certificate authority of the Redis server, for rediss:// [default: those of the system].
    #[arg(long, value_name = "FILE", requires = "store")]
    store_ca_file: Option<PathBuf>,
    /// Region of this service; processes with the same store and region manage the same relays and edges.
    #[arg(long, value_name = "NAME", default_value = "default")]
    region: Name,
    /// Address at which the other processes of the service reach this one [default: the first --address or --listen, with the
    /// port of the listener].
    #[arg(long, value_name = "HOST:PORT", requires = "store")]
    peer: Option<Endpoint>,
    /// Time during which requests are collected before relays are assigned to all of them together; at most 1 s.
    #[arg(long, value_name = "TIME", default_value = "200ms", value_parser = parse_positive_duration)]
    batch_window: Duration,
    /// Share of the capacity of each relay that is kept free for bursts; less than 100%.
    #[arg(long, value_name = "SHARE", default_value = "10%")]
    burst_headroom: Ratio,
    /// Interval at which relays are assigned again for all edges; at least 30s.
    #[arg(long, value_name = "TIME", default_value = "30min", value_parser = parse_positive_duration)]
    reallocation_interval: Duration,
}

/// Lifetime of the service's own certificate. Our choice: one month.
const CERT_LIFETIME: Duration = Duration::from_secs(30 * 86_400);
/// Age at which the own certificate is renewed: a third of the lifetime is left.
const CERT_RENEWAL_AGE: Duration = Duration::from_secs(20 * 86_400);
/// Interval of the checks whether the own certificate must be renewed. Our choice: if the clock is set after the start, peers reject the
/// certificate for at most this long.
const RENEWAL_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Longest time for pending requests at shutdown. Our choice: longer than the largest batch window.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the service until a termination signal or a fatal error.
pub(super) fn run(args: RunArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Fleet);
    let descriptors = marline_net::rlimit::raise_nofile_limit();
    let args = Arc::new(args);
    let config = coordinator_config(&args)?;
    let dir = ca::path(args.ca_dir.clone(), "--ca-dir")?;
    let store_url = parse_store_url(&args, &dir)?;
    let is_shared = matches!(store_url, StoreUrl::Redis(_));
    // Without the authority's key the service cannot sign, so it needs a certificate that was issued elsewhere.
    let authority = Authority::open_read_only(&dir).map_err(ca::to_cli_error)?;
    if !authority.can_sign() {
        if !args.certificate.is_given() {
            // Opening with the key fails, with the reason as error message.
            return Authority::open(&dir).map(drop).map_err(ca::to_cli_error);
        }
        print_notice("the key of the authority is missing: this service neither issues nor renews certificates");
    }
    let cli_error = |error: &dyn std::fmt::Display| CliError::failed(error.to_string());
    let identity_source = IdentitySource::from_args(&args, &authority)?;
    let mut roles = vec![Role::Edge, Role::Relay, Role::Operator];
    if is_shared {
        // Processes that share a store send each other requests.
        roles.push(Role::Fleet);
    }
    let clients = ClientAuth { roles, allow_unauthenticated: true };
    if is_shared {
        // Only the check counts here; the port is not known yet.
        peer_endpoint(&args, 1)?;
    }
    let store = open_store(&args, store_url)?;
    check_listen_addrs(&args.listen)?;
    // After all other checks, because each issued certificate stays in the authority's list: a service that fails at its start
    // and is restarted repeatedly must not fill the list.
    let (credentials, member_cert) = identity_source.credentials(&authority)?;
    let peer = credentials.peer().map_err(|error| cli_error(&error))?;
    let trust = TrustStore::with_clients(credentials.clone(), &authority.crl_path(), clients)
        .map_err(|error| cli_error(&error))?;
    let coordinator = Coordinator::open(config, &peer.identity.name, store, authority, trust.subscribe());
    let coordinator = coordinator.map_err(|error| cli_error(&error))?;
    new_runtime()?.block_on(async {
        let listen_for = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
        let (mut sigterm, mut int) = (listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?);
        let (mut reload_signal, reloader) = (ReloadSignal::register()?, Reloader::new());
        let limits = Limits::default().fit_descriptors(descriptors);
        let listener = ApiListener::open(Arc::clone(&coordinator), &args.listen, limits).await;
        let listener = listener.map_err(|error| cli_error(&error))?;
        let listens: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
        if let Some(port) = listener.addresses().first().map(SocketAddr::port).filter(|_| is_shared) {
            coordinator.set_address(&peer_endpoint(&args, port)?);
        }
        print_notice(&format!("{} listens on {}", peer.identity, listens.join(", ")));
        let stop_requested = async {
            tokio::select! {
                _ = sigterm.recv() => {}
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

/// Parses `--store` here and not with clap, whose errors would repeat a password in the URL.
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
                "--store-password-file, --store-ca-file and --peer need a shared store: --store redis://HOST:PORT",
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

/// Reads the password and the certificate authority of the store.
fn store_secrets(args: &RunArgs, nodes: &RedisNodes) -> Result<RedisSecrets, CliError> {
    let read_file =
        |path: &Path| std::fs::read(path).map_err(|error| CliError::usage(format!("{}: {error}", path.display())));
    let password = match &args.store_password_file {
        Some(path) => {
            let bytes =
                read_secret(path).map_err(|error| CliError::usage(format!("--store-password-file {error}")))?;
            let text = String::from_utf8(bytes)
                .map_err(|_| CliError::usage(format!("{}: not a text file with a password", path.display())))?;
            let line = text.lines().next().unwrap_or_default().to_owned();
            if line.is_empty() {
                return Err(CliError::usage(format!("{}: no password: the first line is empty", path.display())));
            }
            Some(line)
        }
        None => std::env::var("MARLINE_STORE_PASSWORD").ok().filter(|text| !text.is_empty()),
    };
    if args.store_ca_file.is_some() && !nodes.tls {
        return Err(CliError::usage(format!("--store-ca-file: {nodes} does not use TLS; write rediss://")));
    }
    let authority = args.store_ca_file.as_deref().map(read_file).transpose()?;
    Ok(RedisSecrets { password, authority })
}

/// Address at which the other processes of the service reach this one.
fn peer_endpoint(args: &RunArgs, port: u16) -> Result<Endpoint, CliError> {
    if let Some(peer) = &args.peer {
        return Ok(peer.clone());
    }
    let given_host = args.address.first().map(ToString::to_string);
    let specific_ip = |address: &SocketAddr| Some(address.ip()).filter(|ip| !ip.is_unspecified());
    let host = given_host.or_else(|| args.listen.first().and_then(specific_ip).map(|ip| ip.to_string()));
    let no_address_text =
        "--listen is a wildcard address: set the address for the other processes with --peer or --address";
    let host = host.ok_or_else(|| CliError::usage(no_address_text))?;
    host_and_port(&host, port).parse().map_err(CliError::usage)
}

fn coordinator_config(args: &RunArgs) -> Result<SchedulerConfig, CliError> {
    if args.burst_headroom >= Ratio::ONE {
        return Err(CliError::usage(format!(
            "--burst-headroom {}: must be less than 100%, or no capacity is left for edges",
            args.burst_headroom
        )));
    }
    // The service responds `pending` after two seconds without a decision (docs/fleet.md).
    if args.batch_window > Duration::from_secs(1) {
        return Err(CliError::usage("--batch-window: must be at most 1s, since requests of edges wait for it"));
    }
    let SchedulerConfig { heartbeat, lease, .. } = SchedulerConfig::default();
    if args.reallocation_interval < lease {
        return Err(CliError::usage(format!(
            "--reallocation-interval: must be at least {lease:?}, since heartbeats arrive every {heartbeat:?}"
        )));
    }
    Ok(SchedulerConfig {
        window: args.batch_window,
        threshold: args.burst_headroom,
        reallocation_interval: args.reallocation_interval,
        ..SchedulerConfig::default()
    })
}

/// Fails if an address cannot be bound, for example because another process listens there.
fn check_listen_addrs(listen: &[SocketAddr]) -> Result<(), CliError> {
    for address in listen {
        let bound = std::net::TcpListener::bind(address);
        drop(bound.map_err(|error| CliError::failed(format!("listen on {address}: {error}")))?);
    }
    Ok(())
}

/// Source of the service's certificate.
enum IdentitySource {
    /// The certificate named by `--certificate`.
    Named(Box<Member>),
    /// A certificate that the service issues for itself.
    SelfIssued(CertTemplate),
}

impl IdentitySource {
    fn from_args(args: &RunArgs, authority: &Authority) -> Result<Self, CliError> {
        match args.certificate.read_member(authority_bundle(authority), Role::Fleet)? {
            Some(member) => Ok(Self::Named(Box::new(member))),
            None => own_template(args).map(Self::SelfIssued),
        }
    }

    /// The credentials, with their files if they were named.
    fn credentials(self, authority: &Authority) -> Result<(Credentials, Option<MemberCert>), CliError> {
        match self {
            Self::Named(member) => Ok((member.credentials, Some(member.member_cert))),
            Self::SelfIssued(template) => Ok((issue_credentials(&template, authority)?, None)),
        }
    }
}

/// File with the certificate of the authority, followed by those of others that are trusted while the authority is replaced.
fn authority_bundle(authority: &Authority) -> PathBuf {
    authority.crl_path().with_file_name("ca.pem")
}

/// Template of the certificate that the service issues for itself.
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
            "--listen is a wildcard address: set the public address for the certificate with --address",
        ));
    }
    let identity = Identity { role: Role::Fleet, name: args.name.clone() };
    CertTemplate::new(identity, addresses, CERT_LIFETIME).map_err(|error| CliError::usage(error.to_string()))
}

fn issue_credentials(template: &CertTemplate, authority: &Authority) -> Result<Credentials, CliError> {
    let (chain, key) = authority.issue_with_key(template, UtcSeconds::now()).map_err(ca::to_cli_error)?;
    let credentials = Credentials::new(chain.certificate, &key, chain.issuer);
    let credentials = credentials.and_then(|credentials| credentials.with_bundle(&authority_bundle(authority)));
    credentials.map_err(|error| CliError::failed(error.to_string()))
}

/// Whether the own certificate must be renewed: it is old, or the clock is now before the time of issue because it was set
/// after the start. In the second case peers would reject the certificate as not valid yet.
fn is_renewal_due(issued_at: UtcSeconds, now: UtcSeconds) -> bool {
    now < issued_at || now >= issued_at.saturating_add(CERT_RENEWAL_AGE)
}

/// Renews the certificate that the service has issued for itself.
async fn renew_own_certificate(trust: &TrustStore, args: &Arc<RunArgs>, dir: &Path) {
    let (mut issued_at, mut last_error) = (UtcSeconds::now(), String::new());
    loop {
        tokio::time::sleep(RENEWAL_CHECK_INTERVAL).await;
        let now = UtcSeconds::now();
        if !is_renewal_due(issued_at, now) {
            continue;
        }
        let (args, dir) = (Arc::clone(args), dir.to_owned());
        // In a blocking thread: waiting for the directory's lock or a slow disk must not block the service.
        let task = tokio::task::spawn_blocking(move || {
            let renewed = own_template(&args)
                .and_then(|grant| issue_credentials(&grant, &Authority::open(&dir).map_err(ca::to_cli_error)?));
            renewed.map_err(|exit| exit.message.unwrap_or_default())
        });
        let renewed = task.await.unwrap_or_else(|error| Err(error.to_string()));
        match renewed.and_then(|credentials| trust.install(credentials).map_err(|error| error.to_string())) {
            Ok(()) => (issued_at, last_error) = (now, String::new()),
            // A third of the lifetime is left for retries, for example until a full disk has space again.
            Err(error) if error != last_error => {
                print_notice(&format!("the certificate of the service cannot be renewed, retrying: {error}"));
                last_error = error;
            }
            Err(_) => {}
        }
    }
}

/// Keeps the credentials up to date. A named certificate is renewed outside of this process: a new file is loaded, and its
/// approaching expiry is reported. On SIGHUP its files, or else the authorities, and the revocation list are reloaded.
async fn keep_credentials_fresh(
    trust: &TrustStore,
    member_cert: Option<MemberCert>,
    credentials: Credentials,
    dir: &Path,
    mut reload_requests: ReloadRequests,
) -> Infallible {
    let Some(member_cert) = member_cert else {
        let bundle = dir.join("ca.pem");
        warn_without_crl(&bundle, &credentials);
        loop {
            reload_requests.requested().await;
            let credentials = trust.credentials().with_bundle(&bundle).map_err(TrustError::from);
            match credentials.and_then(|credentials| trust.install(credentials)) {
                Ok(()) => {
                    print_notice("SIGHUP: authorities and revocation list reloaded");
                    warn_without_crl(&bundle, &trust.credentials());
                }
                Err(error) => print_notice(&format!(
                    "SIGHUP: {error}: the previous authorities and revocation list stay in use"
                )),
            }
        }
    };
    let install = |credentials: &Credentials| trust.install(credentials.clone()).map_err(|error| error.to_string());
    run_renewal(None, &member_cert, credentials, reload_requests, install).await
}

/// Reloads the password and the authority of Redis. Invalid files are ignored.
async fn reload_store_secrets(coordinator: &Arc<Coordinator>, args: &RunArgs) {
    let Some(Ok(StoreUrl::Redis(nodes))) = args.store.as_ref().map(|store| store.expose().parse()) else { return };
    match store_secrets(args, &nodes) {
        Ok(secrets) => coordinator.set_secrets(secrets).await,
        Err(exit) => print_notice(&format!(
            "SIGHUP: {}: the previous password and authority stay in use",
            exit.message.unwrap_or_default()
        )),
    }
}

/// Prints when the store stops responding, and when it responds again.
async fn report_store_errors(coordinator: &Coordinator) {
    let mut store_error = coordinator.errors();
    // Never ends, since the coordinator exists as long as this function runs.
    while store_error.changed().await.is_ok() {
        match &*store_error.borrow_and_update() {
            Some(error) => {
                print_notice(&format!("{error}; the service continues, but drains are lost when it restarts"))
            }
            None => print_notice("the store answers again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_certificate_is_renewed_in_time_and_after_the_clock_was_set() {
        let made: UtcSeconds = "2026-10-02T12:00:00Z".parse().unwrap();
        let (hour, day) = (Duration::from_secs(3600), Duration::from_secs(86_400));
        assert!(!is_renewal_due(made, made) && !is_renewal_due(made, made.saturating_add(day * 19)));
        assert!(is_renewal_due(made, made.saturating_add(day * 20)), "a third of the lifetime is left");
        assert!(is_renewal_due(made, made.saturating_sub(hour)), "peers would consider it not valid yet");
        // A host whose clock began in 1970 and was set later.
        assert!(is_renewal_due("1970-01-01T00:00:07Z".parse().unwrap(), made));
    }
}
