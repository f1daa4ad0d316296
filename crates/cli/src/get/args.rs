//! Command-line arguments of `marline get`.
//!
//! Arguments that may hold a secret (`--user`, `-H`, a URL) are plain text here and are parsed by [`super`], because clap
//! repeats a rejected value in its message.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::fetch::Policy;
use marline_core::units::Bitrate;
use marline_download::Checksum;
use marline_net::links::parse_rate_limit;

use super::request::RequestArgs;
use crate::Secret;
use crate::args::{CaFileArgs, EnergyModelArgs, JsonArgs, LinkArgs, TraceArgs, parse_positive_duration};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline get https://example.org/big.iso
      Download over all links, with one progress bar per link. To resume it, run it again.
  marline get --link wlan0 --link wwan0,metered=yes,budget=500MB https://example.org/big.iso
      Use these two links; at most 500 MB over the second one, and only if the first has failed.
  marline get -o - https://example.org/film.ts | player -
      Write the file in order to standard output.
  marline get -d iso https://example.org/a.iso https://example.org/b.iso
      Download two files into a directory. They share all links, and small files finish first.
  marline get -i list.txt
      Download the URLs of a list in the format of aria2 (indented lines: out=, dir=, checksum=).
  marline get --checksum sha256=9f86…0a08 --mirror https://b.example/f https://a.example/f
      Combine two mirrors of one file; the checksum proves that both have the same file.

Properties of a --link, each optional: kind=ethernet|wifi|lte|nr|umts|satellite|tunnel|other,
metered=yes|no, budget=SIZE, limit=RATE. Without -o the file name is that of the server's
response, or else the last part of the URL. A URL without a scheme is http. Units: rates bit/s,
kbit/s, Mbit/s, Gbit/s; sizes B, kB, KiB, MB, MiB, GB, GiB, and K, M, G for KiB, MiB, GiB; times
ms, s, min, h, d. A --limit-rate such as 2M is in bytes per second, as in curl.";

/// `marline get`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
#[command(mut_arg("json", |arg| {
    arg.help("Print one JSON object per file, also on failure; on standard error if the file goes to standard output")
}))]
#[command(mut_arg("trace", |arg| {
    arg.help("Write a decision log for `marline replay` to FILE (not `-`), or with several files into this directory")
}))]
#[command(mut_arg("energy_model", |arg| {
    arg.help("Device energy model for the report: a name, a file, or none [default: typical]")
}))]
pub struct GetArgs {
    /// URLs to download (http or https), one file each.
    #[arg(required_unless_present_any = ["input_file", "metalink"], value_name = "URL")]
    pub urls: Vec<Secret>,
    /// Write to this file or directory (below --dir, if given), or with `-` to standard output; several files need a directory.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write files to this directory, which is created if it does not exist [default: the current one].
    #[arg(short, long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Read URLs from FILE (`-`: standard input), one per line.
    ///
    /// Options of aria2 may follow a URL on indented lines: out=, dir= and checksum=.
    #[arg(short, long, value_name = "FILE")]
    pub input_file: Vec<PathBuf>,
    /// Download and verify the files of this Metalink file (RFC 5854; `-`: standard input).
    #[arg(short = 'M', long, value_name = "FILE")]
    pub metalink: Vec<PathBuf>,
    /// Download N files at a time.
    #[arg(short = 'j', long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub parallel: u16,
    /// Add a mirror of the file; repeat for more. With a checksum they are combined; without one, the next replaces one that has failed.
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<Secret>,
    /// Links to use.
    #[command(flatten)]
    pub links: LinkArgs,
    /// Scheduling policy: single, naive, static-limit, dynamic-limit, bdp-limit or marline.
    #[arg(long, default_value = "marline", value_name = "NAME")]
    pub policy: Policy,
    /// Send this header field to the origins of the URLs; repeat for more. Cookie and Authorization go to that of the first URL only.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub header: Vec<Secret>,
    /// Log in to the origin of the first URL. Other users can see command lines; prefer --user-file or MARLINE_USER.
    #[arg(long, value_name = "USER:PASS", conflicts_with = "user_file")]
    pub user: Option<Secret>,
    /// Read USER:PASS for --user from the first line of FILE.
    #[arg(long, value_name = "FILE")]
    pub user_file: Option<PathBuf>,
    /// Send login, cookies and -H also to other hosts that redirects lead to.
    #[arg(long)]
    pub location_trusted: bool,
    /// Options of requests and connections.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Trusted certificate authorities.
    #[command(flatten)]
    pub authorities: CaFileArgs,
    /// Fail unless the file has this checksum.
    #[arg(long, value_name = "sha256=HEX")]
    pub checksum: Option<Checksum>,
    /// Limit the rate of all links together, or of one link, for all files together; repeat for more links [default: unlimited].
    #[arg(long = "limit-rate", value_name = "[IFACE=]RATE")]
    pub rate_limits: Vec<RateLimit>,
    /// Accepted for compatibility with wget, without effect: downloads are always continued.
    #[arg(short = 'c', long = "continue")]
    pub resume: bool,
    /// Use MPTCP if the server supports it: one connection per file, with the links chosen by the kernel's path manager.
    #[arg(long)]
    pub mptcp: bool,
    /// Give up after this time, for all files together; received data is kept [default: unlimited].
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub max_time: Option<Duration>,
    /// Give up a link for a file after this many retries in a row without a received byte.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub retry: u32,
    /// Format of the report.
    #[command(flatten)]
    pub format: JsonArgs,
    /// Decision logs.
    #[command(flatten)]
    pub log: TraceArgs,
    /// Energy model of the report.
    #[command(flatten)]
    pub model: EnergyModelArgs,
    /// Print only errors, no progress and no notices.
    #[arg(short, long, visible_short_alias = 's', visible_alias = "silent")]
    pub quiet: bool,
    /// Set the modification time of the file to that reported by the server.
    #[arg(short = 'R', long)]
    pub remote_time: bool,
}

/// Value of `--limit-rate`: the limit of one link, or of all links together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Interface name; `None` for all links together.
    pub link: Option<String>,
    /// Upper limit, greater than zero.
    pub rate: Bitrate,
}

impl std::str::FromStr for RateLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (link, rate) = match text.split_once('=') {
            Some(("", _)) => return Err(format!("`{text}` has no interface name before `=`")),
            Some((link, rate)) => (Some(link.to_owned()), rate),
            None => (None, text),
        };
        let rate = parse_rate_limit(rate)?;
        if rate.is_zero() {
            return Err("the limit must not be zero; to exclude a link, select the others with --link".into());
        }
        Ok(Self { link, rate })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::command_line::{Cli, Command, parse};

    fn parse_get(arguments: &[&str]) -> Result<GetArgs, String> {
        let command_line = ["marline", "get"].iter().chain(arguments).map(OsString::from);
        match parse(command_line) {
            Ok(Cli { command: Command::Get(get), .. }) => Ok(*get),
            Ok(other) => panic!("{other:?}"),
            Err(exit) => Err(exit.message.unwrap_or_default()),
        }
    }

    #[test]
    fn all_options_of_get_can_be_combined() {
        let args = parse_get(&[
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
        assert_eq!((args.urls.len(), args.links.link.len(), args.retry), (2, 2, 9));
        assert_eq!(args.policy, Policy::BdpLimit);
        assert_eq!(args.max_time, Some(Duration::from_secs(60)));
        assert_eq!(args.rate_limits[1], RateLimit { link: Some("wwan0".into()), rate: Bitrate::from_mbps(5) });
    }

    #[test]
    fn a_mistake_is_one_line_that_names_the_help() {
        let table: &[(&[&str], &str)] = &[
            (&[], "<URL>"),
            (&["--polizy", "x", "http://h/f"], "--policy"),
            (&["--policy", "fast", "http://h/f"], "unknown policy `fast`: use single"),
            (&["--limit-rate", "20", "http://h/f"], "a rate such as 20Mbit/s"),
            (&["--limit-rate", "=1Mbit/s", "http://h/f"], "has no interface name"),
            (&["-4", "-6", "http://h/f"], "cannot be used with"),
            (&["--limit-rate", "0bit/s", "http://h/f"], "must not be zero"),
            (&["--max-time", "10", "http://h/f"], "a duration such as"),
            (&["--max-time", "0s", "http://h/f"], "too short"),
            (&["--metered", "maybe", "http://h/f"], "avoid"),
            (&["--checksum", "md5=00", "http://h/f"], "is not a checksum"),
            (&["--retry", "-1", "http://h/f"], "-1"),
        ];
        for (args, expected) in table {
            let line = parse_get(args).unwrap_err();
            assert!(line.contains(expected), "{args:?}: {line}");
            assert!(line.ends_with("; see `marline get --help`"), "{args:?}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn options_of_curl_and_wget_are_accepted() {
        let command_line = [
            "-L",
            "-f",
            "-s",
            "-S",
            "-C",
            "-",
            "-R",
            "-A",
            "me",
            "-e",
            "http://p/",
            "-b",
            "a=b",
            "-n",
            "-x",
            "p:1",
            "-4",
        ];
        let extra_args = ["--noproxy", "h", "--max-redirs", "3", "--limit-rate", "2M", "h/f"];
        let args = parse_get(&[&command_line[..], &extra_args].concat()).unwrap();
        assert!(args.quiet && args.remote_time && args.request.ipv4 && args.request.netrc);
        assert_eq!(args.request.max_redirs, 3);
        assert_eq!(args.rate_limits[0].rate, Bitrate::from_bits_per_sec(8 * 2 * 1024 * 1024));
        for (text, bits) in [
            ("500k", 4_096_000),
            ("1.5M", 12_582_912),
            ("1G", 8 << 30),
            ("20Mbit/s", 20_000_000),
            ("2m", 16_777_216),
        ] {
            assert_eq!(parse_rate_limit(text), Ok(Bitrate::from_bits_per_sec(bits)), "{text}");
        }
    }

    #[test]
    fn options_may_be_repeated_as_with_curl() {
        let command_line = [
            "-fsSL", "-q", "-L", "-s", "--retry", "2", "--retry", "3", "-b", "a=1", "-b", "file", "-b", "b=2",
            "h/f",
        ];
        let args = parse_get(&command_line).unwrap();
        assert!(args.quiet && args.retry == 3);
        assert_eq!(args.request.headers().unwrap(), [("Cookie".to_owned(), "a=1; b=2".to_owned())]);
        assert_eq!(args.request.cookie_files().load, [PathBuf::from("file")]);
        let link = parse_get(&["--link", "lo,limit=2M", "h/f"]).unwrap().links.link.remove(0);
        assert_eq!(link.rate_limit, Some(Bitrate::from_bits_per_sec(8 * 2 * 1024 * 1024)));
    }

    #[test]
    fn a_password_is_not_repeated_in_the_error_for_another_option() {
        let line = parse_get(&["--user", "me:secret", "--user-file", "f", "http://h/f"]).unwrap_err();
        assert!(!line.contains("secret"), "{line}");
    }
}
