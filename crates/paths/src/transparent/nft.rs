//! An nftables table that disappears with this process, however that ends.
//!
//! 1. The table has an owner (Linux 5.12): the kernel removes it when the owner's netlink socket closes. The owner is
//!    an `nft` process that waits for commands on a pipe from this process. However this process ends, `nft` reads
//!    the end of the pipe and exits, which removes the rules. Otherwise connections would be redirected to a process
//!    that does not exist any more.
//! 2. When another program reloads its firewall (`nft flush ruleset`), a table with an owner is kept.
//! 3. The table contains a `tproxy to` or `tproxy ip to`, whose listing confirms the installation.
//!
//! Direct netlink would not do: rules are nested expressions in several layers, and nft exists on every host that
//! uses them.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Why a table cannot be installed.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program `nft` is missing.
    #[error("the program nft is not installed (package nftables)")]
    NotInstalled,
    /// CAP_NET_ADMIN is missing.
    #[error("not permitted: needs CAP_NET_ADMIN, for nft too (run as root, or as the systemd unit does)")]
    NotPermitted,
    /// Another process owns the table.
    #[error("another marline owns these rules already (nft list tables)")]
    AlreadyOwned,
    /// Any other error of nft.
    #[error("nft: {0}")]
    Failed(String),
}

/// An installed table, removed on drop.
#[derive(Debug)]
pub(crate) struct NftTableGuard {
    process: Child,
    /// Closing this pipe ends nft.
    _stdin: ChildStdin,
    /// Kept open for further output: writing to a closed pipe would end nft.
    _output: (ChildStdout, ChildStderr),
}

impl NftTableGuard {
    /// Installs the table of this name.
    ///
    /// # Errors
    /// No nft, no privilege, missing kernel support, or a table of that name with another owner.
    pub(crate) async fn new(table: &str, name: &str) -> Result<Self, NftError> {
        let mut command = Command::new("nft");
        command.arg("-i").env("LC_ALL", "C").current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // A Ctrl-C must reach only marline, which removes the rules when it ends.
        command.process_group(0);
        let mut process = command.spawn().map_err(spawn_error)?;
        let (Some(mut stdin), Some(mut out), Some(mut stderr)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(NftError::Failed("no pipes".into()));
        };
        // The listing of the table confirms that it exists.
        let text = format!("{table}list table inet {name}\n");
        let wait_for_table = async {
            stdin.write_all(text.as_bytes()).await?;
            let mut lines = BufReader::new(&mut out).lines();
            while let Some(line) = lines.next_line().await? {
                if line.contains("tproxy to") || line.contains("tproxy ip to") {
                    return Ok(true);
                }
            }
            Ok::<bool, std::io::Error>(false)
        };
        let (mut stderr_bytes, mut buffer) = (Vec::new(), [0; 2048]);
        let installed = tokio::time::timeout(NFT_TIMEOUT, async {
            tokio::select! {
                table_listed = wait_for_table => table_listed.unwrap_or(false),
                length = stderr.read(&mut buffer) => {
                    stderr_bytes.extend_from_slice(buffer.get(..length.unwrap_or(0)).unwrap_or_default());
                    false
                }
            }
        });
        if installed.await == Ok(true) {
            return Ok(Self { process, _stdin: stdin, _output: (out, stderr) });
        }
        drop(stdin);
        let _ = tokio::time::timeout(NFT_TIMEOUT, stderr.read_to_end(&mut stderr_bytes)).await;
        Err(parse_error(&String::from_utf8_lossy(&stderr_bytes)))
    }

    /// Waits for the unexpected loss of the table.
    pub(crate) async fn wait_for_loss(&mut self) -> NftError {
        let status_result = self.process.wait().await;
        NftError::Failed(match status_result {
            Ok(status) => format!(
                "nft ended unexpectedly ({status}) and its rules were removed: new connections are not redirected any more"
            ),
            Err(error) => error.to_string(),
        })
    }
}

/// Checks that the table could be installed: nft exists, has the privilege, and the kernel accepts it. Changes
/// nothing. Blocks while nft runs.
///
/// # Errors
/// Those of [`NftTableGuard::new`].
pub(crate) fn check(table: &str) -> Result<(), NftError> {
    let mut command = std::process::Command::new("nft");
    // `--check` makes the kernel validate the whole transaction and abort it.
    command.args(["--check", "--file", "-"]).env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(spawn_error)?;
    if let Some(mut stdin) = process.stdin.take() {
        // An nft that does not read its input has printed an error.
        let _ = stdin.write_all(table.as_bytes());
    }
    let output = process.wait_with_output().map_err(spawn_error)?;
    if output.status.success() { Ok(()) } else { Err(parse_error(&String::from_utf8_lossy(&output.stderr))) }
}

/// Runs nft commands and returns the output. Blocks while nft runs.
///
/// # Errors
/// Those of [`NftTableGuard::new`].
pub(crate) fn run_commands(input_text: &str) -> Result<String, NftError> {
    nft_output(&["--file", "-"], input_text)
}

/// All nftables rules of this host, including those of other programs, printed with these options. Blocks while nft
/// runs.
///
/// # Errors
/// Those of [`NftTableGuard::new`]; an nft that does not know an option.
pub(crate) fn list_ruleset(options: &[&str]) -> Result<String, NftError> {
    nft_output(&[options, &["list", "ruleset"]].concat(), "")
}

fn nft_output(arguments: &[&str], input_text: &str) -> Result<String, NftError> {
    let mut command = std::process::Command::new("nft");
    command.args(arguments).env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(spawn_error)?;
    if let Some(mut stdin) = process.stdin.take() {
        // An nft that does not read its input has printed an error.
        let _ = stdin.write_all(input_text.as_bytes());
    }
    let output = process.wait_with_output().map_err(spawn_error)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(parse_error(&String::from_utf8_lossy(&output.stderr)))
    }
}

/// Translates an error of starting nft.
fn spawn_error(error: std::io::Error) -> NftError {
    match error.kind() {
        std::io::ErrorKind::NotFound => NftError::NotInstalled,
        _ => NftError::Failed(error.to_string()),
    }
}

/// Translates the error output of nft.
fn parse_error(stderr: &str) -> NftError {
    let line = stderr.lines().find(|line| line.contains("Error")).or_else(|| stderr.lines().next());
    let line = line.map(|line| line.trim_start_matches("/dev/stdin:").trim().to_owned()).unwrap_or_default();
    if stderr.contains("must be root") || stderr.contains("cache initialization failed") {
        NftError::NotPermitted
    } else if stderr.contains("Operation not permitted") {
        // The kernel's error for a table with another owner.
        NftError::AlreadyOwned
    } else if line.is_empty() {
        NftError::Failed("it ended without an error message; interactive mode (nft -i) is required".into())
    } else if stderr.contains("Operation not supported") {
        NftError::Failed(format!("{line} (tables with an owner need Linux 5.12; and nft_tproxy)"))
    } else {
        NftError::Failed(line)
    }
}

/// Our choice: kernel modules may have to be loaded; a longer time means that nft hangs.
const NFT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_nft_become_one_line() {
        let owned =
            parse_error("Error: Could not process rule: Operation not permitted\ntable inet marline\n^^^\n");
        assert!(matches!(owned, NftError::AlreadyOwned));
        assert!(matches!(parse_error("Operation not permitted (you must be root)\n"), NftError::NotPermitted));
        let other = parse_error("Error: Could not process rule: No such file or directory\nx\n").to_string();
        assert!(other.contains("No such file") && !other.contains('\n'), "{other}");
        assert!(parse_error("").to_string().contains("interactive"));
    }
}
