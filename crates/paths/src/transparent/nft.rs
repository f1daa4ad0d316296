//! A table of nftables that ends with this process, however that ends.
//!
//! In: the table as nft reads it. Out: the table in the kernel while a [`Held`] lives, or why not.
//!
//! 1. The table has an owner (Linux 5.12): the kernel removes it when the owner's netlink socket closes. The owner is
//!    `nft`, waiting for commands on a pipe whose other end is this process's. However this process ends, `nft` reads
//!    the end, and the rules are gone: connections that are led to a process that is no more would be cut off.
//! 2. A program's firewall that is loaded anew (`nft flush ruleset`) leaves a table with an owner alone.
//! 3. The table has a `tproxy to` or a `tproxy ip to` in it, by which it is known to be there.
//!
//! Netlink of our own was not used: rules are expressions in several layers, and nft is on every machine that has them.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

/// Why there is no such table.
#[derive(Debug, thiserror::Error)]
pub enum NftError {
    /// The program that sets the rules is missing.
    #[error("the program nft is not there; it is in the package nftables")]
    NotInstalled,
    /// A privilege is missing.
    #[error("not permitted: needs CAP_NET_ADMIN, for nft too (run as root, or as the systemd unit does)")]
    NotPermitted,
    /// Another process owns the table.
    #[error("another marline has such rules already (nft list tables)")]
    AlreadyOwned,
    /// Anything else that nft says.
    #[error("nft: {0}")]
    Failed(String),
}

/// The table is in force while this lives.
#[derive(Debug)]
pub(crate) struct NftTableGuard {
    process: Child,
    /// Its end is nft's end.
    _stdin: ChildStdin,
    /// Open for what it may still say: nobody would hear it, and it would die of that.
    _output: (ChildStdout, ChildStderr),
}

impl NftTableGuard {
    /// Puts the table of this name in force.
    ///
    /// # Errors
    /// No nft; no privilege; a kernel without what the table needs; somebody else's table of that name.
    pub(crate) async fn new(table: &str, name: &str) -> Result<Self, NftError> {
        let mut command = Command::new("nft");
        command.arg("-i").env("LC_ALL", "C").current_dir("/").kill_on_drop(true);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for marline; the rules end with it, and not before.
        command.process_group(0);
        let mut process = command.spawn().map_err(spawn_error)?;
        let (Some(mut stdin), Some(mut out), Some(mut stderr)) =
            (process.stdin.take(), process.stdout.take(), process.stderr.take())
        else {
            return Err(NftError::Failed("no pipes".into()));
        };
        // What it says when it is asked for the table tells that the table is there.
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

    /// Waits for the end of the table that was not asked for.
    pub(crate) async fn wait_for_loss(&mut self) -> NftError {
        let status_result = self.process.wait().await;
        NftError::Failed(match status_result {
            Ok(status) => format!("it ended ({status}), and the rules with it: connections are plain TCP again"),
            Err(error) => error.to_string(),
        })
    }
}

/// Whether the table could be put in force: nft is there, may do it, and the kernel would take it. Nothing is changed.
/// Blocks for as long as nft runs.
///
/// # Errors
/// Those of [`Held::new`].
pub(crate) fn check(table: &str) -> Result<(), NftError> {
    let mut command = std::process::Command::new("nft");
    // It has the kernel go through the whole transaction, and then take it back.
    command.args(["--check", "--file", "-"]).env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(spawn_error)?;
    if let Some(mut stdin) = process.stdin.take() {
        // One that does not read has said why.
        let _ = stdin.write_all(table.as_bytes());
    }
    let output = process.wait_with_output().map_err(spawn_error)?;
    if output.status.success() { Ok(()) } else { Err(parse_error(&String::from_utf8_lossy(&output.stderr))) }
}

/// Carries out commands of nft, and returns what it prints. Blocks for as long as nft runs.
///
/// # Errors
/// Those of [`Held::new`].
pub(crate) fn run_commands(input_text: &str) -> Result<String, NftError> {
    nft_output(&["--file", "-"], input_text)
}

/// All nftables rules of this host, those of other programs included, printed with these options. Blocks for as long as nft runs.
///
/// # Errors
/// Those of [`Held::new`]; an nft that does not know an option.
pub(crate) fn list_ruleset(options: &[&str]) -> Result<String, NftError> {
    nft_output(&[options, &["list", "ruleset"]].concat(), "")
}

fn nft_output(arguments: &[&str], input_text: &str) -> Result<String, NftError> {
    let mut command = std::process::Command::new("nft");
    command.args(arguments).env("LC_ALL", "C").current_dir("/");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(spawn_error)?;
    if let Some(mut stdin) = process.stdin.take() {
        // One that does not read has said why.
        let _ = stdin.write_all(input_text.as_bytes());
    }
    let output = process.wait_with_output().map_err(spawn_error)?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(parse_error(&String::from_utf8_lossy(&output.stderr)))
    }
}

/// What it means that nft cannot be run.
fn spawn_error(error: std::io::Error) -> NftError {
    match error.kind() {
        std::io::ErrorKind::NotFound => NftError::NotInstalled,
        _ => NftError::Failed(error.to_string()),
    }
}

/// What nft's words mean.
fn parse_error(stderr: &str) -> NftError {
    let line = stderr.lines().find(|line| line.contains("Error")).or_else(|| stderr.lines().next());
    let line = line.map(|line| line.trim_start_matches("/dev/stdin:").trim().to_owned()).unwrap_or_default();
    if stderr.contains("must be root") || stderr.contains("cache initialization failed") {
        NftError::NotPermitted
    } else if stderr.contains("Operation not permitted") {
        // The kernel's word for a table of another owner.
        NftError::AlreadyOwned
    } else if line.is_empty() {
        NftError::Failed("it said nothing and did nothing; it must know interactive mode (nft -i)".into())
    } else if stderr.contains("Operation not supported") {
        NftError::Failed(format!("{line} (tables with an owner need Linux 5.12; and nft_tproxy)"))
    } else {
        NftError::Failed(line)
    }
}

/// chosen: modules may have to be loaded; longer means that something hangs.
const NFT_TIMEOUT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_nft_become_one_line() {
        let owned =
            parse_error("Error: Could not process rule: Operation not permitted\ntable inet marline\n^^^\n");
        assert!(matches!(owned, NftError::AlreadyOwned));
        assert!(matches!(parse_error("Operation not permitted (you must be root)\n"), NftError::NotPermitted));
        let other = parse_error("Error: Could not process rule: No such file or directory\nx\n").to_string();
        assert!(other.contains("No such file") && !other.contains('\n'), "{other}");
        assert!(parse_error("").to_string().contains("interactive"));
    }
}
