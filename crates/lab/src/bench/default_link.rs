//! `marline-lab bench default-link`: the link of the default route fails, and a program begins a flow at the edge: how long until its first
//! byte is back over the other link.
//!
//! | way | what the default link does |
//! |---|---|
//! | `silent` | drops all packets |
//! | `unreachable` | answers with ICMP host unreachable |
//! | `reset` | answers each TCP segment with a reset |
//! | `portal` | answers each TCP connection itself, in plain text |
//! | `certificate` | answers each TCP connection with TLS and the certificate of another authority |
//! | `mptcp` | drops SYNs with MPTCP's option |
//! | `dns` | drops packets to and from name servers; the relay is known by its name alone |
//!
//! 1. It fails before the edge starts (`start`), or after a first flow has been carried (`running`).
//! 2. With a relay (`relay`), and where the one that is named does not exist and flows go directly (`direct`). The latter takes no MPTCP, and
//!    the name is that of no relay: two of the ways are not asked for.
//! 3. Flows begin half a second apart; the slowest of the later ones counts.
//! 4. A figure decides no exit code.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use super::sheet::{Floor, Sheet};
use super::turns::{self, Cases, is_stopped, link};
use crate::evidence::By;
use crate::fleet::{Assign, Fleet, Known, Member, Setting, Through, address, flow};
use crate::result_file::ResultFile;
use crate::runner::command::begin;
use crate::{Congestion, LabError};

/// `marline-lab bench default-link`.
#[derive(Clone, Debug, Args)]
pub(super) struct DefaultLinkArgs {
    /// Only these: relay, direct, all; or one of their rows, `relay silent`.
    #[arg(long = "case", value_name = "LIST", value_delimiter = ',')]
    cases: Vec<String>,
    /// Repetitions.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    runs: u32,
    /// Write everything that was measured to this file as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The cases, in the order of the table.
const CASES: [&str; 2] = ["relay", "direct"];
/// The ways to fail, and whether they are asked for without a relay.
const WAYS: [(&str, bool); 7] = [
    ("silent", true),
    ("unreachable", true),
    ("reset", true),
    ("portal", true),
    ("certificate", true),
    ("mptcp", false),
    ("dns", false),
];
/// Where all links reach a name server, and a server of the Internet (RFC 5737).
const NAMES: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 53);
const PUBLIC: Ipv4Addr = Ipv4Addr::new(203, 0, 113, 9);
/// Where the default link's own servers listen: one that speaks no TLS, and one of another authority.
const PORTAL: u16 = 8081;
const STRANGER: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 1, 0, 1), 8082);

pub(super) fn run(args: &DefaultLinkArgs) -> Result<u8, LabError> {
    let cases = Cases::new("the default link", &CASES, &args.cases)?;
    let file = ResultFile::open_if(args.json.as_ref())?;
    begin(By::Lab)?;
    let program = crate::program::marline()?;
    let mut sheet = Sheet::default();
    turns::each(&cases.wanted(), |case| {
        for (way, is_direct) in WAYS {
            if !cases.wants(case, way) || (case == "direct" && !is_direct) {
                continue;
            }
            for when in ["start", "running"] {
                for run in 0..args.runs {
                    if is_stopped() {
                        return Ok(());
                    }
                    let row = Row { case, way, when, run, program: program.clone() };
                    row.measure(&mut sheet)?;
                }
            }
        }
        Ok(())
    })?;
    turns::end(file, "", &sheet.table(), &sheet.record(), sheet.problems)
}

struct Row<'a> {
    case: &'a str,
    way: &'a str,
    when: &'a str,
    run: u32,
    program: PathBuf,
}

impl Row<'_> {
    fn measure(&self, sheet: &mut Sheet) -> Result<(), LabError> {
        let name = format!("{} {}, {}", self.case, self.way, self.when);
        let links = [
            link("l0,kind=ethernet,rate=20Mbit/s,up=8Mbit/s,rtt=40ms"),
            link("l1,kind=lte,rate=20Mbit/s,up=8Mbit/s,rtt=60ms"),
        ];
        let setting = Setting {
            links: &links,
            relays: 1,
            assign: Assign::Fixed,
            through: Through::Proxy,
            congestion: Congestion::Cubic,
            seed: u64::from(self.run) + 1,
            program: &self.program,
        };
        let named = match (self.case, self.way) {
            ("direct", _) => Known::Absent,
            (_, "dns") => Known::ByName(NAMES),
            _ => Known::ByAddress,
        };
        let mut fleet = Fleet::without_edge(&setting)?;
        // A relay may reach the lab's own server; without one it is a matter of the Internet.
        let server =
            if self.case == "relay" { flow::TARGET.into() } else { SocketAddr::from((PUBLIC, flow::TARGET.1)) };
        let _stranger = servers(&fleet, server)?;
        if self.when == "start" {
            self.fail(&fleet)?;
        }
        fleet.start_edge(&setting, named)?;
        if self.when == "running" {
            for _ in 0..2 {
                if let Err(why) = flow::said_back_from(fleet.lab(), server, PATIENCE) {
                    sheet.problem(&name, "marline", self.run, &why);
                }
                std::thread::sleep(APART);
            }
            self.fail(&fleet)?;
        }
        // Without a relay that answers, a portal is recognized by the next attempt to reach one.
        if (self.case, self.when) == ("direct", "running") && matches!(self.way, "portal" | "certificate") {
            let began = Instant::now();
            while flow::said_back_from(fleet.lab(), server, PATIENCE).is_err() && began.elapsed() < PATIENCE {
                std::thread::sleep(APART / 5);
            }
            let figure = began.elapsed().as_secs_f64();
            sheet.add(&name, "s, recognized", ("marline", &Floor::Stated), "marline", figure);
        }
        let (mut first, mut later) = (None, Duration::ZERO);
        for turn in 0..FLOWS {
            match flow::said_back_from(fleet.lab(), server, PATIENCE) {
                Ok(time) if first.is_none() => first = Some(time),
                Ok(time) => later = later.max(time),
                Err(why) => sheet.problem(&name, "marline", self.run, &format!("flow {turn}: {why}")),
            }
            std::thread::sleep(APART);
        }
        let mut add = |what, floor: f64, figure: Duration| {
            sheet.add(&name, what, ("marline", &Floor::AtMost(floor)), "marline", figure.as_secs_f64());
        };
        if let Some(first) = first {
            add("s, first flow", 1.5, first);
            add("s, later flows", 0.3, later);
        }
        if let Some(why) = fleet.lab().emulation()?.suspect() {
            sheet.suspect(&name, &why);
        }
        Ok(())
    }

    /// The default link fails from now on, at the server's end.
    fn fail(&self, fleet: &Fleet) -> Result<(), LabError> {
        let (filter, redirect) = match self.way {
            "silent" => ("drop".to_owned(), String::new()),
            "unreachable" => ("reject with icmp type host-unreachable".to_owned(), String::new()),
            "reset" => ("meta l4proto tcp reject with tcp reset".to_owned(), String::new()),
            "portal" => (String::new(), format!("meta l4proto tcp redirect to :{PORTAL}")),
            "certificate" => (String::new(), format!("meta l4proto tcp redirect to :{}", STRANGER.1)),
            "mptcp" => ("tcp flags syn tcp option mptcp exists drop".to_owned(), String::new()),
            _ => ("meta l4proto { tcp, udp } th dport 53 drop".to_owned(), String::new()),
        };
        let on = |rule: &str| if rule.is_empty() { String::new() } else { format!("iifname \"l0\" {rule};") };
        let table = format!(
            "table ip dead {{ chain in {{ type filter hook input priority -400; {} }}; \
             chain to {{ type nat hook prerouting priority -100; {} }}; }}",
            on(&filter),
            on(&redirect)
        );
        let step = || LabError::at("nft at the server's end");
        let output = fleet.lab().at_server(Command::new("nft").arg(table)).map_err(step())?;
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        output.status.success().then_some(()).ok_or_else(|| step()(io::Error::other(said)))
    }
}

/// The server of the flows, what answers over the default link in the place of others, and a name server.
fn servers(fleet: &Fleet, server: SocketAddr) -> Result<Member, LabError> {
    for address in [NAMES, PUBLIC] {
        fleet.lab().set_address(address, true)?;
    }
    flow::echo_at(fleet.lab(), server)?;
    let bound = fleet
        .lab()
        .inside_server(|| Ok((UdpSocket::bind((NAMES, 53))?, TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORTAL))?)));
    let (names, portal) = bound.map_err(LabError::at("servers at the server's end"))?;
    std::thread::spawn(move || name_server(&names, address(0)));
    std::thread::spawn(move || {
        for mut stream in portal.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/\r\n\r\n");
        }
    });
    fleet.stranger(STRANGER.into())
}

/// Answers each question for an IPv4 address with this one, and each other question with none (RFC 1035 section 4.1), for as long as the lab
/// lasts.
fn name_server(socket: &UdpSocket, address: Ipv4Addr) {
    let mut packet = [0; 512];
    while let Ok((length, from)) = socket.recv_from(&mut packet) {
        if let Some(answer) = answer(packet.get(..length).unwrap_or_default(), address) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

fn answer(question: &[u8], address: Ipv4Addr) -> Option<Vec<u8>> {
    let labels = question.get(12..)?;
    let end = 12 + labels.iter().position(|byte| *byte == 0)? + 5;
    let is_v4 = question.get(end - 4..end)? == [0, 1, 0, 1];
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, u8::from(is_v4), 0, 0, 0, 0]);
    answer.extend(question.get(12..end)?);
    if is_v4 {
        // The name of the question, type A, class IN, a minute.
        answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}

/// chosen: programs begin flows when people do something.
const APART: Duration = Duration::from_millis(500);
/// chosen: more than the edge keeps ready.
const FLOWS: u32 = 5;
/// A flow that needs this long has not worked.
const PATIENCE: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_an_ipv4_address_is_answered_and_another_one_has_no_answer() {
        let question = |kind: u8| {
            let mut packet = vec![7, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 3, b'l', b'a', b'b', 0];
            packet.extend([0, kind, 0, 1]);
            packet
        };
        let address = Ipv4Addr::new(10, 99, 0, 11);
        let found = answer(&question(1), address).unwrap();
        assert_eq!((&found[..2], found[7], &found[found.len() - 4..]), (&[7, 9][..], 1, &[10, 99, 0, 11][..]));
        assert_eq!(answer(&question(28), address).unwrap()[7], 0);
        assert_eq!(answer(&[0; 11], address), None);
        assert_eq!(answer(&[1; 40], address), None);
    }
}
