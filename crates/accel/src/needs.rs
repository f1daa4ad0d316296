//! What `marline accel` needs of a machine, and whether it is there.
//!
//! In: this process's capabilities, the programs and modules that are there. Out: a [`Need`] each, with what helps.

use std::path::Path;

use marline_sys::priority;
use serde::Serialize;

use super::{AccelError, queue, rules, steer};

/// One thing that is needed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Need {
    /// What.
    pub name: &'static str,
    /// Whether it is there.
    pub there: bool,
    /// Without it nothing can be done; else only a part cannot.
    pub must: bool,
    /// What was found.
    pub says: String,
    /// What helps; empty where nothing has to.
    pub remedy: &'static str,
}

/// Whether packets may be taken and sent.
///
/// # Errors
/// CAP_NET_ADMIN or CAP_NET_RAW is missing.
pub(super) fn privileges() -> Result<(), AccelError> {
    let missing = missing();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(AccelError::NotPermitted(format!("{} missing", missing.join(" and "))))
    }
}

fn missing() -> Vec<&'static str> {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    // Numbers of `linux/capability.h`.
    let both = [(12, "CAP_NET_ADMIN"), (13, "CAP_NET_RAW")];
    both.into_iter().filter(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| name).collect()
}

/// Whether acknowledgements can be led by the kernel itself, and which of its features is missing if not.
fn bpf() -> Need {
    let tried = steer::try_out();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let remedy = match &tried {
        Ok(()) => "",
        Err(why) => bpf_remedy(why, release.trim()),
    };
    Need {
        name: "BPF (TCX)",
        there: tried.is_ok(),
        must: false,
        says: match tried {
            Ok(()) => "`offload` alone can be done by the kernel itself".to_owned(),
            Err(why) => format!("`offload` alone goes through the queue, too: the program: {why}"),
        },
        remedy,
    }
}

fn bpf_remedy(why: &str, release: &str) -> &'static str {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if ["ermission denied", "not permitted"].iter().any(|word| why.contains(word)) {
        "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN as ambient capabilities"
    } else if version < (6, 6) {
        "Linux 6.6 or later: programs are attached by TCX"
    } else {
        "a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS (which CONFIG_NET_CLS_ACT selects)"
    }
}

/// Whether packets wait for no other program.
fn real_time() -> Need {
    let tried = priority::check_real_time();
    let there = tried.is_ok();
    Need {
        name: "real-time",
        there,
        must: false,
        says: match tried {
            Ok(()) => "packets wait for no other program".to_owned(),
            Err(error) => format!("no SCHED_FIFO ({error}): on a busy machine acknowledgements leave in lumps"),
        },
        remedy: if there { "" } else { "run as root, or with CAP_SYS_NICE as an ambient capability" },
    }
}

/// Looks at all of them. Nothing is changed.
pub fn look() -> Vec<Need> {
    let missing = missing();
    let program = rules::program();
    let (opened, says) = match queue::try_out() {
        Ok(()) => (true, "packets can wait for a word".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let v6 = Path::new("/proc/thread-self/net/if_inet6").exists();
    vec![
        Need {
            name: "privileges",
            there: missing.is_empty(),
            must: true,
            says: if missing.is_empty() {
                "CAP_NET_ADMIN and CAP_NET_RAW are there".to_owned()
            } else {
                format!("{} missing", missing.join(" and "))
            },
            remedy: if missing.is_empty() { "" } else { "run as root, or with both as ambient capabilities" },
        },
        Need {
            name: "iptables",
            there: program.is_ok(),
            must: true,
            remedy: if program.is_ok() { "" } else { "install the package iptables" },
            says: program.unwrap_or_else(|error| error.to_string()),
        },
        Need {
            name: "NFQUEUE",
            there: opened,
            must: true,
            says,
            remedy: if opened || !missing.is_empty() { "" } else { "modprobe nfnetlink_queue" },
        },
        bpf(),
        real_time(),
        Need {
            name: "IPv6",
            there: v6,
            must: false,
            says: if v6 { "there" } else { "this machine has none: IPv4 alone is helped" }.to_owned(),
            remedy: "",
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_for_a_program_is_named() {
        for (why, release, says) in [
            ("it is not loaded: Operation not permitted (os error 1)", "6.12.1", "CAP_BPF"),
            ("it is not attached: Invalid argument", "6.1.0-18-amd64", "Linux 6.6"),
            ("it is not attached: Invalid argument", "6.18.44-x", "CONFIG_NET_XGRESS"),
            ("it is not loaded: Function not implemented", "7.0", "CONFIG_BPF_SYSCALL"),
        ] {
            assert!(bpf_remedy(why, release).contains(says), "{why}");
        }
        let need = bpf();
        assert_eq!(need.there, need.remedy.is_empty(), "{need:?}");
    }
}
