//! The links of a trial, and the [`Lab`] that is built of them.
//!
//! 1. The other ends of both links are one machine, the gateways. From there each link has a path of its own to the
//!    server, so that either round-trip time can be chosen. A packet takes the path of the link on which it arrived,
//!    and a packet from the server that of its destination address. So an ACK that leaves over the second link takes
//!    the second path, whatever its source address.
//! 2. The primary link's queue towards the client holds 100 ms, as in an access point; the second link's 600 ms, as in
//!    a base station.

use std::process::Command;
use std::time::Duration;

use marline_core::units::Ratio;
use marline_sim::spec::{LinkEvent, LinkSpec, Loss};

use crate::server::{Payload, find_program};
use crate::{Congestion, Lab, LabError, LabSpec, Segment, Service};

/// The links' names.
pub(crate) const PRIMARY: &str = "primary";
pub(crate) const CELL: &str = "cell";
/// The round-trip time to the primary link's gateway. Our choice: an idle access point.
pub(crate) const GATEWAY_RTT: Duration = Duration::from_millis(4);
/// The round-trip time to the second link's gateway. Our choice: a base station.
const CELL_GATEWAY_RTT: Duration = Duration::from_millis(30);
/// Index of the site of the server, the network namespace of its own; the gateways are site 0.
const SERVER_SITE: usize = 1;
/// The gateways' routing table for packets of the second link. Our choice: any that is free.
const ROUTING_TABLE: &str = "77";

/// What limits the primary link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Medium {
    /// So many kbit/s in each direction.
    Rate(u32),
    /// An 802.11 cell, by the name of its preset.
    Medium(&'static str),
}

/// The primary link's queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Queue {
    /// Drop tail, of so many milliseconds.
    Time(u32),
    /// CoDel (RFC 8289) in a queue that is full at 200 ms.
    CoDel,
    /// A policer of this rate and burst in front of a queue of 100 ms.
    Policer(&'static str),
}

/// See the [module documentation](self).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Topology {
    pub(crate) medium: Medium,
    /// Of the primary link, to the server.
    pub(crate) rtt: Duration,
    /// Of packets that carry data over the primary link.
    pub(crate) loss: Ratio,
    /// The same in bursts, in place of `loss`.
    pub(crate) bursts: Option<Loss>,
    /// The primary link's queue.
    pub(crate) queue: Queue,
    /// A separate hop in front of the primary link that loses packets of flows from this port of the server.
    pub(crate) hop: Option<(u16, Ratio)>,
    /// The client sends.
    pub(crate) is_upload: bool,
    /// Downstream and upstream rate of the second link in kbit/s, if there is one.
    pub(crate) cell: Option<(u32, u32)>,
    /// Of the second link, to the server.
    pub(crate) cell_rtt: Duration,
    pub(crate) events: Vec<LinkEvent>,
    pub(crate) congestion: Congestion,
    /// The client acknowledges each segment, as Super-aggregation's user-space TCP (§6.2).
    pub(crate) each_acknowledged: bool,
    /// Determines every loss of the links; those of `hop` are drawn by the kernel and differ from run to run.
    pub(crate) seed: u64,
}

impl Topology {
    /// The default: 20 Mbit/s, 50 ms, no loss; a second link of 900 kbit/s down and 400 up, 150 ms; CUBIC.
    pub(crate) fn default_links(seed: u64) -> Self {
        Self {
            medium: Medium::Rate(20_000),
            rtt: Duration::from_millis(50),
            loss: Ratio::ZERO,
            bursts: None,
            queue: Queue::Time(100),
            hop: None,
            is_upload: false,
            cell: Some((900, 400)),
            cell_rtt: Duration::from_millis(150),
            events: Vec::new(),
            congestion: Congestion::Cubic,
            each_acknowledged: false,
            seed,
        }
    }

    /// The client's links.
    pub(crate) fn links(&self) -> Vec<LinkSpec> {
        let carries = match self.medium {
            Medium::Rate(kbps) => format!("rate={kbps}kbit/s"),
            Medium::Medium(preset) => format!("medium={preset}"),
        };
        let near = GATEWAY_RTT.min(self.rtt).as_millis();
        let (down, up) = if self.is_upload { (Ratio::ZERO, self.loss) } else { (self.loss, Ratio::ZERO) };
        let queue = match self.queue {
            Queue::Time(millis) => format!("queue={millis}ms"),
            Queue::CoDel => "codel,queue=200ms".to_owned(),
            Queue::Policer(police) => format!("queue=100ms,police={police}"),
        };
        let down = self.bursts.unwrap_or(down.into());
        let primary = format!("{PRIMARY},{carries},rtt={near}ms,{queue},kind=wifi,loss={down},uploss={up}");
        let cell = self.cell.map(|(down, up)| {
            let near = CELL_GATEWAY_RTT.min(self.cell_rtt).as_millis();
            format!("{CELL},rate={down}kbit/s,up={up}kbit/s,rtt={near}ms,queue=600ms,kind=umts")
        });
        let read = |spec: String| spec.parse().expect("links that are written here are understood");
        [Some(primary), cell].into_iter().flatten().map(read).collect()
    }

    /// From the gateways to the server. The last one is the path of all packets that are not routed over the second link's.
    fn segments(&self) -> Vec<Segment> {
        let make_link = |name: &str, rtt: Duration, near: Duration| {
            let remaining_ms = rtt.saturating_sub(near).as_millis();
            let spec = format!("{name},rate=1Gbit/s,rtt={remaining_ms}ms,kind=ethernet");
            let link = spec.parse().expect("links that are written here are understood");
            Segment { from: 0, to: SERVER_SITE, link }
        };
        let cell = self.cell.map(|_| make_link(WAN_CELL, self.cell_rtt, CELL_GATEWAY_RTT));
        cell.into_iter().chain([make_link(WAN, self.rtt, GATEWAY_RTT)]).collect()
    }

    pub(crate) fn build(&self, payload: &Payload) -> Result<Lab, LabError> {
        let lab = Lab::start(&LabSpec {
            events: self.events.clone(),
            congestion: self.congestion,
            seed: self.seed,
            service: Service::Files(payload.path()),
            segments: self.segments(),
            server_site: SERVER_SITE,
            ..LabSpec::new(self.links())
        })?;
        let server = crate::wan_topology::site_address(SERVER_SITE).to_string();
        let congestion = self.congestion.name();
        if self.cell.is_some() {
            let back = ["10.2.0.0/24", "dev", WAN_CELL, "src", &server, "congctl", congestion];
            ip(&lab, Some(SERVER_SITE), &[&["route", "replace"], &back[..]].concat())?;
            ip(&lab, Some(0), &["route", "add", &server, "dev", WAN_CELL, "table", ROUTING_TABLE])?;
            ip(&lab, Some(0), &["rule", "add", "iif", CELL, "lookup", ROUTING_TABLE])?;
        }
        if let Some((port, loss)) = self.hop {
            let (port, share) = (port.to_string(), loss.as_f64().to_string());
            let drop = ["-A", "FORWARD", "-p", "tcp", "--sport", &port, "-m", "statistic", "--mode", "random"];
            run(
                &lab,
                "iptables",
                "iptables",
                Some(0),
                &[&drop[..], &["--probability", &share, "-j", "DROP"]].concat(),
            )?;
        }
        if self.each_acknowledged {
            let over = ["default", "via", "10.1.0.1", "dev", PRIMARY, "src", "10.1.0.2"];
            for route_args in [["metric", "100"], ["table", "1000"]] {
                let route =
                    [&["route", "replace"], &over[..], &route_args, &["congctl", congestion, "quickack", "1"]];
                ip(&lab, None, &route.concat())?;
            }
        }
        Ok(lab)
    }
}

/// Runs `ip` at a site, or at the client's end.
fn ip(lab: &Lab, site: Option<usize>, args: &[&str]) -> Result<(), LabError> {
    run(lab, "ip", "iproute2", site, args)
}

/// Runs a program of a package at a site, or at the client's end.
fn run(
    lab: &Lab,
    name: &'static str,
    package: &'static str,
    site: Option<usize>,
    args: &[&str],
) -> Result<(), LabError> {
    let program = find_program(name).ok_or(LabError::MissingProgram { program: name.into(), package })?;
    let mut command = Command::new(program);
    command.args(args);
    let step = || format!("{name} {}", args.join(" "));
    let work = || command.output();
    let output = match site {
        Some(site) => lab.run_at_site(site, work),
        None => lab.run_at_client(work),
    };
    let output = output.map_err(LabError::at_step(step()))?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(LabError::Setup { step: step(), source: std::io::Error::other(stderr) })
        }
    }
}

/// Index of the site of the server.
pub(crate) const fn server_site_index() -> usize {
    SERVER_SITE
}

const WAN: &str = "wan";
const WAN_CELL: &str = "wan-cell";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_are_those_of_the_link_and_its_path() {
        let world = Topology { rtt: Duration::from_millis(200), ..Topology::default_links(1) };
        let (links, segments) = (world.links(), world.segments());
        assert_eq!(links[0].rtt + segments[1].link.rtt, world.rtt);
        assert_eq!(links[1].rtt + segments[0].link.rtt, world.cell_rtt);
        assert_eq!(segments[1].link.name, WAN);
        let alone = Topology { cell: None, ..world };
        assert_eq!((alone.links().len(), alone.segments().len()), (1, 1));
    }

    #[test]
    fn only_packets_with_data_are_lost() {
        let world = Topology { loss: Ratio::from_percent(1), ..Topology::default_links(1) };
        let primary = &world.links()[0];
        assert_eq!(primary.loss.mean(), Ratio::from_percent(1));
        assert!(primary.uplink_loss.is_some_and(|loss| loss.mean() == Ratio::ZERO));
        let upward = &Topology { is_upload: true, ..world }.links()[0];
        assert_eq!(upward.loss.mean(), Ratio::ZERO);
        assert!(upward.uplink_loss.is_some_and(|loss| loss.mean() == Ratio::from_percent(1)));
    }
}
