//! `marline paths run`: sets up the path manager's driver from the arguments and runs it until it is stopped.
//!
//! 1. Order: read the command line and its files; select links; check privileges, kernel and other path managers; take the
//!    instance lock; open the control socket. Only then is the host changed.
//! 2. SIGINT and SIGTERM restore the host configuration, and the exit code is 0. SIGHUP changes nothing.

use std::path::{Path, PathBuf};

use marline_core::energy::{ConcurrentDraw, Model};
use marline_core::link::LinkId;
use marline_core::paths::{Config, LinkConfig};
use marline_core::units::Power;
use marline_net::links::{
    ChosenLinks, LinkArg, LinkSelection, LinksError, MeteredHints, choose_links, list_interfaces,
    pending_interfaces,
};
use marline_net::private_file::append_log;
use marline_paths::control::ControlSocket;
use marline_paths::host_config::{self, DryRun, HostConfig, InstanceLock, RUN_DIR, Role, RoutedLinks};
use marline_paths::status::RunInfo;
use marline_paths::transparent::{self, Cgroup, ForwardError, Forwarder, PortRange, Scope};
use marline_paths::{Budgets, HostConfigurator, Job, Mode, PathsError, SharedPolicy, drive};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use super::args::RunArgs;
use super::{explicit_run_dir, print_notice, to_cli_error};
use crate::args::LinkOption;
use crate::config::{InterfaceName, PathsConfig};
use crate::directories::user_run_dir;
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;
use crate::{CliError, ConfigFile, energy};

/// The links that the section `[paths]` of the configuration file names.
pub(super) fn configured_links(section: &PathsConfig) -> impl Iterator<Item = LinkOption> {
    let link_option =
        |is_optional| move |link: &InterfaceName| LinkOption { link: LinkArg::new(link.as_str()), is_optional };
    section.links.iter().map(link_option(false)).chain(section.optional_links.iter().map(link_option(true)))
}

/// Programs whose plain TCP is forwarded by the section `[paths]`; `None` without `transparent`.
pub(super) fn configured_scope(section: &PathsConfig) -> Result<Option<Scope>, CliError> {
    let scope = section.transparent.then(|| scope("[paths] cgroup", section.cgroup.as_deref(), &section.ports));
    scope.transpose()
}

/// Validated settings of a run.
struct RunPlan {
    config: Config,
    /// Rule by which links are selected, also those that appear later.
    choice: LinkSelection,
    /// Usage of the links' data budgets, stored across runs.
    budgets: Budgets,
    /// Links may be used although a VPN is active.
    may_bypass_vpn: bool,
    mode: Mode,
    /// The mode that a dry run previews; otherwise equal to `mode`.
    without_dry_run: Mode,
    /// Run directory; `None` only for a dry run of a user who has none.
    run_dir: Option<PathBuf>,
    /// Programs whose plain TCP is forwarded; `None` without `--transparent`.
    scope: Option<Scope>,
    trace: Option<PathBuf>,
    quiet: bool,
    notices: Vec<String>,
    /// Why no link can be used yet.
    no_link_reason: Option<String>,
}

/// Runs the path manager until it is stopped.
pub(crate) fn run(args: RunArgs, config: Option<&Path>) -> Result<(), CliError> {
    let file = ConfigFile::read(config)?;
    let plan = plan(args, &file)?;
    drop_privileges(Daemon::Paths);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))?;
    let result = runtime.block_on(run_driver(plan));
    runtime.shutdown_background();
    result
}

/// Builds the plan and finds all mistakes that can be found without changing the host.
fn plan(args: RunArgs, file: &ConfigFile) -> Result<RunPlan, CliError> {
    for (index, LinkOption { link, .. }) in args.links.link.iter().enumerate() {
        if args.links.link[..index].iter().any(|other| other.link.name == link.name) {
            return Err(CliError::usage(format!("--link {}: named twice", link.name)));
        }
        if link.rate_limit.is_some() {
            return Err(CliError::usage(format!(
                "--link {}: limit= is only for `marline get` and `marline proxy`; connections of other programs cannot be limited",
                link.name
            )));
        }
    }
    if args.log.trace.as_deref() == Some(Path::new("-")) {
        return Err(CliError::usage("--trace -: name a file for the log"));
    }
    let scope = requested_scope(&args, file)?;
    let model = energy::select_model(args.model.energy_model.as_deref(), file.energy_model.as_deref())?;
    let model = model.map_or_else(no_radio_model, Ok)?;
    let without_dry_run = if args.kernel_pm || file.paths.kernel_pm { Mode::KernelPm } else { Mode::Userspace };
    let mode = if args.dry_run { Mode::DryRun } else { without_dry_run };
    let link_options: Vec<LinkOption> = if args.links.link.is_empty() {
        configured_links(&file.paths)
            .map(|LinkOption { link, is_optional }| LinkOption { link: file.with_config(link), is_optional })
            .collect()
    } else {
        args.links
            .link
            .into_iter()
            .map(|LinkOption { link, is_optional: later }| LinkOption {
                link: file.with_config(link),
                is_optional: later,
            })
            .collect()
    };
    let has_named_links = !link_options.is_empty();
    let run_dir = explicit_run_dir(&args.run_dir_args, file)?;
    let bypass_vpn = args.vpn.bypass_vpn || file.paths.bypass_vpn;
    let has_budgets = link_options.iter().any(|option| option.link.budget.is_some())
        || file.described_links().iter().any(|link| link.budget.is_some());
    let budgets = match mode {
        Mode::DryRun => Budgets::default(),
        // Without budgets no usage is counted, so no state file is needed.
        _ if !has_budgets => Budgets::default(),
        _ => Budgets::open(&budget_state_dir(run_dir.as_deref()))
            .map_err(|error| CliError::failed(format!("{error}: cannot store the usage of budgets there")))?,
    };
    let SelectedLinks { link_configs, choice, notices: lines, no_link_reason: waiting } =
        select_links(link_options, &budgets, bypass_vpn, file)?;
    let mut config = Config::new(model, link_configs);
    config.policy = args.policy.or(file.paths.policy).unwrap_or_default();
    config.short_queues = args.short_queues;
    config.kernel_path_manager = mode == Mode::KernelPm;
    config.goal = args.goal.or(file.paths.goal).unwrap_or_default();
    Ok(RunPlan {
        config,
        choice,
        budgets,
        // Named links, and links below a bypassed VPN, may be used although a VPN is active.
        may_bypass_vpn: has_named_links || bypass_vpn,
        mode,
        without_dry_run,
        run_dir: if mode == Mode::DryRun {
            run_dir.or_else(user_run_dir).or_else(shared_run_dir)
        } else {
            run_dir.or(Some(RUN_DIR.into()))
        },
        scope,
        trace: args.log.trace,
        quiet: args.quiet,
        notices: lines,
        no_link_reason: waiting,
    })
}

/// Directory for the usage of budgets: the run directory if one was named, else a state directory, which unlike [`RUN_DIR`] survives a
/// reboot.
fn budget_state_dir(run_dir: Option<&Path>) -> PathBuf {
    let given = run_dir.map(Path::to_owned);
    // Set by systemd for a unit with `StateDirectory=`.
    let state_dir = given.or_else(|| std::env::var_os("STATE_DIRECTORY").map(PathBuf::from));
    state_dir.unwrap_or_else(|| STATE_DIR.into())
}

/// The default run directory, if it exists and this user may write to it.
fn shared_run_dir() -> Option<PathBuf> {
    let path = Path::new(RUN_DIR);
    rustix::fs::access(path, rustix::fs::Access::WRITE_OK).is_ok().then(|| path.to_owned())
}

/// Default directory for state that survives a reboot.
const STATE_DIR: &str = "/var/lib/marline";

/// Programs whose plain TCP is forwarded, from the command line and the configuration file; `None` without `--transparent`.
fn requested_scope(args: &RunArgs, file: &ConfigFile) -> Result<Option<Scope>, CliError> {
    if !(args.transparent || (file.paths.transparent && !args.dry_run)) {
        let option = if args.cgroup.is_some() { "--cgroup" } else { "--port" };
        return if args.cgroup.is_none() && args.port.is_empty() {
            Ok(None)
        } else {
            Err(CliError::usage(format!("{option} needs --transparent")))
        };
    }
    let ports = if args.port.is_empty() { &file.paths.ports } else { &args.port };
    match &args.cgroup {
        Some(cgroup) => scope("--cgroup", Some(cgroup), ports),
        None => scope("[paths] cgroup", file.paths.cgroup.as_deref(), ports),
    }
    .map(Some)
}

/// Builds the scope; `option` names the source of the control group in errors.
fn scope(option: &str, cgroup: Option<&Path>, ports: &[PortRange]) -> Result<Scope, CliError> {
    let cgroup = cgroup.map(Cgroup::find).transpose();
    let cgroup = cgroup.map_err(|why| CliError::usage(format!("{option}: {why}")))?;
    Ok(Scope { cgroup, ports: ports.to_vec() })
}

/// Model for `--energy-model none`: it has no radios, so all links cost the same energy.
fn no_radio_model() -> Result<Model, CliError> {
    Model::new("none", [].into(), ConcurrentDraw::default(), Power::ZERO)
        .map_err(|error| CliError::failed(error.to_string()))
}

/// Links at the start of a run.
struct SelectedLinks {
    /// Links in the order of their numbers.
    link_configs: Vec<LinkConfig>,
    /// Rule by which the links were selected, also for interfaces that appear later.
    choice: LinkSelection,
    /// Notices for the user.
    notices: Vec<String>,
    /// Why none of the links can be used yet.
    no_link_reason: Option<String>,
}

/// Selects the links of the run and their initial states, without changing anything on the host.
///
/// A named link that does not exist is an error unless it is optional. That no link can be used is not an error: the daemon
/// waits.
fn select_links(
    link_options: Vec<LinkOption>,
    budgets: &Budgets,
    bypass_vpn: bool,
    file: &ConfigFile,
) -> Result<SelectedLinks, CliError> {
    let no_link_error = |error: &dyn std::fmt::Display| CliError::new(CliError::NETWORK, error.to_string());
    let interfaces = list_interfaces().map_err(|error| no_link_error(&error))?;
    let is_absent = |option: &&LinkOption| interfaces.by_name(&option.link.name).is_none();
    if let Some(missing) = link_options.iter().filter(is_absent).find(|option| !option.is_optional) {
        return Err(no_link_error(&format!(
            "link {0}: no such interface; `marline links` lists the interfaces, and `--link {0},optional` waits for it",
            missing.link.name
        )));
    }
    let hints = MeteredHints::query(&interfaces);
    let is_named = !link_options.is_empty();
    let absent_notices = link_options
        .iter()
        .filter(is_absent)
        .map(|option| format!("link {}: no such interface yet; it will be used when it appears", option.link.name));
    let absent_notices: Vec<String> = absent_notices.collect();
    let named: Vec<LinkArg> = link_options.into_iter().map(|option| option.link).collect();
    let choice = if is_named {
        LinkSelection::Named(named.clone())
    } else {
        LinkSelection::Auto { bypass_vpn, configured: file.described_links() }
    };
    let mut no_link_reason = None;
    let selection = match choose_links(&interfaces, &choice, &hints) {
        // At boot, interfaces appear and get their addresses after this program has started.
        Err(error @ LinksError::NoLink { .. }) => {
            no_link_reason = Some(format!("{error}; waiting for a usable link"));
            ChosenLinks { links: Vec::new(), warnings: Vec::new(), vpn_note: None }
        }
        other => other.map_err(|error| no_link_error(&error))?,
    };
    let mut notices: Vec<String> = selection.vpn_note.into_iter().chain(absent_notices).collect();
    let mut profiles: Vec<_> = selection.links.into_iter().map(|(_, profile)| profile).collect();
    // Links that cannot be used yet are configured as well, since they may become usable during the run.
    let pending_links = if is_named {
        let is_pending = |link: &LinkArg| !profiles.iter().any(|profile| profile.name == link.name);
        named.iter().filter(|link| is_pending(link)).cloned().collect()
    } else if interfaces.vpn.is_some() {
        // While a VPN is active, the interfaces below it are not candidates.
        Vec::new()
    } else {
        pending_interfaces(&interfaces).map(|name| file.with_config(LinkArg::new(name))).collect::<Vec<LinkArg>>()
    };
    for link in pending_links {
        if let Some(interface) = interfaces.by_name(&link.name) {
            if is_named {
                notices.push(format!(
                    "link {}: {}; it will be used when this changes",
                    link.name, interface.usability
                ));
            }
            profiles.push(link.profile_for(interface, &hints));
        }
    }
    // The budget of a link is what earlier runs have left of it.
    let configs = profiles.into_iter().zip(0..).map(|(profile, number)| LinkConfig {
        id: LinkId(number),
        budget: profile.budget.map(|budget| budgets.remaining(&profile.name, budget)),
        name: profile.name,
        kind: profile.kind,
        metered: profile.metered,
    });
    Ok(SelectedLinks { link_configs: configs.collect(), choice, notices, no_link_reason })
}

/// Checks the host, takes the instance lock, opens the control socket, and runs the driver until it is stopped.
async fn run_driver(mut plan: RunPlan) -> Result<(), CliError> {
    // Before the host is changed, so that a signal right after the start restores everything.
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        signals.push(
            signal(kind).map_err(|error| CliError::failed(format!("cannot register signal handlers: {error}")))?,
        );
    }
    let reload_signal = ReloadSignal::register()?;
    let is_dry_run = plan.mode == Mode::DryRun;
    let leftover_notice = match &plan.run_dir {
        Some(run_dir) if !is_dry_run => host_config::check(run_dir, plan.mode).map_err(to_cli_error)?,
        _ => None,
    };
    let final_notice = if leftover_notice.is_some() { RESTORED_BUT_KERNEL_PM_NOTICE } else { RESTORED_NOTICE };
    plan.notices.extend(leftover_notice);
    plan.scope.as_ref().map_or(Ok(()), transparent::check).map_err(forward_error)?;
    plan.trace.as_deref().map_or(Ok(()), check_trace_writable).map_err(to_cli_error)?;
    let has_created_run_dir =
        plan.run_dir.as_deref().map(host_config::ensure_run_dir).transpose().map_err(to_cli_error)? == Some(true);
    let created_run_dir = plan.run_dir.clone().filter(|_| has_created_run_dir);
    // A dry run takes a lock of its own, so that it can run beside the daemon.
    let role = if is_dry_run { Role::DryRun } else { Role::Paths };
    let instance_lock = plan.run_dir.as_deref().map(|run_dir| InstanceLock::acquire(run_dir, role)).transpose();
    let instance_lock = instance_lock.map_err(|error| to_cli_error(error.into()))?;
    if plan.mode == Mode::KernelPm {
        plan.notices.extend(foreign_endpoints(&plan));
    }
    let daemon_info = RunInfo {
        policy: plan.config.policy,
        goal: plan.config.goal,
        energy_model: Some(plan.config.energy.name().to_owned()),
        notes: plan.notices.clone(),
        forwarder: plan.scope.is_some().then(std::sync::Arc::default),
    };
    let counts = daemon_info.forwarder.clone().unwrap_or_default();
    let policy = SharedPolicy::new(plan.config.clone());
    let (driver, control_requests) = mpsc::channel(16);
    let control = open_control(&plan, daemon_info, policy.clone(), driver)?;
    if let Some(line) = &plan.no_link_reason {
        print_notice(line);
    }
    if !plan.quiet {
        plan.notices.iter().for_each(|line| print_notice(line));
        print_notice(&start_notice(&plan.config, plan.mode));
        if control.is_none() {
            print_notice(&no_control_notice(plan.run_dir.as_deref()));
        }
    }
    let route_config = RoutedLinks {
        links: plan.config.links.iter().map(|link| link.name.clone()).collect(),
        is_explicit: plan.may_bypass_vpn,
    };
    let quiet = plan.quiet;
    let report_change = Box::new(move |line: &str| {
        if !quiet {
            print_notice(line);
        }
    });
    let (host_config, observer_lock): (Box<dyn HostConfigurator>, Option<InstanceLock>) =
        match (&plan.run_dir, instance_lock) {
            (Some(run_dir), Some(instance_lock)) if !is_dry_run => {
                (Box::new(HostConfig::new(instance_lock, run_dir, route_config, report_change)), None)
            }
            (_, claim) => (Box::new(DryRun::new(plan.without_dry_run, route_config, report_change)), claim),
        };
    let job = Job {
        config: plan.config,
        selection: plan.choice,
        budgets: plan.budgets,
        mode: plan.mode,
        bypass_vpn: plan.may_bypass_vpn,
        decision_log: plan.trace,
        queries: control_requests,
        host_config,
    };
    let forwarder_task = async {
        match plan.scope {
            Some(scope) => {
                // Started after the host configuration is set up, which removes the leftovers of a killed forwarder.
                let config = transparent::Config { scope, ..transparent::Config::default() };
                match Forwarder::start(config, counts) {
                    Ok(mut forwarder) => forwarder.wait_for_error().await,
                    Err(error) => error,
                }
            }
            None => std::future::pending().await,
        }
    };
    let mut forwarder_failure = None;
    let stop = async {
        tokio::select! {
            () = std::future::poll_fn(|cx| {
                let has_signal = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                if has_signal { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }) => {}
            error = forwarder_task => forwarder_failure = Some(error),
            never = reload_signal.ignore_with_notice(quiet) => match never {},
        }
    };
    let result = drive(policy, job, stop).await;
    drop((control, observer_lock));
    if let Some(created) = created_run_dir {
        // Fails if the directory is not empty: then its files are still needed.
        let _ = std::fs::remove_dir(created);
    }
    result.map_err(to_cli_error)?;
    forwarder_failure.map_or(Ok(()), |error| Err(forward_error(error)))?;
    if !quiet && !is_dry_run {
        print_notice(final_notice);
    }
    Ok(())
}

/// Checks that the log can be written. The file is created; existing content is kept.
fn check_trace_writable(path: &Path) -> Result<(), PathsError> {
    append_log(path).map(drop).map_err(|error| PathsError::DecisionLog { path: path.to_owned(), error })
}

const RESTORED_NOTICE: &str = "stopped; the host configuration is restored";
/// Used if another program had ended and left the path manager set to userspace: it is then set to the kernel's default at the end.
const RESTORED_BUT_KERNEL_PM_NOTICE: &str =
    "stopped; the host configuration is restored, except that the kernel manages paths again";

/// Maps an error of the forwarder to an exit code.
fn forward_error(error: ForwardError) -> CliError {
    let code = if matches!(error, ForwardError::NotPermitted) { CliError::PRIVILEGE } else { CliError::FAILED };
    CliError::new(code, error.to_string())
}

/// Notice that a dry run has no control socket.
fn no_control_notice(run_dir: Option<&Path>) -> String {
    let reason = match run_dir.map(|run_dir| (run_dir, InstanceLock::holder(run_dir, Role::Paths))) {
        Some((run_dir, Some(daemon))) => {
            format!("{} is in use by a running `marline paths` (process {daemon})", run_dir.display())
        }
        _ => "there is no run directory".to_owned(),
    };
    format!("{reason}, so `marline paths status` cannot query this dry run: use another directory with --run-dir")
}

/// Notices about endpoints of other programs, which the kernel uses regardless of the policy.
fn foreign_endpoints(plan: &RunPlan) -> Vec<String> {
    let run_dir = plan.run_dir.as_deref().unwrap_or(Path::new(RUN_DIR));
    let (Ok(endpoints), Ok(survey)) = (host_config::foreign_endpoints(run_dir), list_interfaces()) else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    for endpoint in endpoints.iter().filter(|endpoint| endpoint.subflow) {
        let has_endpoint = |name: &str| {
            let interface = survey.by_name(name);
            interface.is_some_and(|i| i.index == endpoint.interface || i.addresses.contains(&endpoint.address))
        };
        if let Some(link) = plan.config.links.iter().find(|link| has_endpoint(&link.name)) {
            lines.push(format!(
                "endpoint {} id {} does not belong to marline: with it the kernel adds a subflow over {} to each new connection; \
                 remove it with `ip mptcp endpoint delete id {1}`",
                endpoint.address, endpoint.id, link.name
            ));
        }
    }
    lines
}

/// Opens the control socket. `None` for a dry run without a free run directory.
fn open_control(
    plan: &RunPlan,
    about: RunInfo,
    policy: SharedPolicy,
    driver: mpsc::Sender<marline_paths::DriverQuery>,
) -> Result<Option<ControlSocket>, CliError> {
    let Some(run_dir) = &plan.run_dir else { return Ok(None) };
    if plan.mode == Mode::DryRun && InstanceLock::holder(run_dir, Role::Paths).is_some() {
        // The control socket in this directory belongs to the running daemon.
        return Ok(None);
    }
    let listening = ControlSocket::listen(run_dir, about, policy, driver);
    listening.map(Some).map_err(|error| {
        CliError::failed(format!(
            "{}: {error}: cannot create the control socket; use another directory with --run-dir",
            run_dir.display()
        ))
    })
}

/// `managing MPTCP over wlan0 (wifi), wwan0 (lte, metered); policy marline, goal energy; press Ctrl-C to stop`.
fn start_notice(config: &Config, mode: Mode) -> String {
    let links: Vec<String> = config
        .links
        .iter()
        .map(|link| format!("{} ({}{})", link.name, link.kind, if link.metered { ", metered" } else { "" }))
        .collect();
    let activity = match mode {
        Mode::Userspace => "managing MPTCP over",
        Mode::KernelPm => "managing all MPTCP connections together over",
        Mode::DryRun => "dry run, nothing is changed: observing MPTCP over",
    };
    let note = match links.len() {
        0 => "no link yet",
        1 => " (only one link yet, so there is no choice)",
        _ => "",
    };
    let (policy, goal) = (super::render::wire_name(&config.policy), super::render::wire_name(&config.goal));
    format!("{activity} {}{note}; policy {policy}, goal {goal}; press Ctrl-C to stop", links.join(", "))
}
