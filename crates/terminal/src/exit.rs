//! How a command ends badly: one line for people, one number for scripts.
//!
//! The numbers are those of `sysexits.h` where it has one, so that a script may tell "you wrote it wrongly" from "the
//! network is gone" without reading text. An enum of the library's errors was not used here: each of them already
//! prints its own line and knows its own number.

use std::process::ExitCode;

/// Why the program ends without success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CliError {
    /// The process's exit code.
    pub code: u8,
    /// One line without a line end; none when everything was said already.
    pub message: Option<String>,
}

impl CliError {
    /// It was tried and did not succeed.
    pub const FAILED: u8 = 1;
    /// The command line or the configuration file is wrong; nothing was tried.
    pub const USAGE: u8 = 64;
    /// No link can be used.
    pub const NETWORK: u8 = 69;
    /// The bytes cannot be stored.
    pub const STORAGE: u8 = 74;
    /// A privilege is missing.
    pub const PRIVILEGE: u8 = 77;

    /// Ends with `code`, saying `line`. Line ends within it become spaces.
    pub fn new(code: u8, line: impl Into<String>) -> Self {
        let line: String = line.into();
        Self { code, message: Some(line.split_whitespace().collect::<Vec<_>>().join(" ")) }
    }

    /// What the user wrote cannot be understood.
    pub fn usage(line: impl Into<String>) -> Self {
        Self::new(Self::USAGE, line)
    }

    /// It was tried and did not succeed.
    pub fn failed(line: impl Into<String>) -> Self {
        Self::new(Self::FAILED, line)
    }

    /// Ends with `code` in silence.
    pub fn silent(code: u8) -> Self {
        Self { code, message: None }
    }

    /// Prints the line with the program's name and becomes the process's exit code.
    pub fn print_and_code(self, program: &str) -> ExitCode {
        if let Some(line) = &self.message {
            crate::output::print_notice(program, line);
        }
        ExitCode::from(self.code)
    }
}

impl From<std::io::Error> for CliError {
    /// For writes to standard output, which is where results go.
    fn from(error: std::io::Error) -> Self {
        // A reader that has seen enough (`| head`) is no failure worth a line.
        match error.kind() {
            std::io::ErrorKind::BrokenPipe => Self::silent(Self::FAILED),
            _ => Self::failed(format!("standard output: {error}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_one_line() {
        assert_eq!(CliError::failed("a\n  b").message.as_deref(), Some("a b"));
    }
}
