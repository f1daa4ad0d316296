//! Figures of GreenBag's evaluation (section V) as cases, and further cases for marline's policy.
//!
//! | artefact | what varies |
//! |---|---|
//! | `F9a` `F9b` | segment size, at three bandwidth ratios and at three bit rates; 40 s of video |
//! | `F10` | bandwidth ratio, for adaptive and for equal subsegments; 4.8 Mbit/s, 40 s |
//! | `F11` | one rate drop of Wi-Fi, with and without recovery |
//! | `F12` | no to four drops of 6 to 25 s, with and without recovery; 110 s |
//! | `F13` | bit rate, 50 to 100 % of 3 + 3 Mbit/s; 120 s |
//! | `F14` | the bandwidths of Table II; 6.1 Mbit/s, 117 s, segments of 1000 KB |
//! | `X-over` | bit rates above the bandwidth |
//! | `X-fluct` | fluctuating bandwidths |
//! | `X-traces` | pairs of recorded links |
//!
//! 1. Figures 9 to 12 compare GreenBag with itself. Only playback matters there, so the policy is GB-P.
//! 2. In a drop, Wi-Fi has 100 kbit/s. Figure 11 of the paper has no readable scale, and its text mentions hundreds
//!    of kbit/s in section V-B. With a smaller drop the link recovers before the buffer runs empty.
//! 3. Figure 12 is run in two forms. As written, the video needs 110 % of the bandwidth. Then every client is
//!    limited by the links, and nothing that is prefetched is lost. The same paragraph states that "the total
//!    average bandwidth is still sufficient for streaming the video without interruption", which holds if the
//!    bandwidth is 110 % of the video's rate. Those are the cases with `spare`: outside its drops Wi-Fi is faster
//!    by what it loses in them, so that its average stays the same.
//! 4. Only the averages of figure 14's real links are published. They are constant here. An additional case gives
//!    Mobile the fades that the text describes (5 to 10 s at hundreds of kbit/s).

use marline_core::playback::MediaProfile;
use marline_core::units::{Bitrate, DataSize, Duration};
use marline_sim::rate_process::{RateDrop, apply_drops, log_ar1, rate_drops};

use super::config::{GreenBagPolicy, RunConfig, video};

/// The artefacts that need no traces, in the order of the output.
pub(super) const ARTEFACTS: [&str; 9] = ["F9a", "F9b", "F10", "F11", "F12", "F13", "F14", "X-over", "X-fluct"];
/// The artefact that needs traces.
pub(super) const TRACES: &str = "X-traces";

/// One case of an artefact.
#[derive(Clone, Debug)]
pub(super) struct FigureCase {
    pub(super) artefact: &'static str,
    pub(super) case: String,
    pub(super) policies: Vec<GreenBagPolicy>,
    /// One configuration per repetition.
    pub(super) runs: Vec<RunConfig>,
    /// Whether to compute the minimum energy.
    pub(super) wants_energy: bool,
}

/// Extent of the reproduction.
#[derive(Clone, Copy, Debug)]
pub(super) struct Effort {
    /// Number of repetitions of random cases, instead of `drop_draws` and `rate_draws`.
    pub(super) runs: Option<u32>,
    /// Segment sizes of figure 9, in KiB.
    pub(super) segment_sizes: &'static [u64],
    /// Repetitions of figure 12.
    pub(super) drop_draws: u32,
    /// Repetitions of cases with fluctuating rates.
    pub(super) rate_draws: u32,
}

impl FigureCase {
    /// Keeps the policies that these names select (`F13`, `F13 80%`, `F13 80% marline`; all, if there are no
    /// names). Returns false if none is left.
    pub(super) fn retain_named(&mut self, names: &[String]) -> bool {
        let (artefact, case) = (self.artefact, format!("{} {}", self.artefact, self.case));
        let keeps_all = names.is_empty() || names.iter().any(|name| *name == artefact || *name == case);
        self.policies.retain(|policy| keeps_all || names.contains(&format!("{case} {}", policy.name())));
        !self.policies.is_empty()
    }
}

impl Effort {
    /// The paper's ten repetitions of figure 12, and twenty with fluctuating rates.
    pub(super) const FULL: Self = Self { runs: None, segment_sizes: &SEGMENTS, drop_draws: 10, rate_draws: 20 };
    /// What takes an hour in real time.
    pub(super) const LAB: Self = Self { runs: None, segment_sizes: &SOME_SEGMENTS, drop_draws: 2, rate_draws: 4 };
    /// What takes half a minute in virtual time.
    pub(super) const QUICK: Self = Self { runs: None, segment_sizes: &FEW_SEGMENTS, drop_draws: 2, rate_draws: 2 };

    fn run_seeds(self, usual: u32) -> std::ops::Range<u64> {
        0..u64::from(self.runs.unwrap_or(usual))
    }
}

/// The cases of an artefact.
pub(super) fn figures(artefact: &'static str, effort: Effort) -> Vec<FigureCase> {
    match artefact {
        "F9a" => f9a(effort),
        "F9b" => f9b(effort),
        "F10" => f10(),
        "F11" => f11(),
        "F12" => f12(effort),
        "F13" => cases_by_rate("F13", &[50, 60, 70, 80, 90, 100]),
        "F14" => f14(),
        "X-over" => cases_by_rate("X-over", &[110, 120]),
        _ => fluctuating_cases(effort),
    }
}

/// Ratios of LTE to Wi-Fi with a total of 6 Mbit/s; in kbit/s.
const RATIOS: [(&str, u64, u64); 3] = [("1:1", 3000, 3000), ("1:3", 1500, 4500), ("1:5", 1000, 5000)];
/// Segment sizes in KiB.
const SEGMENTS: [u64; 10] = [10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_240];
const SOME_SEGMENTS: [u64; 5] = [10, 100, 500, 2000, 10_240];
const FEW_SEGMENTS: [u64; 4] = [10, 100, 1000, 10_240];

const GREENBAG_ONLY: &[GreenBagPolicy] = &[GreenBagPolicy::GreenbagP];
const BALANCE_POLICIES: &[GreenBagPolicy] =
    &[GreenBagPolicy::GreenbagP, GreenBagPolicy::EqualSubsegments, GreenBagPolicy::Marline];
const RECOVERY_POLICIES: &[GreenBagPolicy] = &[
    GreenBagPolicy::GreenbagP,
    GreenBagPolicy::WithoutRecovery,
    GreenBagPolicy::GreenbagE,
    GreenBagPolicy::Marline,
];
/// The policies of figures 13 and 14.
pub(super) const ALL_POLICIES: &[GreenBagPolicy] = &[
    GreenBagPolicy::LteOnly,
    GreenBagPolicy::WifiOnly,
    GreenBagPolicy::GreenbagP,
    GreenBagPolicy::GreenbagE,
    GreenBagPolicy::Marline,
];
const GREENBAG_AND_MARLINE: &[GreenBagPolicy] =
    &[GreenBagPolicy::GreenbagP, GreenBagPolicy::GreenbagE, GreenBagPolicy::Marline];

fn new_case(
    artefact: &'static str,
    case: impl Into<String>,
    policy: &'static [GreenBagPolicy],
    run: RunConfig,
) -> FigureCase {
    FigureCase { artefact, case: case.into(), policies: policy.to_vec(), runs: vec![run], wants_energy: false }
}

fn f9a(effort: Effort) -> Vec<FigureCase> {
    let make_figures = |(ratio, lte, wifi): (&'static str, u64, u64)| {
        effort.segment_sizes.iter().copied().map(move |kib| {
            let run = RunConfig::constant(kbps(lte), kbps(wifi), video_of(5400, 40));
            new_case(
                "F9a",
                format!("{ratio} {kib} KiB"),
                GREENBAG_ONLY,
                run.with_segment_size(DataSize::from_kib(kib)),
            )
        })
    };
    RATIOS.into_iter().flat_map(make_figures).collect()
}

fn f9b(effort: Effort) -> Vec<FigureCase> {
    let make_figures = |percent: u64| {
        effort.segment_sizes.iter().copied().map(move |kib| {
            let run = RunConfig::constant(kbps(3000), kbps(3000), video_of(60 * percent, 40));
            new_case(
                "F9b",
                format!("{percent}% {kib} KiB"),
                GREENBAG_ONLY,
                run.with_segment_size(DataSize::from_kib(kib)),
            )
        })
    };
    [80, 100, 120].into_iter().flat_map(make_figures).collect()
}

fn f10() -> Vec<FigureCase> {
    let make_figure = |(ratio, lte, wifi)| {
        new_case("F10", ratio, BALANCE_POLICIES, RunConfig::constant(kbps(lte), kbps(wifi), video_of(4800, 40)))
    };
    RATIOS.into_iter().map(make_figure).collect()
}

/// A drop of 15 s, early, in a video for which the links have 10 % spare bandwidth.
fn f11() -> Vec<FigureCase> {
    vec![new_case(
        "F11",
        "one hole",
        RECOVERY_POLICIES,
        run_with_drops(&[RateDrop { start: 25, length: 15 }], SPARE_RATE, true),
    )]
}

fn f12(effort: Effort) -> Vec<FigureCase> {
    let make_figures = |(suffix, rate, level): (&'static str, u64, bool)| {
        (0..=4).map(move |count: usize| {
            let drawn = |seed| run_with_drops(&rate_drops(seed, count, 10..110, 6, 25), rate, level);
            // Without a drop the case is not random.
            let seeds = if count == 0 { 0..1 } else { effort.run_seeds(effort.drop_draws) };
            let runs = seeds.map(drawn).collect();
            let case = format!("{count} drops{suffix}");
            FigureCase { artefact: "F12", case, policies: RECOVERY_POLICIES.to_vec(), runs, wants_energy: false }
        })
    };
    [("", 6600, false), (" spare", SPARE_RATE, true)].into_iter().flat_map(make_figures).collect()
}

/// Rate of a video for which 6 Mbit/s are 110 %, in kbit/s.
const SPARE_RATE: u64 = 5455;

/// 110 s of video at this rate over 3 + 3 Mbit/s, with drops of Wi-Fi. With `level`, the average rate during the
/// video is the same as without drops.
fn run_with_drops(holes: &[RateDrop], rate: u64, level: bool) -> RunConfig {
    const LENGTH: usize = 110;
    const WIFI: u64 = 3000;
    let lost: u64 = holes.iter().map(|hole| hole.length as u64).sum();
    let all = LENGTH as u64;
    let outside = if level { (WIFI * all - DROP_KBPS * lost) / (all - lost) } else { WIFI };
    let mut wifi = vec![kbps(outside); LENGTH];
    // After the duration of the video there are no drops to compensate.
    wifi.push(kbps(WIFI));
    apply_drops(&mut wifi, holes, kbps(DROP_KBPS));
    RunConfig::from_rates(vec![kbps(WIFI)], wifi, video_of(rate, LENGTH as u64))
}

/// Rate of Wi-Fi in a drop, in kbit/s.
const DROP_KBPS: u64 = 100;

fn cases_by_rate(artefact: &'static str, percents: &[u64]) -> Vec<FigureCase> {
    let make_figure = |percent: &u64| {
        let run = RunConfig::constant(kbps(3000), kbps(3000), video_of(60 * percent, 120));
        FigureCase { wants_energy: true, ..new_case(artefact, format!("{percent}%"), ALL_POLICIES, run) }
    };
    percents.iter().map(make_figure).collect()
}

/// Table II: LTE and Wi-Fi in kbit/s.
const TABLE_II: [(&str, u64, u64); 3] =
    [("Stationary 1", 5160, 3850), ("Stationary 2", 4070, 5000), ("Mobile", 4720, 4940)];

fn f14() -> Vec<FigureCase> {
    let large = |run: RunConfig| run.with_segment_size(DataSize::from_kib(1000));
    let make_figure = |(name, lte, wifi)| {
        let run = large(RunConfig::constant(kbps(lte), kbps(wifi), video_of(6100, 117)));
        FigureCase { wants_energy: true, ..new_case("F14", name, ALL_POLICIES, run) }
    };
    let mut figures: Vec<FigureCase> = TABLE_II.into_iter().map(make_figure).collect();
    // Three fades of 8 s; the average over 117 s is that of Table II.
    let fades = [20, 55, 90].map(|start| RateDrop { start, length: 8 });
    let mut wifi = vec![kbps((4940 * 117 - FADE_KBPS * 24) / (117 - 24)); 118];
    apply_drops(&mut wifi, &fades, kbps(FADE_KBPS));
    let faded = large(RunConfig::from_rates(vec![kbps(4720)], wifi, video_of(6100, 117)));
    figures.push(FigureCase { wants_energy: true, ..new_case("F14", "Mobile with fades", ALL_POLICIES, faded) });
    figures
}

/// Rate of Wi-Fi in a fade, in kbit/s.
const FADE_KBPS: u64 = 300;

/// Name; LTE, Wi-Fi and video in kbit/s; length in seconds; variation; whether Wi-Fi fades.
const FLUCTUATING: [(&str, u64, u64, u64, u64, f64, bool); 5] = [
    ("60%", 3000, 3000, 3600, 120, 0.3, false),
    ("80%", 3000, 3000, 4800, 120, 0.3, false),
    ("Stationary 1", 5160, 3850, 6100, 117, 0.4, false),
    ("Stationary 2", 4070, 5000, 6100, 117, 0.4, false),
    ("Mobile with fades", 4720, 4940, 6100, 117, 0.4, true),
];

fn fluctuating_cases(effort: Effort) -> Vec<FigureCase> {
    let make_figure = |(name, lte, wifi, rate, length, variation, fades): (&str, u64, u64, u64, u64, f64, bool)| {
        let drawn = |seed: u64| {
            let lte = log_ar1(seed, "lte", kbps(lte), variation, RATE_SECONDS);
            let mut wifi = log_ar1(seed, "wifi", kbps(wifi), variation, RATE_SECONDS);
            if fades {
                apply_drops(&mut wifi, &rate_drops(seed, 3, 15..115, 5, 10), kbps(FADE_KBPS));
            }
            RunConfig::from_rates(lte, wifi, video_of(rate, length))
        };
        let runs = effort.run_seeds(effort.rate_draws).map(drawn).collect();
        FigureCase {
            artefact: "X-fluct",
            case: name.into(),
            policies: GREENBAG_AND_MARLINE.to_vec(),
            runs,
            wants_energy: true,
        }
    };
    FLUCTUATING.into_iter().map(make_figure).collect()
}

/// Length of fluctuating rates in seconds; longer than any playback.
const RATE_SECONDS: usize = 400;

/// Artefact of the short video of `--quick` in real time.
pub(super) const QUICK: &str = "short";

/// The cases of [`QUICK`].
pub(super) fn quick_cases() -> Vec<FigureCase> {
    let run = RunConfig::constant(kbps(3000), kbps(3000), video_of(4800, 10));
    vec![FigureCase { wants_energy: true, ..new_case(QUICK, "80%", GREENBAG_AND_MARLINE, run) }]
}

/// A case with recorded links.
pub(super) fn trace_case(case: String, run: RunConfig) -> FigureCase {
    FigureCase { wants_energy: true, ..new_case(TRACES, case, GREENBAG_AND_MARLINE, run) }
}

fn kbps(n: u64) -> Bitrate {
    Bitrate::from_bits_per_sec(n * 1000)
}

fn video_of(kbit: u64, length: u64) -> MediaProfile {
    video(kbps(kbit), Duration::from_secs(length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_artefact_has_the_expected_number_of_cases() {
        let count = |effort: Effort| ARTEFACTS.map(|artefact| figures(artefact, effort).len());
        assert_eq!(count(Effort::FULL), [30, 30, 3, 1, 10, 6, 4, 2, 5]);
        assert_eq!(count(Effort::LAB), [15, 15, 3, 1, 10, 6, 4, 2, 5]);
        assert_eq!(count(Effort::QUICK), [12, 12, 3, 1, 10, 6, 4, 2, 5]);
        let seeds = |artefact, effort| figures(artefact, effort).pop().unwrap().runs.len();
        let all = |effort| ["F12", "X-fluct", "F13"].map(|artefact| seeds(artefact, effort));
        assert_eq!((all(Effort::FULL), all(Effort { runs: Some(3), ..Effort::LAB })), ([10, 20, 1], [3, 3, 1]));
    }

    #[test]
    fn cases_and_policies_can_be_selected_by_name() {
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            let mut all = figures("F13", Effort::LAB);
            all.retain_mut(|figure| figure.retain_named(&names));
            all.iter().map(|figure| figure.policies.len()).collect::<Vec<_>>()
        };
        assert_eq!(named(&["F13"]), [5; 6]);
        assert_eq!(named(&["F13 80%", "F13 90% marline", "F13 90% greenbag-p"]), [5, 2]);
        assert!(named(&["F13 85%", "F14"]).is_empty());
    }

    #[test]
    fn compensated_drops_do_not_change_the_average() {
        let long = [RateDrop { start: 10, length: 25 }, RateDrop { start: 60, length: 20 }];
        let none = run_with_drops(&[], SPARE_RATE, true).simulate(GreenBagPolicy::GreenbagP, false).unwrap();
        let some = run_with_drops(&long, SPARE_RATE, true).simulate(GreenBagPolicy::GreenbagP, false).unwrap();
        let plain = run_with_drops(&long, 6600, false).simulate(GreenBagPolicy::GreenbagP, false).unwrap();
        assert!(some.min_playback < none.min_playback + 6.0, "{some:?}");
        assert!(plain.min_playback > none.min_playback + 10.0, "{plain:?}");
    }
}
