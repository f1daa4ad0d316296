//! mptcpd as a process in the client namespace: the path manager daemon that distributions package.
//!
//! Its default plugin `addr_adv` creates an endpoint of the kernel's path manager for each address that it finds.
//! It is ready when there is one per link. Endpoints belong to the lab's namespace and end with it.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{Lab, LabError, server};

/// A running mptcpd. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Mptcpd(Child);

impl Mptcpd {
    /// Path of the executable, if it is installed.
    pub(crate) fn program() -> Option<PathBuf> {
        let known = PathBuf::from("/usr/libexec/mptcpd");
        server::find_program("mptcpd").or_else(|| known.is_file().then_some(known))
    }

    /// Starts it and waits until it has created an endpoint for each of the `links`.
    pub(crate) fn start(lab: &Lab, links: usize) -> Result<Self, LabError> {
        let program =
            Self::program().ok_or(LabError::MissingProgram { program: "mptcpd".into(), package: "mptcpd" })?;
        let mut command = Command::new(program);
        command.args(["--load-plugins=addr_adv", "--addr-flags=subflow", "--log=stderr"]);
        command.arg("--notify-flags=existing,skip_link_local,skip_loopback");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let failed = |source| LabError::Start { program: "mptcpd".into(), source };
        let mut daemon = Self(lab.spawn(&mut command).map_err(failed)?);
        let until = Instant::now() + START_TIMEOUT;
        while endpoint_count(lab).map_err(failed)? < links {
            if let Some(status) = daemon.0.try_wait().map_err(failed)? {
                return Err(failed(io::Error::other(format!("it ended: {status}"))));
            }
            if Instant::now() > until {
                return Err(failed(io::Error::other("it created no endpoints in time")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(daemon)
    }
}

impl Drop for Mptcpd {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// It reads all addresses at its start, which takes much less.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// Number of endpoints in the client namespace.
fn endpoint_count(lab: &Lab) -> io::Result<usize> {
    let program =
        server::find_program("ip").ok_or_else(|| io::Error::other("`ip` (package iproute2) is not installed"))?;
    let output = lab.run_at_client(|| Command::new(program).args(["mptcp", "endpoint", "show"]).output())?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().count())
}
