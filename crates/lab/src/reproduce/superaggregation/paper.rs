//! The numbers in the text of Super-aggregation. Its figures are plots without numbers.

/// A number of the paper: for an artefact's case (the beginning of its name), a variant and a metric.
pub(super) struct PaperStatement {
    artefact: &'static str,
    case: &'static str,
    variant: &'static str,
    metric: &'static str,
    value: f64,
    section: &'static str,
}

const fn statement(
    (artefact, case): (&'static str, &'static str),
    variant: &'static str,
    metric: &'static str,
    value: f64,
    section: &'static str,
) -> PaperStatement {
    PaperStatement { artefact, case, variant, metric, value, section }
}

const STATEMENTS: [PaperStatement; 14] = [
    statement(("F1", "11g-mixed"), "both", GAIN, 3.0, "§2.2"),
    statement(("F1", "11b"), "both", GAIN, 16.0, "§2.2"),
    statement(("F2a", "11g-mixed"), "udp", GAIN, 30.0, "§3.1"),
    statement(("F2a", "11b"), "udp", GAIN, 70.0, "§3.1"),
    statement(("F2a", "11b-paper"), "udp", GAIN, 70.0, "§3.1"),
    statement(("F2c", "1%, 50ms"), "plain", IDEAL_PERCENT, 20.0, "§3.3: less than"),
    statement(("F5", "11g-mixed, 50ms"), "paper", GAIN, 37.0, "§6.3"),
    statement(("F5", "11b, 50ms"), "paper", GAIN, 152.0, "§6.3"),
    statement(("F5", "11b-paper, 50ms"), "paper", GAIN, 152.0, "§6.3"),
    statement(("F6", "2s, 50ms"), "paper", GAIN, 87.0, "§6.4"),
    statement(("F6", "2s, 200ms"), "paper", GAIN, 161.0, "§6.4"),
    statement(("F6", "10s, 50ms"), "paper", GAIN, 136.0, "§6.4"),
    statement(("F7", "1%, 200ms"), "paper", GAIN, 175.0, "§6.5, which does not tell the loss"),
    statement(("F8", "11g-mixed, 50ms"), "paper", GAIN, 189.0, "§6.6"),
];

/// What the client `paper` lacks of what the paper publishes, by figure.
pub(super) const LIMITS: [&str; 5] = [
    "  F5: replaceable ACKs are not discarded (§4.2), the front of a window is not preferred (§3.1), 280 of the second link's 400 \
     kbit/s are used; the threshold of 20 segments takes rate × handshake RTT for the window, so that in 11b-paper it never \
     starts (a defect of ours).",
    "  F2b, F6: `freeze` alone. The paper says itself that Linux ignores it while data is outstanding, and combines it there with \
     acknowledging what is on its way (§3.2); that form is `freeze-flight`, which is not played.",
    "  F7: `fast-fetch` alone; where an application can ask for ranges the paper uses them (§3.3, §8): see `ranges`.",
    "  F8: all three so; mirroring is given up before the second link appears (a defect of ours).",
    "  Not compared: ACK aggregation (8.27 %, §6.3), 36 times faster fetching (§6.5), Android (31, 42, 67 %, \
     §6.7), 100 % at 0.1 % loss (§9), 3.6 % (§1).",
];

/// Percent more than plain TCP; in `F1` more than Wi-Fi alone, in `F2a` more than TCP.
pub(super) const GAIN: &str = "gain";
/// Percent of the ideal: plain TCP without loss and blackouts, times the share of the time without a blackout.
pub(super) const IDEAL_PERCENT: &str = "of ideal";

/// The paper's number for this figure, and its section.
pub(super) fn paper_value(artefact: &str, case: &str, variant: &str, metric: &str) -> Option<(f64, &'static str)> {
    let fits = |statement: &&PaperStatement| {
        statement.artefact == artefact
            && statement.variant == variant
            && statement.metric == metric
            && is_case(case, statement.case)
    };
    STATEMENTS.iter().find(fits).map(|statement| (statement.value, statement.section))
}

/// Whether the paper has a number for this point.
pub(super) fn has_statement(artefact: &str, case: &str) -> bool {
    STATEMENTS.iter().any(|statement| statement.artefact == artefact && is_case(case, statement.case))
}

/// The same case, or the same with more words behind a comma.
fn is_case(case: &str, stated_case: &str) -> bool {
    case.strip_prefix(stated_case).is_some_and(|remaining| remaining.is_empty() || remaining.starts_with(", "))
}

#[cfg(test)]
mod tests {
    use super::super::config::cases;
    use super::*;

    #[test]
    fn each_sentence_is_about_a_point_that_is_measured() {
        for statement in &STATEMENTS {
            let all = cases(statement.artefact);
            let case = all.iter().find(|case| is_case(&case.name, statement.case));
            let case = case.unwrap_or_else(|| panic!("{} {}", statement.artefact, statement.case));
            assert!(
                case.variants.iter().any(|variant| variant.name == statement.variant),
                "{} {}",
                statement.artefact,
                statement.variant
            );
        }
        assert_eq!(paper_value("F5", "11g-mixed, 50ms, an ACK a segment", "paper", GAIN), Some((37.0, "§6.3")));
        assert_eq!(paper_value("F5", "11g-mixed, 500ms", "paper", GAIN), None);
    }
}
