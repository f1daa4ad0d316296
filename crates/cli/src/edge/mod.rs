//! `marline edge`: sets up an edge from its arguments and runs it until it is stopped.
//!
//! 1. All arguments and the files that they name are read before anything listens (`options`).
//! 2. MPTCP paths are managed as by `marline paths`, in a thread of its own, with the goal of `--goal` (default: speed; the goal in
//!    the configuration file does not count). The thread restores the host configuration at the end. If the paths cannot be managed
//!    (missing privilege, another daemon manages them), there is a notice and the kernel manages them.
//! 3. Notices go to standard error, one line each.
//! 4. The fleet service is notified when the edge ends, so that the capacity that it has reserved for the edge is free at once.
//! 5. The LAN is set up before the host is changed otherwise. If that fails, the edge ends with an error.

mod args;
mod fault;
mod notices;
mod options;
mod paths_thread;
mod status;

use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use marline_fleet::edge::{
    ClientListener, Edge, FleetStatus, SelectorDriver, StateFile, install_credentials, run_state_writer, run_trust,
    serve_lan,
};
use marline_fleet::reload::Reloader;
use marline_fleet::renew::run_renewal;
use marline_net::control_socket::ControlServer;
use marline_paths::gateway::{Gateway, GatewayError, Lan};
use marline_paths::host_config::RUN_DIR;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use self::args::{EdgeCommand, RunArgs};
use self::options::{EdgeOptions, FleetOptions};
use self::paths_thread::PathsThread;
use self::status::{EdgeInfo, EdgeStatus};
use crate::CliError;
use crate::directories::run_dirs;
use crate::output::print_notice;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

pub(crate) use args::{AFTER_HELP, EdgeArgs};

/// Runs the edge, or prints the status of a running one.
pub(crate) fn run(args: EdgeArgs, config: Option<&Path>) -> Result<(), CliError> {
    match args.command {
        Some(EdgeCommand::Status { format, run_dir_args }) => status::run(run_dir_args.run_dir.as_deref(), format),
        None => run_edge(&args.run, config),
    }
}

/// Runs the edge until a termination signal or a fatal error.
fn run_edge(args: &RunArgs, config: Option<&Path>) -> Result<(), CliError> {
    drop_privileges(Daemon::Edge);
    let descriptors = marline_net::rlimit::raise_nofile_limit();
    let EdgeOptions {
        identity,
        credentials,
        member_cert,
        trust,
        revocation_path,
        config: mut edge_config,
        fleet,
        state_file,
    } = EdgeOptions::from_args(args)?;
    let requested_flows = edge_config.admission.max_flows;
    edge_config.admission = edge_config.admission.fit_descriptors(descriptors);
    if edge_config.admission.max_flows < requested_flows {
        let flows = edge_config.admission.max_flows;
        print_notice(&format!(
            "limit of {descriptors} open files: at most {flows} flows at once instead of {requested_flows} (raise LimitNOFILE= in \
             systemd, or ulimit -Hn)"
        ));
    }
    let lan = (!args.lan.is_empty()).then(|| Lan::new(args.lan.clone())).transpose();
    let lan = lan.map_err(|error| CliError::usage(format!("--lan: {error}")))?;
    let named_relays = edge_config.relays.clone();
    let edge = Edge::new(edge_config, trust);
    if let Some((saved, _)) = state_file.as_ref().and_then(StateFile::read) {
        edge.restore(&saved);
    }
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))?;
    let listener =
        runtime.block_on(ClientListener::open(&edge)).map_err(|error| CliError::failed(error.to_string()))?;
    let listen_addrs: Vec<String> = listener.addresses().iter().map(ToString::to_string).collect();
    let mut stop = runtime.block_on(async { TerminationSignals::new() })?;
    let (mut reload_signal, reloader) = (runtime.block_on(async { ReloadSignal::register() })?, Reloader::new());
    // Before any other change of the host, because a failure here ends the edge. Connections that arrive in the meantime wait
    // in the backlog of the listener.
    let run_dir = run_dir(args);
    let mut gateway = lan
        .as_ref()
        .map(|lan| runtime.block_on(Gateway::open(lan, &run_dir, args.allows_direct())))
        .transpose()
        .map_err(lan_error)?;
    // Before the first connection to a relay: connections that are older than the path manager would not be managed.
    let mut paths_thread = if args.no_paths { PathsThread::none() } else { PathsThread::start(args, config)? };
    print_notice(&format!("{identity} listens on {} for SOCKS5 and CONNECT", listen_addrs.join(", ")));
    if let Some(gateway) = &gateway {
        gateway.changes().iter().for_each(|line| print_notice(line));
        print_notice(&format!(
            "{identity} is the gateway of {}: TCP uses all links; UDP and other packets use the best single link",
            args.lan.join(", ")
        ));
    }
    let mut driver = fleet.map(|FleetOptions { client, selector_config, state_file: selector_state }| {
        let revocation_source = (credentials.authority().clone(), revocation_path.as_path());
        let observed_client = client.with_tls(edge.client_config());
        SelectorDriver::new(
            &edge,
            observed_client,
            selector_config,
            selector_state,
            revocation_source,
            named_relays,
        )
    });
    let fleet_status = driver.as_ref().map(SelectorDriver::status);
    let current_credentials = watch::Sender::new(credentials.clone());
    let obstructions = gateway.as_ref().map(Gateway::obstructions);
    let edge_info = EdgeInfo {
        lan: args.lan.clone(),
        obstructions: obstructions.clone(),
        without_relay: args.no_relay_policy(),
        steering: paths_thread.state(),
        started_at: Instant::now(),
        edge_name: identity.to_string(),
        listen_addrs,
    };
    let no_relay_policy = args.no_relay_policy();
    let refusal_text = no_relay_policy.description(!args.lan.is_empty());
    let result = runtime.block_on(async {
        let _control = open_control_socket(args, edge_info, &edge, fleet_status.clone());
        // The first sample precedes the first connection, which needs to know the links.
        edge.sample_links(&run_dir).await;
        // All tasks run concurrently on this thread. Only a failed listener, a failed LAN or a signal ends them.
        let outcome = tokio::select! {
            () = listener.serve(&edge) => Err(CliError::failed("all listeners have ended")),
            gateway_error = async {
                match &mut gateway {
                    Some(gateway) => serve_lan(gateway, &edge).await,
                    None => std::future::pending().await,
                }
            } => Err(lan_error(gateway_error)),
            never = edge.run_relay_pool() => match never {},
            never = edge.poll_links(&run_dir) => match never {},
            never = run_trust(&edge, current_credentials.subscribe(), &revocation_path) => match never {},
            never = run_renewal(args.fleet.as_deref(), &member_cert, credentials, reloader.subscribe(), |renewed| {
                install_credentials(&edge, &current_credentials.borrow(), renewed, &revocation_path)?;
                current_credentials.send_replace(renewed.clone());
                Ok(())
            }) => match never {},
            never = async {
                loop {
                    reload_signal.recv().await;
                    reloader.request();
                }
            } => match never {},
            never = run_selector(driver.as_mut()) => match never {},
            never = notices::report_flow_paths(&edge, refusal_text) => match never {},
            never = notices::report_fleet(&edge, fleet_status.clone(), no_relay_policy, refusal_text) => match never {},
            never = notices::report_udp_link(edge.udp_link()) => match never {},
            never = notices::report_name_queries(edge.dns_links()) => match never {},
            never = notices::report_obstructions(obstructions.clone()) => match never {},
            never = write_state(&edge, state_file.as_ref()) => match never {},
            never = notices::report_relays(&edge) => match never {},
            never = notices::report_mptcp(&edge) => match never {},
            never = notices::report_unused_links(edge.unused_links()) => match never {},
            never = notices::report_state_file(edge.state_file_error()) => match never {},
            never = notices::report_failing_links(&edge) => match never {},
            never = notices::report_portal_probe(edge.portal_probe_doubted()) => match never {},
            never = paths_thread.watch() => match never {},
            ended = stop.wait() => ended,
        };
        if let Some(driver) = &mut driver {
            // Saves the state, and frees the edge's reservation at the service now instead of when its lease expires.
            driver.release().await;
        }
        if let Some(Err(error)) = state_file.as_ref().map(|state| state.write(edge.save())) {
            print_notice(&format!("--state-file: {error}: the state of relays was not saved"));
        }
        outcome
    });
    {
        // Dropping the gateway needs a runtime context.
        let _runtime = runtime.enter();
        drop(gateway);
    }
    paths_thread.join(result.is_ok());
    // Does not wait for pending name lookups, which run in blocking threads.
    runtime.shutdown_background();
    result
}

/// Maps an error of the LAN gateway to an exit code.
fn lan_error(error: GatewayError) -> CliError {
    match error {
        GatewayError::NotPermitted => CliError::new(CliError::PRIVILEGE, error.to_string()),
        GatewayError::Interface { .. } => CliError::usage(error.to_string()),
        error => CliError::failed(error.to_string()),
    }
}

async fn write_state(edge: &Edge, state: Option<&StateFile>) -> Infallible {
    match state {
        Some(state) => run_state_writer(edge, state).await,
        None => pending().await,
    }
}

async fn run_selector(driver: Option<&mut SelectorDriver>) -> Infallible {
    match driver {
        Some(driver) => driver.run().await,
        None => pending().await,
    }
}

/// Opens the control socket for `marline edge status` in the first run directory where that succeeds. It is closed when the
/// returned value is dropped. Without a control socket the edge runs all the same.
fn open_control_socket(
    args: &RunArgs,
    edge_info: EdgeInfo,
    edge: &Arc<Edge>,
    fleet_status: Option<watch::Receiver<FleetStatus>>,
) -> Option<ControlServer> {
    let (edge_info, edge) = (Arc::new(edge_info), Arc::clone(edge));
    let reply = move |request| {
        let (edge_info, edge, fleet_status) = (Arc::clone(&edge_info), Arc::clone(&edge), fleet_status.clone());
        async move {
            match request {
                status::ControlRequest::Status => {
                    Ok(EdgeStatus::snapshot(&edge_info, &edge, fleet_status.as_ref()))
                }
            }
        }
    };
    let mut first_error = None;
    for dir in run_dirs(args.run_dir_args.run_dir.as_deref()) {
        match ControlServer::listen(&status::socket(&dir), reply.clone()) {
            Ok(control) => return Some(control),
            Err(error) => first_error = first_error.or(Some(format!("{}: {error}", dir.display()))),
        }
    }
    let reason = first_error.unwrap_or_default();
    print_notice(&format!(
        "cannot create the control socket for `marline edge status`: {reason}; use another --run-dir"
    ));
    None
}

/// Run directory of the path manager and the LAN gateway: control socket, and the record of the changes to restore.
fn run_dir(args: &RunArgs) -> PathBuf {
    args.run_dir_args.run_dir.clone().unwrap_or_else(|| RUN_DIR.into())
}

/// Handlers of SIGTERM and SIGINT. They must be registered before the edge prints that it listens.
struct TerminationSignals(Signal, Signal);

impl TerminationSignals {
    fn new() -> Result<Self, CliError> {
        let listen_for = |kind| signal(kind).map_err(|error| CliError::failed(format!("signals: {error}")));
        Ok(Self(listen_for(SignalKind::terminate())?, listen_for(SignalKind::interrupt())?))
    }

    async fn wait(&mut self) -> Result<(), CliError> {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
        Ok(())
    }
}
