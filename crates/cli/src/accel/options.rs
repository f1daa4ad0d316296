//! The configuration of a run from its arguments.
//!
//! 1. Mechanisms that are on by default and need a second link are off without one; those that were enabled explicitly
//!    are refused then.
//! 2. Rates and gateways of secondary links are given once for each of them, in their order, or not at all.

use marline_accel::LinkArg;
use marline_core::accel::{Config, Mechanism, Mechanisms, SecondaryLink};
use marline_core::link::LinkId;

use super::args::RunArgs;
use crate::CliError;

/// The links with the gateways that the user named, the primary link first.
pub(super) fn link_args(args: &RunArgs) -> Result<Vec<LinkArg>, CliError> {
    check_count("--secondary-gateway", args.secondary_gateway.len(), args)?;
    let name = args.primary.clone().ok_or_else(|| CliError::usage("no link is named; add --primary IFACE"))?;
    let primary = LinkArg { name, gateway: args.primary_gateway };
    let secondary = args
        .secondary
        .iter()
        .enumerate()
        .map(|(at, name)| LinkArg { name: name.clone(), gateway: args.secondary_gateway.get(at).copied() });
    Ok(std::iter::once(primary).chain(secondary).collect())
}

/// The configuration of the accelerator.
pub(super) fn config(args: &RunArgs) -> Result<Config, CliError> {
    if let Some(relay) = &args.via {
        return Err(CliError::usage(format!(
            "--via {relay}: a relay ends the connections that it carries and acknowledges to the server itself, so there is no ACK \
             that it could send for this machine; leave --via out, and carry the flow by `marline edge`"
        )));
    }
    check_count("--secondary-up", args.secondary_up.len(), args)?;
    check_count("--secondary-down", args.secondary_down.len(), args)?;
    let secondary = |at: usize, number| SecondaryLink {
        up: args.secondary_up.get(at).copied(),
        down: args.secondary_down.get(at).copied(),
        ..SecondaryLink::new(LinkId(number))
    };
    let secondary_links = (0..args.secondary.len()).zip(1..).map(|(at, number)| secondary(at, number)).collect();
    Ok(Config { secondary_links, mechanisms: mechanisms(args)?, ..Config::new(LinkId(0), None) })
}

fn mechanisms(args: &RunArgs) -> Result<Mechanisms, CliError> {
    if let Some(both) = args.enable.iter().find(|mechanism| args.disable.contains(mechanism)) {
        return Err(CliError::usage(format!("--enable {both}: it is in --disable, too")));
    }
    let is_alone = args.secondary.is_empty();
    if let Some(mechanism) = args.enable.iter().find(|mechanism| is_alone && mechanism.needs_secondary_link()) {
        return Err(CliError::usage(format!(
            "--enable {mechanism}: it needs a second link; name one with --secondary"
        )));
    }
    let mut mechanisms = Mechanisms::default();
    for mechanism in Mechanism::ALL {
        let is_off = args.disable.contains(&mechanism) || (is_alone && mechanism.needs_secondary_link());
        if is_off || args.enable.contains(&mechanism) {
            mechanisms.set(mechanism, !is_off);
        }
    }
    if mechanisms.iter().next().is_none() {
        return Err(CliError::usage("--disable: no mechanism is left; keep one enabled"));
    }
    Ok(mechanisms)
}

/// An option of secondary links is given for each of them or for none.
fn check_count(option: &str, count: usize, args: &RunArgs) -> Result<(), CliError> {
    let links = args.secondary.len();
    if count == 0 || count == links {
        return Ok(());
    }
    Err(CliError::usage(format!(
        "{option}: it is given {count} times, and --secondary {links} times; give it once for each of them"
    )))
}
