//! The kernel's own path manager with endpoints, at the client's end: what MPTCP does without anybody who decides.
//!
//! Every connection is joined over all endpoints as soon as it is established, whatever it is for, and nothing is ever
//! suspended. Endpoints belong to the lab's namespace and end with it.

use std::process::Command;

use crate::{Lab, LabError};

/// Lets connections of the client be joined from the addresses of these links, as backups or not. The first link is the
/// default route, over which connections begin, and needs none.
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
