//! Command lines of the download programs that the lab compares.
//!
//! | client | command |
//! |---|---|
//! | marline | `marline get --link L … --policy P --json -q -o FILE URL`: [`crate::program`], as a child process |
//! | aria2 | `aria2c --multiple-interface=L,… -sN -xN -k1M …`: its stock `-k20M` is far worse on unequal links |
//! | curl | `curl --interface L`: one link |
//!
//! 1. No program reads the user's configuration: a comparison must not depend on the home directory it runs in.
//! 2. Every program writes one file into memory, without output, and verifies TLS with the lab's certificate
//!    authority.
//! 3. Each program gets the options that suit it best: curl the best link, aria2 all links by name.

use std::path::Path;

use marline_sim::scenario::Client;
use marline_sim::spec::LinkSpec;

use crate::run::Output;
use crate::{LabError, Task};

/// One download and the program that does it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientCommand<'a> {
    /// The program, with its policy or number of connections.
    pub(crate) client: &'a Client,
    /// All links of the lab, in their order.
    pub(crate) links: &'a [LinkSpec],
    /// The link that is best when used alone; curl gets it unless it names a link itself.
    pub(crate) best_link: &'a str,
    /// Whether the download uses HTTPS.
    pub(crate) uses_tls: bool,
    /// Directory that receives the file; used by this download only, in memory.
    pub(crate) directory: &'a Path,
    /// Path of marline's executable.
    pub(crate) program: &'a Path,
    /// Whether marline shows its progress instead of reporting in JSON.
    pub(crate) shows_progress: bool,
}

/// Name of the downloaded file in [`ClientCommand::directory`].
pub(crate) const OUTPUT_FILE: &str = "out";

/// Names of the links that the client may use.
pub(crate) fn links_of<'a>(command: &ClientCommand<'a>) -> Vec<&'a str> {
    match command.client {
        Client::Curl { only_link: only } => vec![
            command
                .links
                .iter()
                .map(|link| link.name.as_str())
                .find(|name| Some(*name) == only.as_deref())
                .unwrap_or(command.best_link),
        ],
        client => {
            let all = command.links.iter().map(|link| link.name.as_str());
            all.filter(|name| client.only_link().is_none_or(|only| only == *name)).collect()
        }
    }
}

/// Builds the task that runs the client.
pub(crate) fn client_task(command: &ClientCommand<'_>) -> Task {
    let url = if command.uses_tls { "{urls}" } else { "{url}" };
    let file = command.directory.join(OUTPUT_FILE).to_string_lossy().into_owned();
    let links = links_of(command);
    let mut args: Vec<String> = Vec::new();
    let mut add = |more: &[&str]| args.extend(more.iter().map(ToString::to_string));
    let task = match command.client {
        Client::Marline { policy, .. } => {
            add(&["get", "--policy", policy.name(), "--output", &file]);
            if !command.shows_progress {
                add(&["--json", "--quiet"]);
            }
            links.iter().for_each(|link| add(&["--link", link]));
            if command.uses_tls {
                add(&["--ca-file", "{ca}"]);
            }
            Task::new(command.program)
        }
        Client::Aria2 { connections } => {
            let connections = connections.to_string();
            add(&["--no-conf", "--quiet", "--file-allocation=none", "--allow-overwrite=true", "--disable-ipv6"]);
            add(&["-s", &connections, "-x", &connections, "-k", "1M"]);
            add(&[&format!("--multiple-interface={}", links.join(","))]);
            add(&["--dir", &command.directory.to_string_lossy(), "--out", OUTPUT_FILE]);
            if command.uses_tls {
                add(&["--ca-certificate={ca}"]);
            }
            Task::new("aria2c")
        }
        Client::Curl { .. } => {
            add(&["-q", "--silent", "--show-error", "--fail", "--interface", links[0], "--output", &file]);
            if command.uses_tls {
                add(&["--cacert", "{ca}"]);
            }
            Task::new("curl")
        }
    };
    args.push(url.to_string());
    // A directory that does not exist, hence without configuration files. State that programs save (XDG_STATE_HOME)
    // goes to the download directory.
    let empty_home = command.directory.join("no-configuration");
    let output = if command.shows_progress { Output::Inherit } else { Output::Capture };
    task.args(args)
        .env("XDG_CONFIG_HOME", empty_home.clone())
        .env("XDG_STATE_HOME", command.directory)
        .env("HOME", empty_home)
        .output(output)
}

/// Fails before a scenario starts if one of its programs is not installed.
pub(crate) fn check_installed<'a>(clients: impl IntoIterator<Item = &'a Client>) -> Result<(), LabError> {
    for client in clients {
        let (program, package) = match client {
            Client::Marline { .. } => continue,
            Client::Aria2 { .. } => ("aria2c", "aria2"),
            Client::Curl { .. } => ("curl", "curl"),
        };
        if crate::server::find_program(program).is_none() {
            return Err(LabError::MissingProgram { program: program.into(), package });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command_line(client: &str, secure: bool) -> String {
        let links: Vec<LinkSpec> =
            ["wifi,rate=8Mbit/s", "lte,rate=61Mbit/s"].iter().map(|l| l.parse().unwrap()).collect();
        let command = ClientCommand {
            client: &client.parse().unwrap(),
            links: &links,
            best_link: "lte",
            uses_tls: secure,
            directory: Path::new("/d"),
            program: Path::new("/bin/marline"),
            shows_progress: false,
        };
        let task = client_task(&command);
        std::iter::once(&task.program).chain(&task.args).map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_client_is_started_with_its_links() {
        let measured = command_line("marline", false);
        assert!(
            measured.starts_with("/bin/marline get ")
                && measured.contains("--json --quiet")
                && measured.ends_with("{url}"),
            "{measured}"
        );
        assert!(measured.contains("--link wifi --link lte") && measured.contains("--policy marline"), "{measured}");
        let single = command_line("single:wifi", false);
        assert!(single.contains("--link wifi") && !single.contains("lte"), "{single}");
        assert!(command_line("aria2-s16", false).contains("-s 16 -x 16 -k 1M --multiple-interface=wifi,lte"));
        assert!(command_line("curl", false).contains("--interface lte "));
        assert!(command_line("curl:wifi", false).contains("--interface wifi "));
    }

    #[test]
    fn each_client_verifies_tls_with_the_labs_certificate_authority() {
        for client in ["marline", "aria2-s2", "curl"] {
            let text = command_line(client, true);
            assert!(text.contains("{ca}") && text.ends_with("{urls}"), "{text}");
        }
    }
}
