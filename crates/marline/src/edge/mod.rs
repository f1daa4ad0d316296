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
mod status;
mod terms;

use std::convert::Infallible;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_fleet::edge::{Agent, Edge, EdgeState, FleetView, Front, RestNow, attend_lan, keep_trust};
use marline_fleet::renew::keep_renewed;
use marline_fleet::service::words::Reason;
use marline_net::control::Ear;
use marline_net::paths::control::{self, Question};
use marline_net::paths::gateway::{Gateway, GatewayError, Lan};
use marline_net::paths::ground::RUN_DIR;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use self::args::{EdgeVerb, RunArgs};
use self::status::{About, Status};
use self::terms::{Fleet, Terms};
use crate::output::say;
use crate::{Exit, Verb, paths};

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
    let descriptors = marline_net::descriptors::raise();
    let Terms { identity, own, files, trusted, revoked, config: mut terms, fleet } = Terms::of(args)?;
    let asked = terms.guests.flows;
    terms.guests = terms.guests.within(descriptors);
    if terms.guests.flows < asked {
        let flows = terms.guests.flows;
        say(&format!(
            "{descriptors} open files are allowed: {flows} flows at once, not {asked} (LimitNOFILE= of systemd, or ulimit -Hn)"
        ));
    }
    let lan = (!args.lan.is_empty()).then(|| Lan::new(args.lan.clone())).transpose();
    let lan = lan.map_err(|why| Exit::usage(format!("--lan: {why}")))?;
    let named = terms.relays.clone();
    let edge = Edge::new(terms, trusted);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let front = runtime.block_on(Front::open(&edge)).map_err(|error| Exit::failed(error.to_string()))?;
    let listens: Vec<String> = front.addresses().iter().map(ToString::to_string).collect();
    let mut stop = runtime.block_on(async { Stop::new() })?;
    // Before anything else is changed: what it cannot have ends the edge. Those who come now wait until they are attended.
    let place = run_dir(args);
    let mut gateway =
        lan.as_ref().map(|lan| runtime.block_on(Gateway::open(lan, &place))).transpose().map_err(no_lan)?;
    // Connections that are there before the links are steered would not be.
    let steering = (!args.no_paths).then(|| steer(args, config)).transpose()?;
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
        let client = client.showing(edge.shows());
        Agent::new(&edge, client, machine, remembered, list, named)
    });
    let view = agent.as_ref().map(Agent::view);
    let shown = watch::Sender::new(own.clone());
    let about = About { begun: Instant::now(), edge: identity.to_string(), listens };
    let ended = runtime.block_on(async {
        let _ear = listen(args, about, &edge, view.clone());
        let ended = tokio::select! {
            () = front.attend(&edge) => Err(Exit::failed("the listeners have ended")),
            lost = async {
                match &mut gateway {
                    Some(gateway) => attend_lan(gateway, &edge).await,
                    None => std::future::pending().await,
                }
            } => Err(no_lan(lost)),
            never = edge.keep_warm() => match never {},
            never = edge.keep_looking(&place) => match never {},
            never = keep_trust(&edge, shown.subscribe(), &revoked) => match never {},
            never = keep_renewed(args.fleet.as_deref(), &files, own, |own| {
                shown.send_replace(own.clone());
            }) => match never {},
            never = ask(agent.as_mut()) => match never {},
            never = tell(edge.state()) => match never {},
            never = tell_fleet(view.clone()) => match never {},
            never = tell_rest(edge.rest()) => match never {},
            ended = stop.heard() => ended,
        };
        if let Some(agent) = &mut agent {
            agent.release().await;
        }
        ended
    });
    {
        let _runtime = runtime.enter();
        drop(gateway);
    }
    if let Some(steering) = steering {
        if ended.is_err() {
            // It has heard no signal yet.
            let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::TERM);
        }
        // It has heard the same signal, and puts back what it has changed.
        let _ = steering.join();
    }
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

async fn ask(agent: Option<&mut Agent>) -> Infallible {
    match agent {
        Some(agent) => agent.run().await,
        None => pending().await,
    }
}

/// Answers `marline edge status` as long as it is held, at the first place that has room for it. An edge that cannot be asked
/// carries all the same.
fn listen(args: &RunArgs, about: About, edge: &Arc<Edge>, view: Option<watch::Receiver<FleetView>>) -> Option<Ear> {
    let (about, edge) = (Arc::new(about), Arc::clone(edge));
    let answer = move |question| match question {
        status::Question::Status => std::future::ready(Ok(Status::of(&about, &edge, view.as_ref()))),
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

/// What the links are used for.
fn profile(args: &RunArgs) -> String {
    let minimised = args.minimise.map(|what| what.profile().to_owned());
    minimised.or_else(|| args.profile.clone()).unwrap_or_else(|| "throughput".to_owned())
}

/// Steers the links in a thread of its own.
fn steer(args: &RunArgs, config: Option<&Path>) -> Result<std::thread::JoinHandle<()>, Exit> {
    let mut words = vec!["marline".to_owned(), "paths".to_owned(), "run".to_owned(), "--quiet".to_owned()];
    words.extend(["--short-queues".to_owned(), "--profile".to_owned(), profile(args)]);
    words.extend(args.link.iter().flat_map(|link| ["--link".to_owned(), link.clone()]));
    words.extend(args.run_dir.iter().flat_map(|dir| ["--run-dir".to_owned(), dir.display().to_string()]));
    let cli = crate::args::parse(words.into_iter().map(Into::into))?;
    let Verb::Paths(steering) = cli.verb else { return Err(Exit::failed("the links cannot be steered")) };
    let config: Option<PathBuf> = config.map(Path::to_owned);
    let run = move || {
        if let Err(exit) = paths::run(*steering, config.as_deref()) {
            say(&format!("the links are not steered from here: {}", exit.line.unwrap_or_default()));
        }
    };
    let started = std::thread::Builder::new().name("paths".to_owned()).spawn(run);
    let thread = started.map_err(|error| Exit::failed(format!("a thread cannot be started: {error}")))?;
    let run_dir = run_dir(args);
    let (began, question) = (Instant::now(), Question::Status { at_most: Some(0) });
    while !thread.is_finished() && began.elapsed() < READY && control::ask(&run_dir, &question).is_err() {
        std::thread::sleep(READY / 100);
    }
    Ok(thread)
}

/// chosen: the links of a box that has just started are there or will be later.
const READY: Duration = Duration::from_secs(5);

/// Says when flows go another way than before.
async fn tell(mut state: watch::Receiver<EdgeState>) -> Infallible {
    let mut way = None;
    let mut before = EdgeState::default();
    loop {
        if state.changed().await.is_err() {
            pending::<()>().await;
        }
        let now = state.borrow_and_update().clone();
        let new = match &now.last {
            Some(relay) => Some(format!("through {relay}")),
            None if now.direct > before.direct => {
                Some("directly, over one link: no relay can be had (MARLINE_LOG=warn says why)".to_owned())
            }
            None => None,
        };
        if let Some(new) = new.filter(|new| way.as_ref() != Some(new)) {
            say(&format!("new flows go {new}"));
            way = Some(new);
        }
        before = now;
    }
}

/// Says what the service gives, and when it does not answer.
async fn tell_fleet(view: Option<watch::Receiver<FleetView>>) -> Infallible {
    let Some(mut view) = view else { pending().await };
    let (mut relay, mut silent, mut refused) = (None, false, None);
    loop {
        if view.changed().await.is_err() {
            pending::<()>().await;
        }
        let now = view.borrow_and_update().clone();
        if silent != now.why.is_some() {
            silent = now.why.is_some();
            match &now.why {
                Some(why) => {
                    say(&format!("the fleet's service does not answer: {why}; the relays that are known are used"))
                }
                None => say("the fleet's service answers again"),
            }
        }
        let reason = now.reason.filter(|reason| now.given.is_none() && *reason != Reason::Pending);
        if let Some(reason) = reason.filter(|reason| refused != Some(*reason)) {
            say(&format!(
                "the fleet's service keeps nothing for this edge ({}); relays that it has named are used as they are",
                reason.word()
            ));
        }
        refused = if now.given.is_some() { None } else { reason.or(refused) };
        let given = now.given.map(|held| (held.relay, held.reservation));
        if given.is_some() && given != relay {
            relay = given;
            if let Some((relay, reserved)) = &relay {
                say(&format!("the fleet's service has given {relay}, with {reserved} kept for this edge"));
            }
        }
    }
}

/// Says which link the rest of a LAN's packets takes, at the start and when it is another one.
async fn tell_rest(mut rest: watch::Receiver<Option<RestNow>>) -> Infallible {
    loop {
        if rest.changed().await.is_err() {
            pending::<()>().await;
        }
        if let Some(now) = rest.borrow_and_update().as_ref() {
            say(&format!("UDP and the rest of the LAN pass {}", status::over(now)));
        }
    }
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
