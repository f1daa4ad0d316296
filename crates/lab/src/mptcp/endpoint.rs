//! The kernel's own path manager with endpoints, at the client's end: what MPTCP does without anybody who decides.
//!
//! Every connection is joined over all endpoints as soon as it is established, whatever it is for, and nothing is ever
//! suspended. Endpoints belong to the lab's namespace and end with it.

use std::process::Command;

use crate::{Lab, LabError};

/// Lets connections of the client be joined from the addresses of these links, as backups or not. The first link is the
/// default route, over which connections begin, and needs none.
pub(crate) fn join_over(lab: &Lab, links: &[(usize, &str)], backup: bool) -> Result<(), LabError> {
    ip(lab, &["limits", "set", "subflows", "8", "add_addr_accepted", "0"])?;
    for (at, name) in links {
        let address = format!("10.{}.0.2", at + 1);
        let mut words = vec!["endpoint", "add", &address, "dev", name, "subflow"];
        words.extend(backup.then_some("backup"));
        ip(lab, &words)?;
    }
    Ok(())
}

fn ip(lab: &Lab, words: &[&str]) -> Result<(), LabError> {
    let program =
        crate::server::find("ip").ok_or(LabError::Missing { program: "ip".into(), package: "iproute2" })?;
    let mut command = Command::new(program);
    command.arg("mptcp").args(words);
    let step = || format!("ip mptcp {}", words.join(" "));
    let output = lab.inside(|| command.output()).map_err(LabError::at(step()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(LabError::Setup { step: step(), source: std::io::Error::other(said) })
        }
    }
}
