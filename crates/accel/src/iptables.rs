//! Packet rules that lead small TCP packets to the queue: `iptables` and `ip6tables`.
//!
//! 1. They are in a chain of our own, which a rule of OUTPUT in table `mangle` refers to: for one device, for packets
//!    of at most [`MAX_QUEUED_PACKET`] bytes without our mark. Where uploads are accelerated, another chain, referred
//!    to by INPUT, takes incoming packets that are as small and only acknowledge. No other rule of the host is touched.
//! 2. The rules of a family are set and removed in one transaction (`iptables-restore --noflush`).
//! 3. Rules of a killed run let packets pass (`--queue-bypass`), and are removed by the next run or by
//!    [`remove_orphaned`].
//! 4. nftables' own `queue` was not used: many kernels lack its module (NFT_QUEUE), while the xtables target exists
//!    wherever `iptables` does. Whichever variant of the program works is used.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

use super::AccelError;
use crate::flow_filter::FlowFilter;
use crate::nfqueue::{QueueNumbers, is_open};
use crate::raw_socket::MARK;

/// The longest packet that is led to the queue, in bytes. Our choice: the headers of IPv6 and TCP with all 40 bytes of
/// options, and some bytes for a small extension header.
pub(super) const MAX_QUEUED_PACKET: u32 = 120;

/// Prefix of the chains' names; the device's name follows.
const OUTGOING_CHAIN: &str = "marline-";
/// The same for incoming packets. A chain's name has 28 bytes at most, a device's 15.
const INCOMING_CHAIN: &str = "marline_in-";
/// Acknowledgements, and those of a SYN: no packet that ends a connection or carries the end of a write.
const ACKS: &str = "--tcp-flags FIN,RST,PSH,ACK ACK";

/// The rules of one primary device.
#[derive(Debug)]
pub(super) struct Rules {
    device: String,
    /// The program that holds them, for each family.
    programs: Vec<String>,
}

impl Rules {
    /// Sets them, in the network namespace of the calling thread.
    pub(super) fn set(device: &str, flows: &FlowFilter, numbers: QueueNumbers) -> Result<Self, AccelError> {
        let mut rules = Self { device: device.to_owned(), programs: Vec::new() };
        for v6 in families() {
            let program = set(v6, &ruleset(device, flows, numbers, v6))?;
            rules.programs.push(program);
        }
        Ok(rules)
    }
}

impl Drop for Rules {
    fn drop(&mut self) {
        for program in &self.programs {
            if let Err(why) = remove(program, &self.device) {
                tracing::warn!(%program, %why, "packet rules cannot be removed; packets pass them untouched");
            }
        }
    }
}

/// The devices with rules that lead to a queue without a reader.
pub(super) fn orphaned_devices() -> Vec<String> {
    orphaned_in(&list_all(), is_open)
}

/// Whether rules for this device lead to a queue with a reader.
pub(super) fn is_in_use(device: &str) -> bool {
    queues_of(&list_all(), device).any(is_open)
}

/// The rules of all programs.
fn list_all() -> String {
    listable_programs().iter().map(|program| list_rules(program)).collect()
}

/// The devices for which a listing has chains, and no queue that is open. Where flows are of one family the other one's
/// chain leads nowhere, so both are judged together.
fn orphaned_in(listed: &str, is_open: impl Fn(u16) -> bool) -> Vec<String> {
    let mut devices: Vec<String> =
        devices_with_chains(listed).filter(|device| !queues_of(listed, device).any(&is_open)).collect();
    devices.sort();
    devices.dedup();
    devices
}

/// The queues to which a device's rules lead.
fn queues_of(listed: &str, device: &str) -> impl Iterator<Item = u16> {
    listed.lines().filter_map(move |rule| queue_of_rule(rule, device))
}

/// Removes the rules for this device. Returns whether there were any.
///
/// # Errors
/// They exist and cannot be removed.
pub(super) fn remove_orphaned(device: &str) -> Result<bool, AccelError> {
    let mut was = false;
    for program in listable_programs()
        .iter()
        .filter(|program| devices_with_chains(&list_rules(program)).any(|existing| existing == device))
    {
        remove(program, device).map_err(|why| {
            AccelError::Unsupported(format!("{device}: rules of an earlier run cannot be removed: {why}"))
        })?;
        was = true;
    }
    Ok(was)
}

/// The program that would set rules, and its version; an error says what is missing.
pub(super) fn find_program() -> Result<String, AccelError> {
    let program = programs(false).into_iter().next().ok_or_else(missing_program)?;
    let output = Command::new(&program).arg("--version").output().map_err(|_| missing_program())?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn missing_program() -> AccelError {
    AccelError::Unsupported("the program iptables is not installed; it is in the package iptables".into())
}

/// The transaction that sets the rules of one family.
fn ruleset(device: &str, flows: &FlowFilter, numbers: QueueNumbers, v6: bool) -> String {
    let leaving = chain((OUTGOING_CHAIN, device), &flows.matches(v6), numbers.outgoing);
    let plain = format!("-m length --length 0:{MAX_QUEUED_PACKET} -m mark ! --mark {MARK:#x}");
    let mut text = format!("*mangle\n{leaving}-A OUTPUT -o {device} -p tcp {plain} -j {OUTGOING_CHAIN}{device}\n");
    if let Some(arriving) = numbers.incoming {
        let incoming = chain((INCOMING_CHAIN, device), &flows.matches_incoming(v6), arriving);
        text += &format!("{incoming}-A INPUT -i {device} -p tcp {plain} {ACKS} -j {INCOMING_CHAIN}{device}\n");
    }
    text + "COMMIT\n"
}

/// A chain that leads matching packets to a queue.
fn chain((prefix, device): (&str, &str), all: &[Vec<String>], queue: u16) -> String {
    let mut text = format!(":{prefix}{device} - [0:0]\n");
    for matches in all {
        let matches: String = matches.iter().map(|arg| format!("{arg} ")).collect();
        text += &format!("-A {prefix}{device} -p tcp {matches}-j NFQUEUE --queue-num {queue} --queue-bypass\n");
    }
    text
}

/// Sets the rules with the first program that works.
fn set(v6: bool, table: &str) -> Result<String, AccelError> {
    let mut why = None;
    for program in programs(v6) {
        match run(&format!("{program}-restore"), &["--noflush", "--wait", LOCK_WAIT], table) {
            Ok(()) => return Ok(program),
            Err(output) => why = why.or(Some(format!("{program}: {output}"))),
        }
    }
    let why = why.ok_or_else(missing_program)?;
    let is_privilege =
        ["ermission denied", "not permitted", "must be root"].iter().any(|pattern| why.contains(pattern));
    let is_locked = why.contains("xtables lock");
    Err(if is_privilege {
        AccelError::NotPermitted(why)
    } else if is_locked {
        AccelError::Unsupported(format!("{why}: another program is changing rules; try again when it is done"))
    } else {
        AccelError::Unsupported(format!(
            "{why}: the kernel takes no such rule (for the target NFQUEUE it needs NETFILTER_XT_TARGET_NFQUEUE and the matches length and mark)"
        ))
    })
}

/// Removes a device's chains and the rules that refer to them.
fn remove(program: &str, device: &str) -> Result<(), String> {
    let mut text = String::from("*mangle\n");
    let listed = list_rules(program);
    for chain in [OUTGOING_CHAIN, INCOMING_CHAIN].map(|prefix| format!("{prefix}{device}")) {
        if !listed.lines().any(|line| line.strip_prefix("-N ") == Some(&chain)) {
            continue;
        }
        for rule in listed.lines().filter(|rule| rule.ends_with(&format!(" -j {chain}"))) {
            if let Some(rule) = rule.strip_prefix("-A ") {
                text += &format!("-D {rule}\n");
            }
        }
        text += &format!("-F {chain}\n-X {chain}\n");
    }
    text += "COMMIT\n";
    run(&format!("{program}-restore"), &["--noflush", "--wait", LOCK_WAIT], &text)
}

/// The devices for which a listing has chains.
fn devices_with_chains(listed: &str) -> impl Iterator<Item = String> {
    let device = |line: &str| {
        let chain = line.strip_prefix("-N ")?;
        [OUTGOING_CHAIN, INCOMING_CHAIN].iter().find_map(|prefix| chain.strip_prefix(prefix)).map(str::to_owned)
    };
    listed.lines().filter_map(device)
}

/// The queue that a rule leads to, if it is one of this device's.
fn queue_of_rule(rule: &str, device: &str) -> Option<u16> {
    let rule = rule.strip_prefix("-A ")?;
    let rule = [OUTGOING_CHAIN, INCOMING_CHAIN].iter().find_map(|prefix| rule.strip_prefix(prefix))?;
    let rule = rule.strip_prefix(device)?.strip_prefix(' ')?;
    rule.split_once("--queue-num ")?.1.split_whitespace().next()?.parse().ok()
}

fn list_rules(program: &str) -> String {
    let mut command = Command::new(program);
    command.args(["--wait", LOCK_WAIT, "-t", "mangle", "-S"]).env("LC_ALL", "C");
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default()
}

/// Feeds a transaction to a program.
fn run(program: &str, args: &[&str], text: &str) -> Result<(), String> {
    let mut command = Command::new(program);
    command.args(args).env("LC_ALL", "C").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    if let Some(mut commands) = child.stdin.take() {
        // A program that does not read reports why.
        let _ = commands.write_all(text.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let output = String::from_utf8_lossy(&output.stderr);
    let output = output.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or("failed without a message");
    Err(output.to_owned())
}

/// The address families of this host.
fn families() -> impl Iterator<Item = bool> {
    [false, true].into_iter().filter(|v6| !v6 || Path::new("/proc/thread-self/net/if_inet6").exists())
}

/// The programs that may hold rules. Listing with a program creates the tables of its kind, so the legacy one is only
/// used where its tables exist.
fn listable_programs() -> Vec<String> {
    let has_tables = |v6| {
        let names = if v6 { "ip6_tables_names" } else { "ip_tables_names" };
        let names = std::fs::read_to_string(Path::new("/proc/thread-self/net").join(names)).unwrap_or_default();
        names.lines().any(|name| name == "mangle")
    };
    let may_list = |v6: bool| programs(v6).into_iter().filter(move |program| !is_legacy(program) || has_tables(v6));
    families().flat_map(may_list).collect()
}

/// Whether it is the legacy variant, with tables of its own in the kernel.
fn is_legacy(program: &str) -> bool {
    let output = Command::new(program).arg("--version").output();
    output.is_ok_and(|output| !String::from_utf8_lossy(&output.stdout).contains("nf_tables"))
}

/// The installed programs, the one that the system prefers first.
fn programs(v6: bool) -> Vec<String> {
    let name = if v6 { "ip6tables" } else { "iptables" };
    let runs = |program: &String| {
        Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let names = [name.to_owned(), format!("{name}-nft"), format!("{name}-legacy")];
    // `sbin` is not on every user's path, and this needs privileges only later.
    names.into_iter().filter(runs).collect()
}

/// Seconds. Our choice: another program's transaction takes less.
const LOCK_WAIT: &str = "5";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_its_own_chain_and_one_rule_that_refers_to_it() {
        let flows: FlowFilter = "host 10.0.0.1 and port 443".parse().unwrap();
        let alone = QueueNumbers { outgoing: 7, incoming: None };
        let leaving = "*mangle\n:marline-wlan0 - [0:0]\n\
             -A marline-wlan0 -p tcp -d 10.0.0.1/32 --dport 443:443 -j NFQUEUE --queue-num 7 --queue-bypass\n\
             -A OUTPUT -o wlan0 -p tcp -m length --length 0:120 -m mark ! --mark 0x6d616363 -j marline-wlan0\n";
        assert_eq!(ruleset("wlan0", &flows, alone, false), format!("{leaving}COMMIT\n"));
        assert!(!ruleset("wlan0", &flows, alone, true).contains("NFQUEUE"), "an address has one family");
        let incoming = ":marline_in-wlan0 - [0:0]\n\
             -A marline_in-wlan0 -p tcp -s 10.0.0.1/32 --sport 443:443 -j NFQUEUE --queue-num 8 --queue-bypass\n\
             -A INPUT -i wlan0 -p tcp -m length --length 0:120 -m mark ! --mark 0x6d616363 \
             --tcp-flags FIN,RST,PSH,ACK ACK -j marline_in-wlan0\n";
        let both = QueueNumbers { incoming: Some(8), ..alone };
        assert_eq!(ruleset("wlan0", &flows, both, false), format!("{leaving}{incoming}COMMIT\n"));
    }

    #[test]
    fn a_run_with_flows_of_one_family_is_not_orphaned() {
        let v4 = "-N marline-wlan0\n-A OUTPUT -o wlan0 -p tcp -j marline-wlan0\n\
                  -A marline-wlan0 -p tcp -d 10.0.0.1/32 -j NFQUEUE --queue-num 7 --queue-bypass\n";
        let v6 = "-N marline-wlan0\n-A OUTPUT -o wlan0 -p tcp -j marline-wlan0\n";
        let both = format!("{v4}{v6}");
        assert_eq!(orphaned_in(&both, |queue| queue == 7), [""; 0]);
        assert_eq!(orphaned_in(&both, |_| false), ["wlan0"]);
    }

    #[test]
    fn a_listing_yields_devices_and_their_queues() {
        let listed = "-P OUTPUT ACCEPT\n-N marline-wlan0\n-N other\n-A OUTPUT -o wlan0 -p tcp -j marline-wlan0\n\
                      -A marline-wlan0 -p tcp -j NFQUEUE --queue-num 27906 --queue-bypass\n";
        assert_eq!(devices_with_chains(listed).collect::<Vec<_>>(), ["wlan0"]);
        assert_eq!(listed.lines().filter_map(|rule| queue_of_rule(rule, "wlan0")).collect::<Vec<_>>(), [27906]);
        assert_eq!(listed.lines().find_map(|rule| queue_of_rule(rule, "wlan")), None);
        let incoming = "-N marline_in-wwan0\n-A marline_in-wwan0 -p tcp -j NFQUEUE --queue-num 5 --queue-bypass\n";
        assert_eq!(devices_with_chains(incoming).collect::<Vec<_>>(), ["wwan0"]);
        assert_eq!(incoming.lines().find_map(|rule| queue_of_rule(rule, "wwan0")), Some(5));
    }
}
