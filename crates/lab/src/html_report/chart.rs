//! Charts of throughput over time: one color per link, one line per run.
//!
//! No chart library is used. `plotters` writes a fixed color and size into each SVG element, while the style sheet of the page
//! chooses colors for light and dark screens, and `charming` needs scripts; `poloto` uses style sheets, but colors each line
//! differently and has no labeled marks, so the runs of a link would not look alike.

use std::fmt::Write;

use super::axis::Axis;
use super::escape::{coordinate, escape};

/// A chart of rates over time.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Caption above the chart.
    pub title: String,
    /// One entry per link.
    pub series: Vec<Series>,
    /// Vertical lines with labels.
    pub marks: Vec<ChartMark>,
}

/// One link in all runs.
#[derive(Clone, Debug)]
pub struct Series {
    /// The link's name.
    pub name: String,
    /// For each run, the rate of each slot in Mbit/s.
    pub runs: Vec<Vec<f64>>,
    /// Length of a slot in seconds.
    pub slot_s: f64,
}

/// A labeled vertical line at one time.
#[derive(Clone, Debug)]
pub struct ChartMark {
    /// Time in seconds.
    pub at_s: f64,
    /// Short text.
    pub label: String,
    /// Meaning of the mark, which selects how the line is drawn.
    pub stroke: Stroke,
}

/// Meaning of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stroke {
    /// End of this client's download.
    End,
    /// Earliest possible end.
    Ideal,
    /// End of the fastest other client's download.
    BestOther,
}

impl Stroke {
    const fn class(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Ideal => "ideal",
            Self::BestOther => "peer",
        }
    }
}

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 320.0;
const LEFT_MARGIN: f64 = 56.0;
const RIGHT_MARGIN: f64 = 12.0;
/// Space for the link names and the labels of the marks.
const TOP_MARGIN: f64 = 58.0;
/// Vertical position of the marks' labels.
const MARK_LABEL_Y: f64 = 32.0;
/// Estimated mean width of a character.
const LETTER_WIDTH: f64 = 7.0;
const BOTTOM_MARGIN: f64 = 48.0;
/// Maximum number of points of a line; more could not be distinguished, so neighbors are averaged.
const MAX_POINTS: usize = 160;

impl Chart {
    /// The latest time in the chart, in seconds.
    pub(super) fn span(&self) -> f64 {
        let ends =
            self.series.iter().flat_map(|series| series.runs.iter().map(|run| run.len() as f64 * series.slot_s));
        ends.chain(self.marks.iter().map(|mark| mark.at_s)).fold(0.0, f64::max)
    }

    /// The highest rate in the chart, in Mbit/s.
    pub(super) fn peak(&self) -> f64 {
        let step = point_interval(self.span());
        let points =
            self.series.iter().flat_map(|series| series.runs.iter().flat_map(move |run| series.points(run, step)));
        points.map(|(_, rate)| rate).fold(0.0, f64::max)
    }

    /// Writes the figure, with axes up to `span` seconds and `peak` Mbit/s.
    pub(super) fn write(&self, out: &mut String, span: f64, peak: f64) {
        let (time, rate) = (Axis::new(span, 8), Axis::new(peak, 6));
        let x = |at: f64| LEFT_MARGIN + (WIDTH - LEFT_MARGIN - RIGHT_MARGIN) * at / time.end;
        let y =
            |at: f64| HEIGHT - BOTTOM_MARGIN - (HEIGHT - TOP_MARGIN - BOTTOM_MARGIN) * at.min(rate.end) / rate.end;
        let title = escape(&self.title);
        let _ = writeln!(out, "<figure><figcaption>{title}</figcaption>");
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">"
        );
        let _ = writeln!(out, "<title>{title}</title>");
        for (at, label) in rate.ticks() {
            let (at, right) = (coordinate(y(at)), WIDTH - RIGHT_MARGIN);
            let _ =
                writeln!(out, "<line class=\"grid\" x1=\"{LEFT_MARGIN}\" y1=\"{at}\" x2=\"{right}\" y2=\"{at}\"/>");
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{at}\" dy=\".35em\" text-anchor=\"end\">{label}</text>",
                coordinate(LEFT_MARGIN - 7.0)
            );
        }
        let foot = HEIGHT - BOTTOM_MARGIN;
        for (at, label) in time.ticks() {
            let at = coordinate(x(at));
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{at}\" y1=\"{foot}\" x2=\"{at}\" y2=\"{}\"/>\
                 <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{label}</text>",
                foot + 5.0,
                foot + 20.0
            );
        }
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT_MARGIN}\" y1=\"{foot}\" x2=\"{}\" y2=\"{foot}\"/>",
            WIDTH - RIGHT_MARGIN
        );
        let middle = coordinate((LEFT_MARGIN + WIDTH - RIGHT_MARGIN) / 2.0);
        let _ = writeln!(out, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">time (s)</text>", HEIGHT - 8.0);
        let across = coordinate((TOP_MARGIN + foot) / 2.0);
        let _ = writeln!(
            out,
            "<text transform=\"translate(14 {across}) rotate(-90)\" text-anchor=\"middle\">rate of IP packets (Mbit/s)</text>"
        );
        let step = point_interval(span);
        for (index, series) in self.series.iter().enumerate() {
            let class = index % 4;
            let opacity = if series.runs.len() > 1 { " stroke-opacity=\".6\"" } else { "" };
            for run in &series.runs {
                let points: Vec<String> = series
                    .points(run, step)
                    .into_iter()
                    .map(|(at, rate)| format!("{},{}", coordinate(x(at)), coordinate(y(rate))))
                    .collect();
                let points = points.join(" ");
                let _ = writeln!(out, "<polyline class=\"run s{class}\"{opacity} points=\"{points}\"/>");
            }
            let at = coordinate(LEFT_MARGIN + 110.0 * index as f64);
            let name = escape(&series.name);
            let _ = writeln!(out, "<text class=\"key s{class}\" x=\"{at}\" y=\"14\">{name}</text>");
        }
        self.write_marks(out, x, foot);
        out.push_str("</svg></figure>\n");
    }

    /// Writes the marks as vertical lines. Their labels stand in one row above, each after a short sample of its
    /// line, so that labels of close marks do not overlap.
    fn write_marks(&self, out: &mut String, x: impl Fn(f64) -> f64, foot: f64) {
        let mut marks: Vec<&ChartMark> = self.marks.iter().collect();
        marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let mut mark_x = LEFT_MARGIN;
        for mark in marks {
            let (at, class, label) = (coordinate(x(mark.at_s)), mark.stroke.class(), escape(&mark.label));
            let (from, to, label_x) = (coordinate(mark_x), coordinate(mark_x + 22.0), coordinate(mark_x + 28.0));
            let _ = writeln!(
                out,
                "<line class=\"{class}\" x1=\"{at}\" y1=\"{}\" x2=\"{at}\" y2=\"{foot}\"/>\
                 <line class=\"{class}\" x1=\"{from}\" y1=\"{MARK_LABEL_Y}\" x2=\"{to}\" y2=\"{MARK_LABEL_Y}\"/>\
                 <text x=\"{label_x}\" y=\"{MARK_LABEL_Y}\" dy=\".35em\">{label}</text>",
                TOP_MARGIN - 8.0
            );
            mark_x += 48.0 + LETTER_WIDTH * mark.label.chars().count() as f64;
        }
    }
}

impl Series {
    /// Points of a line: the middle of each step in seconds, and the mean rate within the step.
    fn points(&self, run: &[f64], step_s: f64) -> Vec<(f64, f64)> {
        let slots = ((step_s / self.slot_s).round() as usize).max(1);
        let mean = |(n, part): (usize, &[f64])| {
            let at = (n * slots) as f64 * self.slot_s + part.len() as f64 * self.slot_s / 2.0;
            (at, part.iter().sum::<f64>() / part.len() as f64)
        };
        run.chunks(slots).enumerate().map(mean).collect()
    }
}

/// Seconds per point, a multiple of 0.1 s.
fn point_interval(span: f64) -> f64 {
    (span / MAX_POINTS as f64 * 10.0).ceil().max(1.0) / 10.0
}
