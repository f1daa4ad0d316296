//! MPTCP endpoints of the kernel's own path manager, in the client namespace: the behavior of MPTCP without a path
//! manager daemon.
//!
//! The kernel opens subflows over all endpoints as soon as a connection is established, whatever the connection is
//! used for, and never suspends one. Endpoints belong to the lab's namespace and end with it.

use std::process::Command;

use crate::{Lab, LabError};

/// Adds endpoints for the addresses of these links (index and device name), as backups or not. The first link needs
/// none: it is the default route, over which connections start.
pub(crate) fn add_endpoints(lab: &Lab, links: &[(usize, &str)], backup: bool) -> Result<(), LabError> {
    run_ip_mptcp(lab, &["limits", "set", "subflows", "8", "add_addr_accepted", "0"])?;
    for (index, name) in links {
        let address = format!("10.{}.0.2", index + 1);
        let mut args = vec!["endpoint", "add", &address, "dev", name, "subflow"];
        args.extend(backup.then_some("backup"));
        run_ip_mptcp(lab, &args)?;
    }
    Ok(())
}

fn run_ip_mptcp(lab: &Lab, args: &[&str]) -> Result<(), LabError> {
    let program = crate::server::find_program("ip")
        .ok_or(LabError::MissingProgram { program: "ip".into(), package: "iproute2" })?;
    let mut command = Command::new(program);
    command.arg("mptcp").args(args);
    let step = || format!("ip mptcp {}", args.join(" "));
    let output = lab.run_at_client(|| command.output()).map_err(LabError::at_step(step()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(LabError::Setup { step: step(), source: std::io::Error::other(stderr) })
        }
    }
}
