//! The command line: what can be written, and what each word means.
//!
//! Arguments go in, a [`Cli`] that cannot be wrong in itself comes out, or an [`Exit`] with one line.
//!
//! 1. Every value with a dimension carries its unit (`20Mbit/s`, `50ms`, `500KiB`).
//! 2. Whatever may hold a secret (`--user`, `-H`, a URL) is taken as plain text here and parsed by
//!    [`fetch`](crate::fetch), because clap repeats a refused value in its message.
//! 3. Nothing is read or opened.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use marline_core::fetch::{MeteredUse, Policy};
use marline_core::units::{Bitrate, parse_duration};
use marline_net::get::Checksum;
use marline_net::links::Named;

use crate::{Exit, Secret};

/// Several network links behave as one good link.
#[derive(Debug, Parser)]
#[command(name = "marline", version, max_term_width = 100, subcommand_required = true, after_help = AFTER_HELP)]
pub struct Cli {
    /// Read this configuration file instead of ~/.config/marline/marline.toml.
    #[arg(long, global = true, value_name = "FILE", display_order = 900)]
    pub config: Option<PathBuf>,
    /// What to do.
    #[command(subcommand)]
    pub verb: Verb,
}

const AFTER_HELP: &str = "\
Examples:
  marline get https://example.org/big.iso    download on all links of this machine
  marline links                              which links there are, and why one is not used
  marline help get                           everything about `get`

Exit codes: 0 done, 1 failed, 64 wrong usage, 69 no usable network link, 77 a privilege is missing,
130 stopped by Ctrl-C. Set MARLINE_LOG=debug to see what happens inside.";

/// The verbs.
#[derive(Debug, Subcommand)]
pub enum Verb {
    /// Download a file on all links at once.
    #[command(after_help = AFTER_GET)]
    Get(Box<GetArgs>),
    /// Show this machine's links, and why a link is not used.
    #[command(after_help = AFTER_LINKS)]
    Links(LinksArgs),
    /// Run a log of decisions again and prove that they come out the same.
    #[command(after_help = AFTER_REPLAY)]
    Replay(ReplayArgs),
    /// Count the joules of a recorded download, and show what is known of radios.
    #[command(after_help = crate::energy::AFTER_HELP)]
    Energy(crate::energy::EnergyArgs),
    /// Play and browse over all links: a local proxy for players, browsers and programs.
    #[command(after_help = crate::proxy::AFTER_PROXY)]
    Proxy(Box<crate::proxy::ProxyArgs>),
    /// Print the address at which a player finds a URL, or start the player.
    #[command(after_help = crate::proxy::AFTER_PLAY)]
    Play(Box<crate::proxy::PlayArgs>),
    /// Steer the MPTCP connections of all programs, by energy and cost.
    #[command(after_help = crate::paths::AFTER_HELP)]
    Paths(Box<crate::paths::PathsArgs>),
    /// Run a command whose TCP connections are MPTCP connections.
    #[command(after_help = crate::run::AFTER_HELP)]
    Run(crate::run::RunArgs),
    /// Relays for edges: who belongs to a fleet, and who serves whom.
    #[cfg(feature = "fleet")]
    Fleet(Box<crate::fleet::FleetArgs>),
    /// Carry edges' connections to their servers.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::relay::AFTER_HELP)]
    Relay(Box<crate::relay::RelayArgs>),
    /// Carry programs' connections over all links to a relay.
    #[cfg(feature = "fleet")]
    #[command(after_help = crate::edge::AFTER_HELP)]
    Edge(Box<crate::edge::EdgeArgs>),
    /// Make TCP on one link faster, with a thin second link beside it.
    #[cfg(feature = "accel")]
    #[command(after_help = crate::accel::AFTER_HELP)]
    Accel(Box<crate::accel::AccelArgs>),
    /// Emulate links on this machine: try commands, run scenarios, reproduce papers.
    #[cfg(feature = "lab")]
    Lab(marline_lab::cli::LabArgs),
}

const AFTER_GET: &str = "\
Examples:
  marline get https://example.org/big.iso
      Use every link, show one bar per link. Run it again after any interruption: it goes on where it was.
  marline get --link wlan0 --link wwan0,metered=yes,budget=500MB https://example.org/big.iso
      Use these two links; at most 500 MB over the second, and only when the first has failed.
  marline get -o - https://example.org/film.ts | player -
      In order to standard output.
  marline get --checksum sha256=9f86…0a08 https://a.example/f https://b.example/f
      Two mirrors of one file, checked at the end.

Terms of a --link, each optional: kind=ethernet|wifi|lte|nr|umts|satellite|tunnel|other, metered=yes|no,
budget=SIZE, limit=RATE. Without -o the file gets the name that the server gives, or the last part of
the URL. Values carry their unit: rates bit/s, kbit/s, Mbit/s, Gbit/s; sizes B, kB, KiB, MB, MiB, GB, GiB;
times ms, s, min, h, d.";

const AFTER_LINKS: &str = "\
Examples:
  marline links
  marline links --json | jq -r '.[] | select(.verdict == \"usable\") | .name'";

const AFTER_REPLAY: &str = "\
Examples:
  marline get --trace run.ndjson https://example.org/big.iso
  marline replay run.ndjson

Exit code 0: every decision came out the same. 1: one did not (its line is shown), or the log is damaged.";

/// `marline get`.
#[derive(Debug, Args)]
pub struct GetArgs {
    /// Where the file is (http or https); further URLs are mirrors of the same file, not further files.
    #[arg(required = true, value_name = "URL")]
    pub urls: Vec<Secret>,
    /// Write to FILE, into a directory, or with `-` in order to standard output.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Use this interface, on these terms; repeat for more. Without it: every link that works.
    #[arg(long, value_name = "IFACE[,…]")]
    pub link: Vec<Named>,
    /// Use the links below an active VPN instead of the VPN alone.
    #[arg(long)]
    pub bypass_vpn: bool,
    /// Links that cost money: avoid (only when all others have failed), use or never [default: avoid].
    #[arg(long, value_name = "WORD", value_parser = metered_use)]
    pub metered: Option<MeteredUse>,
    /// Who decides: single, naive, static-limit, dynamic-limit, bdp-limit or marline.
    #[arg(long, default_value = "marline", value_name = "NAME")]
    pub policy: Policy,
    /// Send this header field too; repeat for more.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub header: Vec<Secret>,
    /// Log in to the URL's host; others can see a command line, so prefer --user-file or MARLINE_USER.
    #[arg(long, value_name = "USER:PASS", conflicts_with = "user_file")]
    pub user: Option<Secret>,
    /// Read USER:PASS from the first line of FILE.
    #[arg(long, value_name = "FILE")]
    pub user_file: Option<PathBuf>,
    /// Trust only the certificates in this PEM file, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Fail unless the whole file hashes to this.
    #[arg(long, value_name = "sha256=HEX")]
    pub checksum: Option<Checksum>,
    /// The most per second, of all links together or of one that is used; repeat for more.
    #[arg(long, value_name = "[IFACE=]RATE")]
    pub limit_rate: Vec<Limit>,
    /// Accepted for the sake of habit and without effect: a download is always continued.
    #[arg(short = 'c', long = "continue")]
    pub resume: bool,
    /// Ask for MPTCP; where the server speaks it, one connection is left to the kernel's paths.
    #[arg(long)]
    pub mptcp: bool,
    /// Give up after this time; what has arrived is kept.
    #[arg(long, value_name = "TIME", value_parser = positive_duration)]
    pub max_time: Option<Duration>,
    /// Retries after the first try, in a row and without progress between them, before a link is given up.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub retry: u32,
    /// Print one JSON object at the end; on standard error when the file goes to standard output.
    #[arg(long)]
    pub json: bool,
    /// Write every decision and its inputs to FILE (not `-`), for `marline replay`.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The device whose radios the links are taken for in the report: a name, a file, or none [default: typical].
    #[arg(long, value_name = "NAME|FILE")]
    pub energy_model: Option<String>,
    /// Show no progress and no notices; errors only.
    #[arg(short, long)]
    pub quiet: bool,
}

/// `marline links`.
#[derive(Debug, Args)]
pub struct LinksArgs {
    /// Print one JSON array.
    #[arg(long)]
    pub json: bool,
    /// Show the links below an active VPN as `marline get --bypass-vpn` would use them.
    #[arg(long)]
    pub bypass_vpn: bool,
}

/// `marline replay`.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The log that `--trace` wrote; `-` reads standard input.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
}

/// One `--limit-rate`: of one interface, or of all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The interface; none: all together.
    pub link: Option<String>,
    /// The most per second; more than nothing.
    pub rate: Bitrate,
}

impl std::str::FromStr for Limit {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (link, rate) = match s.split_once('=') {
            Some(("", _)) => return Err(format!("`{s}` names no interface before `=`")),
            Some((link, rate)) => (Some(link.to_owned()), rate),
            None => (None, s),
        };
        let rate: Bitrate = rate.parse().map_err(|e: marline_core::units::ParseUnitError| e.to_string())?;
        if rate.is_zero() {
            return Err("a limit of zero would never end; leave the link out instead".into());
        }
        Ok(Self { link, rate })
    }
}

pub(crate) fn metered_use(s: &str) -> Result<MeteredUse, String> {
    match s {
        "avoid" => Ok(MeteredUse::Avoid),
        "use" => Ok(MeteredUse::Use),
        "never" => Ok(MeteredUse::Never),
        _ => Err("say avoid, use or never".into()),
    }
}

pub(crate) fn positive_duration(s: &str) -> Result<Duration, String> {
    match parse_duration(s) {
        Ok(Duration::ZERO) => Err("no time at all is too short".into()),
        Ok(time) => Ok(time),
        Err(e) => Err(e.to_string()),
    }
}

/// Reads the command line. Help and version are printed here and end with success.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> Result<Cli, Exit> {
    let args: Vec<OsString> = args.into_iter().collect();
    Cli::try_parse_from(&args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output is the reader's choice.
            let _ = error.print();
            Exit::silent(0)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let (command, name) = spoken_to(&args);
            Exit::usage(format!("say what to do: {}; `{name} --help` explains them", verbs(&command)))
        }
        _ => Exit::usage(one_line(&error, &args)),
    })
}

/// Runs the lab and passes its exit code on.
#[cfg(feature = "lab")]
pub(crate) fn run_lab(lab: marline_lab::cli::LabArgs) -> Result<(), Exit> {
    match marline_lab::cli::run(lab) {
        0 => Ok(()),
        code => Err(Exit::silent(code)),
    }
}

fn verbs(command: &clap::Command) -> String {
    command.get_subcommands().map(|verb| verb.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

/// clap's message as one line: what is wrong, its tip if it has one, and where to read on.
fn one_line(error: &clap::Error, args: &[OsString]) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let mut parts = text.split("\n\n");
    let mut line = parts.next().unwrap_or_default().replace('\n', " ");
    for part in parts {
        if let Some(tip) = part.trim().strip_prefix("tip: ") {
            line = format!("{line} ({})", tip.replace('\n', " "));
        }
    }
    format!("{line}; see `{} --help`", spoken_to(args).1)
}

/// The command that the words name, as far as they do, and its name: `marline lab exec`. What stands behind `--` is
/// somebody else's.
fn spoken_to(args: &[OsString]) -> (clap::Command, String) {
    let (mut command, mut name) = (Cli::command(), String::from("marline"));
    for word in args.iter().skip(1).take_while(|word| *word != "--") {
        if let Some(verb) = command.find_subcommand(word) {
            name = format!("{name} {}", verb.get_name());
            command = verb.clone();
        }
    }
    (command, name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(words: &[&str]) -> Result<GetArgs, String> {
        let words = ["marline", "get"].iter().chain(words).map(OsString::from);
        match parse(words) {
            Ok(Cli { verb: Verb::Get(get), .. }) => Ok(*get),
            Ok(other) => panic!("{other:?}"),
            Err(exit) => Err(exit.line.unwrap_or_default()),
        }
    }

    #[test]
    fn clap_accepts_its_own_definition() {
        Cli::command().debug_assert();
    }

    #[test]
    fn all_options_of_get_are_understood_together() {
        let args = get(&[
            "-o",
            "f",
            "--link",
            "wlan0",
            "--link",
            "wwan0,kind=lte",
            "--metered",
            "use",
            "--policy",
            "bdp-limit",
            "-H",
            "A: b",
            "--user",
            "me:x",
            "--ca-file",
            "ca.pem",
            "--limit-rate",
            "20Mbit/s",
            "--limit-rate",
            "wwan0=5Mbit/s",
            "--max-time",
            "1min",
            "--retry",
            "9",
            "-c",
            "--json",
            "--trace",
            "t",
            "-q",
            "http://h/f",
            "http://i/f",
        ])
        .unwrap();
        assert_eq!((args.urls.len(), args.link.len(), args.retry), (2, 2, 9));
        assert_eq!(args.policy, Policy::BdpLimit);
        assert_eq!(args.max_time, Some(Duration::from_secs(60)));
        assert_eq!(args.limit_rate[1], Limit { link: Some("wwan0".into()), rate: Bitrate::from_mbps(5) });
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line_with_the_way_on() {
        let table: &[(&[&str], &str)] = &[
            (&[], "<URL>"),
            (&["--polizy", "x", "http://h/f"], "--policy"),
            (&["--policy", "fast", "http://h/f"], "`fast` is no policy: single"),
            (&["--limit-rate", "20", "http://h/f"], "a rate such as 20Mbit/s"),
            (&["--limit-rate", "=1Mbit/s", "http://h/f"], "names no interface"),
            (&["--limit-rate", "0bit/s", "http://h/f"], "would never end"),
            (&["--max-time", "10", "http://h/f"], "a duration such as"),
            (&["--max-time", "0s", "http://h/f"], "too short"),
            (&["--metered", "maybe", "http://h/f"], "avoid"),
            (&["--checksum", "md5=00", "http://h/f"], "no checksum"),
            (&["--retry", "-1", "http://h/f"], "-1"),
        ];
        for (words, expected) in table {
            let line = get(words).unwrap_err();
            assert!(line.contains(expected), "{words:?}: {line}");
            assert!(line.ends_with("; see `marline get --help`"), "{words:?}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn a_password_is_not_repeated_when_another_word_is_wrong() {
        let line = get(&["--user", "me:secret", "--user-file", "f", "http://h/f"]).unwrap_err();
        assert!(!line.contains("secret"), "{line}");
    }
}
