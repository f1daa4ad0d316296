//! `marline relay`: from words to a relay that carries edges until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens.
//! 2. SIGTERM and SIGINT drain: no new tunnels, the old ones end, at the latest after `--drain-timeout`. The second one ends at once.
//! 3. `status`, `drain` and `stop` are asked at a socket in the run directory (`control`). Where it cannot be made that is said, and
//!    the relay carries all the same.
//! 4. SIGHUP has certificate, key, authority and revocation list read again; files that are no good change nothing.
//! 5. What is said goes to standard error, one line each.

mod args;
mod control;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use marline_fleet::ca::Address;
use marline_fleet::congestion::CongestionControl;
use marline_fleet::identity::{Name, Role};
use marline_fleet::relay::acl::Acl;
use marline_fleet::relay::audit::AuditLog;
use marline_fleet::relay::control::ControlSocket;
use marline_fleet::relay::heartbeat::{HeartbeatConfig, send_heartbeats};
use marline_fleet::relay::{Config, Listeners, Relay, TrustStore};
use marline_fleet::reload::Reloader;
use marline_fleet::renew::run_renewal;
use marline_fleet::service::Client;
use marline_fleet::service::api_types::Endpoint;
use marline_net::rlimit;
use marline_paths::subflow_limit;
use tokio::signal::unix::{SignalKind, signal};

use crate::CliError;
use crate::credentials::Member;
use crate::output::say;
use crate::paths::run_dirs;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

use args::RunArgs;
pub(crate) use args::{AFTER_HELP, RelayArgs};

/// Carries until stopped, or asks a relay that does.
pub(crate) fn run(args: RelayArgs) -> Result<(), CliError> {
    match args.command {
        Some(verb) => control::run(&verb),
        None => run_relay(args.run),
    }
}

fn run_relay(args: RunArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Relay);
    let member = args.files.read_member(Role::Relay)?;
    let revoked = args.revoked.existing_path(&member)?;
    let fleet = fleet_client(&args, &member)?;
    let Member { renewable: member_cert, credentials, identity, .. } = member;
    let trust =
        TrustStore::new(credentials.clone(), &revoked).map_err(|error| CliError::usage(error.to_string()))?;
    let fleet = fleet.map(|(heartbeat, client)| (heartbeat, client.with_tls(trust.client_config())));
    let url = args.fleet.clone();
    let rules = Acl { ports: args.allowed_ports(), hosts: args.allow_host, networks: args.allow_net };
    let (requested, descriptors) = (args.limits.limits(), rlimit::raise_nofile_limit());
    let limits = requested.fit_descriptors(descriptors);
    if let Some(congestion) = &args.congestion {
        congestion.check().map_err(|error| CliError::usage(format!("--congestion {error}")))?;
    }
    let congestion = args.congestion.or_else(CongestionControl::bbr);
    let audit = args.audit_log.as_deref().map(AuditLog::open).transpose().map_err(|error| {
        let path = args.audit_log.as_deref().unwrap_or(Path::new("")).display();
        CliError::failed(format!("--audit-log {path}: {error}"))
    })?;
    let config = Config { listen: args.listen, acl: rules, limits, congestion, audit: audit.clone() };
    let relay = Relay::new(config, trust.subscribe());
    let main_runtime = new_runtime()?;
    let listeners = main_runtime.block_on(async { Listeners::open(&relay) });
    let listeners = Arc::new(listeners.map_err(|error| CliError::failed(error.to_string()))?);
    let listens: Vec<String> = listeners.addresses().iter().map(ToString::to_string).collect();
    say(&format!("{} listens on {}", identity, listens.join(", ")));
    if !listeners.has_mptcp() {
        say("this kernel makes no MPTCP sockets: an edge uses one link at a time (sysctl net.mptcp.enabled=1)");
    }
    if let Ok(extra_subflows @ 0..subflow_limit::MAX_SUBFLOWS) = subflow_limit::raise_subflow_limit() {
        let links = extra_subflows + 1;
        say(&format!(
            "this kernel carries a connection over {links} links, one that was lost counted: needs CAP_NET_ADMIN, or \
             ip mptcp limits set subflows 8"
        ));
    }
    if listeners.has_small_buffers() {
        say("connections have the kernel's usual buffers, too small for several links: needs CAP_NET_ADMIN, or \
             sysctl -w net.core.rmem_max=4194304");
    }
    if limits != requested {
        say(&format!(
            "{descriptors} open files are allowed: {} tunnels and {} connections, not {} and {} (LimitNOFILE= of systemd, or \
             ulimit -Hn)",
            limits.tunnels, limits.connections, requested.tunnels, requested.connections
        ));
    }
    let (mut reload_signal, reloader) =
        (main_runtime.block_on(async { ReloadSignal::register() })?, Reloader::new());
    let name = identity.name;
    let control = main_runtime.block_on(async { open_control(args.run_dir.as_deref(), &name, &relay) });
    for _ in 1..args.threads.get() {
        let (relay, thread_listeners) = (Arc::clone(&relay), Arc::clone(&listeners));
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || new_runtime().map(|runtime| runtime.block_on(thread_listeners.serve(&relay))).map(drop))
            .map_err(|error| CliError::failed(format!("a thread cannot be started: {error}")))?;
    }
    main_runtime.block_on(async {
        tokio::select! {
            error = listeners.serve(&relay) => {
                let Err(error) = error;
                Err(CliError::failed(format!("the listeners: {error}")))
            }
            never = trust.run() => match never {},
            never = run_renewal(url.as_deref(), &member_cert, credentials, reloader.subscribe(), |renewed| {
                trust.install(renewed.clone()).map_err(|error| error.to_string())
            }) => match never {},
            never = async {
                loop {
                    reload_signal.recv().await;
                    reloader.request();
                    if let Some(audit) = &audit {
                        audit.reopen();
                    }
                }
            } => match never {},
            never = announce_if_configured(&relay, fleet) => match never {},
            outcome = wait_for_stop(&relay, args.drain_timeout) => outcome,
        }
    })?;
    drop(control);
    if let Some(audit) = &audit {
        audit.finish();
    }
    Ok(())
}

/// The ear of `status`, `drain` and `stop`, in the first directory that has room for it.
fn open_control(run_dir: Option<&Path>, name: &Name, relay: &Arc<Relay>) -> Option<ControlSocket> {
    let mut first_error = None;
    for dir in run_dirs(run_dir) {
        match ControlSocket::listen(&dir, name, relay) {
            Ok(control) => return Some(control),
            Err(error) => first_error = first_error.or(Some(format!("{}: {error}", dir.display()))),
        }
    }
    say(&format!(
        "`marline relay status` cannot ask this relay: {}; name another --run-dir",
        first_error.unwrap_or_default()
    ));
    None
}

/// What the fleet's service is told, and by whom.
fn fleet_client(args: &RunArgs, member: &Member) -> Result<Option<(HeartbeatConfig, Client)>, CliError> {
    let (Some(url), Some(first)) = (&args.fleet, args.announce.first()) else { return Ok(None) };
    // The service refuses others, too.
    let certified_name = |endpoint: &Endpoint| -> Result<Address, CliError> {
        let usage_error =
            |error: &dyn std::fmt::Display| CliError::usage(format!("--announce {endpoint}: {error}"));
        let address: Address = endpoint.host().parse().map_err(|error: String| usage_error(&error))?;
        member.credentials.is_for(&address).map_err(|error| usage_error(&error))?;
        Ok(address)
    };
    args.announce.iter().try_for_each(|endpoint| certified_name(endpoint).map(drop))?;
    let server_name = certified_name(first)?;
    let heartbeat = HeartbeatConfig {
        capacity: args.limits.limits().capacity.unwrap_or_default(),
        addresses: args.announce.clone(),
        server_name,
        position: args.position,
    };
    Ok(Some((heartbeat, member.client(url)?)))
}

/// Announces the relay, if there is anybody to announce it to.
async fn announce_if_configured(
    relay: &Relay,
    fleet: Option<(HeartbeatConfig, Client)>,
) -> std::convert::Infallible {
    match fleet {
        Some((heartbeat, client)) => send_heartbeats(relay, &heartbeat, client, say).await,
        None => std::future::pending().await,
    }
}

fn new_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| CliError::failed(format!("the event loop cannot be started: {error}")))
}

/// Ends when the relay was asked to end, and has.
async fn wait_for_stop(relay: &Relay, drain_timeout: Duration) -> Result<(), CliError> {
    let listen_for = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
    let (mut term, mut int) = (listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = relay.wait_for_stop(false) => {}
    }
    relay.stop(false);
    let tunnels = relay.state().tunnels;
    if tunnels > 0 {
        say(&format!("draining: {tunnels} tunnels are open; once more ends them"));
    }
    tokio::select! {
        () = relay.wait_until_idle() => {}
        _ = term.recv() => {}
        _ = int.recv() => {}
        () = relay.wait_for_stop(true) => {}
        () = tokio::time::sleep(drain_timeout) => {
            say(&format!("{} tunnels were still open, and are ended", relay.state().tunnels));
        }
    }
    Ok(())
}
