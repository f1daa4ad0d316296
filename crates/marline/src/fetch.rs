//! `marline get`: from words to a [`Job`], and from its end to an exit code.
//!
//! 1. Order: everything on the command line is parsed, then the files it names are read, then the network is asked.
//! 2. Secrets are masked in every message: a password in a URL, `--user`, header values.
//! 3. The report goes to standard output, unless the file itself goes there; then to standard error.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use marline_core::fetch::Config;
use marline_net::get::{self, Accounting, Job, Report, Target, Watcher as _};
use marline_net::links::{Choice, Named};
use marline_net::power::POWER_SUPPLIES;
use url::Url;

use crate::args::{GetArgs, Limit};
use crate::progress::Viewer;
use crate::{ConfigFile, Exit, energy};

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

/// An http or https URL, and the login that it carries (which is taken out of it).
fn parse_url(text: &str) -> Result<(Url, Option<(String, String)>), Exit> {
    let shown = mask(text);
    let mut url = Url::parse(text).map_err(|error| match error {
        url::ParseError::RelativeUrlWithoutBase => {
            Exit::usage(format!("{shown}: no URL: it must begin with http:// or https://"))
        }
        error => Exit::usage(format!("{shown}: no URL: {error}")),
    })?;
    if !matches!(url.scheme(), "http" | "https") {
        let scheme = url.scheme();
        return Err(Exit::usage(format!("{shown}: `{scheme}` is not supported: only http and https are")));
    }
    // The URL standard would take the first part of the path for the host.
    let after = text.split_once(':').map_or("", |(_, after)| after);
    if !after.starts_with("//") || after[2..].starts_with(['/', '\\']) {
        // A login would not stand where `mask` looks for it.
        let shown = if text.contains('@') { "MASKED" } else { &shown };
        return Err(Exit::usage(format!("{shown}: no URL: there must be a host behind http:// or https://")));
    }
    let login = (!url.username().is_empty() || url.password().is_some())
        .then(|| (percent_decoded(url.username()), percent_decoded(url.password().unwrap_or_default())));
    // Both can only fail for URLs that have no host, and http URLs have one.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_fragment(None);
    Ok((url, login))
}

/// `%40` back to `@`. Bytes that are no UTF-8 stay as they were written.
fn percent_decoded(text: &str) -> String {
    let hex = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        match (first, tail) {
            (b'%', [high, low, after @ ..]) if hex(*high).is_some() && hex(*low).is_some() => {
                bytes.push(hex(*high).unwrap_or(0) << 4 | hex(*low).unwrap_or(0));
                rest = after;
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// `Name: value` (RFC 9110 §5). The value is never repeated in a message: it may be a token.
fn parse_header(text: &str) -> Result<(String, String), Exit> {
    let Some((name, value)) = text.split_once(':') else {
        return Err(Exit::usage("-H: a header field is written `Name: value`"));
    };
    let name = name.trim();
    let token = |c: char| c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c);
    if name.is_empty() || !name.chars().all(token) {
        return Err(Exit::usage("-H: the name before `:` is no header field's name"));
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(Exit::usage(format!("-H {name}: the value holds a control character")));
    }
    if OURS.iter().any(|ours| name.eq_ignore_ascii_case(ours)) {
        return Err(Exit::usage(format!("-H {name}: marline sets this field itself")));
    }
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// `USER:PASS`; `source` says in messages where it came from.
fn parse_user(text: &str, source: &str) -> Result<(String, String), Exit> {
    let (user, password) =
        text.split_once(':').ok_or_else(|| Exit::usage(format!("{source}: write USER:PASS, with a colon")))?;
    if text.chars().any(char::is_control) {
        return Err(Exit::usage(format!("{source}: user and password must not hold control characters")));
    }
    Ok((user.to_owned(), password.to_owned()))
}

/// `--user-file`.
fn read_user(path: &Path) -> Result<(String, String), Exit> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Exit::usage(format!("{}: {error}: --user-file cannot be read", path.display())))?;
    parse_user(text.lines().next().unwrap_or_default(), &format!("--user-file {}", path.display()))
}

/// The text with whatever stands between `//` and `@` of a URL's authority replaced.
fn mask(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("//") {
        let (before, after) = rest.split_at(at + 2);
        out += before;
        let authority = after.find(|c: char| "/?#".contains(c) || c.is_whitespace()).unwrap_or(after.len());
        rest = match after[..authority].rfind('@') {
            Some(login) => {
                out += "MASKED";
                &after[login..]
            }
            None => after,
        };
    }
    out + rest
}

/// The report as one JSON object and a line end.
fn print(report: &Report, to_stderr: bool) -> Result<(), Exit> {
    let text = serde_json::to_string(report)
        .map_err(|error| Exit::failed(format!("the report cannot be written as JSON: {error}")))?;
    if to_stderr {
        writeln!(std::io::stderr(), "{text}")?;
    } else {
        writeln!(std::io::stdout(), "{text}")?;
    }
    Ok(())
}

/// Fields that frame messages or carry the ranges; a second voice in them would corrupt files.
const OURS: [&str; 14] = [
    "Accept-Encoding",
    "Connection",
    "Content-Length",
    "Expect",
    "Host",
    "If-Match",
    "If-Modified-Since",
    "If-None-Match",
    "If-Range",
    "If-Unmodified-Since",
    "Range",
    "TE",
    "Transfer-Encoding",
    "Upgrade",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn line<T: std::fmt::Debug>(result: Result<T, Exit>) -> String {
        let exit = result.unwrap_err();
        assert_eq!(exit.code, Exit::USAGE);
        exit.line.unwrap()
    }

    #[test]
    fn a_url_gives_its_login_up() {
        let (url, login) = parse_url("http://me%40home:p%3Aw@h:8080/f?q#part").unwrap();
        assert_eq!(url.as_str(), "http://h:8080/f?q");
        assert_eq!(login, Some(("me@home".into(), "p:w".into())));
        assert_eq!(parse_url("https://h/").unwrap().1, None);
    }

    #[test]
    fn a_bad_url_is_named_and_its_password_is_not() {
        for (text, expected) in [
            ("example.org/f", "it must begin with http:// or https://"),
            ("ftp://me:secret@h/f", "ftp://MASKED@h/f: `ftp` is not supported"),
            ("http://", "empty host"),
            ("http://me:secret@h:99999/", "MASKED@h:99999/: no URL"),
            ("http://me:se@cret@[::1/", "MASKED@[::1/"),
            ("", "no URL"),
            ("http:///x", "there must be a host"),
            ("https:////h/x", "there must be a host"),
            ("http:/h/x", "there must be a host"),
            ("http:h/x", "there must be a host"),
            ("http:\\\\h/x", "there must be a host"),
            ("http:///me:secret@h/x", "there must be a host"),
        ] {
            let line = line(parse_url(text));
            assert!(line.contains(expected), "{text}: {line}");
            assert!(!line.contains("cret"), "{line}");
        }
    }

    #[test]
    fn urls_that_end_differently_are_mirrors_with_a_line() {
        let line = |urls: &[&str]| mirrors(&urls.iter().map(|url| url.parse().unwrap()).collect::<Vec<_>>());
        assert_eq!(line(&["http://h/a.iso"]), None);
        assert_eq!(line(&["http://h/a.iso", "https://i/pub/a.iso?x=1"]), None);
        assert!(line(&["http://h/a.iso", "http://h/b.iso"]).unwrap().contains("the 2 URLs are taken as mirrors"));
    }

    #[test]
    fn header_fields_that_frame_messages_are_ours() {
        assert_eq!(parse_header("X-Token:  abc ").unwrap(), ("X-Token".into(), "abc".into()));
        assert!(line(parse_header("range: bytes=0-1")).contains("sets this field itself"));
        for bad in ["Authorization secret", "A b: secret", "A: secret\r\nB: c", ": secret", "A: secret\0"] {
            assert!(!line(parse_header(bad)).contains("secret"));
        }
    }

    #[test]
    fn a_login_without_a_colon_is_refused_unseen() {
        assert_eq!(parse_user("me:a:b", "--user").unwrap(), ("me".into(), "a:b".into()));
        assert_eq!(line(parse_user("secret", "--user")), "--user: write USER:PASS, with a colon");
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
