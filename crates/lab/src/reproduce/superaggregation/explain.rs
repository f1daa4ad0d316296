//! Why a published gain is not reproduced, according to the sender's TCP_INFO and the counters of the links.
//!
//! From the results of the paper's form of a mechanism and of plain TCP it makes a sentence, or none without such results.
//!
//! 1. The sentences are about this run's numbers: each is said only where its number was seen.
//! 2. Where no sentence fits, the numbers themselves stand there.

use super::config::{FigurePoint, Variant, Workload};
use super::measurement::{RunResult, TcpSummary};
use crate::Congestion;
use crate::accel::Contender;
use crate::results::stats;

/// Results of one figure point: those of a variant, and those of plain TCP in the same runs.
pub(super) struct ExplainInput<'a> {
    pub(super) sender: Congestion,
    pub(super) case: &'a FigurePoint,
    pub(super) variant: &'a Variant,
    pub(super) results: &'a [&'a RunResult],
    pub(super) plain_results: &'a [&'a RunResult],
    /// Plain TCP's percent of the ideal, where that was measured.
    pub(super) plain_ideal_percent: Option<f64>,
}

/// From this share of the ideal on plain TCP is near it. Our choice: then no gain of the paper's size fits in between.
const NEAR_IDEAL_PERCENT: f64 = 85.0;

impl ExplainInput<'_> {
    /// Explains the difference from the paper in one sentence; none: there is none to explain.
    pub(super) fn explanation(&self) -> Option<String> {
        let parts = [
            self.freeze_reason(),
            self.near_ideal_reason(),
            self.loss_rate_reason(),
            self.airtime_reason(),
            self.inactive_reason(),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        if parts.is_empty() { self.tcp_info_text() } else { Some(parts.join("; ")) }
    }

    fn freeze_reason(&self) -> Option<String> {
        let frozen = self.results.iter().any(|cell| cell.active.iter().any(|name| name.contains("freeze")));
        let (measured, plain_ssthresh) = (tcp(self.results, ssthresh)?, tcp(self.plain_results, ssthresh)?);
        let times = tcp(self.results, |tcp| Some(f64::from(tcp.max_backoff))).unwrap_or(0.0);
        (frozen && measured < plain_ssthresh / 2.0).then(|| {
            format!(
                "the sender cut ssthresh to {measured:.0} segments under the zero window (plain: {plain_ssthresh:.0}) and doubled its timer \
                 {times:.0} times: it does not persist while data is outstanding"
            )
        })
    }

    fn near_ideal_reason(&self) -> Option<String> {
        let share = self.plain_ideal_percent.filter(|share| *share > NEAR_IDEAL_PERCENT)?;
        Some(format!("plain TCP of today has {share:.0} % of the ideal already"))
    }

    /// Only where packets are lost: what a shared cell takes, it takes from every sender.
    fn loss_rate_reason(&self) -> Option<String> {
        let lost = self.case.testbed.loss.ppm() > 0
            || self.case.blackout_length.is_some()
            || !self.case.testbed.events.is_empty();
        (self.sender == Congestion::Bbr && lost).then(|| "BBR's rate does not follow losses".to_owned())
    }

    /// What there was to gain in a shared cell.
    fn airtime_reason(&self) -> Option<String> {
        let air = median(self.plain_results.iter().filter_map(|cell| cell.ack_airtime_percent))?;
        let ack_policy = match self.case.testbed.each_acknowledged {
            true => "one for each segment",
            false => "a kernel sends one for two segments",
        };
        let gain = 100.0 * air / (100.0 - air).max(1.0);
        Some(format!(
            "plain TCP's ACKs take {air:.0} % of the air ({ack_policy}): without them there is {gain:.0} % more"
        ))
    }

    /// The enabled mechanisms that were never active.
    fn inactive_reason(&self) -> Option<String> {
        let Workload::Download(_, contender) = &self.variant.work else { return None };
        if *contender == Contender::Plain {
            return None;
        }
        let done = || self.results.iter().flat_map(|cell| &cell.active);
        // A mechanism in its published form is reported by its plain name.
        let never = |name: &&str| !done().any(|known| name.starts_with(known.as_str()));
        let never: Vec<&str> = contender.enabled().into_iter().filter(never).collect();
        match done().next() {
            None => Some("no mechanism was active".to_owned()),
            Some(_) => (!never.is_empty()).then(|| format!("never active: {}", never.join(", "))),
        }
    }

    fn tcp_info_text(&self) -> Option<String> {
        let describe = |cells: &[&RunResult]| {
            let least = tcp(cells, ssthresh).map_or("never cut".to_owned(), |least| format!("down to {least:.0}"));
            let timer = tcp(cells, |tcp| Some(f64::from(tcp.max_backoff)))?;
            let again = tcp(cells, |tcp| Some(tcp.retransmitted as f64))?;
            Some(format!("ssthresh {least}, timer doubled {timer:.0} times, {again:.0} segments sent again"))
        };
        Some(format!("TCP_INFO: {}; plain: {}", describe(self.results)?, describe(self.plain_results)?))
    }
}

fn ssthresh(tcp: &TcpSummary) -> Option<f64> {
    tcp.min_ssthresh.map(f64::from)
}

fn tcp(cells: &[&RunResult], figure: impl Fn(&TcpSummary) -> Option<f64>) -> Option<f64> {
    median(cells.iter().filter_map(|cell| figure(cell.tcp_info.as_ref()?)))
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    stats::median(&values.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::super::config::cases;
    use super::*;

    fn cell(ssthresh: u32, backoff: u32, force: &[&str]) -> RunResult {
        let tcp = TcpSummary {
            min_ssthresh: Some(ssthresh),
            median_cwnd: 100,
            max_backoff: backoff,
            max_rto_ms: 300.0,
            retransmitted: 7,
        };
        let active = force.iter().map(|name| (*name).to_owned()).collect();
        RunResult { tcp_info: Some(tcp), active, ..RunResult::default() }
    }

    /// The explanation of the second variant (`paper`) of the artefact's first point.
    fn why(artefact: &str, sender: Congestion, paper: &RunResult, plain: &RunResult, share: Option<f64>) -> String {
        let case = &cases(artefact)[0];
        let input = ExplainInput {
            sender,
            case,
            variant: &case.variants[1],
            results: &[paper],
            plain_results: &[plain],
            plain_ideal_percent: share,
        };
        input.explanation().unwrap()
    }

    #[test]
    fn a_sentence_is_said_only_where_its_number_was_seen() {
        let plain = cell(125, 1, &[]);
        let explanation = why("F6", Congestion::Cubic, &cell(2, 3, &["zero-window-freeze"]), &plain, Some(93.0));
        assert!(explanation.contains("ssthresh to 2 segments under the zero window (plain: 125)"), "{explanation}");
        assert!(explanation.contains("93 % of the ideal"), "{explanation}");
        assert_eq!(why("F6", Congestion::Cubic, &cell(120, 1, &[]), &plain, Some(60.0)), "no mechanism was active");
        let numbers = why("F6", Congestion::Cubic, &cell(120, 1, &["zero-window-freeze"]), &plain, None);
        assert!(numbers.starts_with("TCP_INFO: ssthresh down to 120, timer doubled 1 times"), "{numbers}");
    }

    #[test]
    fn what_was_to_be_done_and_never_was_is_named() {
        let paper = RunResult { ack_airtime_percent: Some(15.0), ..cell(125, 1, &["ack-offload"]) };
        let explanation = why("F8", Congestion::Cubic, &paper, &cell(125, 1, &[]), None);
        assert_eq!(explanation, "never active: zero-window-freeze, fast-fetch");
    }

    #[test]
    fn a_shared_cell_is_about_the_air_and_not_about_losses() {
        let plain = RunResult { ack_airtime_percent: Some(17.2), ..cell(125, 0, &[]) };
        let explanation = why("F5", Congestion::Bbr, &cell(125, 0, &["ack-offload"]), &plain, None);
        assert!(
            explanation.contains("ACKs take 17 % of the air (a kernel sends one for two segments)"),
            "{explanation}"
        );
        assert!(!explanation.contains("BBR"), "{explanation}");
        let bbr_explanation =
            why("F6", Congestion::Bbr, &cell(125, 0, &["zero-window-freeze"]), &cell(125, 0, &[]), None);
        assert_eq!(bbr_explanation, "BBR's rate does not follow losses");
    }
}
