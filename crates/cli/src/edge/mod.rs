//! `marline edge`: from words to an edge that carries programs' connections until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens (`terms`).
//! 2. The links are steered as `marline paths` does, in a thread of its own, by its throughput profile unless the
//!    configuration says otherwise: it puts back at the end what it has changed. Where that is not possible (no privilege,
//!    another steers already) it is said, and the edge goes on with what the kernel does by itself.
//! 3. What is said goes to standard error, one line each.
//! 4. The service is told when the edge ends: what was reserved is free at once.
//! 5. A LAN is served before anything else is changed: where it cannot be, the edge ends with a line.

mod args;
mod lines;
mod reason;
mod status;
mod steering;
mod terms;

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
use marline_net::control::Ear;
use marline_paths::gateway::{Gateway, GatewayError, Lan};
use marline_paths::ground::RUN_DIR;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use self::args::{EdgeVerb, RunArgs};
use self::status::{About, Status};
use self::steering::Steering;
use self::terms::{Fleet, Terms};
use crate::confine::{Daemon, confine};
use crate::hangup::Hangup;
use crate::output::say;
use crate::{Exit, paths};

pub(crate) use args::{AFTER_HELP, EdgeArgs};

/// Does what was asked for.
pub(crate) fn run(args: EdgeArgs, config: Option<&Path>) -> Result<(), Exit> {
    match args.verb {
        Some(EdgeVerb::Status { json, run_dir }) => status::run(run_dir.as_deref(), json),
        None => carry(&args.run, config),
    }
}

/// Carries until stopped.
fn carry(args: &RunArgs, config: Option<&Path>) -> Result<(), Exit> {
    confine(Daemon::Edge);
    let descriptors = marline_net::descriptors::raise();
    let Terms { identity, own, files, trusted, revoked, config: mut terms, fleet, state } = Terms::of(args)?;
    let asked = terms.admission.max_flows;
    terms.admission = terms.admission.fit_descriptors(descriptors);
    if terms.admission.max_flows < asked {
        let flows = terms.admission.max_flows;
        say(&format!(
            "{descriptors} open files are allowed: {flows} flows at once, not {asked} (LimitNOFILE= of systemd, or ulimit -Hn)"
        ));
    }
    let lan = (!args.lan.is_empty()).then(|| Lan::new(args.lan.clone())).transpose();
    let lan = lan.map_err(|why| Exit::usage(format!("--lan: {why}")))?;
    let named = terms.relays.clone();
    let edge = Edge::new(terms, trusted);
    if let Some((saved, _)) = state.as_ref().and_then(StateFile::read) {
        edge.restore(&saved);
    }
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let front = runtime.block_on(ClientListener::open(&edge)).map_err(|error| Exit::failed(error.to_string()))?;
    let listens: Vec<String> = front.addresses().iter().map(ToString::to_string).collect();
    let mut stop = runtime.block_on(async { Stop::new() })?;
    let (mut hangup, reloader) = (runtime.block_on(async { Hangup::caught() })?, Reloader::new());
    // Before anything else is changed: what it cannot have ends the edge. Those who come now wait until they are attended.
    let place = run_dir(args);
    let mut gateway = lan
        .as_ref()
        .map(|lan| runtime.block_on(Gateway::open(lan, &place, args.may_go_directly())))
        .transpose()
        .map_err(no_lan)?;
    // Connections that are there before the links are steered would not be.
    let mut steering = if args.no_paths { Steering::none() } else { Steering::start(args, config)? };
    say(&format!("{identity} listens on {} for SOCKS5 and CONNECT", listens.join(", ")));
    if let Some(gateway) = &gateway {
        gateway.changes().iter().for_each(|line| say(line));
        say(&format!(
            "{identity} is the gateway of {}: TCP is carried; UDP and the rest pass over the best single link",
            args.lan.join(", ")
        ));
    }
    let mut agent = fleet.map(|Fleet { client, machine, remembered }| {
        let list = (own.authority().clone(), revoked.as_path());
        let client = client.with_tls(edge.client_config());
        SelectorDriver::new(&edge, client, machine, remembered, list, named)
    });
    let view = agent.as_ref().map(SelectorDriver::status);
    let shown = watch::Sender::new(own.clone());
    let obstacles = gateway.as_ref().map(Gateway::obstacles);
    let about = About {
        lan: args.lan.clone(),
        obstacles: obstacles.clone(),
        without_relay: args.without_relay(),
        steering: steering.state(),
        begun: Instant::now(),
        edge: identity.to_string(),
        listens,
    };
    let without = args.without_relay();
    let refusal = without.words(!args.lan.is_empty());
    let ended = runtime.block_on(async {
        let _ear = listen(args, about, &edge, view.clone());
        edge.sample_links(&place).await;
        let ended = tokio::select! {
            () = front.serve(&edge) => Err(Exit::failed("the listeners have ended")),
            lost = async {
                match &mut gateway {
                    Some(gateway) => serve_lan(gateway, &edge).await,
                    None => std::future::pending().await,
                }
            } => Err(no_lan(lost)),
            never = edge.run_relay_pool() => match never {},
            never = edge.poll_links(&place) => match never {},
            never = run_trust(&edge, shown.subscribe(), &revoked) => match never {},
            never = run_renewal(args.fleet.as_deref(), &files, own, reloader.subscribe(), |own| {
                install_credentials(&edge, &shown.borrow(), own, &revoked)?;
                shown.send_replace(own.clone());
                Ok(())
            }) => match never {},
            never = async {
                loop {
                    hangup.next().await;
                    reloader.request();
                }
            } => match never {},
            never = ask(agent.as_mut()) => match never {},
            never = lines::flows(&edge, refusal) => match never {},
            never = lines::fleet(&edge, view.clone(), without, refusal) => match never {},
            never = lines::rest(edge.udp_link()) => match never {},
            never = lines::names(edge.names()) => match never {},
            never = lines::obstacles(obstacles.clone()) => match never {},
            never = keep(&edge, state.as_ref()) => match never {},
            never = lines::relays(&edge) => match never {},
            never = lines::mptcp(&edge) => match never {},
            never = lines::unused(edge.unused_links()) => match never {},
            never = lines::state(edge.state_file_error()) => match never {},
            never = lines::failing(&edge) => match never {},
            never = lines::portal_probe(edge.portal_probe_doubted()) => match never {},
            never = steering.watch() => match never {},
            ended = stop.heard() => ended,
        };
        if let Some(agent) = &mut agent {
            agent.release().await;
        }
        if let Some(Err(error)) = state.as_ref().map(|state| state.write(edge.save())) {
            say(&format!("--state: {error}: what is known of relays is not kept"));
        }
        ended
    });
    {
        let _runtime = runtime.enter();
        drop(gateway);
    }
    steering.join(ended.is_ok());
    // A name that is being looked up for somebody holds up nobody's end.
    runtime.shutdown_background();
    ended
}

fn no_lan(error: GatewayError) -> Exit {
    match error {
        GatewayError::NotPermitted => Exit::new(Exit::PRIVILEGE, error.to_string()),
        GatewayError::Interface { .. } => Exit::usage(error.to_string()),
        error => Exit::failed(error.to_string()),
    }
}

async fn keep(edge: &Edge, state: Option<&StateFile>) -> Infallible {
    match state {
        Some(state) => run_state_writer(edge, state).await,
        None => pending().await,
    }
}

async fn ask(agent: Option<&mut SelectorDriver>) -> Infallible {
    match agent {
        Some(agent) => agent.run().await,
        None => pending().await,
    }
}

/// Answers `marline edge status` as long as it is held, at the first place that has room for it. An edge that cannot be asked
/// carries all the same.
fn listen(
    args: &RunArgs,
    about: About,
    edge: &Arc<Edge>,
    view: Option<watch::Receiver<FleetStatus>>,
) -> Option<Ear> {
    let (about, edge) = (Arc::new(about), Arc::clone(edge));
    let answer = move |question| {
        let (about, edge, view) = (Arc::clone(&about), Arc::clone(&edge), view.clone());
        async move {
            match question {
                status::Question::Status => Ok(Status::of(&about, &edge, view.as_ref())),
            }
        }
    };
    let mut why = None;
    for dir in paths::run_dirs(args.run_dir.as_deref()) {
        match Ear::listen(&status::socket(&dir), answer.clone()) {
            Ok(ear) => return Some(ear),
            Err(error) => why = why.or(Some(format!("{}: {error}", dir.display()))),
        }
    }
    let why = why.unwrap_or_default();
    say(&format!("`marline edge status` cannot ask this edge: {why}; name another --run-dir"));
    None
}

/// Where `marline paths` is asked, and written down what is to be put back.
fn run_dir(args: &RunArgs) -> PathBuf {
    args.run_dir.clone().unwrap_or_else(|| RUN_DIR.into())
}

/// What ends it. It must be heard from the moment on at which the edge says that it is there.
struct Stop(Signal, Signal);

impl Stop {
    fn new() -> Result<Self, Exit> {
        let ear = |kind| signal(kind).map_err(|error| Exit::failed(format!("signals: {error}")));
        Ok(Self(ear(SignalKind::terminate())?, ear(SignalKind::interrupt())?))
    }

    async fn heard(&mut self) -> Result<(), Exit> {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
        Ok(())
    }
}
