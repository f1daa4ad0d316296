//! Command line of `marline-lab`: the options of each command, and the code that runs them.
//!
//! [`main`] must be called before the process has a second thread (and so before any async runtime): a rootless lab
//! enters a user namespace, which the kernel permits only to a single-threaded process.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use marline_core::units::DataSize;
use marline_sim::spec::{LinkEvent, LinkSpec};
use marline_sys::signal;
use marline_terminal::{CliError, command_line, findings, log, output};
use serde_json::{Value, json};

use crate::bench::{self, BenchArgs};
use crate::demo::{self, DemoArgs};
use crate::reproduce::{self, ReproduceArgs};
use crate::result_file::ResultFile;
use crate::runner::command::print_line;
use crate::runner::{self, command::RunArgs};
use crate::{
    Congestion, Lab, LabError, LabSpec, NAME, Payload, ServerTcp, Service, Task, acquire_privileges, doctor,
    scenarios, summary,
};

/// Emulate links on this machine: try commands, run scenarios, reproduce papers.
#[derive(Clone, Debug, Parser)]
#[command(name = NAME, version, max_term_width = 100, subcommand_required = true, after_help = AFTER_HELP)]
pub struct Cli {
    #[command(subcommand)]
    subcommand: LabCommand,
}

/// Commands of `marline-lab`.
#[derive(Clone, Debug, Subcommand)]
enum LabCommand {
    /// Run any command over emulated links, against a real server.
    #[command(after_help = AFTER_EXEC)]
    Exec(ExecArgs),
    /// Show one download over two emulated links, each alone and then both; or live video through an edge.
    Demo(DemoArgs),
    /// Run a scenario: repeat it with each client in turn, print a table, write JSON and a page.
    Run(RunArgs),
    /// Reproduce a paper: print its tables beside the measured values.
    Reproduce(ReproduceArgs),
    /// Compare marline with curl and aria2, case by case (takes long; the exit code does not depend on the result).
    Bench(BenchArgs),
    /// Check whether this machine can run a lab; report what is missing and how to fix it.
    Doctor(DoctorArgs),
}

const AFTER_HELP: &str = "\
marline-lab runs `marline` as a process: the one in its own directory, or the one that the
environment variable MARLINE names. Exit codes are those of marline; see docs/lab.md.";

const AFTER_EXEC: &str = "\
Example:
  marline-lab exec --link wifi,rate=80Mbit/s,rtt=20ms --link lte,rate=61Mbit/s,rtt=50ms \\
      --at 3s:wifi=down --serve 100MB -- curl -o /dev/null {url}

In the command, {url} is replaced by the URL that the server serves, {urls} by the same over HTTPS, {ca} by the file of the certificate
authority. The variables MARLINE_LAB_URL, MARLINE_LAB_URLS and MARLINE_LAB_CA hold the same. The exit code is the command's.
A link: NAME,rate=R|trace=FILE|medium=PRESET[,up=R|,uptrace=FILE][,rtt=T][,jitter=T[,reorder]][,loss=P|,loss=ge:P/P/P][,uploss=P]
        [,queue=T|SIZE][,codel][,police=R:SIZE][,steps=T:R+T:R][,kind=K][,mtu=SIZE]
PRESET: 11g-mixed, 11g, 11b, 11b-rts, 11b-paper
An event: TIME:LINK=down|hold|up|rate=R|up=R|loss=P|rtt=T|jitter=T";

/// Options of `marline-lab exec`.
#[derive(Clone, Debug, Args)]
struct ExecArgs {
    /// An emulated link; the first one is the default route.
    #[arg(long = "link", value_name = "LINK", required = true)]
    links: Vec<LinkSpec>,
    /// Change a link at a time, counted from the start of the command.
    #[arg(long = "at", value_name = "EVENT")]
    events: Vec<LinkEvent>,
    /// Serve this file or directory with nginx; a size (100MB) serves a file of random bytes.
    #[arg(long, value_name = "FILE|DIR|SIZE")]
    serve: Option<String>,
    /// Run this shell command on the server (10.99.0.1) instead of nginx.
    #[arg(long = "server", value_name = "COMMAND", conflicts_with = "serve")]
    server_command: Option<String>,
    /// Congestion control of client and server: cubic, bbr or reno.
    #[arg(long, value_name = "NAME", default_value = "cubic")]
    congestion: Congestion,
    /// Let the server accept MPTCP on port 80.
    #[arg(long)]
    mptcp: bool,
    /// Keep the congestion window of the server's connections after a pause (no slow start after idle; RFC 2861
    /// off).
    #[arg(long = "keep-window")]
    keep_cwnd: bool,
    /// Seed of all random loss and jitter.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Directory of traces (repeatable); also MARLINE_TRACES.
    #[arg(long = "traces", value_name = "DIR")]
    trace_dirs: Vec<PathBuf>,
    /// Write the result to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Options of `marline-lab doctor`.
#[derive(Clone, Debug, Args)]
struct DoctorArgs {
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

/// Runs one command line (program name first) and returns the exit code. The [module documentation](self) states
/// when it must be called.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let ended = command_line::parse(args).and_then(|cli| {
        log::start_log()?;
        match run(cli) {
            0 => Ok(()),
            code => Err(CliError::without_message(code)),
        }
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => output::print_failure(NAME, &error),
    }
}

/// Runs the command and returns the exit code of the process.
fn run(cli: Cli) -> u8 {
    let result = match cli.subcommand {
        LabCommand::Exec(exec) => run_exec(exec),
        LabCommand::Demo(demo) => demo::run(&demo),
        LabCommand::Run(run) => runner::command::run(&run),
        LabCommand::Reproduce(paper) => reproduce::run(&paper),
        LabCommand::Bench(bench) => bench::run(&bench),
        LabCommand::Doctor(args) => Ok(run_doctor(&args)),
    };
    result.unwrap_or_else(|error| {
        notice(&format!("marline-lab: {error}"));
        error.exit_code()
    })
}

fn run_exec(mut args: ExecArgs) -> Result<u8, LabError> {
    check_placeholders(&args)?;
    acquire_privileges()?;
    let traces = scenarios::trace_directories(&args.trace_dirs);
    for link in &mut args.links {
        link.load(&traces).map_err(|error| {
            LabError::Spec(format!("link {}: {}", link.name, scenarios::trace_error_text(&error, &traces)))
        })?;
    }
    let file = ResultFile::open_if(args.json.as_ref())?;
    // The file of random bytes is deleted when `payload` is dropped, so it must live as long as the lab.
    let (service, payload) = service(&args)?;
    let spec = LabSpec {
        links: args.links.clone(),
        events: args.events.clone(),
        congestion: args.congestion,
        seed: args.seed,
        service,
        sender: ServerTcp { mptcp: args.mptcp, keeps_cwnd: args.keep_cwnd },
        segments: Vec::new(),
        server_site: 0,
    };
    signal::install_handlers().map_err(LabError::at_step("signals"))?;
    let lab = Lab::start(&spec)?;
    if !lab.congestion().is_granted() {
        let report = lab.congestion();
        notice(&format!(
            "marline-lab: {} was refused; client {}, server {}",
            report.requested, report.client, report.server
        ));
    }
    let Some((program, program_args)) = args.command.split_first() else {
        return Err(LabError::Spec("no command given: write it after --".into()));
    };
    let mut task = Task::new(program).args(program_args);
    if let Some(payload) = &payload {
        task = task.env("MARLINE_LAB_SHA256", payload.sha256());
    }
    let run = lab.run(&task)?;
    if let Some(file) = file {
        file.write(&format!("{:#}\n", record(&args, &lab, payload.as_ref(), run.to_json())))?;
    }
    notice(summary::run_table(&run, lab.congestion()).trim_end());
    let code = run.status.code().unwrap_or_else(|| 128 + run.status.signal().unwrap_or(0));
    Ok(u8::try_from(code).unwrap_or(1))
}

/// Refuses a command that contains a placeholder when nothing is served: the placeholder would reach the command
/// unreplaced.
fn check_placeholders(args: &ExecArgs) -> Result<(), LabError> {
    if args.serve.is_some() || args.server_command.is_some() {
        return Ok(());
    }
    let text = args.command.iter().map(|arg| arg.to_string_lossy()).collect::<Vec<_>>().join(" ");
    match ["{url}", "{urls}", "{ca}"].into_iter().find(|placeholder| text.contains(placeholder)) {
        Some(placeholder) => Err(LabError::Spec(format!("{placeholder}: nothing is served: add --serve"))),
        None => Ok(()),
    }
}

/// Translates `--serve` and `--server` into a service, and creates the file of random bytes if a size is
/// given.
fn service(args: &ExecArgs) -> Result<(Service, Option<Payload>), LabError> {
    if let Some(shell_command) = &args.server_command {
        return Ok((Service::Command(shell_command.clone()), None));
    }
    let Some(served) = &args.serve else { return Ok((Service::None, None)) };
    if Path::new(served).exists() {
        return Ok((Service::Files(served.into()), None));
    }
    let size: DataSize = served.parse().map_err(|_| {
        LabError::Spec(format!("--serve {served}: neither an existing file or directory, nor a size such as 100MB"))
    })?;
    let payload = Payload::new(size).map_err(LabError::at_step(format!("a file of {size}")))?;
    Ok((Service::Files(payload.path()), Some(payload)))
}

/// The JSON record of a run: first its configuration, then its results.
fn record(args: &ExecArgs, lab: &Lab, payload: Option<&Payload>, run: Value) -> Value {
    json!({
        "command": std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>(),
        "seed": args.seed,
        "version": env!("CARGO_PKG_VERSION"),
        "links": args.links.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "events": args.events.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "congestion": {
            "wanted": lab.congestion().requested.name(),
            "client": lab.congestion().client,
            "server": lab.congestion().server,
        },
        "sha256": payload.map(Payload::sha256),
        "build_s": lab.build_time().as_secs_f64(),
        "run": run,
    })
}

fn run_doctor(args: &DoctorArgs) -> u8 {
    let report = doctor::check_machine();
    let code = u8::from(!report.ok);
    if args.json {
        print_line(&format!("{:#}", json!(report)));
        return code;
    }
    let verdict =
        if report.ok { "A lab can run here." } else { "No lab can run here: fix the findings marked WRONG." };
    print_line(&format!("{}\n{verdict}", findings::render(&report.findings)));
    code
}

/// Prints a line for people on standard error, beside the command's own output.
fn notice(text: &str) {
    output::eprint_after_progress(text);
}
