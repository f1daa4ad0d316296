//! `marline-lab bench default-link`: the link of the default route fails, and a program opens a new flow through
//! the edge. Measured is the time until its first byte returns over the other link.
//!
//! | failure | what the default link does |
//! |---|---|
//! | `silent` | drops all packets |
//! | `unreachable` | responds with ICMP host unreachable |
//! | `reset` | responds to each TCP segment with RST |
//! | `portal` | accepts each TCP connection itself, and responds in plain text (captive portal) |
//! | `certificate` | accepts each TCP connection with TLS and the certificate of another authority |
//! | `mptcp` | drops SYNs with the MPTCP option |
//! | `dns` | drops packets to name servers; the relay is known only by its name |
//!
//! 1. The link fails before the edge starts (`start`), or after two flows have worked (`running`).
//! 2. Each failure is measured with a relay (`relay`), and with a relay that does not exist, so that flows go
//!    directly (`direct`). Direct flows do not use MPTCP, and there is no relay name to resolve, so `mptcp` and
//!    `dns` are omitted.
//! 3. Five flows follow, each half a second after the previous one. Reported are the time of the first one and that of the slowest later
//!    one.
//! 4. The figures do not affect the exit code.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::cases::{self, Cases, parse_link};
use super::report::{ReportTable, Threshold};
use crate::fleet::{
    EdgeAccess, FleetConfig, FleetProcess, LabFleet, RelayAddressing, RelayAssignment, client_flow, relay_address,
};
use crate::interrupt::is_interrupted;
use crate::result_file::ResultFile;
use crate::results::Backend;
use crate::runner::command::prepare_run;
use crate::{Congestion, LabError};

/// Options of `marline-lab bench default-link`.
#[derive(Clone, Debug, Args)]
pub(super) struct DefaultLinkArgs {
    /// Only these cases: relay, direct, all; or one of their rows, `relay silent`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Number of repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Write all measurements to this file, as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 2] = ["relay", "direct"];
/// The failures, and whether they are measured without a relay.
const FAILURES: [(&str, bool); 7] = [
    ("silent", true),
    ("unreachable", true),
    ("reset", true),
    ("portal", true),
    ("certificate", true),
    ("mptcp", false),
    ("dns", false),
];
/// Addresses of the name server and of a server on the Internet, which are reached over all links (RFC 5737).
const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
const PUBLIC_SERVER: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// Ports of the servers that the failing link redirects to: one without TLS, and one with a certificate of another
/// authority.
const PORTAL_PORT: u16 = 8081;
const FOREIGN_RELAY: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 1, 0, 1), 8082);

pub(super) fn run(args: &DefaultLinkArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the default link", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    prepare_run(Backend::Lab)?;
    let program = crate::program::marline()?;
    let mut report = ReportTable::default();
    cases::run_cases(&cases.selected_cases(), |case| {
        for (failure, is_direct) in FAILURES {
            if !cases.is_selected(case, failure) || (case == "direct" && !is_direct) {
                continue;
            }
            for phase in ["start", "running"] {
                for run in 0..args.runs {
                    if is_interrupted() {
                        return Ok(());
                    }
                    let row = DefaultLinkRun { case, failure, phase, run, program: program.clone() };
                    row.measure(&mut report)?;
                }
            }
        }
        Ok(())
    })?;
    cases::finish(file, "", &report.table(), &report.to_json(), report.problems)
}

struct DefaultLinkRun<'a> {
    case: &'a str,
    failure: &'a str,
    phase: &'a str,
    run: u32,
    program: PathBuf,
}

impl DefaultLinkRun<'_> {
    fn measure(&self, report: &mut ReportTable) -> Result<(), LabError> {
        let name = format!("{} {}, {}", self.case, self.failure, self.phase);
        let links = [
            parse_link("l0,kind=ethernet,rate=20Mbit/s,up=8Mbit/s,rtt=40ms"),
            parse_link("l1,kind=lte,rate=20Mbit/s,up=8Mbit/s,rtt=60ms"),
        ];
        let config = FleetConfig {
            links: &links,
            relays: 1,
            assignment: RelayAssignment::CommandLine,
            access: EdgeAccess::Proxy,
            congestion: Congestion::Cubic,
            seed: u64::from(self.run) + 1,
            program: &self.program,
        };
        let relay_addressing = match (self.case, self.failure) {
            ("direct", _) => RelayAddressing::Absent,
            (_, "dns") => RelayAddressing::HostName(NAME_SERVER),
            _ => RelayAddressing::Address,
        };
        let mut fleet = LabFleet::without_edge(&config)?;
        // A relay may connect to the lab's private server address. Without a relay the address must be a public
        // one.
        let target = if self.case == "relay" {
            client_flow::TARGET_ADDRESS.into()
        } else {
            SocketAddr::from((PUBLIC_SERVER, client_flow::TARGET_ADDRESS.1))
        };
        let _foreign_relay = start_servers(&fleet, target)?;
        if self.phase == "start" {
            self.break_default_link(&fleet)?;
        }
        fleet.start_edge(&config, relay_addressing)?;
        if self.phase == "running" {
            // Two flows, so that the edge has used and renewed its ready connections before the failure.
            for _ in 0..2 {
                if let Err(reason) = client_flow::echo_round_trip_to(fleet.lab(), target, FLOW_TIMEOUT) {
                    report.problem(&name, "marline", self.run, &reason);
                }
                std::thread::sleep(FLOW_INTERVAL);
            }
            self.break_default_link(&fleet)?;
        }
        // Without a working relay, the edge recognizes a portal only at its next connection attempt to a relay.
        if (self.case, self.phase) == ("direct", "running") && matches!(self.failure, "portal" | "certificate") {
            let start = Instant::now();
            while client_flow::echo_round_trip_to(fleet.lab(), target, FLOW_TIMEOUT).is_err()
                && start.elapsed() < FLOW_TIMEOUT
            {
                std::thread::sleep(FLOW_INTERVAL / 5);
            }
            let recognition_s = start.elapsed().as_secs_f64();
            report.add(&name, "s, recognized", ("marline", &Threshold::Stated), "marline", recognition_s);
        }
        let (mut first_flow, mut slowest_later) = (None, Duration::ZERO);
        for flow_number in 0..FLOW_COUNT {
            match client_flow::echo_round_trip_to(fleet.lab(), target, FLOW_TIMEOUT) {
                Ok(time) if first_flow.is_none() => first_flow = Some(time),
                Ok(time) => slowest_later = slowest_later.max(time),
                Err(reason) => report.problem(&name, "marline", self.run, &format!("flow {flow_number}: {reason}")),
            }
            std::thread::sleep(FLOW_INTERVAL);
        }
        let mut add = |metric, threshold: f64, figure: Duration| {
            report.add(&name, metric, ("marline", &Threshold::AtMost(threshold)), "marline", figure.as_secs_f64());
        };
        if let Some(first) = first_flow {
            add("s, first flow", 1.5, first);
            add("s, later flows", 0.3, slowest_later);
        }
        if let Some(reason) = fleet.lab().emulation_report()?.unreliable_reason() {
            report.mark_unreliable(&name, &reason);
        }
        Ok(())
    }

    /// Makes the default link fail from now on, with nftables rules in the server namespace.
    fn break_default_link(&self, fleet: &LabFleet) -> Result<(), LabError> {
        let (filter_rule, redirect_rule) = match self.failure {
            "silent" => ("drop".to_owned(), String::new()),
            "unreachable" => ("reject with icmp type host-unreachable".to_owned(), String::new()),
            "reset" => ("meta l4proto tcp reject with tcp reset".to_owned(), String::new()),
            "portal" => (String::new(), format!("meta l4proto tcp redirect to :{PORTAL_PORT}")),
            "certificate" => (String::new(), format!("meta l4proto tcp redirect to :{}", FOREIGN_RELAY.1)),
            "mptcp" => ("tcp flags syn tcp option mptcp exists drop".to_owned(), String::new()),
            _ => ("meta l4proto { tcp, udp } th dport 53 drop".to_owned(), String::new()),
        };
        let rule_text =
            |rule: &str| if rule.is_empty() { String::new() } else { format!("iifname \"l0\" {rule};") };
        let table = format!(
            "table ip dead {{ chain in {{ type filter hook input priority -400; {} }}; \
             chain to {{ type nat hook prerouting priority -100; {} }}; }}",
            rule_text(&filter_rule),
            rule_text(&redirect_rule)
        );
        let step = || LabError::at_step("nft at the server's end");
        let output = fleet.lab().output_at_server(Command::new("nft").arg(table)).map_err(step())?;
        let stderr = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or_else(|| step()(io::Error::other(stderr)))
    }
}

/// Starts the echo server, the servers that the failing link redirects to, and the name server.
fn start_servers(fleet: &LabFleet, server: SocketAddr) -> Result<FleetProcess, LabError> {
    for address in [NAME_SERVER, PUBLIC_SERVER] {
        fleet.lab().set_address(address, true)?;
    }
    client_flow::start_echo_at(fleet.lab(), server)?;
    let sockets = fleet.lab().run_at_server(|| {
        Ok((UdpSocket::bind((NAME_SERVER, 53))?, TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORTAL_PORT))?))
    });
    let (dns_socket, portal) = sockets.map_err(LabError::at_step("servers at the server's end"))?;
    std::thread::spawn(move || name_server(&dns_socket, relay_address(0)));
    std::thread::spawn(move || {
        for mut stream in portal.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n");
        }
    });
    fleet.start_foreign_relay(FOREIGN_RELAY.into())
}

/// Answers each query for an IPv4 address with `address`, and other queries without records (RFC 1035 section 4.1),
/// as long as the lab runs.
fn name_server(socket: &UdpSocket, address: Ipv4Addr) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        if let Some(response) = dns_response(packet.get(..length).unwrap_or_default(), address) {
            let _ = socket.send_to(&response, from);
        }
    }
}

fn dns_response(query: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let labels = query.get(12..)?;
    let end = 12 + labels.iter().position(|byte| *byte == 0)? + 5;
    let is_v4 = query.get(end - 4..end)? == [0, 1, 0, 1];
    let mut response = query.get(..2)?.to_vec();
    response.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    response.extend(query.get(12..end)?);
    if is_v4 {
        // Compressed name of the question, type A, class IN, TTL of one minute, four bytes of data.
        response.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        response.extend(address.octets());
    }
    Some(response)
}

/// Our choice: about the rate at which programs open flows for a user.
const FLOW_INTERVAL: Duration = Duration::from_millis(500);
/// Our choice: more than the number of ready connections that the edge keeps.
const FLOW_COUNT: u32 = 5;
/// A flow that takes longer has failed.
const FLOW_TIMEOUT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_for_an_ipv4_address_gets_a_record_and_other_queries_none() {
        let question = |kind: u8| {
            let mut packet = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 3, b'l', b'a', b'b', 0];
            packet.extend([0, kind, 0, 1]);
            packet
        };
        let address = Ipv4Addr::new(10, 99, 0, 11);
        let found = dns_response(&question(1), address).unwrap();
        assert_eq!((&found[..2], found[7], &found[found.len() - 4..]), (&[7, 9][..], 1, &[10, 99, 0, 11][..]));
        assert_eq!(dns_response(&question(28), address).unwrap()[7], 0);
        assert_eq!(dns_response(&[0; 11], address), None);
        assert_eq!(dns_response(&[1; 40], address), None);
    }
}
