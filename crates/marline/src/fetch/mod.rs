//! `marline get`: from words to a [`Job`], and from its end to an exit code.
//!
//! 1. Order: everything on the command line is parsed, then the files it names are read, then the network is asked.
//! 2. Secrets are masked in every message: a password in a URL, `--user`, header values.
//! 3. The report goes to standard output, unless the file itself goes there; then to standard error.

mod args;
mod fields;
mod url;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use ::url::Url;
use marline_core::fetch::Config;
use marline_net::get::{self, Accounting, Job, Report, Target, Watcher as _};
use marline_net::links::{Choice, Named};
use marline_net::power::POWER_SUPPLIES;

pub(crate) use args::{AFTER_HELP, GetArgs};

use self::url::{mask, parse_url};
use crate::progress::Viewer;
use crate::{ConfigFile, Exit, energy, output};
use args::Limit;
use fields::{parse_header, parse_user, read_user};

/// Downloads, shows it, and reports.
pub(crate) fn run(args: GetArgs, config: Option<&Path>) -> Result<(), Exit> {
    let (json, quiet, joules) = (args.json, args.quiet, args.energy_model.is_some());
    let job = job(args, config)?;
    let mirrors = mirrors(&job.urls);
    let to_stdout = job.target == Target::Stdout;
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Exit::usage(
            "-o -: standard output is a terminal, and a file may hold anything; redirect it, or name a file with -o",
        ));
    }
    let mut viewer = Viewer::new(quiet);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    if let Some(line) = mirrors {
        viewer.line(&line);
    }
    let ended = runtime.block_on(get::run(job, &mut viewer));
    viewer.clear();
    // Whatever still waits on a socket or a resolver must not hold the program up.
    runtime.shutdown_background();
    let report = ended.map_err(|error| Exit::new(error.exit_code(), mask(&error.to_string())))?;
    viewer.summary(&report);
    // Who names a device wants to know.
    if let Some(line) = joules.then(|| energy::line(&report)).flatten() {
        viewer.line(&line);
    }
    if json {
        print(&report, to_stdout)?;
    }
    Ok(())
}

/// Makes the description of the download.
pub(crate) fn job(args: GetArgs, config: Option<&Path>) -> Result<Job, Exit> {
    let mut urls = Vec::new();
    let mut user = None;
    for text in &args.urls {
        let (url, login) = parse_url(text.reveal())?;
        // The login of the first URL: only its host is ever told.
        if urls.is_empty() {
            user = login;
        }
        urls.push(url);
    }
    let headers = args.header.iter().map(|text| parse_header(text.reveal())).collect::<Result<Vec<_>, _>>()?;
    if let Some(text) = &args.user {
        user = Some(parse_user(text.reveal(), "--user")?);
    }
    if args.trace.as_deref() == Some(Path::new("-")) {
        return Err(Exit::usage("--trace -: the log needs a file, for standard output is for results; name one"));
    }
    let target = target(args.output);
    let limit = args.limit_rate.iter().rev().find(|limit| limit.link.is_none()).map(|limit| limit.rate);
    for (n, link) in args.link.iter().enumerate() {
        if args.link[..n].iter().any(|other| other.name == link.name) {
            return Err(Exit::usage(format!("--link {}: named twice", link.name)));
        }
    }

    // Nothing was read until here.
    if let Some(path) = &args.user_file {
        user = Some(read_user(path)?);
    } else if args.user.is_none()
        && let Some(text) = std::env::var_os("MARLINE_USER")
    {
        user = Some(parse_user(&text.to_string_lossy(), "MARLINE_USER")?);
    }
    let file = ConfigFile::read(config)?;
    let metered = args.metered.or(file.metered).unwrap_or_default();
    let links = links(args.link, args.bypass_vpn, &args.limit_rate, &file)?;
    let model = energy::chosen(args.energy_model.as_deref(), file.energy_model.as_deref())?;
    // Without a report nobody hears of either.
    let supplies = args.json.then(|| POWER_SUPPLIES.into());
    Ok(Job {
        urls,
        links,
        target,
        config: Config {
            policy: args.policy,
            metered,
            retries: args.retry,
            proven: args.checksum.is_some(),
            ..Config::default()
        },
        headers,
        user,
        ca_file: args.ca_file,
        checksum: args.checksum,
        limit,
        max_time: args.max_time,
        trace: args.trace,
        energy: Accounting { model, supplies },
        mptcp: args.mptcp,
    })
}

/// Which links may be used, with the limits of `--limit-rate IFACE=RATE` put in their places.
fn links(named: Vec<Named>, bypass_vpn: bool, limits: &[Limit], file: &ConfigFile) -> Result<Choice, Exit> {
    let auto = named.is_empty();
    let mut links: Vec<Named> =
        if auto { file.known() } else { named.into_iter().map(|link| file.complete(link)).collect() };
    for Limit { link, rate } in limits {
        let Some(name) = link else { continue };
        match links.iter_mut().find(|link| link.name == *name) {
            Some(link) => (link.limit, link.spoken) = (Some(*rate), true),
            None if auto => links.push(Named { limit: Some(*rate), spoken: true, ..Named::new(name) }),
            None => {
                return Err(Exit::usage(format!("--limit-rate {name}={rate}: {name} is none of the --link")));
            }
        }
    }
    Ok(if auto { Choice::Auto { bypass_vpn, known: links } } else { Choice::Named(links) })
}

/// `-o`: a file, a directory, standard output; without it the present directory.
fn target(output: Option<PathBuf>) -> Target {
    match output {
        None => Target::Directory(PathBuf::from(".")),
        Some(path) if path.as_os_str() == "-" => Target::Stdout,
        Some(path) if path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir() => {
            Target::Directory(path)
        }
        Some(path) => Target::File(path),
    }
}

/// A line for whoever takes several URLs for several files, as other programs do: the names tell.
fn mirrors(urls: &[Url]) -> Option<String> {
    let name = |url: &Url| url.path_segments().and_then(|mut segments| segments.next_back().map(str::to_owned));
    let mut names: Vec<String> = urls.iter().filter_map(name).collect();
    names.sort();
    names.dedup();
    (names.len() > 1).then(|| {
        format!(
            "the {} URLs are taken as mirrors of one file, though they end differently; for several files run one command for each",
            urls.len()
        )
    })
}

/// The report as one JSON object and a line end.
fn print(report: &Report, to_stderr: bool) -> Result<(), Exit> {
    let text = serde_json::to_string(report)
        .map_err(|error| Exit::failed(format!("the report cannot be written as JSON: {error}")))?;
    let text = text + "\n";
    if to_stderr { output::print_beside(&text) } else { output::print(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line<T: std::fmt::Debug>(result: Result<T, Exit>) -> String {
        let exit = result.unwrap_err();
        assert_eq!(exit.code, Exit::USAGE);
        exit.line.unwrap()
    }

    #[test]
    fn urls_that_end_differently_are_mirrors_with_a_line() {
        let line = |urls: &[&str]| mirrors(&urls.iter().map(|url| url.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(line(&["http://h/a.iso"]), None);
        assert_eq!(line(&["http://h/a.iso", "https://i/pub/a.iso?x=1"]), None);
        assert!(line(&["http://h/a.iso", "http://h/b.iso"]).unwrap().contains("the 2 URLs are taken as mirrors"));
    }

    #[test]
    fn the_target_is_a_file_a_directory_or_standard_output() {
        assert_eq!(target(None), Target::Directory(".".into()));
        assert_eq!(target(Some("-".into())), Target::Stdout);
        assert_eq!(target(Some("new/".into())), Target::Directory("new/".into()));
        assert_eq!(target(Some("/".into())), Target::Directory("/".into()));
        assert_eq!(target(Some("f.iso".into())), Target::File("f.iso".into()));
    }

    #[test]
    fn a_limit_goes_to_its_link() {
        let file = ConfigFile::default();
        let limits: Vec<Limit> = vec!["w=5Mbit/s".parse().unwrap(), "9Mbit/s".parse().unwrap()];
        let Ok(Choice::Auto { known, .. }) = links(Vec::new(), false, &limits, &file) else { panic!() };
        assert_eq!((known.len(), known[0].limit.is_some()), (1, true));
        let named = || vec!["w".parse::<Named>().unwrap()];
        let Ok(Choice::Named(named_links)) = links(named(), false, &limits, &file) else { panic!() };
        assert!(named_links[0].limit.is_some());
        let other: Vec<Limit> = vec!["x=5Mbit/s".parse().unwrap()];
        assert!(line(links(named(), false, &other, &file)).contains("none of the --link"));
    }
}
