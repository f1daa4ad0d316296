//! `marline relay`: sets up a relay from its arguments and runs it until it is stopped.
//!
//! 1. All arguments and the files that they name are read before anything listens.
//! 2. SIGTERM and SIGINT drain the relay: it accepts no new tunnels, and it exits when the existing ones have ended, at the
//!    latest after `--drain-timeout`. A second signal ends it at once.
//! 3. `status`, `drain` and `stop` use a control socket in the run directory (`control`). If it cannot be created, there is a
//!    notice and the relay runs without it.
//! 4. SIGHUP reloads certificate, key, authority and revocation list, and reopens the audit log. Invalid files are ignored and the old
//!    ones stay in use.
//! 5. Notices go to standard error, one line each.

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
use crate::directories::run_dirs;
use crate::output::print_notice;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

use args::RunArgs;
pub(crate) use args::{AFTER_HELP, RelayArgs};

/// Runs a relay, or sends a request to a running one.
pub(crate) fn run(args: RelayArgs) -> Result<(), CliError> {
    match args.command {
        Some(subcommand) => control::run(&subcommand),
        None => run_relay(args.run),
    }
}

fn run_relay(args: RunArgs) -> Result<(), CliError> {
    drop_privileges(Daemon::Relay);
    let member = args.files.read_member(Role::Relay)?;
    let revoked = args.revoked.existing_path(&member)?;
    let fleet = fleet_client(&args, &member)?;
    let Member { member_cert, credentials, identity, .. } = member;
    let trust =
        TrustStore::new(credentials.clone(), &revoked).map_err(|error| CliError::usage(error.to_string()))?;
    let fleet = fleet.map(|(heartbeat, client)| (heartbeat, client.with_tls(trust.client_config())));
    let url = args.fleet.clone();
    let rules = Acl { ports: args.allowed_ports(), hosts: args.allow_host, networks: args.allow_net };
    let (requested, descriptors) = (args.limits.limits(), rlimit::raise_nofile_limit());
    let limits = requested.fit_descriptors(descriptors);
    if let Some(congestion) = &args.congestion_args.congestion {
        congestion.check().map_err(|error| CliError::usage(format!("--congestion {error}")))?;
    }
    let congestion = args.congestion_args.congestion.or_else(CongestionControl::bbr);
    let audit = args.audit_log.as_deref().map(AuditLog::open).transpose().map_err(|error| {
        let path = args.audit_log.as_deref().unwrap_or(Path::new("")).display();
        CliError::failed(format!("--audit-log {path}: {error}"))
    })?;
    let config = Config { listen: args.listen, acl: rules, limits, congestion, audit: audit.clone() };
    let relay = Relay::new(config, trust.subscribe());
    let main_runtime = new_runtime()?;
    // In `block_on`, since tokio registers sockets with the runtime of the current thread.
    let listeners = main_runtime.block_on(async { Listeners::open(&relay) });
    let listeners = Arc::new(listeners.map_err(|error| CliError::failed(error.to_string()))?);
    let listens: Vec<String> = listeners.addresses().iter().map(ToString::to_string).collect();
    print_notice(&format!("{} listens on {}", identity, listens.join(", ")));
    if !listeners.has_mptcp() {
        print_notice(
            "this kernel has no MPTCP, so each edge uses one link at a time (try sysctl net.mptcp.enabled=1)",
        );
    }
    if let Ok(extra_subflows @ 0..subflow_limit::MAX_SUBFLOWS) = subflow_limit::raise_subflow_limit() {
        let links = extra_subflows + 1;
        print_notice(&format!(
            "this kernel allows {links} links per connection, failed ones included: more need CAP_NET_ADMIN, or \
             ip mptcp limits set subflows 8"
        ));
    }
    if listeners.has_small_buffers() {
        print_notice(
            "the receive buffers of connections are too small for several links: larger ones need CAP_NET_ADMIN, or \
             sysctl -w net.core.rmem_max=4194304",
        );
    }
    if limits != requested {
        print_notice(&format!(
            "limit of {descriptors} open files: at most {} tunnels and {} connections instead of {} and {} (raise LimitNOFILE= in \
             systemd, or ulimit -Hn)",
            limits.tunnels, limits.connections, requested.tunnels, requested.connections
        ));
    }
    let (mut reload_signal, reloader) =
        (main_runtime.block_on(async { ReloadSignal::register() })?, Reloader::new());
    let name = identity.name;
    let control =
        main_runtime.block_on(async { open_control(args.run_dir_args.run_dir.as_deref(), &name, &relay) });
    // The main thread forwards traffic as well, so one thread less is started.
    for _ in 1..args.threads.get() {
        let (relay, thread_listeners) = (Arc::clone(&relay), Arc::clone(&listeners));
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || new_runtime().map(|runtime| runtime.block_on(thread_listeners.serve(&relay))).map(drop))
            .map_err(|error| CliError::failed(format!("cannot start a thread: {error}")))?;
    }
    main_runtime.block_on(async {
        tokio::select! {
            error = listeners.serve(&relay) => {
                let Err(error) = error;
                Err(CliError::failed(format!("the listeners have failed: {error}")))
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

/// Opens the control socket for `status`, `drain` and `stop` in the first run directory where that succeeds.
fn open_control(run_dir: Option<&Path>, name: &Name, relay: &Arc<Relay>) -> Option<ControlSocket> {
    let mut first_error = None;
    for dir in run_dirs(run_dir) {
        match ControlSocket::listen(&dir, name, relay) {
            Ok(control) => return Some(control),
            Err(error) => first_error = first_error.or(Some(format!("{}: {error}", dir.display()))),
        }
    }
    print_notice(&format!(
        "cannot create the control socket for `marline relay status`: {}; use another --run-dir",
        first_error.unwrap_or_default()
    ));
    None
}

/// Heartbeat settings and client for the fleet service; `None` without `--fleet`.
fn fleet_client(args: &RunArgs, member: &Member) -> Result<Option<(HeartbeatConfig, Client)>, CliError> {
    let (Some(url), Some(first)) = (&args.fleet, args.announce.first()) else { return Ok(None) };
    // The service rejects an address that the certificate does not contain; checking here fails at the start.
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

/// Sends heartbeats to the fleet service, if one is configured.
async fn announce_if_configured(
    relay: &Relay,
    fleet: Option<(HeartbeatConfig, Client)>,
) -> std::convert::Infallible {
    match fleet {
        Some((heartbeat, client)) => send_heartbeats(relay, &heartbeat, client, print_notice).await,
        None => std::future::pending().await,
    }
}

fn new_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))
}

/// Waits for a request to stop, drains the relay, and returns when it is idle, when the timeout has passed, or at a second
/// request.
async fn wait_for_stop(relay: &Relay, drain_timeout: Duration) -> Result<(), CliError> {
    let listen_for = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
    let (mut sigterm, mut int) = (listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?);
    tokio::select! {
        _ = sigterm.recv() => {}
        _ = int.recv() => {}
        () = relay.wait_for_stop(false) => {}
    }
    relay.stop(false);
    let tunnels = relay.state().tunnels;
    if tunnels > 0 {
        print_notice(&format!("draining: {tunnels} tunnels are open; a second signal closes them"));
    }
    tokio::select! {
        () = relay.wait_until_idle() => {}
        _ = sigterm.recv() => {}
        _ = int.recv() => {}
        () = relay.wait_for_stop(true) => {}
        () = tokio::time::sleep(drain_timeout) => {
            print_notice(&format!("drain timeout: {} open tunnels are closed", relay.state().tunnels));
        }
    }
    Ok(())
}
