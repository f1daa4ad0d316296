//! `marline proxy` and `marline play`: from words to a proxy that runs, or to a player that finds one.
//!
//! 1. What the proxy says of itself goes to standard error, one line each; with `--json` one object goes to standard
//!    output, for programs that start it.
//! 2. `play` without `--player` prints the address and nothing else on standard output.
//! 3. `play --player` uses a proxy that listens already, else it runs one for as long as the player does; the exit code
//!    is the player's.

mod args;

use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use marline_core::fetch::MeteredUse;
use marline_core::stream::{Objective, Policy};
use marline_download::ClientContextError;
use marline_net::links::{LinkSelection, LinksError};
use marline_proxy::{Options, OriginHeaders, ProxyAddresses, ProxyError};
use url::Url;

pub(crate) use args::{AFTER_PLAY, AFTER_PROXY, LinkArgs, PlayArgs, PlaybackArgs, ProxyArgs};

use crate::get::{parse_header, playable_url};
use crate::output::{self, print_result};
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;
use crate::{CliError, ConfigFile, energy};

/// Runs a proxy until it is stopped.
pub(crate) fn run(args: ProxyArgs, config: Option<&Path>) -> Result<(), CliError> {
    let mut options = build_options(args.links, args.playback, config)?;
    if let Some(folder) = &args.trace {
        let usage_error = |error| CliError::usage(format!("--trace {}: {error}", folder.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(usage_error)?;
    }
    options.trace_dir = args.trace;
    options.mpv_socket = args.mpv_socket;
    options.listen = args.listen;
    options.status_listen = args.status_listen;
    options.allow_lan = args.allow_lan;
    (options.spread_mode, options.idle_timeout) = (args.spread, args.idle_timeout);
    (options.window, options.memory) = (args.window, args.memory);
    let (json, quiet) = (args.json, args.quiet);
    let started = |addresses: &ProxyAddresses| {
        if !quiet {
            print_addresses(addresses);
        }
        if json {
            let object =
                serde_json::json!({"listen": addresses.media_addr.to_string(), "status": addresses.status_url});
            // Whoever does not listen any more has got what he wanted.
            let _ = print_result(&format!("{object}\n"));
        }
    };
    drop_privileges(Daemon::Proxy);
    block_on(async {
        let hangup = ReloadSignal::register()?;
        tokio::select! {
            result = marline_proxy::run(options, started, std::future::pending()) => result.map_err(to_cli_error),
            never = hangup.ignore_with_notice(quiet) => match never {},
        }
    })?
}

/// Prints an address for a player, or starts one.
pub(crate) fn play(args: PlayArgs, config: Option<&Path>) -> Result<(), CliError> {
    let media_url = playable_url(args.url.expose())?;
    let url = proxy_url(args.listen, "", &media_url);
    let origin_headers = parse_origin_headers(&args, &media_url)?;
    if origin_headers.is_some() && !args.page && args.player.is_none() {
        let message =
            "-H needs --player or --page; without them, have the player send the field: the proxy passes it on";
        return Err(CliError::usage(message));
    }
    let mut listen = args.listen;
    let mut is_proxy_running = TcpStream::connect_timeout(&listen, Duration::from_secs(1)).is_ok();
    if is_proxy_running && origin_headers.is_some() {
        // That proxy does not know the fields.
        listen.set_port(0);
        is_proxy_running = false;
    }
    if args.page {
        if is_proxy_running {
            let message = "a proxy runs already: open the player page that it has printed at its start";
            return Err(CliError::failed(format!("{}: {message}, with #URL behind it", args.listen)));
        }
        let options = Options { listen, origin_headers, ..build_options(args.links, args.playback, config)? };
        let started = |addresses: &ProxyAddresses| {
            print_addresses(addresses);
            let _ = print_result(&format!("{}play#{}\n", addresses.status_url, media_url));
        };
        return block_on(marline_proxy::run(options, started, std::future::pending()))?.map_err(to_cli_error);
    }
    let Some(player) = args.player else {
        if !is_proxy_running {
            output::say(&format!("nothing listens on {} yet: start `marline proxy`", args.listen));
        }
        return print_result(&format!("{url}\n"));
    };
    if is_proxy_running {
        let status = player_command(&player, &url).status().map_err(|error| spawn_error(&player, &error))?;
        return player_exit(status);
    }
    let prefix = origin_headers.as_ref().map(OriginHeaders::path_prefix).unwrap_or_default();
    let options = Options { listen, origin_headers, ..build_options(args.links, args.playback, config)? };
    block_on(async {
        let (address_tx, address_rx) = tokio::sync::oneshot::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let stop_requested = async {
            let _ = stopped.await;
        };
        let started = |addresses: &ProxyAddresses| {
            print_addresses(addresses);
            let _ = address_tx.send(addresses.media_addr);
        };
        let player_task = async {
            let Ok(listen) = address_rx.await else { return Ok(()) };
            let url = proxy_url(listen, &prefix, &media_url);
            let (exit_tx, exit_rx) = tokio::sync::oneshot::channel();
            let mut child = player_command(&player, &url).spawn().map_err(|error| spawn_error(&player, &error))?;
            // A thread waits: the loop serves the player meanwhile.
            std::thread::spawn(move || exit_tx.send(child.wait()));
            match exit_rx.await {
                Ok(Ok(status)) => player_exit(status),
                _ => Err(CliError::failed(format!("{player}: nobody knows how it ended"))),
            }
        };
        let player_then_stop = async {
            let result = player_task.await;
            let _ = stop.send(());
            result
        };
        let (proxy_result, player_result) =
            tokio::join!(marline_proxy::run(options, started, stop_requested), player_then_stop);
        proxy_result.map_err(to_cli_error)?;
        player_result
    })?
}

/// The terms of a proxy, with what the configuration file adds.
fn build_options(link_args: LinkArgs, playback: PlaybackArgs, config: Option<&Path>) -> Result<Options, CliError> {
    let file = ConfigFile::read(config)?;
    let links = if link_args.link.is_empty() {
        LinkSelection::Auto { bypass_vpn: link_args.bypass_vpn, configured: file.described_links() }
    } else {
        LinkSelection::Named(link_args.link.into_iter().map(|link| file.with_config(link)).collect())
    };
    let mut options = Options::new(links);
    options.metered = link_args.metered.or(file.metered).unwrap_or_default();
    options.ca_file = link_args.ca_file;
    if playback.policy != Policy::Marline && playback.goal != Objective::Energy {
        return Err(CliError::usage(
            "--goal other than energy is for --policy marline alone: GreenBag knows only energy",
        ));
    }
    if playback.goal == Objective::Cost && options.metered != MeteredUse::Use {
        return Err(CliError::usage(
            "--goal cost needs --metered use: otherwise metered links are not used while another works",
        ));
    }
    if playback.policy == Policy::Marline && playback.greenbag.is_some() {
        return Err(CliError::usage("--greenbag is for --policy greenbag-p or greenbag-e"));
    }
    options.greenbag = playback.greenbag.unwrap_or_default();
    (options.policy, options.objective, options.start_mode) = (playback.policy, playback.goal, playback.start_mode);
    options.energy_model = energy::select_model(playback.energy_model.as_deref(), file.energy_model.as_deref())?;
    options.prices = file.prices();
    // Without prices, each byte over a metered link costs the same.
    if options.objective == Objective::Cost && options.prices.is_empty() {
        options.objective = Objective::MeteredBytes;
    }
    Ok(options)
}

/// Tells people where it is.
fn print_addresses(addresses: &ProxyAddresses) {
    addresses.notices.iter().for_each(|line| output::say(line));
    output::say(&format!("play http://{}/URL; HTTP and SOCKS5 proxy on the same port", addresses.media_addr));
    output::say(&format!("status {0}, player page {0}play", addresses.status_url));
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
fn parse_origin_headers(args: &PlayArgs, url: &str) -> Result<Option<OriginHeaders>, CliError> {
    let fields = args.header.iter().map(|text| parse_header(text.expose())).collect::<Result<Vec<_>, _>>()?;
    if fields.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(url).map_err(|error| CliError::usage(format!("the URL cannot be read: {error}")))?;
    let origin_headers = OriginHeaders::new(url, &fields);
    origin_headers.map(Some).map_err(|error| CliError::failed(format!("no random token can be made: {error}")))
}

/// The address under which a player gets a URL.
fn proxy_url(listen: SocketAddr, prefix: &str, url: &str) -> String {
    format!("http://{listen}/{prefix}{url}")
}

fn player_command(player: &str, url: &str) -> Command {
    let mut arguments = player.split_whitespace();
    let mut command = Command::new(arguments.next().unwrap_or_default());
    command.args(arguments).arg(url);
    command
}

fn spawn_error(player: &str, error: &std::io::Error) -> CliError {
    let name = player.split_whitespace().next().unwrap_or_default();
    match error.kind() {
        std::io::ErrorKind::NotFound => CliError::usage(format!("--player {name}: there is no such program")),
        _ => CliError::failed(format!("--player {name}: {error}")),
    }
}

fn player_exit(status: ExitStatus) -> Result<(), CliError> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(CliError::silent(code.unwrap_or(CliError::FAILED)))
}

fn to_cli_error(error: ProxyError) -> CliError {
    let code = match &error {
        ProxyError::ListenNotLoopback(_)
        | ProxyError::StatusNotLoopback(_)
        | ProxyError::Network(ClientContextError::Trust(_)) => CliError::USAGE,
        ProxyError::Network(ClientContextError::Links(LinksError::NoLink { .. })) => CliError::NETWORK,
        _ => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CliError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("the event loop cannot be started: {error}")))?;
    let output = runtime.block_on(future);
    // Whatever still waits on a resolver must not hold the program up.
    runtime.shutdown_background();
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_the_proxys_with_the_url_behind_it() {
        let listen = "127.0.0.1:8480".parse().unwrap();
        assert_eq!(proxy_url(listen, "", "https://h/f?x"), "http://127.0.0.1:8480/https://h/f?x");
    }
}
