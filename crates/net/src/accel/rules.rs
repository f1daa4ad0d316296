//! The rules that lead small packets of TCP to the queue: `iptables` and `ip6tables`.
//!
//! In: the primary device, which flows, the queue's number. Out: rules in force while a [`Rules`] lives.
//!
//! 1. They stand in a chain of our own, which a rule of OUTPUT in table `mangle` names: for one device, for packets of at most
//!    [`SMALL`] bytes without our mark. Nothing else of the machine's rules is touched.
//! 2. A family's rules come and go in one transaction (`iptables-restore --noflush`).
//! 3. What a run that was killed has left lets packets pass (`--queue-bypass`), and is removed by the next one or by
//!    [`sweep`].
//! 4. nftables' own `queue` was not used: many kernels have not its module (NFT_QUEUE), while the target of xtables is
//!    there wherever `iptables` is. Whichever of its programs can do it does.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::AccelError;
use super::flows::Flows;
use super::queue::is_open;
use super::raw::MARK;

/// The longest packet that is led to the queue, in bytes. chosen: the headers of IPv6 and TCP with all 40 bytes of
/// options, and a few that a small header of extensions takes.
pub(super) const SMALL: u32 = 120;

/// What the chains' names begin with; the device's name follows.
const CHAIN: &str = "marline-";

/// The rules of one primary device.
#[derive(Debug)]
pub(super) struct Rules {
    device: String,
    /// Who holds them, of each family.
    programs: Vec<String>,
}

impl Rules {
    /// Puts them in force, in the network namespace of the calling thread.
    pub(super) fn set(device: &str, flows: &Flows, queue: u16) -> Result<Self, AccelError> {
        let mut rules = Self { device: device.to_owned(), programs: Vec::new() };
        for v6 in families() {
            let program = set(v6, &table(device, flows, queue, v6))?;
            rules.programs.push(program);
        }
        Ok(rules)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for program in &self.programs {
            if let Err(why) = remove(program, &self.device) {
                tracing::warn!(%program, %why, "rules are left behind; packets pass them untouched");
            }
        }
    }
}

/// The devices for which rules are there that lead to a queue which nobody reads.
pub(super) fn left_behind() -> Vec<String> {
    let mut devices = Vec::new();
    for program in holders() {
        let listed = listed(&program);
        let dead = |device: &String| !listed.lines().filter_map(|rule| queue_in(rule, device)).any(is_open);
        devices.extend(chains(&listed).filter(dead));
    }
    devices.sort();
    devices.dedup();
    devices
}

/// Removes what is there for this device; whether anything was.
///
/// # Errors
/// It is there and stays.
pub(super) fn sweep(device: &str) -> Result<bool, AccelError> {
    let mut was = false;
    for program in holders().iter().filter(|program| chains(&listed(program)).any(|of| of == device)) {
        remove(program, device)
            .map_err(|why| AccelError::Unfit(format!("{device}: rules that were left behind: {why}")))?;
        was = true;
    }
    Ok(was)
}

/// The program that would set rules, and its version; an error says what is missing.
pub(super) fn program() -> Result<String, AccelError> {
    let program = programs(false).into_iter().next().ok_or_else(missing)?;
    let said = Command::new(&program).arg("--version").output().map_err(|_| missing())?;
    Ok(String::from_utf8_lossy(&said.stdout).trim().to_owned())
}

fn missing() -> AccelError {
    AccelError::Unfit("the program iptables is not there; it is in the package iptables".into())
}

/// The transaction that sets the rules of one family.
fn table(device: &str, flows: &Flows, queue: u16, v6: bool) -> String {
    let mut text = format!("*mangle\n:{CHAIN}{device} - [0:0]\n");
    for matches in flows.matches(v6) {
        let matches: String = matches.iter().map(|word| format!("{word} ")).collect();
        text += &format!("-A {CHAIN}{device} -p tcp {matches}-j NFQUEUE --queue-num {queue} --queue-bypass\n");
    }
    text + &format!(
        "-A OUTPUT -o {device} -p tcp -m length --length 0:{SMALL} -m mark ! --mark {MARK:#x} -j {CHAIN}{device}\nCOMMIT\n"
    )
}

/// Has the first program that can do it.
fn set(v6: bool, table: &str) -> Result<String, AccelError> {
    let mut why = None;
    for program in programs(v6) {
        match run(&format!("{program}-restore"), &["--noflush", "--wait", WAIT], table) {
            Ok(()) => return Ok(program),
            Err(said) => why = why.or(Some(format!("{program}: {said}"))),
        }
    }
    let why = why.ok_or_else(missing)?;
    let is_privilege = ["ermission denied", "not permitted", "must be root"].iter().any(|word| why.contains(word));
    Err(if is_privilege {
        AccelError::NotPermitted(why)
    } else {
        AccelError::Unfit(format!(
            "{why}: the kernel takes no rule with the target NFQUEUE (it needs NETFILTER_XT_TARGET_NFQUEUE and the matches length and mark)"
        ))
    })
}

/// Removes a device's chain and whatever names it.
fn remove(program: &str, device: &str) -> Result<(), String> {
    let mut text = String::from("*mangle\n");
    let chain = format!("{CHAIN}{device}");
    for rule in listed(program).lines() {
        if let Some(rule) = rule.strip_prefix("-A ").filter(|rule| rule.ends_with(&format!(" -j {chain}"))) {
            text += &format!("-D {rule}\n");
        }
    }
    text += &format!("-F {chain}\n-X {chain}\nCOMMIT\n");
    run(&format!("{program}-restore"), &["--noflush", "--wait", WAIT], &text)
}

/// The devices for which a listing has chains.
fn chains(listed: &str) -> impl Iterator<Item = String> {
    listed.lines().filter_map(|line| Some(line.strip_prefix("-N ")?.strip_prefix(CHAIN)?.to_owned()))
}

/// The queue that a rule leads to, if it is one of this device's.
fn queue_in(rule: &str, device: &str) -> Option<u16> {
    let rule = rule.strip_prefix("-A ")?.strip_prefix(CHAIN)?.strip_prefix(device)?.strip_prefix(' ')?;
    rule.split_once("--queue-num ")?.1.split_whitespace().next()?.parse().ok()
}

fn listed(program: &str) -> String {
    let mut command = Command::new(program);
    command.args(["--wait", WAIT, "-t", "mangle", "-S"]).env("LC_ALL", "C");
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Feeds a transaction to a program.
fn run(program: &str, words: &[&str], text: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(words).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if let Some(mut commands) = child.stdin.take() {
        // One that does not read has said why.
        let _ = commands.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said =
        said.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("it says nothing and does nothing");
    Err(said.to_owned())
}

/// The families that this machine has.
fn families() -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(|v6| !v6 || Path::new("/proc/thread-self/net/if_inet6").exists())
}

/// The programs that may hold rules. One that only has to look would make the tables of its kind where there are none.
fn holders() -> Vec<String> {
    let old = |v6| {
        let names = if v6 { "ip6_tables_names" } else { "ip_tables_names" };
        let names = std::fs::read_to_string(Path::new("/proc/thread-self/net").join(names)).unwrap_or_default();
        names.lines().any(|name| name == "mangle")
    };
    let may = |v6: bool| programs(v6).into_iter().filter(move |program| !is_old(program) || old(v6));
    families().flat_map(may).collect()
}

/// Whether it is of the old kind, with tables of its own in the kernel.
fn is_old(program: &str) -> bool {
    let said = Command::new(program).arg("--version").output();
    said.is_ok_and(|said| !String::from_utf8_lossy(&said.stdout).contains("nf_tables"))
}

/// The programs that are there, the one that the system prefers first.
fn programs(v6: bool) -> Vec<String> {
    let name = if v6 { "ip6tables" } else { "iptables" };
    let there =
        |program: &String| Command::new(program).arg("--version").output().is_ok_and(|said| said.status.success());
    let names = [name.to_owned(), format!("{name}-nft"), format!("{name}-legacy")];
    // `sbin` is not on every user's path, and this needs privileges only later.
    names.into_iter().filter(there).collect()
}

/// Seconds. chosen: another program's transaction takes less.
const WAIT: &str = "5";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_chain_of_its_own_and_one_rule_that_names_it() {
        let flows: Flows = "host 10.0.0.1 and port 443".parse().unwrap();
        assert_eq!(
            table("wlan0", &flows, 7, false),
            "*mangle\n:marline-wlan0 - [0:0]\n\
             -A marline-wlan0 -p tcp -d 10.0.0.1/32 --dport 443:443 -j NFQUEUE --queue-num 7 --queue-bypass\n\
             -A OUTPUT -o wlan0 -p tcp -m length --length 0:120 -m mark ! --mark 0x6d616363 -j marline-wlan0\nCOMMIT\n"
        );
        assert!(!table("wlan0", &flows, 7, true).contains("NFQUEUE"), "an address has one family");
    }

    #[test]
    fn a_listing_tells_devices_and_their_queues() {
        let listed = "-P OUTPUT ACCEPT\n-N marline-wlan0\n-N other\n-A OUTPUT -o wlan0 -p tcp -j marline-wlan0\n\
                      -A marline-wlan0 -p tcp -j NFQUEUE --queue-num 27906 --queue-bypass\n";
        assert_eq!(chains(listed).collect::<Vec<_>>(), ["wlan0"]);
        assert_eq!(listed.lines().filter_map(|rule| queue_in(rule, "wlan0")).collect::<Vec<_>>(), [27906]);
        assert_eq!(listed.lines().find_map(|rule| queue_in(rule, "wlan")), None);
    }
}
