//! Host configuration of `--dry-run`: reports what a run would change on this host and changes nothing.
//!
//! It computes the same settings, rules and routes as [`HostConfig`](super::HostConfig), and reports each difference
//! once, together with the actions that the driver would take. Reading them requires no privilege.

use marline_core::paths::LinkConfig;
use marline_core::wire::netlink::{Route, SourceRule};
use marline_net::links::InterfaceList;

use super::source_routing::{KernelRouting, RoutedLinks, RoutingStep};
use super::sysctl::Sysctls;
use super::{HostConfigurator, Mode, PathsError};

/// Reports the changes of a run without making them.
pub struct DryRun {
    mode: Mode,
    routed_links: RoutedLinks,
    notify: Box<dyn FnMut(&str)>,
    /// Lines of the last survey; none before the first one.
    last_lines: Option<Vec<String>>,
    has_sysctl_changes: bool,
}

impl DryRun {
    /// Reports to `notify` what a run of this mode would change for these links.
    pub fn new(mode: Mode, routed_links: RoutedLinks, notify: Box<dyn FnMut(&str)>) -> Self {
        Self { mode, routed_links, notify, last_lines: None, has_sysctl_changes: false }
    }
}

impl HostConfigurator for DryRun {
    fn apply(&mut self, _mode: Mode) -> Result<(), PathsError> {
        let messages = sysctl_lines(&Sysctls::of_system(), self.mode);
        self.has_sysctl_changes = !messages.is_empty();
        messages.iter().for_each(|message| (self.notify)(message));
        Ok(())
    }

    fn add_link(&mut self, link: &LinkConfig) {
        self.routed_links.links.push(link.name.clone());
        (self.notify)(&format!("{} ({}) appeared, and would be used", link.name, link.kind));
    }

    fn update_routing(&mut self, survey: &InterfaceList) {
        let interface_name =
            |index: u32| survey.interfaces.iter().find(|i| i.index == index).map_or("?", |i| i.name.as_str());
        let messages = match KernelRouting::open().and_then(|kernel| kernel.plan(&self.routed_links, survey)) {
            Ok(steps) => steps.iter().map(|step| step_line(step, interface_name)).collect(),
            Err(error) => vec![format!("cannot read the kernel's rules and routes: {error}")],
        };
        let last_lines = self.last_lines.take();
        for message in messages
            .iter()
            .filter(|message| last_lines.as_ref().is_none_or(|last_lines| !last_lines.contains(message)))
        {
            (self.notify)(message);
        }
        if last_lines.is_none() && messages.is_empty() && !self.has_sysctl_changes {
            (self.notify)("no setting, rule or route would be changed");
        }
        self.last_lines = Some(messages);
    }

    fn report_dry_run(&mut self, message: &str) {
        (self.notify)(message);
    }

    fn restore(&mut self) {}
}

/// A line for each setting that would be changed.
fn sysctl_lines(sysctls: &Sysctls, mode: Mode) -> Vec<String> {
    let mut messages = Vec::new();
    for (name, value) in sysctls.required(mode) {
        if let Some(current) = sysctls.read(name).filter(|current| *current != value) {
            messages.push(format!("would set {name}: {value} (it is {current})"));
        }
    }
    messages
}

/// A line for a routing step, in the syntax of `ip`.
fn step_line<'a>(step: &RoutingStep, interface_name: impl Fn(u32) -> &'a str) -> String {
    let route = |route: &Route| {
        let via_text = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
        format!("default{via_text} dev {} table {}", route.interface.map_or("?", &interface_name), route.table)
    };
    let rule = |rule: &SourceRule| {
        let table = if rule.table == Route::MAIN { "main".to_owned() } else { rule.table.to_string() };
        let suppress_text =
            rule.suppress_prefixlength.map(|length| format!(" suppress_prefixlength {length}")).unwrap_or_default();
        let device = rule.oif.as_ref().map(|device| format!(" oif {device}")).unwrap_or_default();
        format!("{} from {}{device} lookup {table}{suppress_text}", rule.priority, rule.source.0)
    };
    match step {
        RoutingStep::SetRoute(added) => format!("would set the route {}", route(added)),
        RoutingStep::AddRule(added) => format!("would add the rule {}", rule(added)),
        RoutingStep::RemoveRule(stale) => {
            format!("would remove the rule {}, which an earlier run has left behind", rule(stale))
        }
        RoutingStep::RemoveRoute(stale) => {
            format!("would remove the route {}, which an earlier run has left behind", route(stale))
        }
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
        let dir = root.path().join("net/mptcp");
        fs::create_dir_all(&dir).unwrap();
        let write = |name: &str, value: &str| fs::write(dir.join(name), value).unwrap();
        write("enabled", "1\n");
        write("path_manager", "kernel\n");
        let messages = |mode| sysctl_lines(&Sysctls::with_root(root.path().to_owned()), mode);
        assert_eq!(messages(Mode::Userspace), ["would set net.mptcp.path_manager: userspace (it is kernel)"]);
        assert!(messages(Mode::KernelPm).is_empty());
        write("enabled", "0\n");
        assert_eq!(messages(Mode::KernelPm), ["would set net.mptcp.enabled: 1 (it is 0)"]);
    }

    #[test]
    fn rules_and_routes_are_reported_once_and_not_set() {
        in_a_network(|| {
            for link in [1, 2] {
                ip(&format!("link add d{link} type veth peer name far{link}"));
                ip(&format!("address add 10.{link}.0.2/24 dev d{link}"));
                ip(&format!("link set d{link} up"));
                ip(&format!("link set far{link} up"));
                ip(&format!("route add default via 10.{link}.0.1 dev d{link} metric 10{link}"));
            }
            let reported = Rc::new(RefCell::new(Vec::new()));
            let sink = Rc::clone(&reported);
            let routed_links = RoutedLinks { links: vec!["d1".into(), "d2".into()], is_explicit: true };
            let notify = Box::new(move |message: &str| sink.borrow_mut().push(message.to_owned()));
            let mut dry_run = DryRun::new(Mode::Userspace, routed_links, notify);
            let survey = list_interfaces().unwrap();
            dry_run.update_routing(&survey);
            dry_run.update_routing(&survey);
            dry_run.report_dry_run("0000002a: would join over d2");
            let index = survey.interfaces.iter().find(|interface| interface.name == "d2").unwrap().index;
            let table = 7_310_000 + index;
            assert_eq!(
                *reported.borrow(),
                [
                    format!("would set the route default via 10.2.0.1 dev d2 table {table}"),
                    "would add the rule 20000 from 10.2.0.2 lookup main suppress_prefixlength 1".to_owned(),
                    format!("would add the rule 20001 from 10.2.0.2 lookup {table}"),
                    "0000002a: would join over d2".to_owned(),
                ]
            );
            assert_eq!(KernelRouting::open().unwrap().count().unwrap(), 0);
        });
    }
}
