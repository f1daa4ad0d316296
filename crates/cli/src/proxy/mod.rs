//! `marline proxy` and `marline play`: from words to a proxy that runs, or to a player that finds one.
//!
//! 1. What the proxy says of itself goes to standard error, one line each; with `--json` one object goes to standard
//!    output, for programs that start it.
//! 2. `play` without `--with` prints the address and nothing else on standard output.
//! 3. `play --with` uses a proxy that listens already, else it runs one for as long as the player does; the exit code
//!    is the player's.

mod args;

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use marline_core::fetch::MeteredUse;
use marline_core::stream::{Objective, Policy};
use marline_download::NetworkError;
use marline_net::links::{Choice, LinksError};
use marline_proxy::{Given, Options, ProxyError, Running};
use url::Url;

pub(crate) use args::{AFTER_PLAY, AFTER_PROXY, Common, PlayArgs, ProxyArgs, Watching};

use crate::confine::{Daemon, confine};
use crate::fetch::{parse_header, playable};
use crate::hangup::Hangup;
use crate::output::{self, print};
use crate::{ConfigFile, Exit, energy};

/// Runs a proxy until it is stopped.
pub(crate) fn run(args: ProxyArgs, config: Option<&Path>) -> Result<(), Exit> {
    let mut options = options(args.common, args.watching, config)?;
    if let Some(folder) = &args.trace {
        let told = |error| Exit::usage(format!("--trace {}: {error}", folder.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(told)?;
    }
    options.trace = args.trace;
    options.mpv_socket = args.mpv_socket;
    options.listen = args.listen;
    options.status = args.status;
    options.allow_lan = args.allow_lan;
    (options.spread, options.idle) = (args.spread, args.idle_timeout);
    (options.window, options.memory) = (args.window, args.memory);
    let (json, quiet) = (args.json, args.quiet);
    let started = |running: &Running| {
        if !quiet {
            say(running);
        }
        if json {
            let object = serde_json::json!({"listen": running.listen.to_string(), "status": running.status_url});
            // Whoever does not listen any more has got what he wanted.
            let _ = print(&format!("{object}\n"));
        }
    };
    confine(Daemon::Proxy);
    block_on(async {
        let hangup = Hangup::caught()?;
        tokio::select! {
            ended = marline_proxy::run(options, started, std::future::pending()) => ended.map_err(exit),
            never = hangup.changes_nothing(quiet) => match never {},
        }
    })?
}

/// Prints an address for a player, or starts one.
pub(crate) fn play(args: PlayArgs, config: Option<&Path>) -> Result<(), Exit> {
    let wanted = playable(args.url.reveal())?;
    let url = address(args.listen, "", &wanted);
    let given = given(&args, &wanted)?;
    if given.is_some() && !args.page && args.with.is_none() {
        let line =
            "-H needs --with or --page; without them, have the player send the field: the proxy passes it on";
        return Err(Exit::usage(line));
    }
    let mut listen = args.listen;
    let mut is_there = TcpStream::connect_timeout(&listen, Duration::from_secs(1)).is_ok();
    if is_there && given.is_some() {
        // That proxy does not know the fields.
        listen.set_port(0);
        is_there = false;
    }
    if args.page {
        if is_there {
            let line = "a proxy runs already: open the player page that it has printed at its start";
            return Err(Exit::failed(format!("{}: {line}, with #URL behind it", args.listen)));
        }
        let options = Options { listen, given, ..options(args.common, args.watching, config)? };
        let started = |running: &Running| {
            say(running);
            let _ = print(&format!("{}play#{}\n", running.status_url, wanted));
        };
        return block_on(marline_proxy::run(options, started, std::future::pending()))?.map_err(exit);
    }
    let Some(player) = args.with else {
        if !is_there {
            output::say(&format!("nothing listens on {} yet: start `marline proxy`", args.listen));
        }
        return print(&format!("{url}\n"));
    };
    if is_there {
        let status = command(&player, &url).status().map_err(|error| not_started(&player, &error))?;
        return ended(status);
    }
    let prefix = given.as_ref().map(Given::prefix).unwrap_or_default();
    let options = Options { listen, given, ..options(args.common, args.watching, config)? };
    block_on(async {
        let (tell, told) = tokio::sync::oneshot::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let until = async {
            let _ = stopped.await;
        };
        let started = |running: &Running| {
            say(running);
            let _ = tell.send(running.listen);
        };
        let playing = async {
            let Ok(listen) = told.await else { return Ok(()) };
            let url = address(listen, &prefix, &wanted);
            let (done, waited) = tokio::sync::oneshot::channel();
            let mut child = command(&player, &url).spawn().map_err(|error| not_started(&player, &error))?;
            // A thread waits: the loop serves the player meanwhile.
            std::thread::spawn(move || done.send(child.wait()));
            match waited.await {
                Ok(Ok(status)) => ended(status),
                _ => Err(Exit::failed(format!("{player}: nobody knows how it ended"))),
            }
        };
        let playing = async {
            let ended = playing.await;
            let _ = stop.send(());
            ended
        };
        let (ran, played) = tokio::join!(marline_proxy::run(options, started, until), playing);
        ran.map_err(exit)?;
        played
    })?
}

/// The terms of a proxy, with what the configuration file adds.
fn options(common: Common, watching: Watching, config: Option<&Path>) -> Result<Options, Exit> {
    let file = ConfigFile::read(config)?;
    let links = if common.link.is_empty() {
        Choice::Auto { bypass_vpn: common.bypass_vpn, known: file.known() }
    } else {
        Choice::Named(common.link.into_iter().map(|link| file.complete(link)).collect())
    };
    let mut options = Options::new(links);
    options.metered = common.metered.or(file.metered).unwrap_or_default();
    options.ca_file = common.ca_file;
    if watching.policy != Policy::Marline && watching.minimise != Objective::Energy {
        return Err(Exit::usage(
            "--minimise other than energy is for --policy marline alone: GreenBag knows only energy",
        ));
    }
    if watching.minimise == Objective::MeteredBytes && options.metered != MeteredUse::Use {
        return Err(Exit::usage(
            "--minimise metered-bytes needs --metered use: otherwise metered links are not used while another works",
        ));
    }
    if watching.policy == Policy::Marline && watching.greenbag.is_some() {
        return Err(Exit::usage("--greenbag is for --policy greenbag-p or greenbag-e"));
    }
    options.greenbag = watching.greenbag.unwrap_or_default();
    (options.policy, options.minimise, options.start) = (watching.policy, watching.minimise, watching.start);
    options.energy = energy::chosen(watching.energy_model.as_deref(), file.energy_model.as_deref())?;
    options.prices = file.prices();
    if options.minimise == Objective::Cost && options.prices.is_empty() {
        return Err(Exit::usage("--minimise money needs a price: write price-per-gb = \"4.50\" below [link.NAME]"));
    }
    Ok(options)
}

/// Tells people where it is.
fn say(running: &Running) {
    running.lines.iter().for_each(|line| output::say(line));
    output::say(&format!("play http://{}/URL; HTTP and SOCKS5 proxy on the same port", running.listen));
    output::say(&format!("status {0}, player page {0}play", running.status_url));
    if let Some(name) = proxy_variable(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        output::say(&format!(
            "{name} is set and not used here: this proxy reaches servers directly, over the links"
        ));
    }
}

/// A variable that names a proxy for programs that heed it; its value may hold a password.
fn proxy_variable(is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
    ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"].into_iter().find(|name| is_set(name))
}

/// The header fields for the origin of the URL; none: `-H` was not used.
fn given(args: &PlayArgs, url: &str) -> Result<Option<Given>, Exit> {
    let fields = args.header.iter().map(|text| parse_header(text.reveal())).collect::<Result<Vec<_>, _>>()?;
    if fields.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(url).map_err(|why| Exit::usage(format!("the URL cannot be read: {why}")))?;
    let given = Given::new(url, &fields);
    given.map(Some).map_err(|error| Exit::failed(format!("no random token can be made: {error}")))
}

/// The address under which a player gets a URL.
fn address(listen: SocketAddr, prefix: &str, url: &str) -> String {
    format!("http://{listen}/{prefix}{url}")
}

fn command(player: &str, url: &str) -> Command {
    let mut words = player.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or_default());
    command.args(words).arg(url);
    command
}

fn not_started(player: &str, error: &std::io::Error) -> Exit {
    let name = player.split_whitespace().next().unwrap_or_default();
    match error.kind() {
        std::io::ErrorKind::NotFound => Exit::usage(format!("--with {name}: there is no such program")),
        _ => Exit::failed(format!("--with {name}: {error}")),
    }
}

fn ended(status: ExitStatus) -> Result<(), Exit> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(Exit::silent(code.unwrap_or(Exit::FAILED)))
}

fn exit(error: ProxyError) -> Exit {
    let code = match &error {
        ProxyError::Lan(_) | ProxyError::StatusLan(_) | ProxyError::Network(NetworkError::Trust(_)) => Exit::USAGE,
        ProxyError::Network(NetworkError::Links(LinksError::NoLink { .. })) => Exit::NETWORK,
        _ => Exit::FAILED,
    };
    Exit::new(code, error.to_string())
}

fn block_on<T>(work: impl Future<Output = T>) -> Result<T, Exit> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let done = runtime.block_on(work);
    // Whatever still waits on a resolver must not hold the program up.
    runtime.shutdown_background();
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_proxys_with_the_url_behind_it() {
        let listen = "127.0.0.1:8480".parse().unwrap();
        assert_eq!(address(listen, "", "https://h/f?x"), "http://127.0.0.1:8480/https://h/f?x");
    }
}
