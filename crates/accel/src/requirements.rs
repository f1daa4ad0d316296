//! Checks what `marline accel` needs of a host: capabilities, programs and kernel modules, each with a remedy.

use std::path::Path;

use marline_sys::priority;
use serde::Serialize;

use crate::bpf::redirect;
use crate::privileges::missing_capabilities;
use crate::{iptables, nfqueue};

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Requirement {
    /// Its name.
    pub name: &'static str,
    /// Whether it is met.
    pub is_met: bool,
    /// Without it nothing works; else only a part does not.
    pub is_required: bool,
    /// What was found.
    pub finding: String,
    /// The remedy; empty where none is needed.
    pub remedy: &'static str,
}

/// Whether ACKs can be offloaded by the kernel itself, and which of its features is missing if not.
fn bpf_requirement() -> Requirement {
    let tried = redirect::check_available();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let remedy = match &tried {
        Ok(()) => "",
        Err(why) => bpf_remedy(why, release.trim()),
    };
    Requirement {
        name: "BPF (TCX)",
        is_met: tried.is_ok(),
        is_required: false,
        finding: match tried {
            Ok(()) => "`ack-offload` alone is done by the kernel itself".to_owned(),
            Err(why) => format!("`ack-offload` alone goes through the queue as well: BPF program: {why}"),
        },
        remedy,
    }
}

fn bpf_remedy(why: &str, release: &str) -> &'static str {
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if ["ermission denied", "not permitted"].iter().any(|pattern| why.contains(pattern)) {
        "run as root, or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN as ambient capabilities"
    } else if version < (6, 6) {
        "Linux 6.6 or later: programs are attached by TCX"
    } else {
        "a kernel with CONFIG_BPF_SYSCALL and CONFIG_NET_XGRESS (which CONFIG_NET_CLS_ACT selects)"
    }
}

/// Whether the packet thread can have real-time priority.
fn real_time_requirement() -> Requirement {
    let tried = priority::check_real_time();
    let is_met = tried.is_ok();
    Requirement {
        name: "real-time",
        is_met,
        is_required: false,
        finding: match tried {
            Ok(()) => "packets are handled before other programs".to_owned(),
            Err(error) => format!("no SCHED_FIFO ({error}): on a busy host acknowledgements leave in bursts"),
        },
        remedy: if is_met { "" } else { "run as root, or with CAP_SYS_NICE as an ambient capability" },
    }
}

/// Checks all of them. Nothing is changed.
pub fn check_requirements() -> Vec<Requirement> {
    let missing = missing_capabilities();
    let program = iptables::find_program();
    let (opened, finding) = match nfqueue::check_available() {
        Ok(()) => (true, "packets can be queued".to_owned()),
        Err(error) => (false, error.to_string()),
    };
    let v6 = Path::new("/proc/thread-self/net/if_inet6").exists();
    vec![
        Requirement {
            name: "privileges",
            is_met: missing.is_empty(),
            is_required: true,
            finding: if missing.is_empty() {
                "CAP_NET_ADMIN and CAP_NET_RAW available".to_owned()
            } else {
                format!("{} missing", missing.join(" and "))
            },
            remedy: if missing.is_empty() { "" } else { "run as root, or with both as ambient capabilities" },
        },
        Requirement {
            name: "iptables",
            is_met: program.is_ok(),
            is_required: true,
            remedy: if program.is_ok() { "" } else { "install the package iptables" },
            finding: program.unwrap_or_else(|error| error.to_string()),
        },
        Requirement {
            name: "NFQUEUE",
            is_met: opened,
            is_required: true,
            finding,
            remedy: if opened || !missing.is_empty() { "" } else { "modprobe nfnetlink_queue" },
        },
        bpf_requirement(),
        real_time_requirement(),
        Requirement {
            name: "IPv6",
            is_met: v6,
            is_required: false,
            finding: if v6 { "available" } else { "this host has none: only IPv4 flows are accelerated" }
                .to_owned(),
            remedy: "",
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_kernel_feature_is_named() {
        for (why, release, expected) in [
            ("it is not loaded: Operation not permitted (os error 1)", "6.12.1", "CAP_BPF"),
            ("it is not attached: Invalid argument", "6.1.0-18-amd64", "Linux 6.6"),
            ("it is not attached: Invalid argument", "6.18.44-x", "CONFIG_NET_XGRESS"),
            ("it is not loaded: Function not implemented", "7.0", "CONFIG_BPF_SYSCALL"),
        ] {
            assert!(bpf_remedy(why, release).contains(expected), "{why}");
        }
        let need = bpf_requirement();
        assert_eq!(need.is_met, need.remedy.is_empty(), "{need:?}");
    }
}
