//! `marline get`: from words to a [`Batch`], and from its end to an exit code.
//!
//! 1. Order: everything on the command line is parsed, then the files it names are read, then the network is asked.
//! 2. Secrets are masked in every message: a password in a URL, `--user`, header values.
//! 3. Reports go to standard output, unless the file itself goes there; then to standard error.

mod args;
mod board;
mod fields;
mod ignored_proxy;
mod list;
mod request;
mod url;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use marline_core::fetch::Config;
use marline_download::{Accounting, Batch, Credentials, File, GetError, Kind, Settings, Target};
use marline_net::links::{Choice, Named};
use marline_net::power::POWER_SUPPLIES;
use marline_net::printable::mask;

pub(crate) use args::{AFTER_HELP, GetArgs};

use self::url::parse_url;
pub(crate) use self::url::playable;
use crate::progress::Viewer;
use crate::{ConfigFile, Exit, Secret, energy, output};
use args::Limit;
use board::Board;
pub(crate) use fields::parse_header;
use fields::{parse_user, read_user};
use list::{Entry, Remarks};
use request::default_login;

/// Downloads, shows it, and reports.
pub(crate) fn run(args: GetArgs, config: Option<&Path>) -> Result<(), Exit> {
    let (json, quiet, joules) = (args.json, args.quiet, args.energy_model.is_some());
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    let first = args.urls.first().map(|url| mask(url.reveal())).unwrap_or_default();
    let mut remarks = Remarks::default();
    let batch = batch(args, config, &mut remarks);
    if let (true, Err(exit)) = (json && !to_stdout, &batch)
        && exit.code == Exit::DISK
    {
        board::print_failed(&first, exit.line.as_deref().unwrap_or_default(), Kind::Disk, exit.code)?;
    }
    let batch = batch?;
    if !quiet {
        remarks.notes.iter().for_each(|note| output::say(note));
    }
    for why in &remarks.refused {
        output::say(why);
        if json && !to_stdout {
            board::print_failed("", why, Kind::Usage, Exit::USAGE)?;
        }
    }
    let to_stdout = batch.files.iter().any(|file| file.target == Target::Stdout);
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(Exit::usage(
            "-o -: standard output is a terminal, and a file may hold anything; redirect it, or name a file with -o",
        ));
    }
    let urls: Vec<String> =
        batch.files.iter().filter_map(|file| Some(file.sources.first()?.url.to_string())).collect();
    let mut board = Board::new(Viewer::new(quiet), batch.files.len(), json, to_stdout, joules);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let ended = runtime.block_on(marline_download::run(batch, &mut board));
    board.clear();
    // Whatever still waits on a socket or a resolver must not hold the program up.
    runtime.shutdown_background();
    match ended {
        Ok(()) => {}
        Err(error @ GetError::Cookies { done: "saved", .. }) => board.also_failed(&error),
        Err(error) => board.cannot_begin(&urls, &error),
    }
    board.end()?;
    match remarks.refused.len() {
        0 => Ok(()),
        count => Err(Exit::usage(format!("{count} files of Metalink files were not downloaded, as said above"))),
    }
}

/// Makes the description of the downloads, and the directories that they go to.
fn batch(args: GetArgs, config: Option<&Path>, remarks: &mut Remarks) -> Result<Batch, Exit> {
    let mut entries = Vec::new();
    let (local, urls): (Vec<&Secret>, Vec<_>) = args.urls.iter().partition(|text| is_metalink(text.reveal()));
    let metalinks: Vec<PathBuf> =
        args.metalink.iter().cloned().chain(local.iter().map(|text| text.reveal().into())).collect();
    for text in urls {
        let (url, login) = parse_url(text.reveal())?;
        entries.push(Entry { sources: vec![list::source(url, login)], ..Entry::default() });
    }
    let mut headers = args.request.headers()?;
    for text in &args.header {
        let (name, value) = parse_header(text.reveal())?;
        // The field that was written out is the one that is meant.
        headers.retain(|(known, _)| *known == "Cookie" || !known.eq_ignore_ascii_case(&name));
        headers.push((name, value));
    }
    let route = args.request.route()?;
    let mut user = args.user.as_ref().map(|text| parse_user(text.reveal(), "--user")).transpose()?;
    if args.trace.as_deref() == Some(Path::new("-")) {
        return Err(Exit::usage("--trace -: the log needs a file, for standard output is for results; name one"));
    }
    let limit = args.limit_rate.iter().rev().find(|limit| limit.link.is_none()).map(|limit| limit.rate);
    for (n, link) in args.link.iter().enumerate() {
        if args.link[..n].iter().any(|other| other.name == link.name) {
            return Err(Exit::usage(format!("--link {}: named twice", link.name)));
        }
    }
    let mirrors = args.mirror.iter().map(|text| parse_url(text.reveal())).collect::<Result<Vec<_>, _>>()?;

    // Nothing was read until here.
    for path in &args.input_file {
        entries.extend(list::read(path)?);
    }
    for path in &metalinks {
        entries.extend(list::read_metalink(path, remarks)?);
    }
    let several = entries.len() > 1;
    let only = |what: &str| {
        Exit::usage(format!(
            "{what} is of one file, and there are {} URLs; use one command for each",
            entries.len()
        ))
    };
    if several && !mirrors.is_empty() {
        return Err(only("--mirror"));
    }
    if several && args.checksum.is_some() {
        return Err(only("--checksum"));
    }
    if let Some(entry) = entries.first_mut().filter(|_| !several) {
        entry.sources.extend(mirrors.into_iter().map(|(url, login)| list::source(url, login)));
        entry.digests.whole = entry.digests.whole.take().or(args.checksum);
    }
    if let Some(path) = &args.user_file {
        user = Some(read_user(path)?);
    } else if args.user.is_none()
        && let Some(text) = std::env::var_os("MARLINE_USER")
    {
        user = Some(parse_user(&text.to_string_lossy(), "MARLINE_USER")?);
    }
    let logins = args.request.logins(&mut remarks.notes)?;
    for source in entries.iter_mut().flat_map(|entry| &mut entry.sources).filter(|_| user.is_none()) {
        source.login = source.login.take().or_else(|| default_login(&logins, &source.url));
    }
    let file = ConfigFile::read(config)?;
    let metered = args.metered.or(file.metered).unwrap_or_default();
    let links = links(args.link, args.bypass_vpn, &args.limit_rate, &file)?;
    let model = energy::chosen(args.energy_model.as_deref(), file.energy_model.as_deref())?;
    // Without a report nobody hears of either.
    let supplies = args.json.then(|| POWER_SUPPLIES.into());
    let first = entries.first().and_then(|entry| entry.sources.first()).map(|source| source.url.clone());
    let listed = !args.input_file.is_empty() || !metalinks.is_empty();
    let places = Places { output: args.output, dir: args.dir, trace: args.trace, several };
    let count = entries.len();
    let files =
        entries.into_iter().enumerate().map(|(n, entry)| places.file(n, entry)).collect::<Result<_, _>>()?;
    Ok(Batch {
        settings: Settings {
            links,
            config: Config {
                policy: args.policy,
                metered,
                retries: args.retry,
                max_redirects: args.request.max_redirs,
                open_ended_first: true,
                // Many files at a time stay as polite as one.
                max_connections: if several { MOST_BESIDE } else { Config::default().max_connections },
                ..Config::default()
            },
            credentials: Credentials { headers, user, home: first, logins, trusted: args.location_trusted },
            ca_file: args.ca_file,
            limit,
            energy: Accounting { model, supplies },
            mptcp: args.mptcp,
            route,
            cookies: args.request.cookie_files(),
            remote_time: args.remote_time,
        },
        files,
        parallel: args.parallel.into(),
        keep_finished: listed || count > 1,
        max_time: args.max_time,
    })
}

/// Where files go.
struct Places {
    output: Option<PathBuf>,
    dir: Option<PathBuf>,
    trace: Option<PathBuf>,
    several: bool,
}

impl Places {
    fn file(&self, n: usize, entry: Entry) -> Result<File, Exit> {
        let target = self.target(&entry)?;
        let trace = match &self.trace {
            Some(trace) if self.several => {
                if !is_directory(trace) {
                    return Err(Exit::usage(format!(
                        "--trace {}: several files have a log each; name a directory",
                        trace.display()
                    )));
                }
                make(trace)?;
                Some(trace.join(format!("{}.ndjson", n + 1)))
            }
            trace => trace.clone(),
        };
        Ok(File { sources: entry.sources, target, digests: entry.digests, trace })
    }

    fn target(&self, entry: &Entry) -> Result<Target, Exit> {
        let dir = entry.dir.as_ref().or(self.dir.as_ref());
        let named = |path: &PathBuf| dir.map_or_else(|| path.clone(), |dir| dir.join(path));
        let directory =
            self.output.as_ref().map(named).filter(|path| path.as_os_str() != "-" && is_directory(path));
        if let Some(out) = entry.out.as_ref().filter(|_| self.output.is_none() || directory.is_some()) {
            let path = directory.map_or_else(|| named(out), |directory| directory.join(out));
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                make(parent)?;
            }
            return Ok(Target::Listed(path));
        }
        let target = match &self.output {
            None => Target::Directory(dir.cloned().unwrap_or_else(|| PathBuf::from("."))),
            Some(path) if path.as_os_str() == "-" => Target::Stdout,
            Some(path) => {
                let path = named(path);
                if is_directory(&path) { Target::Directory(path) } else { Target::File(path) }
            }
        };
        match (&target, &self.output) {
            (Target::File(_) | Target::Stdout, Some(output)) if self.several => {
                return Err(Exit::usage(format!(
                    "-o {}: several files do not go into one; name a directory with -d DIR or -o DIR/",
                    output.display()
                )));
            }
            (Target::Directory(path), _) => make(path)?,
            (Target::File(path), _) if dir.is_some() => {
                if let Some(parent) = path.parent() {
                    make(parent)?;
                }
            }
            _ => {}
        }
        Ok(target)
    }
}

/// Whether a word in the place of a URL is a Metalink file of this machine.
fn is_metalink(text: &str) -> bool {
    let path = Path::new(text);
    let is_named = path.extension().is_some_and(|kind| kind == "meta4" || kind == "metalink");
    is_named && !text.contains("://") && path.is_file()
}

/// Whether a path is written as a directory, or is one.
fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

/// Makes a directory, and those above it.
fn make(dir: &Path) -> Result<(), Exit> {
    std::fs::create_dir_all(dir)
        .map_err(|error| Exit::new(Exit::DISK, format!("{}: the directory cannot be made: {error}", dir.display())))
}

/// Connections over each link that one of several files may have, where losses make that worth while.
const MOST_BESIDE: u32 = 4;

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

#[cfg(test)]
mod tests {
    use super::*;

    fn line<T: std::fmt::Debug>(result: Result<T, Exit>) -> String {
        let exit = result.unwrap_err();
        assert_eq!(exit.code, Exit::USAGE);
        exit.line.unwrap()
    }

    #[test]
    fn the_target_is_a_file_a_directory_or_standard_output() {
        let home = tempfile::tempdir().unwrap();
        let at = |name: &str| home.path().join(name);
        let target = |output: Option<PathBuf>, dir: Option<PathBuf>, several: bool, entry: Entry| {
            Places { output, dir, trace: None, several }.target(&entry)
        };
        let plain = Entry::default;
        assert_eq!(target(None, None, false, plain()).unwrap(), Target::Directory(".".into()));
        assert_eq!(target(Some("-".into()), None, false, plain()).unwrap(), Target::Stdout);
        assert_eq!(target(Some("f.iso".into()), None, false, plain()).unwrap(), Target::File("f.iso".into()));
        assert_eq!(target(Some(at("new/")), None, true, plain()).unwrap(), Target::Directory(at("new/")));
        assert_eq!(target(None, Some(at("d/e")), true, plain()).unwrap(), Target::Directory(at("d/e")));
        assert!(at("new").is_dir() && at("d/e").is_dir());
        assert_eq!(
            target(Some("f".into()), Some(at("d")), false, plain()).unwrap(),
            Target::File(at("d").join("f"))
        );
        let listed = || Entry { out: Some("s/f".into()), ..plain() };
        assert_eq!(target(Some("-".into()), None, false, listed()).unwrap(), Target::Stdout);
        assert_eq!(target(Some("f.iso".into()), None, false, listed()).unwrap(), Target::File("f.iso".into()));
        assert_eq!(target(Some(at("new/")), None, true, listed()).unwrap(), Target::Listed(at("new/s/f")));
        assert!(
            line(target(Some("f.iso".into()), None, true, listed())).contains("several files do not go into one")
        );
        let out = Entry { out: Some("s/f".into()), dir: Some(at("x")), ..plain() };
        assert_eq!(target(None, Some(at("d")), true, out).unwrap(), Target::Listed(at("x/s/f")));
        for output in ["-", "f.iso"] {
            assert!(
                line(target(Some(output.into()), None, true, plain())).contains("several files do not go into one")
            );
        }
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
