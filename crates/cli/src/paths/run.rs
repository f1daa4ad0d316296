//! `marline paths run`: from words to a driver that runs until it is stopped.
//!
//! 1. Order: the command line and the files that it names are read; links are looked for; privilege, kernel and other
//!    path managers are checked; the claim is taken, the socket is there; only then is anything changed.
//! 2. SIGINT and SIGTERM end it well: all is put back, and the exit code is 0. SIGHUP changes nothing.

use std::path::{Path, PathBuf};

use marline_core::energy::{ConcurrentDraw, Model};
use marline_core::link::LinkId;
use marline_core::paths::{Config, Goal, LinkConfig, Policy};
use marline_core::units::Power;
use marline_net::links::{Choice, Chosen, LinksError, MeteredHints, Named, choose, coming, survey};
use marline_net::private_file::append_log;
use marline_paths::control::Control;
use marline_paths::forward::{self, Cgroup, ForwardError, Forwarder, Ports, Scope};
use marline_paths::ground::{self, Claim, Host, Preview, RUN_DIR, Roads, Role};
use marline_paths::status::About;
use marline_paths::{Budgets, Ground, Job, Mode, PathsError, Shared, drive};
use serde::{Deserialize, Deserializer};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::args::{RunArgs, Wanted};
use super::{exit, named_run_dir, own_run_dir, say};
use crate::config::Interface;
use crate::confine::{Daemon, confine};
use crate::hangup::Hangup;
use crate::{ConfigFile, Exit, energy};

/// `[paths]` of the configuration file; the command line wins, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct PathsTerms {
    /// As `--profile`.
    pub profile: Option<Goal>,
    /// As `--policy`.
    pub policy: Option<Policy>,
    /// As `--link`, by name alone: their terms are below `[link.NAME]`.
    pub links: Vec<Interface>,
    /// Further ones, as `--link NAME,later`: they need not be there yet.
    pub later: Vec<Interface>,
    /// As `--kernel-pm`.
    pub kernel_pm: bool,
    /// As `--bypass-vpn`.
    pub bypass_vpn: bool,
    /// As `--transparent`.
    pub transparent: bool,
    /// Of `transparent`: as `--cgroup`.
    pub cgroup: Option<PathBuf>,
    /// Of `transparent`: as `--port`, numbers and ranges.
    #[serde(deserialize_with = "ports")]
    pub port: Vec<Ports>,
    /// As `--run-dir`.
    pub run_dir: Option<PathBuf>,
}

impl PathsTerms {
    /// The links that it names.
    pub(super) fn wanted(&self) -> impl Iterator<Item = Wanted> {
        let named = |later| move |link: &Interface| Wanted { link: Named::new(link.name()), later };
        self.links.iter().map(named(false)).chain(self.later.iter().map(named(true)))
    }

    /// Which programs' plain TCP is led on; none: nobody's.
    pub(super) fn scope(&self) -> Result<Option<Scope>, Exit> {
        let asked = self.transparent.then(|| scope("[paths] cgroup", self.cgroup.as_deref(), &self.port));
        asked.transpose()
    }
}

/// `[443, "8000-8999"]`.
fn ports<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Ports>, D::Error> {
    let port = |value: toml::Value| match value {
        toml::Value::Integer(number) => number.to_string().parse(),
        toml::Value::String(text) => text.parse(),
        other => Err(format!("`{other}` is no port: 1 to 65535, or a range such as \"8000-8999\"")),
    };
    let values = Vec::<toml::Value>::deserialize(deserializer)?;
    values.into_iter().map(port).collect::<Result<_, _>>().map_err(serde::de::Error::custom)
}

/// What a run is to do, before anything of it is tried.
struct Plan {
    config: Config,
    choice: Choice,
    budgets: Budgets,
    named: bool,
    mode: Mode,
    /// What a dry run would be.
    without_dry_run: Mode,
    run_dir: Option<PathBuf>,
    scope: Option<Scope>,
    trace: Option<PathBuf>,
    quiet: bool,
    lines: Vec<String>,
    /// Why no link can be used yet.
    waiting: Option<String>,
}

/// Steers until stopped.
pub(super) fn run(args: RunArgs, config: Option<&Path>) -> Result<(), Exit> {
    let file = ConfigFile::read(config)?;
    let plan = plan(args, &file)?;
    confine(Daemon::Paths);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let ended = runtime.block_on(steer(plan));
    runtime.shutdown_background();
    ended
}

/// Everything that can be found wrong without changing anything is found here.
fn plan(args: RunArgs, file: &ConfigFile) -> Result<Plan, Exit> {
    for (n, Wanted { link, .. }) in args.link.iter().enumerate() {
        if args.link[..n].iter().any(|other| other.link.name == link.name) {
            return Err(Exit::usage(format!("--link {}: named twice", link.name)));
        }
        if link.limit.is_some() {
            return Err(Exit::usage(format!(
                "--link {}: limit= is for downloads of our own; other programs' connections cannot be slowed down",
                link.name
            )));
        }
    }
    if args.trace.as_deref() == Some(Path::new("-")) {
        return Err(Exit::usage("--trace -: the log needs a file; name one"));
    }
    let scope = asked_scope(&args, file)?;
    let model = energy::chosen(args.energy_model.as_deref(), file.energy_model.as_deref())?;
    let model = model.map_or_else(without_radios, Ok)?;
    let without_dry_run = if args.kernel_pm || file.paths.kernel_pm { Mode::KernelPm } else { Mode::Userspace };
    let mode = if args.dry_run { Mode::DryRun } else { without_dry_run };
    let named: Vec<Wanted> = if args.link.is_empty() {
        file.paths.wanted().map(|Wanted { link, later }| Wanted { link: file.complete(link), later }).collect()
    } else {
        args.link.into_iter().map(|Wanted { link, later }| Wanted { link: file.complete(link), later }).collect()
    };
    let is_named = !named.is_empty();
    let run_dir = named_run_dir(&args.daemon, file)?;
    let bypass_vpn = args.bypass_vpn || file.paths.bypass_vpn;
    let has_budgets = named.iter().any(|wanted| wanted.link.budget.is_some())
        || file.known().iter().any(|link| link.budget.is_some());
    let budgets = match mode {
        Mode::DryRun => Budgets::default(),
        // Without budgets nothing is counted, so nothing is kept either.
        _ if !has_budgets => Budgets::default(),
        _ => Budgets::open(&kept(run_dir.as_deref()))
            .map_err(|error| Exit::failed(format!("{error}: what is used of budgets cannot be kept there")))?,
    };
    let Links { terms, choice, lines, waiting } = links(named, &budgets, bypass_vpn, file)?;
    let mut config = Config::new(model, terms);
    config.policy = args.policy.or(file.paths.policy).unwrap_or_default();
    config.short_queues = args.short_queues;
    config.kernel_path_manager = mode == Mode::KernelPm;
    config.goal = args.profile.or(file.paths.profile).unwrap_or_default();
    Ok(Plan {
        config,
        choice,
        budgets,
        // A link below a VPN that is to be bypassed may go beside it, as a named one may.
        named: is_named || bypass_vpn,
        mode,
        without_dry_run,
        run_dir: if mode == Mode::DryRun {
            run_dir.or_else(own_run_dir).or_else(shared_run_dir)
        } else {
            run_dir.or(Some(RUN_DIR.into()))
        },
        scope,
        trace: args.trace,
        quiet: args.quiet,
        lines,
        waiting,
    })
}

/// Where it is written down what was used of budgets: that outlives the machine's end, other than what is in [`RUN_DIR`].
fn kept(run_dir: Option<&Path>) -> PathBuf {
    let given = run_dir.map(Path::to_owned);
    // systemd's word for a unit's own directory.
    let place = given.or_else(|| std::env::var_os("STATE_DIRECTORY").map(PathBuf::from));
    place.unwrap_or_else(|| STATE_DIR.into())
}

/// The daemons' own place, where it is there and this user may write in it.
fn shared_run_dir() -> Option<PathBuf> {
    let place = Path::new(RUN_DIR);
    rustix::fs::access(place, rustix::fs::Access::WRITE_OK).is_ok().then(|| place.to_owned())
}

/// For what is to be known after the machine's end.
const STATE_DIR: &str = "/var/lib/marline";

/// Which programs' plain TCP is led on, by the command line and the file together; none: nobody's.
fn asked_scope(args: &RunArgs, file: &ConfigFile) -> Result<Option<Scope>, Exit> {
    if !(args.transparent || (file.paths.transparent && !args.dry_run)) {
        let word = if args.cgroup.is_some() { "--cgroup" } else { "--port" };
        return if args.cgroup.is_none() && args.port.is_empty() {
            Ok(None)
        } else {
            Err(Exit::usage(format!("{word}: it says for whom --transparent is: say that, too")))
        };
    }
    let ports = if args.port.is_empty() { &file.paths.port } else { &args.port };
    match &args.cgroup {
        Some(cgroup) => scope("--cgroup", Some(cgroup), ports),
        None => scope("[paths] cgroup", file.paths.cgroup.as_deref(), ports),
    }
    .map(Some)
}

/// `word` is how the control group was named.
fn scope(word: &str, cgroup: Option<&Path>, ports: &[Ports]) -> Result<Scope, Exit> {
    let cgroup = cgroup.map(Cgroup::find).transpose();
    let cgroup = cgroup.map_err(|why| Exit::usage(format!("{word}: {why}")))?;
    Ok(Scope { cgroup, ports: ports.to_vec() })
}

/// `--energy-model none`: every link is as cheap as another.
fn without_radios() -> Result<Model, Exit> {
    Model::new("none", [].into(), ConcurrentDraw::default(), Power::ZERO)
        .map_err(|error| Exit::failed(error.to_string()))
}

/// The links at the start.
struct Links {
    /// In the order of their numbers.
    terms: Vec<LinkConfig>,
    /// How they were chosen.
    choice: Choice,
    /// What the user should read.
    lines: Vec<String>,
    /// Why none of them can be used yet.
    waiting: Option<String>,
}

fn links(wanted: Vec<Wanted>, budgets: &Budgets, bypass_vpn: bool, file: &ConfigFile) -> Result<Links, Exit> {
    let gone = |error: &dyn std::fmt::Display| Exit::new(Exit::NETWORK, error.to_string());
    let survey = survey().map_err(|error| gone(&error))?;
    let absent = |wanted: &&Wanted| survey.named(&wanted.link.name).is_none();
    if let Some(unknown) = wanted.iter().filter(absent).find(|wanted| !wanted.later) {
        return Err(gone(&format!(
            "link {0}: no such interface; `marline links` lists those there are, and `--link {0},later` waits for it",
            unknown.link.name
        )));
    }
    let hints = MeteredHints::ask(&survey);
    let is_named = !wanted.is_empty();
    let come = wanted.iter().filter(absent).map(|wanted| {
        format!("link {}: there is no such interface yet; it is used when it comes", wanted.link.name)
    });
    let come: Vec<String> = come.collect();
    let named: Vec<Named> = wanted.into_iter().map(|wanted| wanted.link).collect();
    let choice =
        if is_named { Choice::Named(named.clone()) } else { Choice::Auto { bypass_vpn, known: file.known() } };
    let mut waiting = None;
    let chosen = match choose(&survey, &choice, &hints) {
        // At boot, interfaces appear and get their addresses after this program has started.
        Err(error @ LinksError::NoLink { .. }) => {
            waiting = Some(format!("{error}; waiting until one can be used"));
            Chosen { links: Vec::new(), warnings: Vec::new(), vpn: None }
        }
        chosen => chosen.map_err(|error| gone(&error))?,
    };
    let mut lines: Vec<String> = chosen.vpn.into_iter().chain(come).collect();
    let mut profiles: Vec<_> = chosen.links.into_iter().map(|(_, profile)| profile).collect();
    // What cannot be used yet may come to be used while it runs.
    let later = if is_named {
        let waits = |link: &Named| !profiles.iter().any(|profile| profile.name == link.name);
        named.iter().filter(|link| waits(link)).cloned().collect()
    } else if survey.vpn.is_some() {
        Vec::new()
    } else {
        coming(&survey).map(|name| file.complete(Named::new(name))).collect::<Vec<Named>>()
    };
    for link in later {
        if let Some(interface) = survey.named(&link.name) {
            if is_named {
                lines.push(format!("link {}: {}; it is used when that changes", link.name, interface.verdict));
            }
            profiles.push(link.on(interface, &hints));
        }
    }
    let terms = profiles.into_iter().zip(0..).map(|(profile, number)| LinkConfig {
        id: LinkId(number),
        budget: profile.budget.map(|budget| budgets.left(&profile.name, budget)),
        name: profile.name,
        kind: profile.kind,
        metered: profile.metered,
    });
    Ok(Links { terms: terms.collect(), choice, lines, waiting })
}

async fn steer(mut plan: Plan) -> Result<(), Exit> {
    // Before anything is changed: whoever starts it may stop it at once.
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        signals.push(signal(kind).map_err(|error| Exit::failed(format!("signals cannot be caught: {error}")))?);
    }
    let hangup = Hangup::caught()?;
    let dry = plan.mode == Mode::DryRun;
    let left = match &plan.run_dir {
        Some(run_dir) if !dry => ground::check(run_dir, plan.mode).map_err(exit)?,
        _ => None,
    };
    let ending = if left.is_some() { LEFT } else { ENDING };
    plan.lines.extend(left);
    plan.scope.as_ref().map_or(Ok(()), forward::check).map_err(unled)?;
    plan.trace.as_deref().map_or(Ok(()), writable).map_err(exit)?;
    let made = plan.run_dir.as_deref().map(ground::run_directory).transpose().map_err(exit)? == Some(true);
    let made = plan.run_dir.clone().filter(|_| made);
    let role = if dry { Role::Look } else { Role::Steer };
    let claim = plan.run_dir.as_deref().map(|run_dir| Claim::take(run_dir, role)).transpose();
    let claim = claim.map_err(|error| exit(error.into()))?;
    if plan.mode == Mode::KernelPm {
        plan.lines.extend(foreign_endpoints(&plan));
    }
    let about = About {
        policy: plan.config.policy,
        profile: plan.config.goal,
        energy_model: Some(plan.config.energy.name().to_owned()),
        notes: plan.lines.clone(),
        forwarder: plan.scope.is_some().then(std::sync::Arc::default),
    };
    let counts = about.forwarder.clone().unwrap_or_default();
    let policy = Shared::new(plan.config.clone());
    let (driver, asked) = mpsc::channel(16);
    let control = control(&plan, about, policy.clone(), driver)?;
    if let Some(line) = &plan.waiting {
        say(line);
    }
    if !plan.quiet {
        plan.lines.iter().for_each(|line| say(line));
        say(&beginning(&plan.config, plan.mode));
        if control.is_none() {
            say(&unasked(plan.run_dir.as_deref()));
        }
    }
    let roads =
        Roads { links: plan.config.links.iter().map(|link| link.name.clone()).collect(), named: plan.named };
    let quiet = plan.quiet;
    let tell = Box::new(move |line: &str| {
        if !quiet {
            say(line);
        }
    });
    let (ground, look): (Box<dyn Ground>, Option<Claim>) = match (&plan.run_dir, claim) {
        (Some(run_dir), Some(claim)) if !dry => (Box::new(Host::new(claim, run_dir, roads, tell)), None),
        (_, claim) => (Box::new(Preview::new(plan.without_dry_run, roads, tell)), claim),
    };
    let job = Job {
        config: plan.config,
        choice: plan.choice,
        budgets: plan.budgets,
        mode: plan.mode,
        beside_vpn: plan.named,
        trace: plan.trace,
        control: asked,
        ground,
    };
    let forwarding = async {
        match plan.scope {
            Some(scope) => {
                // Begun after the ground is laid: that takes away what a forwarder that was killed has left.
                let config = forward::Config { scope, ..forward::Config::default() };
                match Forwarder::start(config, counts) {
                    Ok(mut forwarder) => forwarder.lost().await,
                    Err(error) => error,
                }
            }
            None => std::future::pending().await,
        }
    };
    let mut failed = None;
    let stop = async {
        tokio::select! {
            () = std::future::poll_fn(|cx| {
                let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }) => {}
            error = forwarding => failed = Some(error),
            never = hangup.changes_nothing(quiet) => match never {},
        }
    };
    let ended = drive(policy, job, stop).await;
    drop((control, look));
    if let Some(made) = made {
        // Where something is left in it, it is needed.
        let _ = std::fs::remove_dir(made);
    }
    ended.map_err(exit)?;
    failed.map_or(Ok(()), |error| Err(unled(error)))?;
    if !quiet && !dry {
        say(ending);
    }
    Ok(())
}

/// Whether a log can be written there; it is made, and what it holds stays.
fn writable(path: &Path) -> Result<(), PathsError> {
    append_log(path).map(drop).map_err(|error| PathsError::Trace { path: path.to_owned(), error })
}

const ENDING: &str = "stopped; everything is as it was before";
/// Where a program that has gone had left its path manager behind.
const LEFT: &str = "stopped; everything is as it was before, but paths are managed by the kernel again";

/// How the forwarder's errors end the process.
fn unled(error: ForwardError) -> Exit {
    let code = if matches!(error, ForwardError::NotPermitted) { Exit::PRIVILEGE } else { Exit::FAILED };
    Exit::new(code, error.to_string())
}

/// Why `status` cannot ask a dry run.
fn unasked(run_dir: Option<&Path>) -> String {
    let why = match run_dir.map(|run_dir| (run_dir, Claim::held(run_dir, Role::Steer))) {
        Some((run_dir, Some(daemon))) => {
            format!("{} is of the `marline paths` that runs (process {daemon})", run_dir.display())
        }
        _ => "there is no run directory".to_owned(),
    };
    format!("{why}, so `marline paths status` cannot ask this one: name another directory with --run-dir")
}

/// Lines about endpoints that the kernel goes by whatever the policy says.
fn foreign_endpoints(plan: &Plan) -> Vec<String> {
    let run_dir = plan.run_dir.as_deref().unwrap_or(Path::new(RUN_DIR));
    let (Ok(endpoints), Ok(survey)) = (ground::endpoints_of_others(run_dir), survey()) else { return Vec::new() };
    let mut lines = Vec::new();
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.subflow) {
        let is_its = |name: &str| {
            let interface = survey.named(name);
            interface.is_some_and(|i| i.index == endpoint.interface || i.addresses.contains(&endpoint.address))
        };
        if let Some(link) = plan.config.links.iter().find(|link| is_its(&link.name)) {
            lines.push(format!(
                "endpoint {} id {} is not marline's: the kernel joins {} with it as soon as a connection begins; \
                 `ip mptcp endpoint delete id {1}` takes it away",
                endpoint.address, endpoint.id, link.name
            ));
        }
    }
    lines
}

/// The socket at which `status` asks; none: a dry run without a place for it.
fn control(
    plan: &Plan,
    about: About,
    policy: Shared,
    driver: mpsc::Sender<marline_paths::Ask>,
) -> Result<Option<Control>, Exit> {
    let Some(run_dir) = &plan.run_dir else { return Ok(None) };
    if plan.mode == Mode::DryRun && Claim::held(run_dir, Role::Steer).is_some() {
        // The socket is the daemon's.
        return Ok(None);
    }
    let listening = Control::listen(run_dir, about, policy, driver);
    listening.map(Some).map_err(|error| {
        Exit::failed(format!(
            "{}: {error}: the control socket cannot be made; name another directory with --run-dir",
            run_dir.display()
        ))
    })
}

/// `steering wlan0 (wifi) and wwan0 (lte, metered), policy marline, profile energy; Ctrl-C stops it`.
fn beginning(config: &Config, mode: Mode) -> String {
    let links: Vec<String> = config
        .links
        .iter()
        .map(|link| format!("{} ({}{})", link.name, link.kind, if link.metered { ", metered" } else { "" }))
        .collect();
    let what = match mode {
        Mode::Userspace => "steering MPTCP over",
        Mode::KernelPm => "steering all MPTCP connections together over",
        Mode::DryRun => "dry run, nothing is changed: looking at MPTCP over",
    };
    let only = match links.len() {
        0 => "no link yet",
        1 => " (there is only one link: nothing to choose between yet)",
        _ => "",
    };
    let (policy, profile) = (super::show::word(&config.policy), super::show::word(&config.goal));
    format!("{what} {}{only}; policy {policy}, profile {profile}; Ctrl-C stops it", links.join(", "))
}
