//! From the words of a run to the configuration that they mean, or the line that says which word is wrong.
//!
//! 1. What is on by default and has no second link to use is off without a word; what was asked for is refused then.
//! 2. Rates and gateways of secondary links are told once for each of them, in their order, or not at all.

use marline_accel::Wanted;
use marline_core::accel::{Config, Helper, Mechanism, Mechanisms};
use marline_core::link::LinkId;

use super::args::RunArgs;
use crate::CliError;

/// The links by name, the primary first.
pub(super) fn wanted(args: &RunArgs) -> Result<Vec<Wanted>, CliError> {
    fits("--secondary-gateway", args.secondary_gateway.len(), args)?;
    let name =
        args.primary.clone().ok_or_else(|| CliError::usage("say which link is to be helped: --primary IFACE"))?;
    let primary = Wanted { name, gateway: args.primary_gateway };
    let secondary = args
        .secondary
        .iter()
        .enumerate()
        .map(|(at, name)| Wanted { name: name.clone(), gateway: args.secondary_gateway.get(at).copied() });
    Ok(std::iter::once(primary).chain(secondary).collect())
}

/// What the machine is told.
pub(super) fn config(args: &RunArgs) -> Result<Config, CliError> {
    if let Some(relay) = &args.via {
        return Err(CliError::usage(format!(
            "--via {relay}: a relay ends the connections that it carries and acknowledges to the server itself, so there is no ACK \
             that it could send for this machine; leave --via out, and carry the flow by `marline edge`"
        )));
    }
    fits("--secondary-up", args.secondary_up.len(), args)?;
    fits("--secondary-down", args.secondary_down.len(), args)?;
    let helper = |at: usize, number| Helper {
        up: args.secondary_up.get(at).copied(),
        down: args.secondary_down.get(at).copied(),
        ..Helper::new(LinkId(number))
    };
    let helpers = (0..args.secondary.len()).zip(1..).map(|(at, number)| helper(at, number)).collect();
    Ok(Config { primary: LinkId(0), helpers, mechanisms: mechanisms(args)? })
}

fn mechanisms(args: &RunArgs) -> Result<Mechanisms, CliError> {
    if let Some(both) = args.enable.iter().find(|mechanism| args.disable.contains(mechanism)) {
        return Err(CliError::usage(format!("--enable {both}: it is in --disable, too")));
    }
    let is_alone = args.secondary.is_empty();
    if let Some(lonely) = args.enable.iter().find(|mechanism| is_alone && mechanism.needs_helper()) {
        return Err(CliError::usage(format!(
            "--enable {lonely}: it needs a second link; name one with --secondary"
        )));
    }
    let mut mechanisms = Mechanisms::default();
    for mechanism in Mechanism::ALL {
        let is_off = args.disable.contains(&mechanism) || (is_alone && mechanism.needs_helper());
        if is_off || args.enable.contains(&mechanism) {
            mechanisms.set(mechanism, !is_off);
        }
    }
    if mechanisms.iter().next().is_none() {
        return Err(CliError::usage("--disable: nothing is left to be done; leave something enabled"));
    }
    Ok(mechanisms)
}

/// An option of secondary links is told for each of them or for none.
fn fits(option: &str, told: usize, args: &RunArgs) -> Result<(), CliError> {
    let links = args.secondary.len();
    if told == 0 || told == links {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{option}: it is there {told} times, and --secondary {links} times; say it once for each of them"
    )))
}
