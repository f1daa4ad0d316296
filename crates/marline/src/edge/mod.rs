//! `marline edge`: from words to an edge that carries programs' connections until it is stopped.
//!
//! 1. Everything that the user wrote and the files that it names are read before anything listens.
//! 2. The links are steered as `marline paths` does, in a thread of its own, by its throughput profile unless the
//!    configuration says otherwise: it puts back at the end what it has changed. Where that is not possible (no privilege,
//!    another steers already) it is said, and the edge goes on with what the kernel does by itself.
//! 3. A LAN is served before anything else is changed: where it cannot be, the edge ends with a line.
//! 4. What is said goes to standard error, one line each.

mod args;

use std::io::Write as _;
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use marline_fleet::edge::{Config, Edge, EdgeState, Front, GuestTerms, Live, RelayAt, attend_lan};
use marline_fleet::identity::Role;
use marline_fleet::tls::{Credentials, client_config};
use marline_net::paths::control::{self, Question};
use marline_net::paths::gateway::{Gateway, GatewayError, Lan};
use marline_net::paths::ground::RUN_DIR;
use tokio::signal::unix::{SignalKind, signal};

use crate::{Exit, Verb, paths};

pub(crate) use args::{AFTER_HELP, EdgeArgs};

/// Carries until stopped.
pub(crate) fn run(args: EdgeArgs, config: Option<&Path>) -> Result<(), Exit> {
    let bad = |error: &dyn std::fmt::Display| Exit::usage(error.to_string());
    let beside = |name: &str| args.certificate.parent().unwrap_or(Path::new("")).join(name);
    let key = args.key.clone().unwrap_or_else(|| args.certificate.with_extension("key"));
    let authority = args.ca.clone().unwrap_or_else(|| beside("ca.pem"));
    let own = Credentials::read(&args.certificate, &key, &authority).map_err(|error| bad(&error))?;
    let peer = own.peer().map_err(|error| bad(&error))?;
    if peer.identity.role != Role::Edge {
        let whose = format!("it is the certificate of {}, and not of an edge", peer.identity);
        return Err(Exit::usage(format!("{}: {whose}", args.certificate.display())));
    }
    let tls = client_config(&own, None, true).map_err(|error| bad(&error))?;
    let relays = args.relay.iter().map(|relay| found(relay)).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = relays.iter().map(|relay| relay.name.to_str().into_owned()).collect();
    let guests = GuestTerms { live: [vec![Live::rtmp()], args.live.clone()].concat(), ..GuestTerms::default() };
    let lan = (!args.lan.is_empty()).then(|| Lan::new(args.lan.clone())).transpose();
    let lan = lan.map_err(|why| Exit::usage(format!("--lan: {why}")))?;
    let terms = Config { listen: args.listen.clone(), relays, warm: args.warm, direct: !args.no_direct, guests };
    let edge = Edge::new(terms, Arc::new(tls));
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let front = runtime.block_on(Front::open(&edge)).map_err(|error| Exit::failed(error.to_string()))?;
    let listens: Vec<String> = front.addresses().iter().map(ToString::to_string).collect();
    // Each flow has two descriptors.
    let _ = marline_net::paths::forward::descriptors();
    // Before anything else is changed: what it cannot have ends the edge. Those who come now wait until they are attended.
    let run_dir = run_dir(&args);
    let mut gateway =
        lan.as_ref().map(|lan| runtime.block_on(Gateway::open(lan, &run_dir))).transpose().map_err(no_lan)?;
    // Connections that are there before the links are steered would not be.
    let steering = (!args.no_paths).then(|| steer(&args, config)).transpose()?;
    say(&format!("{} listens on {} for SOCKS5 and CONNECT", peer.identity, listens.join(", ")));
    if let Some(gateway) = &gateway {
        gateway.changes().iter().for_each(|line| say(line));
        say(&format!(
            "{} is the gateway of {}: TCP is carried; UDP and the rest pass over the link of the default route",
            peer.identity,
            args.lan.join(", ")
        ));
    }
    let ended = runtime.block_on(async {
        tokio::select! {
            () = front.attend(&edge) => Err(Exit::failed("the listeners have ended")),
            lost = async {
                match &mut gateway {
                    Some(gateway) => attend_lan(gateway, &edge).await,
                    None => std::future::pending().await,
                }
            } => Err(no_lan(lost)),
            never = edge.keep_warm() => match never {},
            never = tell(edge.state(), &names) => match never {},
            ended = stopped() => ended,
        }
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
    ended
}

/// Where what is changed is written down.
fn run_dir(args: &EdgeArgs) -> PathBuf {
    args.run_dir.clone().unwrap_or_else(|| RUN_DIR.into())
}

fn no_lan(error: GatewayError) -> Exit {
    match error {
        GatewayError::NotPermitted => Exit::new(Exit::PRIVILEGE, error.to_string()),
        GatewayError::Interface { .. } => Exit::usage(error.to_string()),
        error => Exit::failed(error.to_string()),
    }
}

/// A relay's name and its addresses, as `HOST[:PORT]` names them.
fn found(relay: &str) -> Result<RelayAt, Exit> {
    let wrong = |why: &dyn std::fmt::Display| Exit::usage(format!("--relay {relay}: {why}"));
    let (host, port) = match relay.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => {
            (host, port.parse().map_err(|_| wrong(&"after the colon stands a port"))?)
        }
        _ => (relay, PORT),
    };
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = host.to_owned().try_into().map_err(|_| wrong(&"it is no name and no address"))?;
    let gone = |error| Exit::new(Exit::NETWORK, format!("--relay {relay}: {error}"));
    let addresses: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(gone)?.collect();
    Ok(RelayAt { name, addresses })
}

/// chosen: free in IANA's registry, and beside HTTPS's.
const PORT: u16 = 4443;

/// Steers the links in a thread of its own.
fn steer(args: &EdgeArgs, config: Option<&Path>) -> Result<std::thread::JoinHandle<()>, Exit> {
    let mut words = vec!["marline".to_owned(), "paths".to_owned(), "run".to_owned(), "--quiet".to_owned()];
    words.extend(["--short-queues".to_owned(), "--profile".to_owned(), args.profile.clone()]);
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
async fn tell(mut state: tokio::sync::watch::Receiver<EdgeState>, relays: &[String]) -> std::convert::Infallible {
    let mut before = EdgeState::default();
    let mut way = None;
    loop {
        if state.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        let now = state.borrow_and_update().clone();
        let grew = |at: &usize| now.carried.get(*at) > before.carried.get(*at);
        let new = if now.direct > before.direct {
            Some("directly, over one link: no relay can be had".to_owned())
        } else {
            (0..relays.len()).find(grew).and_then(|at| relays.get(at)).map(|relay| format!("through {relay}"))
        };
        if let Some(new) = new.filter(|new| way.as_ref() != Some(new)) {
            say(&format!("new flows go {new}"));
            way = Some(new);
        }
        before = now;
    }
}

async fn stopped() -> Result<(), Exit> {
    let ear = |kind| signal(kind).map_err(|error| Exit::failed(format!("signals: {error}")));
    let (mut term, mut int) = (ear(SignalKind::terminate())?, ear(SignalKind::interrupt())?);
    tokio::select! {
        _ = term.recv() => {}
        _ = int.recv() => {}
    }
    Ok(())
}

/// A line for people.
fn say(line: &str) {
    // A closed standard error must not end an edge.
    let _ = writeln!(std::io::stderr(), "marline: {line}");
}
