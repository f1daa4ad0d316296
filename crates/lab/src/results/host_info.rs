//! Description of the machine that measured; results cannot be interpreted without it.

use std::fs;
use std::process::Command;

use serde::{Deserialize, Serialize};

/// The machine and the version that made a measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HostInfo {
    /// Model name of the CPU, as the kernel reports it.
    pub cpu: String,
    /// Number of CPU cores that this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// Name of the operating system, such as `Debian GNU/Linux 12 (bookworm)`.
    pub system: String,
    /// Version of marline.
    #[serde(alias = "marline")]
    pub marline_version: String,
    /// Commit of the sources, if the command runs in marline's repository; with `+` if they were changed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub commit: Option<String>,
}

impl HostInfo {
    /// Describes this machine. Values that cannot be read are left empty: they must not prevent a measurement.
    pub fn current() -> Self {
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let value_of = |text: &str, key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_once([':', '=']).map_or("", |(_, value)| value).trim().trim_matches('"').to_string()
        };
        let kib = value_of(&read("/proc/meminfo"), "MemTotal");
        Self {
            cpu: value_of(&read("/proc/cpuinfo"), "model name"),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            memory_bytes: kib.trim_end_matches(" kB").parse::<u64>().unwrap_or(0) * 1024,
            system: value_of(&read("/etc/os-release"), "PRETTY_NAME"),
            marline_version: env!("CARGO_PKG_VERSION").to_string(),
            commit: source_commit(),
        }
    }

    /// The description in one line.
    pub fn to_line(&self) -> String {
        let memory = self.memory_bytes >> 30;
        let commit = self.commit.as_ref().map(|commit| format!(" at {commit}")).unwrap_or_default();
        format!(
            "{} cores of {}, {memory} GiB, Linux {}, {}; marline {}{commit}",
            self.cores, self.cpu, self.kernel, self.system, self.marline_version
        )
    }
}

/// The commit, only inside marline's own repository: the commit of another project would be misleading.
fn source_commit() -> Option<String> {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok().filter(|output| output.status.success())?;
        String::from_utf8(output.stdout).ok().map(|text| text.trim().to_string())
    };
    let root = git(&["rev-parse", "--show-toplevel"])?;
    fs::metadata(format!("{root}/crates/lab/src/results/host_info.rs")).ok()?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    let mark = if changes.is_empty() { "" } else { "+" };
    git(&["rev-parse", "--short=12", "HEAD"]).map(|commit| format!("{commit}{mark}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let current = HostInfo::current();
        assert!(current.cores > 0 && current.memory_bytes > 1 << 20 && !current.kernel.is_empty(), "{current:?}");
        assert!(current.to_line().contains(&current.kernel));
    }
}
