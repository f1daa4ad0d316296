//! `marline accel`: from words to a process that helps the flows of a link, and to questions that it answers.
//!
//! 1. Everything that the user wrote, and whether this machine is fit for it, is looked at before anything is changed.
//! 2. What is said about the run goes to standard error, results to standard output; each result has a `--json` twin.
//! 3. Nothing here decides or changes anything: `core::accel` and `marline_accel` do.

mod args;
mod keep;
mod rtp;
mod run;
mod show;
mod terms;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use marline_accel::control::{self, Answer, Question, WHO};
use marline_accel::{AccelError, look, restore, status::Status};
use marline_net::control_socket::ControlError;

use self::args::{AccelVerb, Daemon};
use crate::CliError;
use crate::energy::to_json as json_of;
use crate::output::{print_result, say};
use crate::paths::query_error;

pub(crate) use self::args::{AFTER_HELP, AccelArgs};

/// Does what was asked for.
pub(crate) fn run(args: AccelArgs) -> Result<(), CliError> {
    match args.verb {
        None => run::run(args.run),
        Some(AccelVerb::Status { daemon, json }) => {
            let all = asked(&daemon)?;
            print_result(&if json {
                json_of(&all)?
            } else {
                all.iter().map(show::status).collect::<Vec<_>>().join("\n")
            })
        }
        Some(AccelVerb::Stop { daemon }) => stop(&daemon),
        Some(AccelVerb::Rtp(args)) => rtp::run(*args),
        Some(AccelVerb::Keep(args)) => keep::run(&args),
        Some(AccelVerb::Check { json }) => {
            let needs = look();
            print_result(&if json { json_of(&needs)? } else { show::needs(&needs) })?;
            let fit = needs.iter().all(|need| need.there || !need.must);
            if fit { Ok(()) } else { Err(CliError::silent(CliError::FAILED)) }
        }
    }
}

/// Of its own: it runs as root, and keeps nothing where the daemons of other users have their files.
const RUN_DIR: &str = "/run/marline-accel";

fn run_dir(named: Option<&Path>) -> PathBuf {
    named.unwrap_or(Path::new(RUN_DIR)).to_owned()
}

/// The primary links of the daemons that may run there.
fn primaries(daemon: &Daemon) -> Vec<String> {
    let dir = run_dir(daemon.run_dir.as_deref());
    daemon.primary.clone().map_or_else(|| control::primaries(&dir), |primary| vec![primary])
}

/// How those that run stand.
fn asked(daemon: &Daemon) -> Result<Vec<Status>, CliError> {
    let dir = run_dir(daemon.run_dir.as_deref());
    let (mut all, mut why) = (Vec::new(), None);
    for primary in primaries(daemon) {
        match control::ask(&dir, &primary, Question::Status) {
            Ok(Answer::Status(status)) => all.push(*status),
            Ok(_) => return Err(odd()),
            Err(error) => why = why.or(Some(error)),
        }
    }
    match why {
        _ if !all.is_empty() => Ok(all),
        Some(error) => Err(query_error(&error)),
        None => Err(query_error(&ControlError::NotRunning {
            who: WHO,
            socket: control::socket(&dir, "*"),
            error: std::io::ErrorKind::NotFound.into(),
        })),
    }
}

/// Ends those that run, waits until they have, and removes what others have left.
fn stop(daemon: &Daemon) -> Result<(), CliError> {
    let dir = run_dir(daemon.run_dir.as_deref());
    let mut ended = Vec::new();
    for primary in primaries(daemon) {
        match control::ask(&dir, &primary, Question::Stop) {
            Ok(Answer::Ending { pid }) => {
                wait_for(pid, &dir, &primary)?;
                ended.push(primary);
            }
            Ok(_) => return Err(odd()),
            // Whoever has left it there does not run any more.
            Err(ControlError::NotRunning { .. } | ControlError::Ended(_)) => {}
            Err(error) => return Err(query_error(&error)),
        }
    }
    let swept = match restore() {
        // Those that have ended have removed what was theirs.
        Err(AccelError::NotPermitted(_)) if !ended.is_empty() => Vec::new(),
        swept => swept.map_err(exit)?,
    };
    ended.iter().for_each(|primary| say(&format!("{primary}: stopped; everything is as it was before")));
    swept.iter().for_each(|device| say(&format!("{device}: rules that a run had left behind are removed")));
    if ended.is_empty() && swept.is_empty() {
        say("no `marline accel` runs here, and none has left anything");
    }
    Ok(())
}

/// Until the process has put everything back.
fn wait_for(pid: u32, dir: &Path, primary: &str) -> Result<(), CliError> {
    let begun = Instant::now();
    while control::socket(dir, primary).exists() {
        if begun.elapsed() > PATIENCE {
            return Err(CliError::failed(format!(
                "{primary}: process {pid} does not end; `kill -9 {pid}` does no harm, run this again then"
            )));
        }
        std::thread::sleep(PATIENCE / 500);
    }
    Ok(())
}

/// chosen: programs that change rules wait five seconds for one another.
const PATIENCE: Duration = Duration::from_secs(15);

/// How the accelerator's errors end the process.
fn exit(error: AccelError) -> CliError {
    let code = match &error {
        AccelError::Wrong(_) => CliError::USAGE,
        AccelError::Link(_) | AccelError::Links(_) => CliError::NETWORK,
        AccelError::NotPermitted(_) => CliError::PRIVILEGE,
        AccelError::Unfit(_) | AccelError::Kernel { .. } => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

/// An answer to another question.
fn odd() -> CliError {
    CliError::failed("the daemon answers something else than it was asked: it may be of another version")
}
