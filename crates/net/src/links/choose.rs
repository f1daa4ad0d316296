//! Which of the interfaces carry this run, and on what terms.
//!
//! In: a survey, the user's choice, what NetworkManager says of cost. Out: the links in a fixed order, and the lines
//! that the user should read; or the reason why there is none.
//!
//! 1. Without a choice: all usable interfaces, the kernel's preferred ones first (lowest metric, then number).
//! 2. A VPN that is the machine's way to the Internet is used alone, unless it is to be bypassed.
//! 3. Named interfaces: those that can carry anything, in the user's order; the others cost a line, not the run.
//! 4. On cost the user's word goes over NetworkManager's; if nobody says anything a link is not metered.

use marline_core::link::{LinkKind, LinkProfile};

use super::{Interface, LinksError, MeteredHints, Named, Reason, Survey, Verdict};

/// What the user wants.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Whatever is there.
    Auto {
        /// Use the links below an active VPN instead of it.
        bypass_vpn: bool,
        /// What the configuration says of interfaces, should they be used.
        known: Vec<Named>,
    },
    /// These.
    Named(Vec<Named>),
}

/// The links of this run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// At least one, each with its terms.
    pub links: Vec<(Interface, LinkProfile)>,
    /// Lines for the user, without a line end.
    pub warnings: Vec<String>,
    /// One more line, if a VPN decides which links are used.
    pub vpn: Option<String>,
}

/// Chooses the links.
///
/// # Errors
/// [`LinksError::NoLink`] when nothing that was found, or named, can carry anything.
pub fn choose(survey: &Survey, choice: &Choice, metered: &MeteredHints) -> Result<Chosen, LinksError> {
    let chosen = match choice {
        Choice::Auto { bypass_vpn, known } => automatic(survey, *bypass_vpn, known, metered),
        Choice::Named(named) => these(survey, named, metered),
    };
    if chosen.links.is_empty() {
        return Err(LinksError::NoLink { why: nothing(survey, choice, chosen.warnings) });
    }
    Ok(chosen)
}

fn automatic(survey: &Survey, bypass_vpn: bool, known: &[Named], metered: &MeteredHints) -> Chosen {
    let wanted = |interface: &&Interface| match &interface.verdict {
        Verdict::Usable => !(bypass_vpn && survey.vpn.as_ref() == Some(&interface.name)),
        Verdict::Unused(Reason::BelowVpn(_)) => bypass_vpn,
        Verdict::Unused(_) => false,
    };
    let mut interfaces: Vec<&Interface> = survey.interfaces.iter().filter(wanted).collect();
    interfaces
        .sort_by_key(|i| ([i.v4, i.v6].iter().flatten().map(|route| route.metric).min().unwrap_or(0), i.index));
    let terms = |interface: &Interface| {
        let said = known.iter().find(|named| named.name == interface.name);
        link(interface, &said.cloned().unwrap_or_else(|| Named::new(&interface.name)), metered)
    };
    let vpn = survey.vpn.as_ref().map(|vpn| {
        if bypass_vpn {
            format!("the VPN {vpn} is bypassed")
        } else {
            format!("the VPN {vpn} is this machine's way to the Internet: it is used alone (--bypass-vpn to use the links below it)")
        }
    });
    Chosen { links: interfaces.into_iter().map(terms).collect(), warnings: Vec::new(), vpn }
}

fn these(survey: &Survey, named: &[Named], metered: &MeteredHints) -> Chosen {
    let mut chosen = Chosen { links: Vec::new(), warnings: Vec::new(), vpn: None };
    for (at, wish) in named.iter().enumerate() {
        let name = &wish.name;
        let mut warn = |text: String| chosen.warnings.push(format!("link {name}: {text}"));
        if named[..at].iter().any(|earlier| earlier.name == *name) {
            warn("named twice; the first one counts".to_owned());
            continue;
        }
        let Some(interface) = survey.named(name) else {
            warn("no such interface; going on with the rest".to_owned());
            continue;
        };
        match &interface.verdict {
            Verdict::Usable => {}
            Verdict::Unused(reason) if !reason.can_be_overruled() => {
                warn(format!("{reason}; going on with the rest"));
                continue;
            }
            Verdict::Unused(Reason::BelowVpn(vpn)) => warn(format!("it goes beside the VPN {vpn}")),
            Verdict::Unused(Reason::NoDefaultRoute) => {
                warn("it has no default route, so it reaches its own subnets only".to_owned());
            }
            Verdict::Unused(Reason::Loopback) => {}
            Verdict::Unused(reason) => warn(format!("{reason}; used because it was named")),
        }
        chosen.links.push(link(interface, wish, metered));
    }
    chosen
}

/// An interface on the user's terms.
fn link(interface: &Interface, said: &Named, metered: &MeteredHints) -> (Interface, LinkProfile) {
    let mut interface = interface.clone();
    interface.metered = metered.of(&interface.name);
    let mut profile = LinkProfile::new(&interface.name, LinkKind::Other);
    said.overrule(&mut interface, &mut profile);
    (interface, profile)
}

/// The reasons why there is no link, a line each.
fn nothing(survey: &Survey, choice: &Choice, warnings: Vec<String>) -> Vec<String> {
    match choice {
        Choice::Named(_) => warnings.into_iter().map(|line| line.replace("; going on with the rest", "")).collect(),
        Choice::Auto { bypass_vpn, .. } => {
            let reason = |interface: &Interface| match &interface.verdict {
                Verdict::Unused(Reason::Loopback) => None,
                Verdict::Unused(reason) => Some(format!("{}: {reason}", interface.name)),
                Verdict::Usable if *bypass_vpn => Some(format!("{}: the VPN, which is bypassed", interface.name)),
                Verdict::Usable => None,
            };
            survey.interfaces.iter().filter_map(reason).collect()
        }
    }
}
