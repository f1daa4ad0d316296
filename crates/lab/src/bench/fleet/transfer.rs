//! Cases `upload` and `download` of `bench fleet`: transfers through edge and relay over all links, over each link
//! alone, and with plain TCP.
//!
//! | client | what it uses |
//! |---|---|
//! | `marline` | edge and relay, all links |
//! | `edge:LINK` | edge and relay, only this link |
//! | `tcp:LINK` | plain TCP over this link, to the same server |
//!
//! Each client transfers what its links carry in the same time. The total rate counts from before the connection;
//! the rate `from 3 s on` is reported beside it, after the congestion windows have grown.

use std::time::Duration;

use marline_sim::spec::LinkSpec;

use super::super::report::{ReportTable, Threshold};
use super::{FleetBench, parse_link};
use crate::fleet::LabFleet;
use crate::fleet::client_flow::{ClientTransport, Direction, transfer};
use crate::interrupt::is_interrupted;
use crate::{Lab, LabError, LabSpec};

/// Row of the table. Links are given as Mbit/s in the measured direction and RTT in milliseconds.
struct TransferRow {
    name: &'static str,
    links: &'static [(u32, u32)],
    threshold: RateThreshold,
}

/// Threshold of a row.
enum RateThreshold {
    /// This share of the sum of the goodputs of the single links through the edge.
    OfSum(f64),
    /// This share of the better link alone through the edge.
    OfBest(f64),
}

const ROWS: [TransferRow; 5] = [
    TransferRow { name: "8+8", links: &[(8, 40), (8, 80)], threshold: RateThreshold::OfSum(0.92) },
    TransferRow { name: "8+8 20/120 ms", links: &[(8, 20), (8, 120)], threshold: RateThreshold::OfSum(0.92) },
    TransferRow { name: "5+10+3", links: &[(5, 20), (10, 60), (3, 120)], threshold: RateThreshold::OfSum(0.92) },
    TransferRow { name: "20+2", links: &[(20, 40), (2, 80)], threshold: RateThreshold::OfBest(0.97) },
    TransferRow { name: "20+2 120/20 ms", links: &[(20, 120), (2, 20)], threshold: RateThreshold::OfBest(0.97) },
];

/// Time that the edge runs before the transfer. Our choice: its connections to the relay are ready over all links,
/// as with an edge that was started before a stream.
const EDGE_WARM_UP: Duration = Duration::from_secs(3);

/// The links of a row. The direction that is not measured has a fixed rate, as asymmetric access links have.
fn links(row: &TransferRow, direction: Direction) -> Vec<LinkSpec> {
    let spec = |(at, (rate, rtt)): (usize, &(u32, u32))| {
        let kind = if at == 0 { "wifi" } else { "lte" };
        let rates = match direction {
            Direction::Up => format!("rate=40Mbit/s,up={rate}Mbit/s"),
            Direction::Down => format!("rate={rate}Mbit/s,up=2Mbit/s"),
        };
        parse_link(&format!("l{at},kind={kind},{rates},rtt={rtt}ms"))
    };
    row.links.iter().enumerate().map(spec).collect()
}

pub(super) fn run(bench: &FleetBench, report: &mut ReportTable, direction: Direction) -> Result<(), LabError> {
    for row in ROWS.iter().filter(|row| bench.is_selected(case(direction), row.name)) {
        let links = links(row, direction);
        for run in 0..bench.runs {
            for client in client_order(links.len(), run) {
                if is_interrupted() {
                    return Ok(());
                }
                measure(bench, report, direction, (row, &links), (client, run))?;
            }
        }
    }
    Ok(())
}

fn case(direction: Direction) -> &'static str {
    match direction {
        Direction::Up => "upload",
        Direction::Down => "download",
    }
}

/// What a transfer uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TransferClient {
    All,
    EdgeOver(usize),
    TcpOver(usize),
}

/// The clients of a run; the first one changes with each run.
fn client_order(links: usize, run: u32) -> Vec<TransferClient> {
    let single_links = (0..links).flat_map(|at| [TransferClient::EdgeOver(at), TransferClient::TcpOver(at)]);
    let mut clients: Vec<TransferClient> = [TransferClient::All].into_iter().chain(single_links).collect();
    let length = clients.len();
    clients.rotate_left(run as usize % length);
    clients
}

fn measure(
    bench: &FleetBench,
    report: &mut ReportTable,
    direction: Direction,
    (row, links): (&TransferRow, &[LinkSpec]),
    (client, run): (TransferClient, u32),
) -> Result<(), LabError> {
    let case = format!("{} {}", case(direction), row.name);
    let links_in_use: Vec<LinkSpec> = match client {
        TransferClient::All => links.to_vec(),
        TransferClient::EdgeOver(at) | TransferClient::TcpOver(at) => links.get(at).cloned().into_iter().collect(),
    };
    let rate_of = |at: usize| row.links.get(at).map_or(0, |(rate, _)| *rate);
    let bytes = match client {
        TransferClient::All => bytes_at_rates(row.links.iter().map(|(rate, _)| *rate), bench.transfer_seconds),
        TransferClient::EdgeOver(at) | TransferClient::TcpOver(at) => {
            bytes_at_rates([rate_of(at)], bench.transfer_seconds)
        }
    };
    let limit = Duration::from_secs(u64::from(bench.transfer_seconds) * 5 + 30);
    let (result, unreliable_reason) = match client {
        TransferClient::TcpOver(_) => {
            let lab = Lab::start(&LabSpec {
                congestion: bench.congestion,
                seed: u64::from(run) + 1,
                ..LabSpec::new(links_in_use.clone())
            })?;
            lab.start_links()?;
            (
                transfer(&lab, ClientTransport::Plain, direction, bytes, limit)?,
                lab.emulation_report()?.unreliable_reason(),
            )
        }
        _ => {
            let fleet = LabFleet::start(&bench.fleet_config(&links_in_use, 1, run))?;
            std::thread::sleep(EDGE_WARM_UP);
            (
                transfer(fleet.lab(), ClientTransport::Edge, direction, bytes, limit)?,
                fleet.lab().emulation_report()?.unreliable_reason(),
            )
        }
    };
    let client_name = client_name(client, links);
    match result {
        Err(reason) => report.problem(&case, &client_name, run, &reason),
        Ok(transferred) => {
            report.add(
                &case,
                "Mbit/s in all",
                ("marline", &threshold(row, links)),
                &client_name,
                transferred.mbps(),
            );
            report.add(
                &case,
                "Mbit/s from 3 s on",
                ("marline", &Threshold::Stated),
                &client_name,
                transferred.settled_bps / 1e6,
            );
        }
    }
    if let Some(reason) = unreliable_reason {
        report.mark_unreliable(&case, &reason);
    }
    Ok(())
}

fn client_name(client: TransferClient, links: &[LinkSpec]) -> String {
    let link = |at: usize| links.get(at).map_or("?", |link| &link.name).to_owned();
    match client {
        TransferClient::All => "marline".into(),
        TransferClient::EdgeOver(at) => format!("edge:{}", link(at)),
        TransferClient::TcpOver(at) => format!("tcp:{}", link(at)),
    }
}

fn threshold(row: &TransferRow, links: &[LinkSpec]) -> Threshold {
    let single_links = (0..links.len()).map(|at| client_name(TransferClient::EdgeOver(at), links)).collect();
    match row.threshold {
        RateThreshold::OfSum(share) => Threshold::AtLeastSum(share, single_links),
        RateThreshold::OfBest(share) => Threshold::AtLeastTimes(share, single_links),
    }
}

/// Bytes transferred at these rates (Mbit/s) in this time.
fn bytes_at_rates(rates: impl IntoIterator<Item = u32>, seconds: u32) -> u64 {
    rates.into_iter().map(u64::from).sum::<u64>() * 125_000 * u64::from(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_transfers_what_its_links_carry_in_the_same_time() {
        let all = links(&ROWS[2], Direction::Up);
        assert_eq!(bytes_at_rates([5, 10, 3], 20), 18_000_000 / 8 * 20);
        let names: Vec<String> = client_order(3, 0).into_iter().map(|client| client_name(client, &all)).collect();
        assert_eq!(names, ["marline", "edge:l0", "tcp:l0", "edge:l1", "tcp:l1", "edge:l2", "tcp:l2"]);
        assert_eq!(client_order(3, 8)[0], client_order(3, 1)[0]);
    }

    #[test]
    fn thresholds_refer_to_single_links() {
        let names = vec!["edge:l0".to_owned(), "edge:l1".to_owned()];
        let threshold = |row: &TransferRow| format!("{:?}", threshold(row, &links(row, Direction::Up)));
        assert_eq!(threshold(&ROWS[0]), format!("{:?}", Threshold::AtLeastSum(0.92, names.clone())));
        assert_eq!(threshold(&ROWS[3]), format!("{:?}", Threshold::AtLeastTimes(0.97, names)));
    }
}
