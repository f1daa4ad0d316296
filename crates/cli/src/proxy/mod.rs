//! `marline proxy` and `marline play`: run a proxy from its arguments, or start a player that uses one.
//!
//! 1. Notices of the proxy go to standard error, one line each. With `--json`, one object with its addresses goes to standard
//!    output, for programs that start the proxy.
//! 2. `play` without `--player` prints the URL and nothing else on standard output.
//! 3. `play --player` uses a proxy that is running, else it runs one for as long as the player runs. The exit code is that of
//!    the player.

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

pub(crate) use args::{AFTER_PLAY, AFTER_PROXY, PlayArgs, PlaybackArgs, ProxyArgs};

use crate::args::{CaFileArgs, LinkArgs};
use crate::get::{parse_header, playable_url};
use crate::output::{self, print_result};
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;
use crate::{CliError, ConfigFile, energy};

/// Runs a proxy until it is stopped.
pub(crate) fn run(args: ProxyArgs, config: Option<&Path>) -> Result<(), CliError> {
    let mut options = build_options(args.links, args.authorities, args.playback, config)?;
    if let Some(folder) = &args.log.trace {
        let usage_error = |error| CliError::usage(format!("--trace {}: {error}", folder.display()));
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(usage_error)?;
    }
    options.trace_dir = args.log.trace;
    options.mpv_socket = args.mpv_socket;
    options.listen = args.listen;
    options.status_listen = args.status_listen;
    options.allow_lan = args.allow_lan;
    (options.spread_mode, options.idle_timeout) = (args.spread, args.idle_timeout);
    (options.window, options.memory) = (args.window, args.memory);
    let (json, quiet) = (args.format.json, args.quiet);
    let started = |addresses: &ProxyAddresses| {
        if !quiet {
            print_addresses(addresses);
        }
        if json {
            let object =
                serde_json::json!({"listen": addresses.media_addr.to_string(), "status": addresses.status_url});
            // Errors are ignored: a reader that has closed the pipe does not need the addresses.
            let _ = print_result(&format!("{object}\n"));
        }
    };
    drop_privileges(Daemon::Proxy);
    block_on(async {
        let reload_signal = ReloadSignal::register()?;
        tokio::select! {
            result = marline_proxy::run(options, started, std::future::pending()) => result.map_err(to_cli_error),
            never = reload_signal.ignore_with_notice(quiet) => match never {},
        }
    })?
}

/// Prints the proxy URL for a player, or starts the player.
pub(crate) fn play(args: PlayArgs, config: Option<&Path>) -> Result<(), CliError> {
    let media_url = playable_url(args.url.expose())?;
    let url = proxy_url(args.listen, "", &media_url);
    let origin_headers = parse_origin_headers(&args, &media_url)?;
    if origin_headers.is_some() && !args.page && args.player.is_none() {
        let message = "-H needs --player or --page; otherwise set the field in the player: the proxy forwards it";
        return Err(CliError::usage(message));
    }
    let mut listen = args.listen;
    let mut is_proxy_running = TcpStream::connect_timeout(&listen, Duration::from_secs(1)).is_ok();
    if is_proxy_running && origin_headers.is_some() {
        // A running proxy does not know these header fields, so a separate one is started.
        listen.set_port(0);
        is_proxy_running = false;
    }
    if args.page {
        if is_proxy_running {
            let message = "a proxy is running already: open the player page that it printed at its start";
            return Err(CliError::failed(format!("{}: {message}, with #URL appended", args.listen)));
        }
        let options = Options {
            listen,
            origin_headers,
            ..build_options(args.links, args.authorities, args.playback, config)?
        };
        let started = |addresses: &ProxyAddresses| {
            print_addresses(addresses);
            let _ = print_result(&format!("{}play#{}\n", addresses.status_url, media_url));
        };
        return block_on(marline_proxy::run(options, started, std::future::pending()))?.map_err(to_cli_error);
    }
    let Some(player) = args.player else {
        if !is_proxy_running {
            output::print_notice(&format!("no proxy listens on {} yet: start `marline proxy`", args.listen));
        }
        return print_result(&format!("{url}\n"));
    };
    if is_proxy_running {
        let status = player_command(&player, &url).status().map_err(|error| spawn_error(&player, &error))?;
        return player_exit(status);
    }
    let prefix = origin_headers.as_ref().map(OriginHeaders::path_prefix).unwrap_or_default();
    let options =
        Options { listen, origin_headers, ..build_options(args.links, args.authorities, args.playback, config)? };
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
            // A thread waits for the player, while the event loop serves it.
            std::thread::spawn(move || exit_tx.send(child.wait()));
            match exit_rx.await {
                Ok(Ok(status)) => player_exit(status),
                _ => Err(CliError::failed(format!("{player}: its exit status is unknown"))),
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

/// Options of a proxy, from the arguments and the configuration file.
fn build_options(
    link_args: LinkArgs,
    authorities: CaFileArgs,
    playback: PlaybackArgs,
    config: Option<&Path>,
) -> Result<Options, CliError> {
    let file = ConfigFile::read(config)?;
    let links = if link_args.link.is_empty() {
        LinkSelection::Auto { bypass_vpn: link_args.vpn.bypass_vpn, configured: file.described_links() }
    } else {
        LinkSelection::Named(link_args.link.into_iter().map(|link| file.with_config(link)).collect())
    };
    let mut options = Options::new(links);
    options.metered = link_args.metered.or(file.metered).unwrap_or_default();
    options.ca_file = authorities.ca_file;
    if playback.policy != Policy::Marline && playback.goal != Objective::Energy {
        return Err(CliError::usage(
            "--goal other than energy needs --policy marline: GreenBag supports only energy",
        ));
    }
    if playback.goal == Objective::Cost && options.metered != MeteredUse::Use {
        return Err(CliError::usage(
            "--goal cost needs --metered use: otherwise metered links are unused while another link works",
        ));
    }
    if playback.policy == Policy::Marline && playback.greenbag.is_some() {
        return Err(CliError::usage("--greenbag is for --policy greenbag-p or greenbag-e"));
    }
    options.greenbag = playback.greenbag.unwrap_or_default();
    (options.policy, options.objective, options.start_mode) = (playback.policy, playback.goal, playback.start_mode);
    options.energy_model =
        energy::select_model(playback.model.energy_model.as_deref(), file.energy_model.as_deref())?;
    options.prices = file.prices();
    // Without prices, each byte over a metered link costs the same.
    if options.objective == Objective::Cost && options.prices.is_empty() {
        options.objective = Objective::MeteredBytes;
    }
    Ok(options)
}

/// Prints the addresses of the proxy.
fn print_addresses(addresses: &ProxyAddresses) {
    addresses.notices.iter().for_each(|line| output::print_notice(line));
    output::print_notice(&format!(
        "play http://{}/URL; HTTP and SOCKS5 proxy on the same port",
        addresses.media_addr
    ));
    output::print_notice(&format!("status {0}, player page {0}play", addresses.status_url));
    if let Some(name) = proxy_variable(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        output::print_notice(&format!(
            "{name} is set but ignored: this proxy connects to servers directly, over the links"
        ));
    }
}

/// A variable that names an upstream proxy for other programs. Its value is not printed, since it may contain a password.
fn proxy_variable(is_set: impl Fn(&str) -> bool) -> Option<&'static str> {
    ["http_proxy", "https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"].into_iter().find(|name| is_set(name))
}

/// Header fields for the origin of the URL; `None` without `-H`.
fn parse_origin_headers(args: &PlayArgs, url: &str) -> Result<Option<OriginHeaders>, CliError> {
    let fields = args.header.iter().map(|text| parse_header(text.expose())).collect::<Result<Vec<_>, _>>()?;
    if fields.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(url).map_err(|error| CliError::usage(format!("cannot parse the URL: {error}")))?;
    let origin_headers = OriginHeaders::new(url, &fields);
    origin_headers.map(Some).map_err(|error| CliError::failed(format!("cannot create a random token: {error}")))
}

/// The URL at which a player gets `url` through the proxy.
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
        std::io::ErrorKind::NotFound => CliError::usage(format!("--player {name}: no such program")),
        _ => CliError::failed(format!("--player {name}: {error}")),
    }
}

/// The player's exit code becomes that of `marline play`; 1 if a signal has ended the player.
fn player_exit(status: ExitStatus) -> Result<(), CliError> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Err(CliError::without_message(code.unwrap_or(CliError::FAILED)))
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
        .map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))?;
    let output = runtime.block_on(future);
    // Does not wait for pending name lookups.
    runtime.shutdown_background();
    Ok(output)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_proxy_url_is_its_address_followed_by_the_url() {
        let listen = "127.0.0.1:8480".parse().unwrap();
        assert_eq!(proxy_url(listen, "", "https://h/f?x"), "http://127.0.0.1:8480/https://h/f?x");
    }
}
