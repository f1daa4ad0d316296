//! Description of a lab: links, their events, the service, and the TCP settings of the server.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use marline_sim::spec::{LinkEvent, LinkSpec};

use crate::LabError;

/// Congestion control of client and server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Congestion {
    /// CUBIC (RFC 9438), the default of Linux and of most servers on the Internet.
    #[default]
    Cubic,
    /// BBR, as this kernel's module `tcp_bbr` implements it.
    Bbr,
    /// NewReno (RFC 5681).
    Reno,
}

impl Congestion {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Cubic, Self::Bbr, Self::Reno];

    /// The kernel's name of the algorithm.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Cubic => "cubic",
            Self::Bbr => "bbr",
            Self::Reno => "reno",
        }
    }
}

impl fmt::Display for Congestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Congestion {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|c| c.name() == s);
        found.ok_or_else(|| format!("`{s}` is none of cubic, bbr, reno"))
    }
}

/// A link between two sites behind the server. Site 0 is the server namespace.
#[derive(Clone, Debug)]
pub struct Segment {
    /// The first site; the downlink of `link` runs towards it.
    pub from: usize,
    /// The second site.
    pub to: usize,
    /// The emulated link; its name is the name of the device at both ends.
    pub link: LinkSpec,
}

/// Largest number of a site: it is one byte of the site's address.
const MAX_SITES: usize = 200;

/// What the server namespace runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Service {
    /// No process; the kernel answers pings.
    #[default]
    None,
    /// nginx, serving this file or directory over HTTP and HTTPS.
    Files(PathBuf),
    /// This shell command.
    Command(String),
}

/// Description of a lab.
#[derive(Clone, Debug)]
pub struct LabSpec {
    /// The links; the first one is the client's default route. Their traces must be loaded.
    pub links: Vec<LinkSpec>,
    /// Changes of the links, timed from the start of each command.
    pub events: Vec<LinkEvent>,
    /// Congestion control of client and server.
    pub congestion: Congestion,
    /// Seed of all random loss and jitter.
    pub seed: u64,
    /// What the server runs.
    pub service: Service,
    /// Further TCP settings of the server.
    pub sender: ServerTcp,
    /// Segments between the server and the sites behind it; see [`Segment`].
    pub segments: Vec<Segment>,
    /// Site at which the service runs: 0 is the server namespace, other numbers are sites behind `segments`. With a
    /// site, the server ends of the links are gateways that are closer to the client than the service.
    pub server_site: usize,
}

/// Settings of the server's TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerTcp {
    /// nginx accepts MPTCP on port 80, beside plain TCP.
    pub mptcp: bool,
    /// Connections keep their congestion window after a pause (no slow start after idle, RFC 2861 off,
    /// `net.ipv4.tcp_slow_start_after_idle=0`), as eMPTCP's sender does for paths that are used again (section
    /// 3.6).
    pub keeps_cwnd: bool,
}

impl LabSpec {
    /// A lab of these links without events, server or segments; CUBIC, seed 1.
    pub fn new(links: Vec<LinkSpec>) -> Self {
        Self {
            links,
            events: Vec::new(),
            congestion: Congestion::Cubic,
            seed: 1,
            service: Service::None,
            sender: ServerTcp::default(),
            segments: Vec::new(),
            server_site: 0,
        }
    }

    /// Index of the link or segment `name`: links first, then segments.
    pub(crate) fn link_index(&self, name: &str) -> Option<usize> {
        let segments = self.segments.iter().map(|segment| &segment.link);
        self.links.iter().chain(segments).position(|link| link.name == name)
    }

    /// Refuses what cannot be built before anything is built.
    pub(crate) fn validate(&self) -> Result<(), LabError> {
        if self.links.is_empty() {
            return Err(LabError::Spec("a lab needs at least one link: --link wifi,rate=80Mbit/s,rtt=20ms".into()));
        }
        if self.links.len() > MAX_LINKS {
            return Err(LabError::Spec(format!("a lab has at most {MAX_LINKS} links")));
        }
        let all = || self.links.iter().chain(self.segments.iter().map(|segment| &segment.link));
        for (at, link) in all().enumerate() {
            let name = &link.name;
            if name == "lo" || name == "all" || name == "default" || name == "." || name == ".." {
                return Err(LabError::Spec(format!("a link cannot be called `{name}`")));
            }
            if all().take(at).any(|other| other.name == *name) {
                return Err(LabError::Spec(format!("two links are called `{name}`")));
            }
            if !link.is_loaded() {
                return Err(LabError::Spec(format!(
                    "link {name}: its trace was not loaded; set its directory with --traces"
                )));
            }
        }
        let wrong = |segment: &&Segment| segment.from == segment.to || segment.from.max(segment.to) > MAX_SITES;
        if let Some(segment) = self.segments.iter().find(wrong) {
            let (from, to) = (segment.from, segment.to);
            return Err(LabError::Spec(format!(
                "segment {}: needs two different sites, at most {MAX_SITES}: {from} and {to}",
                segment.link.name
            )));
        }
        let farthest = self.segments.iter().map(|segment| segment.from.max(segment.to)).max().unwrap_or(0);
        if self.server_site > farthest {
            return Err(LabError::Spec(format!("there is no site {} for the server", self.server_site)));
        }
        match self.events.iter().find(|event| self.link_index(&event.link).is_none()) {
            Some(event) => Err(LabError::Spec(format!("event `{event}`: there is no link `{}`", event.link))),
            None => Ok(()),
        }
    }
}

/// A link's number is one byte of its addresses; 64 stays well below that.
const MAX_LINKS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(links: &[&str], events: &[&str]) -> LabSpec {
        let mut spec = LabSpec::new(links.iter().map(|l| l.parse().unwrap()).collect());
        spec.events = events.iter().map(|e| e.parse().unwrap()).collect();
        spec
    }

    #[test]
    fn invalid_specs_are_refused() {
        let wifi = "wifi,rate=8Mbit/s";
        assert!(spec(&[wifi], &["3s:wifi=down"]).validate().is_ok());
        assert!(spec(&[], &[]).validate().is_err());
        assert!(spec(&[wifi, wifi], &[]).validate().is_err());
        assert!(spec(&["lo,rate=8Mbit/s"], &[]).validate().is_err());
        assert!(spec(&[wifi], &["3s:lte=down"]).validate().is_err());
        assert!(spec(&["lte,trace=none.down"], &[]).validate().is_err());
        let segment_spec = |from, to, name: &str| {
            let link = format!("{name},rate=100Mbit/s").parse().unwrap();
            LabSpec { segments: vec![Segment { from, to, link }], ..spec(&[wifi], &["3s:onward=down"]) }
        };
        assert!(segment_spec(0, 1, "onward").validate().is_ok());
        assert!(LabSpec { server_site: 1, ..segment_spec(0, 1, "onward") }.validate().is_ok());
        assert!(LabSpec { server_site: 2, ..segment_spec(0, 1, "onward") }.validate().is_err());
        assert!(segment_spec(1, 1, "onward").validate().is_err());
        assert!(segment_spec(0, MAX_SITES + 1, "onward").validate().is_err());
        assert!(segment_spec(0, 1, "wifi").validate().is_err());
    }

    #[test]
    fn congestion_controls_parse_their_names() {
        for congestion in Congestion::ALL {
            assert_eq!(congestion.name().parse(), Ok(congestion));
        }
        assert!("vegas".parse::<Congestion>().is_err());
    }
}
