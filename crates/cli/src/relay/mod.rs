//! `marline relay`: from words to a relay that carries edges until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens.
//! 2. SIGTERM and SIGINT drain: no new tunnels, the old ones end, at the latest after `--drain`. The second one ends at once.
//! 3. `status`, `drain` and `stop` are asked at a socket in the run directory (`ask`). Where it cannot be made that is said, and
//!    the relay carries all the same.
//! 4. SIGHUP has certificate, key, authority and revocation list read again; files that are no good change nothing.
//! 5. What is said goes to standard error, one line each.

mod args;
mod ask;

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
use marline_net::descriptors;
use marline_paths::room;
use tokio::signal::unix::{SignalKind, signal};

use crate::Exit;
use crate::confine::{Daemon, confine};
use crate::hangup::Hangup;
use crate::member::Member;
use crate::output::say;
use crate::paths::run_dirs;

use args::RunArgs;
pub(crate) use args::{AFTER_HELP, RelayArgs};

/// Carries until stopped, or asks a relay that does.
pub(crate) fn run(args: RelayArgs) -> Result<(), Exit> {
    match args.verb {
        Some(verb) => ask::run(&verb),
        None => carry(args.run),
    }
}

fn carry(args: RunArgs) -> Result<(), Exit> {
    confine(Daemon::Relay);
    let member = args.files.read(Role::Relay)?;
    let revoked = args.revoked.there(&member)?;
    let fleet = fleet(&args, &member)?;
    let Member { kept, own, identity, .. } = member;
    let trust = TrustStore::new(own.clone(), &revoked).map_err(|error| Exit::usage(error.to_string()))?;
    let fleet = fleet.map(|(terms, client)| (terms, client.with_tls(trust.client_config())));
    let url = args.fleet.clone();
    let rules = Acl { ports: args.ports(), hosts: args.allow_host, networks: args.allow_net };
    let (asked, descriptors) = (args.limits.read(), descriptors::raise());
    let limits = asked.fit_descriptors(descriptors);
    if let Some(congestion) = &args.congestion {
        congestion.check().map_err(|error| Exit::usage(format!("--congestion {error}")))?;
    }
    let congestion = args.congestion.or_else(CongestionControl::bbr);
    let audit = args.audit_log.as_deref().map(AuditLog::open).transpose().map_err(|error| {
        let path = args.audit_log.as_deref().unwrap_or(Path::new("")).display();
        Exit::failed(format!("--audit-log {path}: {error}"))
    })?;
    let config = Config { listen: args.listen, acl: rules, limits, congestion, audit: audit.clone() };
    let relay = Relay::new(config, trust.subscribe());
    let own_runtime = runtime()?;
    let doors = own_runtime.block_on(async { Listeners::open(&relay) });
    let doors = Arc::new(doors.map_err(|error| Exit::failed(error.to_string()))?);
    let listens: Vec<String> = doors.addresses().iter().map(ToString::to_string).collect();
    say(&format!("{} listens on {}", identity, listens.join(", ")));
    if !doors.has_mptcp() {
        say("this kernel makes no MPTCP sockets: an edge uses one link at a time (sysctl net.mptcp.enabled=1)");
    }
    if let Ok(few @ 0..room::MOST) = room::let_join() {
        let links = few + 1;
        say(&format!(
            "this kernel carries a connection over {links} links, one that was lost counted: needs CAP_NET_ADMIN, or \
             ip mptcp limits set subflows 8"
        ));
    }
    if doors.has_small_buffers() {
        say("connections have the kernel's usual buffers, too small for several links: needs CAP_NET_ADMIN, or \
             sysctl -w net.core.rmem_max=4194304");
    }
    if limits != asked {
        say(&format!(
            "{descriptors} open files are allowed: {} tunnels and {} connections, not {} and {} (LimitNOFILE= of systemd, or \
             ulimit -Hn)",
            limits.tunnels, limits.connections, asked.tunnels, asked.connections
        ));
    }
    let (mut hangup, reloader) = (own_runtime.block_on(async { Hangup::caught() })?, Reloader::new());
    let name = identity.name;
    let control = own_runtime.block_on(async { listen(args.run_dir.as_deref(), &name, &relay) });
    for _ in 1..args.threads.get() {
        let (relay, doors) = (Arc::clone(&relay), Arc::clone(&doors));
        std::thread::Builder::new()
            .name("relay".to_owned())
            .spawn(move || runtime().map(|runtime| runtime.block_on(doors.serve(&relay))).map(drop))
            .map_err(|error| Exit::failed(format!("a thread cannot be started: {error}")))?;
    }
    own_runtime.block_on(async {
        tokio::select! {
            error = doors.serve(&relay) => {
                let Err(error) = error;
                Err(Exit::failed(format!("the listeners: {error}")))
            }
            never = trust.run() => match never {},
            never = run_renewal(url.as_deref(), &kept, own, reloader.subscribe(), |own| {
                trust.install(own.clone()).map_err(|error| error.to_string())
            }) => match never {},
            never = async {
                loop {
                    hangup.next().await;
                    reloader.request();
                    if let Some(audit) = &audit {
                        audit.reopen();
                    }
                }
            } => match never {},
            never = announced(&relay, fleet) => match never {},
            ended = stopped(&relay, args.drain) => ended,
        }
    })?;
    drop(control);
    if let Some(audit) = &audit {
        audit.finish();
    }
    Ok(())
}

/// The ear of `status`, `drain` and `stop`, in the first directory that has room for it.
fn listen(run_dir: Option<&Path>, name: &Name, relay: &Arc<Relay>) -> Option<ControlSocket> {
    let mut why = None;
    for dir in run_dirs(run_dir) {
        match ControlSocket::listen(&dir, name, relay) {
            Ok(control) => return Some(control),
            Err(error) => why = why.or(Some(format!("{}: {error}", dir.display()))),
        }
    }
    say(&format!(
        "`marline relay status` cannot ask this relay: {}; name another --run-dir",
        why.unwrap_or_default()
    ));
    None
}

/// What the fleet's service is told, and by whom.
fn fleet(args: &RunArgs, member: &Member) -> Result<Option<(HeartbeatConfig, Client)>, Exit> {
    let (Some(url), Some(first)) = (&args.fleet, args.announce.first()) else { return Ok(None) };
    // The service refuses others, too.
    let name = |endpoint: &Endpoint| -> Result<Address, Exit> {
        let wrong = |error: &dyn std::fmt::Display| Exit::usage(format!("--announce {endpoint}: {error}"));
        let address: Address = endpoint.host().parse().map_err(|error: String| wrong(&error))?;
        member.own.is_for(&address).map_err(|error| wrong(&error))?;
        Ok(address)
    };
    args.announce.iter().try_for_each(|endpoint| name(endpoint).map(drop))?;
    let server_name = name(first)?;
    let terms = HeartbeatConfig {
        capacity: args.limits.read().capacity.unwrap_or_default(),
        addresses: args.announce.clone(),
        server_name,
        position: args.position,
    };
    Ok(Some((terms, member.client(url)?)))
}

/// Announces the relay, if there is anybody to announce it to.
async fn announced(relay: &Relay, fleet: Option<(HeartbeatConfig, Client)>) -> std::convert::Infallible {
    match fleet {
        Some((terms, client)) => send_heartbeats(relay, &terms, client, say).await,
        None => std::future::pending().await,
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Exit> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))
}

/// Ends when the relay was asked to end, and has.
async fn stopped(relay: &Relay, longest: Duration) -> Result<(), Exit> {
    let ear = |kind| signal(kind).map_err(|error| Exit::failed(format!("signals: {error}")));
    let (mut term, mut int) = (ear(SignalKind::terminate())?, ear(SignalKind::interrupt())?);
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
        () = tokio::time::sleep(longest) => {
            say(&format!("{} tunnels were still open, and are ended", relay.state().tunnels));
        }
    }
    Ok(())
}
