//! What a run would change on this host, told and not done: the ground of `--dry-run`.
//!
//! In: the same settings, rules and routes from which [`Host`](super::Host) works. Out: a line for each that differs, once; and
//! what the driver would do.
//!
//! Nothing of it needs a privilege: settings, rules and routes may be read by anybody.

use marline_core::paths::LinkConfig;
use marline_core::wire::netlink::{Route, SourceRule};
use marline_net::links::InterfaceList;

use super::routing::{Kernel, Roads, Step};
use super::settings::Settings;
use super::{Ground, Mode, PathsError};

/// A host that is looked at.
pub struct Preview {
    mode: Mode,
    roads: Roads,
    tell: Box<dyn FnMut(&str)>,
    /// None before the first survey.
    told: Option<Vec<String>>,
    changes: bool,
}

impl Preview {
    /// Tells what a run of this mode would change for these links.
    pub fn new(mode: Mode, roads: Roads, tell: Box<dyn FnMut(&str)>) -> Self {
        Self { mode, roads, tell, told: None, changes: false }
    }
}

impl Ground for Preview {
    fn lay(&mut self, _mode: Mode) -> Result<(), PathsError> {
        let lines = settings(&Settings::system(), self.mode);
        self.changes = !lines.is_empty();
        lines.iter().for_each(|line| (self.tell)(line));
        Ok(())
    }

    fn take_up(&mut self, link: &LinkConfig) {
        self.roads.links.push(link.name.clone());
        (self.tell)(&format!("{} ({}) has come, and would be used", link.name, link.kind));
    }

    fn follow(&mut self, survey: &InterfaceList) {
        let name =
            |index: u32| survey.interfaces.iter().find(|i| i.index == index).map_or("?", |i| i.name.as_str());
        let lines = match Kernel::open().and_then(|kernel| kernel.planned(&self.roads, survey)) {
            Ok(steps) => steps.iter().map(|step| line(step, name)).collect(),
            Err(error) => vec![format!("the kernel does not tell its rules and routes: {error}")],
        };
        let told = self.told.take();
        for line in lines.iter().filter(|line| told.as_ref().is_none_or(|told| !told.contains(line))) {
            (self.tell)(line);
        }
        if told.is_none() && lines.is_empty() && !self.changes {
            (self.tell)("no setting, rule or route would be changed");
        }
        self.told = Some(lines);
    }

    fn would(&mut self, line: &str) {
        (self.tell)(line);
    }

    fn restore(&mut self) {}
}

/// The settings that would be changed.
fn settings(settings: &Settings, mode: Mode) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, set) in settings.wanted(mode) {
        if let Some(now) = settings.read(name).filter(|now| *now != set) {
            lines.push(format!("would set {name}: {set} (it is {now})"));
        }
    }
    lines
}

/// A step as `ip` would write it.
fn line<'a>(step: &Step, name: impl Fn(u32) -> &'a str) -> String {
    let route = |route: &Route| {
        let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        format!("default{via} dev {} table {}", route.interface.map_or("?", &name), route.table)
    };
    let rule = |rule: &SourceRule| {
        let table = if rule.table == Route::MAIN { "main".to_owned() } else { rule.table.to_string() };
        let suppress =
            rule.suppress_prefixlength.map(|length| format!(" suppress_prefixlength {length}")).unwrap_or_default();
        let device = rule.oif.as_ref().map(|device| format!(" oif {device}")).unwrap_or_default();
        format!("{} from {}{device} lookup {table}{suppress}", rule.priority, rule.source.0)
    };
    match step {
        Step::Install(wanted) => format!("would set the route {}", route(wanted)),
        Step::Add(wanted) => format!("would add the rule {}", rule(wanted)),
        Step::RemoveRule(left) => format!("would remove the rule {}, which another run has left", rule(left)),
        Step::RemoveRoute(left) => format!("would remove the route {}, which another run has left", route(left)),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::fs;
    use std::rc::Rc;

    use marline_net::links::list_interfaces;
    use marline_net::testing::{in_a_network, ip};

    use super::*;

    #[test]
    fn only_settings_that_differ_would_be_set() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("net/mptcp");
        fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, value: &str| fs::write(folder.join(name), value).unwrap();
        write("enabled", "1\n");
        write("path_manager", "kernel\n");
        let lines = |mode| settings(&Settings::at(root.path().to_owned()), mode);
        assert_eq!(lines(Mode::Userspace), ["would set net.mptcp.path_manager: userspace (it is kernel)"]);
        assert!(lines(Mode::KernelPm).is_empty());
        write("enabled", "0\n");
        assert_eq!(lines(Mode::KernelPm), ["would set net.mptcp.enabled: 1 (it is 0)"]);
    }

    #[test]
    fn rules_and_routes_that_would_be_set_are_told_once_and_none_is_set() {
        in_a_network(|| {
            for link in [1, 2] {
                ip(&format!("link add d{link} type veth peer name far{link}"));
                ip(&format!("address add 10.{link}.0.2/24 dev d{link}"));
                ip(&format!("link set d{link} up"));
                ip(&format!("link set far{link} up"));
                ip(&format!("route add default via 10.{link}.0.1 dev d{link} metric 10{link}"));
            }
            let said = Rc::new(RefCell::new(Vec::new()));
            let to = Rc::clone(&said);
            let roads = Roads { links: vec!["d1".into(), "d2".into()], named: true };
            let tell = Box::new(move |line: &str| to.borrow_mut().push(line.to_owned()));
            let mut preview = Preview::new(Mode::Userspace, roads, tell);
            let survey = list_interfaces().unwrap();
            preview.follow(&survey);
            preview.follow(&survey);
            preview.would("0000002a: would join over d2");
            let index = survey.interfaces.iter().find(|interface| interface.name == "d2").unwrap().index;
            let table = 7_310_000 + index;
            assert_eq!(
                *said.borrow(),
                [
                    format!("would set the route default via 10.2.0.1 dev d2 table {table}"),
                    "would add the rule 20000 from 10.2.0.2 lookup main suppress_prefixlength 1".to_owned(),
                    format!("would add the rule 20001 from 10.2.0.2 lookup {table}"),
                    "0000002a: would join over d2".to_owned(),
                ]
            );
            assert_eq!(Kernel::open().unwrap().count().unwrap(), 0);
        });
    }
}
