//! The words of `marline get`.
//!
//! Whatever may hold a secret (`--user`, `-H`, a URL) is plain text here and parsed by [`super`], because clap repeats
//! a refused value in its message.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use marline_core::fetch::{MeteredUse, Policy};
use marline_core::units::Bitrate;
use marline_download::Checksum;
use marline_net::links::{LinkArg, parse_rate_limit};

use super::request::RequestArgs;
use crate::Secret;
use crate::args::{parse_metered_use, parse_positive_duration};

pub(crate) const AFTER_HELP: &str = "\
Examples:
  marline get https://example.org/big.iso
      Use every link, show one bar per link. Run it again after any interruption: it goes on where it was.
  marline get --link wlan0 --link wwan0,metered=yes,budget=500MB https://example.org/big.iso
      Use these two links; at most 500 MB over the second, and only when the first has failed.
  marline get -o - https://example.org/film.ts | player -
      In order to standard output.
  marline get -d iso https://example.org/a.iso https://example.org/b.iso
      Two files into a directory. Small files finish first; the links are shared among all.
  marline get -i list.txt
      A list with one URL a line, as aria2 reads it (out=, dir= and checksum= on indented lines).
  marline get --checksum sha256=9f86…0a08 --mirror https://b.example/f https://a.example/f
      Two sources of one file; the checksum proves that they have the same one.

Terms of a --link, each optional: kind=ethernet|wifi|lte|nr|umts|satellite|tunnel|other, metered=yes|no,
budget=SIZE, limit=RATE. Without -o the file gets the name that the server gives, or the last part of
the URL. A URL without a scheme is http. Values carry their unit: rates bit/s, kbit/s, Mbit/s, Gbit/s;
sizes B, kB, KiB, MB, MiB, GB, GiB, and K, M, G for KiB, MiB, GiB; times ms, s, min, h, d. A --limit-rate
such as 2M is in bytes a second, as curl has it.";

/// `marline get`.
#[derive(Debug, Args)]
#[command(args_override_self = true)]
pub struct GetArgs {
    /// The files (http or https); several URLs are several files.
    #[arg(required_unless_present_any = ["input_file", "metalink"], value_name = "URL")]
    pub urls: Vec<Secret>,
    /// Write to FILE, into a directory, or with `-` in order to standard output. Several files need a directory.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Put files into DIR, which is created if it is not there.
    #[arg(short, long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Read URLs from FILE (`-`: standard input), one a line; options of aria2 on indented lines: out=, dir=, checksum=.
    #[arg(short, long, value_name = "FILE")]
    pub input_file: Vec<PathBuf>,
    /// Download the files that this Metalink file describes (RFC 5854; `-`: standard input), and verify them.
    #[arg(short = 'M', long, value_name = "FILE")]
    pub metalink: Vec<PathBuf>,
    /// Download N files at a time.
    #[arg(short = 'j', long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    pub parallel: u16,
    /// A further source of the one file; repeat for more. It is combined with the URL only if a digest proves the file.
    #[arg(long, value_name = "URL")]
    pub mirror: Vec<Secret>,
    /// Use this interface, on these terms; repeat for more. Without it: every link that works.
    #[arg(long, value_name = "IFACE[,…]")]
    pub link: Vec<LinkArg>,
    /// Use the links below an active VPN instead of the VPN alone.
    #[arg(long)]
    pub bypass_vpn: bool,
    /// Links that cost money: avoid (only when all others have failed), use or never [default: avoid].
    #[arg(long, value_name = "WORD", value_parser = parse_metered_use)]
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
    /// Send login, cookies and -H to every host that redirects lead to.
    #[arg(long)]
    pub location_trusted: bool,
    /// How servers are asked.
    #[command(flatten)]
    pub request: RequestArgs,
    /// Trust only the certificates in this PEM file, instead of the system's.
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Fail unless the whole file hashes to this.
    #[arg(long, value_name = "sha256=HEX")]
    pub checksum: Option<Checksum>,
    /// The most per second, of all links together or of one that is used; repeat for more.
    #[arg(long, value_name = "[IFACE=]RATE")]
    pub rate_limits: Vec<RateLimit>,
    /// Accepted for the sake of habit and without effect: a download is always continued.
    #[arg(short = 'c', long = "continue")]
    pub resume: bool,
    /// Ask for MPTCP; where the server speaks it, one connection is left to the kernel's paths.
    #[arg(long)]
    pub mptcp: bool,
    /// Give up after this time, for all files together; what has arrived is kept.
    #[arg(long, value_name = "TIME", value_parser = parse_positive_duration)]
    pub max_time: Option<Duration>,
    /// Retries after the first try, in a row and without progress between them, before a link is given up.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub retry: u32,
    /// Print one JSON object for each file, also if it fails; on standard error when the file goes to standard output.
    #[arg(long)]
    pub json: bool,
    /// Write every decision and its inputs to FILE (not `-`), for `marline replay`; of several files into a directory.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// The device whose radios the links are taken for in the report: a name, a file, or none [default: typical].
    #[arg(long, value_name = "NAME|FILE")]
    pub energy_model: Option<String>,
    /// Show no progress and no notices; errors only.
    #[arg(short, long, visible_short_alias = 's', visible_alias = "silent")]
    pub quiet: bool,
    /// Give the file the time at which the server says it was last modified.
    #[arg(short = 'R', long)]
    pub remote_time: bool,
}

/// One `--limit-rate`: of one interface, or of all together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// The interface; none: all together.
    pub link: Option<String>,
    /// The most per second; more than nothing.
    pub rate: Bitrate,
}

impl std::str::FromStr for RateLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (link, rate) = match text.split_once('=') {
            Some(("", _)) => return Err(format!("`{text}` names no interface before `=`")),
            Some((link, rate)) => (Some(link.to_owned()), rate),
            None => (None, text),
        };
        let rate = parse_rate_limit(rate)?;
        if rate.is_zero() {
            return Err("a limit of zero would never end; leave the link out instead".into());
        }
        Ok(Self { link, rate })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;
    use crate::args::{Cli, Command, parse};

    fn parse_get(arguments: &[&str]) -> Result<GetArgs, String> {
        let command_line = ["marline", "get"].iter().chain(arguments).map(OsString::from);
        match parse(command_line) {
            Ok(Cli { command: Command::Get(get), .. }) => Ok(*get),
            Ok(other) => panic!("{other:?}"),
            Err(exit) => Err(exit.message.unwrap_or_default()),
        }
    }

    #[test]
    fn all_options_of_get_are_understood_together() {
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
        assert_eq!((args.urls.len(), args.link.len(), args.retry), (2, 2, 9));
        assert_eq!(args.policy, Policy::BdpLimit);
        assert_eq!(args.max_time, Some(Duration::from_secs(60)));
        assert_eq!(args.rate_limits[1], RateLimit { link: Some("wwan0".into()), rate: Bitrate::from_mbps(5) });
    }

    #[test]
    fn what_is_wrong_is_said_in_one_line_with_the_way_on() {
        let table: &[(&[&str], &str)] = &[
            (&[], "<URL>"),
            (&["--polizy", "x", "http://h/f"], "--policy"),
            (&["--policy", "fast", "http://h/f"], "unknown policy `fast`: use single"),
            (&["--limit-rate", "20", "http://h/f"], "a rate such as 20Mbit/s"),
            (&["--limit-rate", "=1Mbit/s", "http://h/f"], "names no interface"),
            (&["-4", "-6", "http://h/f"], "cannot be used with"),
            (&["--limit-rate", "0bit/s", "http://h/f"], "would never end"),
            (&["--max-time", "10", "http://h/f"], "a duration such as"),
            (&["--max-time", "0s", "http://h/f"], "too short"),
            (&["--metered", "maybe", "http://h/f"], "avoid"),
            (&["--checksum", "md5=00", "http://h/f"], "no checksum"),
            (&["--retry", "-1", "http://h/f"], "-1"),
        ];
        for (words, expected) in table {
            let line = parse_get(words).unwrap_err();
            assert!(line.contains(expected), "{words:?}: {line}");
            assert!(line.ends_with("; see `marline get --help`"), "{words:?}: {line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn options_of_curl_and_wget_are_understood() {
        let words = [
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
        let more = ["--noproxy", "h", "--max-redirs", "3", "--limit-rate", "2M", "h/f"];
        let args = parse_get(&[&words[..], &more].concat()).unwrap();
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
        let words = [
            "-fsSL", "-q", "-L", "-s", "--retry", "2", "--retry", "3", "-b", "a=1", "-b", "file", "-b", "b=2",
            "h/f",
        ];
        let args = parse_get(&words).unwrap();
        assert!(args.quiet && args.retry == 3);
        assert_eq!(args.request.headers().unwrap(), [("Cookie".to_owned(), "a=1; b=2".to_owned())]);
        assert_eq!(args.request.cookie_files().load, [PathBuf::from("file")]);
        let link = parse_get(&["--link", "lo,limit=2M", "h/f"]).unwrap().link.remove(0);
        assert_eq!(link.rate_limit, Some(Bitrate::from_bits_per_sec(8 * 2 * 1024 * 1024)));
    }

    #[test]
    fn a_password_is_not_repeated_when_another_word_is_wrong() {
        let line = parse_get(&["--user", "me:secret", "--user-file", "f", "http://h/f"]).unwrap_err();
        assert!(!line.contains("secret"), "{line}");
    }
}
