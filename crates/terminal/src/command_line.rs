//! Parses a command line with clap and turns a mistake into a one-line error that names the command and its help.
//!
//! clap's own messages are not printed as they are: they have several lines and repeat a rejected value as it was typed,
//! including a password in it.

use std::borrow::Cow;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Parser};
use marline_core::printable::mask_value;

use crate::CliError;

/// Parses the command line; the first argument is the program's name. Help and version are printed here.
///
/// # Errors
/// A mistake in the command line (exit code 64). After help or version, an error with exit code 0 and no message.
pub fn parse<C: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<C, CliError> {
    let args: Vec<OsString> = args.into_iter().collect();
    C::try_parse_from(&args).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed standard output (`| head`) is not an error.
            let _ = error.print();
            CliError::without_message(0)
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let (command, name) = command_named(C::command(), &args);
            CliError::usage(format!("missing subcommand: use {}; see `{name} --help`", subcommand_names(&command)))
        }
        _ => CliError::usage(one_line_error(&error, C::command(), &args)),
    })
}

fn subcommand_names(command: &Command) -> String {
    command.get_subcommands().map(|subcommand| subcommand.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

/// clap's message as one line: the mistake, the tip if there is one, and the help to read. Secrets in the rejected value
/// are masked.
fn one_line_error(error: &clap::Error, program: Command, args: &[OsString]) -> String {
    let text = error.render().to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let mut paragraphs = text.split("\n\n");
    let mut message = paragraphs.next().unwrap_or_default().replace('\n', " ");
    for paragraph in paragraphs {
        if let Some(tip) = paragraph.trim().strip_prefix("tip: ") {
            message = format!("{message} ({})", tip.replace('\n', " "));
        }
    }
    for kind in [ContextKind::InvalidValue, ContextKind::InvalidArg] {
        if let Some(ContextValue::String(value)) = error.get(kind)
            && let Cow::Owned(masked) = mask_value(&value.replace('\n', " "))
        {
            message = message.replace(&value.replace('\n', " "), &masked);
        }
    }
    format!("{message}; see `{} --help`", command_named(program, args).1)
}

/// The innermost subcommand that the arguments name, with its full name such as `marline fleet ca`. Arguments after `--`
/// belong to another program and are ignored.
fn command_named(program: Command, args: &[OsString]) -> (Command, String) {
    let mut name = program.get_name().to_owned();
    let mut command = program;
    for argument in args.iter().skip(1).take_while(|argument| *argument != "--") {
        if let Some(subcommand) = command.find_subcommand(argument) {
            name = format!("{name} {}", subcommand.get_name());
            command = subcommand.clone();
        }
    }
    (command, name)
}
