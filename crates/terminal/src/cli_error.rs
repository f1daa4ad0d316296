//! The failure of a command: a one-line message for people and an exit code for scripts.
//!
//! The codes are those of `sysexits.h` where one fits, so that a script can distinguish wrong usage from a missing network
//! without parsing text. There is no enum of all library errors here: each library error already formats its own message
//! and knows its own code.

/// Why a command fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// The process's exit code.
    pub code: u8,
    /// One line without a line end; `None` if everything has been printed already.
    pub message: Option<String>,
}

impl CliError {
    /// The operation was attempted and failed.
    pub const FAILED: u8 = 1;
    /// The command line or the configuration file is wrong; nothing was attempted (`EX_USAGE`).
    pub const USAGE: u8 = 64;
    /// No link can be used, or the service cannot be reached (`EX_UNAVAILABLE`).
    pub const NETWORK: u8 = 69;
    /// The data cannot be stored (`EX_IOERR`).
    pub const STORAGE: u8 = 74;
    /// A privilege is missing (`EX_NOPERM`).
    pub const PRIVILEGE: u8 = 77;

    /// An error with exit code `code` and this message, in which each sequence of white space becomes one space.
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        let message: String = message.into();
        Self { code, message: Some(message.split_whitespace().collect::<Vec<_>>().join(" ")) }
    }

    /// Wrong usage: exit code [`Self::USAGE`].
    pub fn usage(message: impl Into<String>) -> Self {
        Self::new(Self::USAGE, message)
    }

    /// A failed operation: exit code [`Self::FAILED`].
    pub fn failed(message: impl Into<String>) -> Self {
        Self::new(Self::FAILED, message)
    }

    /// An error with exit code `code` and no message.
    pub fn without_message(code: u8) -> Self {
        Self { code, message: None }
    }
}

impl From<std::io::Error> for CliError {
    /// Converts an error of a write to standard output, where results go; the message names that stream.
    fn from(error: std::io::Error) -> Self {
        // A reader that closed the pipe (`| head`) needs no message.
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::without_message(Self::FAILED),
            _ => Self::failed(format!("standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_an_error_is_one_line() {
        assert_eq!(CliError::failed("a\n  b").message.as_deref(), Some("a b"));
    }
}
