//! `marline get`: builds a [`Batch`] from the arguments, runs it, and maps the result to an exit code.
//!
//! 1. Order: the whole command line is parsed, then the files that it names are read, then network requests begin.
//! 2. Secrets are masked in every message: passwords in URLs, `--user`, header values.
//! 3. Reports go to standard output, or to standard error if the file itself goes to standard output.

mod args;
mod headers;
mod ignored_proxy;
mod input_list;
mod reporter;
mod request;
mod url;

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use marline_core::fetch::Config;
use marline_download::{
    Batch, Credentials, DownloadError, DownloadErrorKind, EnergyOptions, FileRequest, Settings, Target,
};
use marline_net::battery::POWER_SUPPLIES;
use marline_net::links::{LinkArg, LinkSelection};
use marline_net::printable::mask_secrets;

pub(crate) use args::{AFTER_HELP, GetArgs};

use self::url::parse_url;
pub(crate) use self::url::playable_url;
use crate::progress::Viewer;
use crate::{CliError, ConfigFile, Secret, energy, output};
use args::RateLimit;
pub(crate) use headers::parse_header;
use headers::{parse_user, read_user};
use ignored_proxy::IgnoredProxy;
use input_list::{InputNotices, ListEntry};
use reporter::DownloadReporter;
use request::{default_login, environment_variable};

/// Downloads the files, with progress and reports.
pub(crate) fn run(args: GetArgs, config: Option<&Path>) -> Result<(), CliError> {
    let (json, quiet, reports_energy) = (args.format.json, args.quiet, args.model.energy_model.is_some());
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    let has_proxy_option = args.request.proxy.is_some();
    let first_url = args.urls.first().map(|url| mask_secrets(url.expose())).unwrap_or_default();
    let mut notices = InputNotices::default();
    let batch = build_batch(args, config, &mut notices);
    if let (true, Err(exit)) = (json && !to_stdout, &batch)
        && exit.code == CliError::STORAGE
    {
        reporter::print_failed(
            &first_url,
            exit.message.as_deref().unwrap_or_default(),
            DownloadErrorKind::Disk,
            exit.code,
        )?;
    }
    let batch = batch?;
    if !quiet {
        notices.notes.iter().for_each(|note| output::print_notice(note));
    }
    for reason in &notices.skipped {
        output::print_notice(reason);
        if json && !to_stdout {
            reporter::print_failed("", reason, DownloadErrorKind::Usage, CliError::USAGE)?;
        }
    }
    let to_stdout = batch.files.iter().any(|file| file.target == Target::Stdout);
    if to_stdout && std::io::stdout().is_terminal() {
        return Err(CliError::usage(
            "-o -: standard output is a terminal and would print the raw data; redirect it, or name a file with -o",
        ));
    }
    let urls: Vec<String> =
        batch.files.iter().filter_map(|file| Some(file.mirrors.first()?.url.to_string())).collect();
    let ignored_proxy = IgnoredProxy::detect(has_proxy_option, environment_variable);
    let mut reporter = DownloadReporter::new(
        Viewer::new(quiet),
        batch.files.len(),
        json,
        to_stdout,
        reports_energy,
        ignored_proxy,
    );
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))?;
    let result = runtime.block_on(marline_download::run(batch, &mut reporter));
    reporter.clear();
    // Does not wait for tasks that still wait for a socket or a resolver.
    runtime.shutdown_background();
    match result {
        Ok(()) => {}
        Err(error @ DownloadError::Cookies { done: "saved", .. }) => reporter.on_late_failure(&error),
        Err(error) => reporter.on_start_failed(&urls, &error),
    }
    reporter.finish()?;
    match notices.skipped.len() {
        0 => Ok(()),
        skipped => {
            Err(CliError::usage(format!("{skipped} files of Metalink files were skipped; see the notices above")))
        }
    }
}

/// Builds the batch, and creates its output directories.
fn build_batch(args: GetArgs, config: Option<&Path>, notices: &mut InputNotices) -> Result<Batch, CliError> {
    let mut entries = Vec::new();
    let (metalink_paths, urls): (Vec<&Secret>, Vec<_>) =
        args.urls.iter().partition(|text| is_metalink(text.expose()));
    let metalinks: Vec<PathBuf> =
        args.metalink.iter().cloned().chain(metalink_paths.iter().map(|text| text.expose().into())).collect();
    for text in urls {
        let (url, login) = parse_url(text.expose())?;
        entries.push(ListEntry { sources: vec![input_list::mirror_of(url, login)], ..ListEntry::default() });
    }
    let mut headers = args.request.headers()?;
    for text in &args.header {
        let (name, value) = parse_header(text.expose())?;
        // `-H` overrides the options that set the same field (-A, -e), but adds to the cookies of -b.
        headers.retain(|(known, _)| *known == "Cookie" || !known.eq_ignore_ascii_case(&name));
        headers.push((name, value));
    }
    let connect_options = args.request.connect_options()?;
    let mut user = args.user.as_ref().map(|text| parse_user(text.expose(), "--user")).transpose()?;
    if args.log.trace.as_deref() == Some(Path::new("-")) {
        return Err(CliError::usage("--trace -: standard output is for results; name a file for the log"));
    }
    let limit = args.rate_limits.iter().rev().find(|limit| limit.link.is_none()).map(|limit| limit.rate);
    for (index, link) in args.links.link.iter().enumerate() {
        if args.links.link[..index].iter().any(|other| other.name == link.name) {
            return Err(CliError::usage(format!("--link {}: named twice", link.name)));
        }
    }
    let mirrors = args.mirror.iter().map(|text| parse_url(text.expose())).collect::<Result<Vec<_>, _>>()?;

    // No file is read before this point.
    for path in &args.input_file {
        entries.extend(input_list::read_list(path)?);
    }
    for path in &metalinks {
        entries.extend(input_list::read_metalink(path, notices)?);
    }
    let has_several = entries.len() > 1;
    let single_file_error = |option: &str| {
        CliError::usage(format!(
            "{option} applies to one file, but there are {} URLs; use one command for each",
            entries.len()
        ))
    };
    if has_several && !mirrors.is_empty() {
        return Err(single_file_error("--mirror"));
    }
    if has_several && args.checksum.is_some() {
        return Err(single_file_error("--checksum"));
    }
    if let Some(entry) = entries.first_mut().filter(|_| !has_several) {
        entry.sources.extend(mirrors.into_iter().map(|(url, login)| input_list::mirror_of(url, login)));
        entry.digests.full_file = entry.digests.full_file.take().or(args.checksum);
    }
    if let Some(path) = &args.user_file {
        user = Some(read_user(path)?);
    } else if args.user.is_none()
        && let Some(text) = std::env::var_os("MARLINE_USER")
    {
        user = Some(parse_user(&text.to_string_lossy(), "MARLINE_USER")?);
    }
    let logins = args.request.logins(&mut notices.notes)?;
    for source in entries.iter_mut().flat_map(|entry| &mut entry.sources).filter(|_| user.is_none()) {
        source.login = source.login.take().or_else(|| default_login(&logins, &source.url));
    }
    let config_file = ConfigFile::read(config)?;
    let metered = args.links.metered.or(config_file.metered).unwrap_or_default();
    let links = link_choice(args.links.link, args.links.vpn.bypass_vpn, &args.rate_limits, &config_file)?;
    let model = energy::select_model(args.model.energy_model.as_deref(), config_file.energy_model.as_deref())?;
    // The battery is only measured for the JSON report.
    let power_supplies = args.format.json.then(|| POWER_SUPPLIES.into());
    let first_url = entries.first().and_then(|entry| entry.sources.first()).map(|source| source.url.clone());
    let is_from_list = !args.input_file.is_empty() || !metalinks.is_empty();
    let targets = OutputTargets { output: args.output, dir: args.dir, trace: args.log.trace, has_several };
    let count = entries.len();
    let files = entries
        .into_iter()
        .enumerate()
        .map(|(index, entry)| targets.file_for(index, entry))
        .collect::<Result<_, _>>()?;
    Ok(Batch {
        settings: Settings {
            links,
            config: Config {
                policy: args.policy,
                metered,
                retries: args.retry,
                max_redirects: args.request.max_redirs,
                open_ended_first: true,
                // Fewer connections per file, so that parallel downloads do not overload a server.
                max_connections: if has_several {
                    MAX_CONNECTIONS_PER_LINK
                } else {
                    Config::default().max_connections
                },
                ..Config::default()
            },
            credentials: Credentials {
                headers,
                user,
                credential_origin: first_url,
                host_logins: logins,
                send_to_all_hosts: args.location_trusted,
            },
            ca_file: args.authorities.ca_file,
            rate_limit: limit,
            energy: EnergyOptions { model, power_supply_dir: power_supplies },
            mptcp: args.mptcp,
            connect_options,
            cookie_files: args.request.cookie_files(),
            use_remote_time: args.remote_time,
        },
        files,
        parallel: args.parallel.into(),
        skip_completed: is_from_list || count > 1,
        max_time: args.max_time,
    })
}

/// Output options: where downloaded files and decision logs are written.
struct OutputTargets {
    /// `--output`.
    output: Option<PathBuf>,
    /// `--dir`.
    dir: Option<PathBuf>,
    /// `--trace`.
    trace: Option<PathBuf>,
    /// There is more than one file, so that outputs must be directories.
    has_several: bool,
}

impl OutputTargets {
    fn file_for(&self, index: usize, entry: ListEntry) -> Result<FileRequest, CliError> {
        let target = self.target_for(&entry)?;
        let trace = match &self.trace {
            Some(trace) if self.has_several => {
                if !is_directory(trace) {
                    return Err(CliError::usage(format!(
                        "--trace {}: each of several files has its own log; name a directory",
                        trace.display()
                    )));
                }
                create_dir(trace)?;
                Some(trace.join(format!("{}.ndjson", index + 1)))
            }
            trace => trace.clone(),
        };
        Ok(FileRequest { mirrors: entry.sources, target, digests: entry.digests, decision_log: trace })
    }

    fn target_for(&self, entry: &ListEntry) -> Result<Target, CliError> {
        let dir = entry.dir.as_ref().or(self.dir.as_ref());
        let in_dir = |path: &PathBuf| dir.map_or_else(|| path.clone(), |dir| dir.join(path));
        let directory =
            self.output.as_ref().map(in_dir).filter(|path| path.as_os_str() != "-" && is_directory(path));
        if let Some(out) = entry.out.as_ref().filter(|_| self.output.is_none() || directory.is_some()) {
            let path = directory.map_or_else(|| in_dir(out), |directory| directory.join(out));
            if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
                create_dir(parent)?;
            }
            return Ok(Target::ListedFile(path));
        }
        let target = match &self.output {
            None => Target::Directory(dir.cloned().unwrap_or_else(|| PathBuf::from("."))),
            Some(path) if path.as_os_str() == "-" => Target::Stdout,
            Some(path) => {
                let path = in_dir(path);
                if is_directory(&path) { Target::Directory(path) } else { Target::File(path) }
            }
        };
        match (&target, &self.output) {
            (Target::File(_) | Target::Stdout, Some(output)) if self.has_several => {
                return Err(CliError::usage(format!(
                    "-o {}: cannot write several files into one; name a directory with -d DIR or -o DIR/",
                    output.display()
                )));
            }
            (Target::Directory(path), _) => create_dir(path)?,
            (Target::File(path), _) if dir.is_some() => {
                if let Some(parent) = path.parent() {
                    create_dir(parent)?;
                }
            }
            _ => {}
        }
        Ok(target)
    }
}

/// Whether an argument in place of a URL is a local Metalink file.
fn is_metalink(argument: &str) -> bool {
    let path = Path::new(argument);
    let is_named = path.extension().is_some_and(|kind| kind == "meta4" || kind == "metalink");
    is_named && !argument.contains("://") && path.is_file()
}

/// Whether a path ends with a slash or is an existing directory.
fn is_directory(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"/") || path.is_dir()
}

/// Creates a directory and its parents.
fn create_dir(dir: &Path) -> Result<(), CliError> {
    std::fs::create_dir_all(dir).map_err(|error| {
        CliError::new(CliError::STORAGE, format!("{}: cannot create the directory: {error}", dir.display()))
    })
}

/// Most connections per link for each of several files; a single file may have the default of the machine. More than one is used only if
/// packet loss makes that worthwhile.
const MAX_CONNECTIONS_PER_LINK: u32 = 4;

/// Selects the links and applies the limits of `--limit-rate IFACE=RATE`.
fn link_choice(
    link_options: Vec<LinkArg>,
    bypass_vpn: bool,
    limits: &[RateLimit],
    file: &ConfigFile,
) -> Result<LinkSelection, CliError> {
    let is_automatic = link_options.is_empty();
    let mut links: Vec<LinkArg> = if is_automatic {
        file.described_links()
    } else {
        link_options.into_iter().map(|link| file.with_config(link)).collect()
    };
    for RateLimit { link, rate } in limits {
        let Some(name) = link else { continue };
        match links.iter_mut().find(|link| link.name == *name) {
            Some(link) => (link.rate_limit, link.is_explicit) = (Some(*rate), true),
            None if is_automatic => {
                links.push(LinkArg { rate_limit: Some(*rate), is_explicit: true, ..LinkArg::new(name) })
            }
            None => {
                return Err(CliError::usage(format!(
                    "--limit-rate {name}={rate}: {name} is not one of the --link"
                )));
            }
        }
    }
    Ok(if is_automatic {
        LinkSelection::Auto { bypass_vpn, configured: links }
    } else {
        LinkSelection::Named(links)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The message of a usage error.
    pub(super) fn usage_message<T>(result: Result<T, CliError>) -> String {
        let error = result.err().unwrap();
        assert_eq!(error.code, CliError::USAGE);
        error.message.unwrap()
    }

    #[test]
    fn the_target_is_a_file_a_directory_or_standard_output() {
        let test_dir = tempfile::tempdir().unwrap();
        let at = |name: &str| test_dir.path().join(name);
        let target_of = |output: Option<PathBuf>, dir: Option<PathBuf>, several: bool, entry: ListEntry| {
            OutputTargets { output, dir, trace: None, has_several: several }.target_for(&entry)
        };
        let plain = ListEntry::default;
        assert_eq!(target_of(None, None, false, plain()).unwrap(), Target::Directory(".".into()));
        assert_eq!(target_of(Some("-".into()), None, false, plain()).unwrap(), Target::Stdout);
        assert_eq!(target_of(Some("f.iso".into()), None, false, plain()).unwrap(), Target::File("f.iso".into()));
        assert_eq!(target_of(Some(at("new/")), None, true, plain()).unwrap(), Target::Directory(at("new/")));
        assert_eq!(target_of(None, Some(at("d/e")), true, plain()).unwrap(), Target::Directory(at("d/e")));
        assert!(at("new").is_dir() && at("d/e").is_dir());
        assert_eq!(
            target_of(Some("f".into()), Some(at("d")), false, plain()).unwrap(),
            Target::File(at("d").join("f"))
        );
        let listed = || ListEntry { out: Some("s/f".into()), ..plain() };
        assert_eq!(target_of(Some("-".into()), None, false, listed()).unwrap(), Target::Stdout);
        assert_eq!(target_of(Some("f.iso".into()), None, false, listed()).unwrap(), Target::File("f.iso".into()));
        assert_eq!(target_of(Some(at("new/")), None, true, listed()).unwrap(), Target::ListedFile(at("new/s/f")));
        assert!(
            usage_message(target_of(Some("f.iso".into()), None, true, listed()))
                .contains("cannot write several files into one")
        );
        let out = ListEntry { out: Some("s/f".into()), dir: Some(at("x")), ..plain() };
        assert_eq!(target_of(None, Some(at("d")), true, out).unwrap(), Target::ListedFile(at("x/s/f")));
        for output in ["-", "f.iso"] {
            assert!(
                usage_message(target_of(Some(output.into()), None, true, plain()))
                    .contains("cannot write several files into one")
            );
        }
    }

    #[test]
    fn a_rate_limit_applies_to_its_link() {
        let file = ConfigFile::default();
        let limits: Vec<RateLimit> = vec!["w=5Mbit/s".parse().unwrap(), "9Mbit/s".parse().unwrap()];
        let Ok(LinkSelection::Auto { configured: known, .. }) = link_choice(Vec::new(), false, &limits, &file)
        else {
            panic!()
        };
        assert_eq!((known.len(), known[0].rate_limit.is_some()), (1, true));
        let named = || vec!["w".parse::<LinkArg>().unwrap()];
        let Ok(LinkSelection::Named(named_links)) = link_choice(named(), false, &limits, &file) else { panic!() };
        assert!(named_links[0].rate_limit.is_some());
        let other: Vec<RateLimit> = vec!["x=5Mbit/s".parse().unwrap()];
        assert!(usage_message(link_choice(named(), false, &other, &file)).contains("not one of the --link"));
    }
}
