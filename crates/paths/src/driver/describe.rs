//! Texts for commands and their results, as `explain` and the log show them.
//!
//! Each text is one line with the name of the link and without internal ids.
//!
//! 1. A join over a link that already has a subflow includes its purpose, since it looks like a mistake otherwise.
//! 2. A command on a connection or subflow that has ended is not reported as a refusal. For a subflow that has only
//!    just joined, the kernel returns the same error for a moment.

use std::io;

use marline_core::paths::{Command, CommandError};
use marline_core::wire::netlink::Ack;

/// Other subflows over the link of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkSubflows {
    /// Number of subflows besides the one that the command concerns.
    pub(super) others: usize,
    /// Whether one of them is older than that subflow.
    pub(super) has_older: bool,
}

/// Text of a command without its result.
pub(super) fn describe_command(command: Command, link: &str, subflows: LinkSubflows) -> String {
    let is_only = subflows.others == 0;
    match command {
        Command::Join { backup: false, .. } if is_only => format!("join over {link}"),
        Command::Join { backup: true, .. } if is_only => format!("join over {link} as a backup"),
        Command::Join { backup: false, .. } => {
            format!("join over {link} again: its subflow is stalled, or loses large packets")
        }
        Command::Join { backup: true, .. } => {
            format!("join over {link} a second time, as a probe: its subflow is stalled")
        }
        Command::SetBackup { backup: true, .. } => format!("suspend {link}"),
        Command::SetBackup { backup: false, .. } => format!("resume {link}"),
        Command::Destroy { .. } if is_only => format!("end the subflow over {link}"),
        Command::Destroy { .. } if subflows.has_older => {
            format!("end the second subflow over {link}: the probe or trial is over")
        }
        Command::Destroy { .. } => format!("end the older subflow over {link}"),
    }
}

/// Adds the result to the text of a command.
pub(super) fn describe_result(text: String, error: Option<CommandError>, ack: Option<&Ack>) -> String {
    let Some(error) = error else { return text };
    match (ended_reason(error, ack), ack.filter(|ack| !ack.message.is_empty())) {
        (Some(reason), _) => format!("{text}: not done, {reason}"),
        // The message of the kernel only states that the families differ.
        (None, Some(_)) if matches!(error, CommandError::SocketFamily(_)) => {
            format!("{text}: refused: {}", error_text(error))
        }
        (None, Some(ack)) => format!("{text}: refused: {} ({})", ack.message, os_error(ack.error)),
        (None, None) => format!("{text}: refused: {}", error_text(error)),
    }
}

/// Why a command found no target, when that is no malfunction; none: it was refused for another reason.
pub(super) fn ended_reason(error: CommandError, ack: Option<&Ack>) -> Option<&'static str> {
    match error {
        CommandError::NoSubflow => Some("as the subflow has ended, or has only just joined"),
        CommandError::HalfClosed => {
            Some("as one direction of the connection is closed, and no subflow could be added again")
        }
        // Otherwise the socket keeps another path manager.
        CommandError::NoConnection if ack.is_some_and(|ack| ack.message.contains("token")) => {
            Some("as the connection has ended")
        }
        _ => None,
    }
}

fn error_text(error: CommandError) -> String {
    match error {
        CommandError::NoConnection => "no such connection, or one that keeps the kernel's own path manager".into(),
        CommandError::NoSubflow => "no such subflow".into(),
        CommandError::NotYet => "it cannot be joined yet".into(),
        CommandError::HalfClosed => "one direction of the connection is closed".into(),
        CommandError::NoAddress => "the link has no address, or the server announced none".into(),
        CommandError::NotAnnounced(family) => {
            format!("the link has only {family}, and the server announced no {family} address")
        }
        CommandError::SocketFamily(family) => {
            format!("the link has only {family}, and the program's socket is for {} only", family.other())
        }
        CommandError::NotPermitted => "not permitted".into(),
        CommandError::Other(number) => os_error(number).to_string(),
    }
}

fn os_error(number: i32) -> io::Error {
    io::Error::from_raw_os_error(number)
}

#[cfg(test)]
mod tests {
    use marline_core::link::LinkId;
    use marline_core::paths::SubflowId;

    use super::*;

    const LINK: LinkId = LinkId(0);

    #[test]
    fn a_join_over_a_link_with_a_subflow_states_its_purpose() {
        let join = |backup, others| {
            describe_command(
                Command::Join { link: LINK, backup },
                "wlan0",
                LinkSubflows { others, ..LinkSubflows::default() },
            )
        };
        assert_eq!(join(false, 0), "join over wlan0");
        assert_eq!(join(true, 0), "join over wlan0 as a backup");
        assert_eq!(join(true, 1), "join over wlan0 a second time, as a probe: its subflow is stalled");
        assert_eq!(join(false, 1), "join over wlan0 again: its subflow is stalled, or loses large packets");
        let end = |others, has_older| {
            describe_command(
                Command::Destroy { subflow: SubflowId(0) },
                "wlan0",
                LinkSubflows { others, has_older },
            )
        };
        assert_eq!(end(0, false), "end the subflow over wlan0");
        assert_eq!(end(1, true), "end the second subflow over wlan0: the probe or trial is over");
        assert_eq!(end(1, false), "end the older subflow over wlan0");
    }

    #[test]
    fn commands_on_ended_targets_are_not_reported_as_refused() {
        let describe = |command_error, error, text: &str| {
            describe_result(
                "x".into(),
                Some(command_error),
                Some(&Ack { sequence: 0, error, message: text.into() }),
            )
        };
        assert_eq!(
            describe(CommandError::NoSubflow, 22, "subflow not found"),
            "x: not done, as the subflow has ended, or has only just joined"
        );
        assert_eq!(
            describe(CommandError::NoConnection, 22, "invalid token"),
            "x: not done, as the connection has ended"
        );
        let older = describe(CommandError::NoConnection, 22, "userspace PM not selected");
        assert!(older.starts_with("x: refused: userspace PM not selected ("), "{older}");
        assert!(
            describe(CommandError::Other(95), 95, "")
                .ends_with("x: refused: Operation not supported (os error 95)")
        );
        assert_eq!(describe_result("x".into(), None, None), "x");
    }
}
