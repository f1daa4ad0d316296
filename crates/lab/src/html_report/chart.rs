//! Throughput over time: one colour per link, one line per run.

use std::fmt::Write;

use super::axis::Axis;
use super::escape::{coordinate, escape};

/// A chart of rates over time.
#[derive(Clone, Debug, Default)]
pub struct Chart {
    /// Above it.
    pub title: String,
    /// The links.
    pub series: Vec<Series>,
    /// Moments worth a line.
    pub marks: Vec<ChartMark>,
}

/// One link in all runs.
#[derive(Clone, Debug)]
pub struct Series {
    /// The link's name.
    pub name: String,
    /// Mbit/s of each slot, run by run.
    pub runs: Vec<Vec<f64>>,
    /// Seconds of a slot.
    pub slot_s: f64,
}

/// A moment.
#[derive(Clone, Debug)]
pub struct ChartMark {
    /// Seconds.
    pub at_s: f64,
    /// A word or two.
    pub label: String,
    /// How it is drawn.
    pub stroke: Stroke,
}

/// What a mark stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stroke {
    /// The end of this client's download.
    End,
    /// The earliest possible end.
    Ideal,
    /// The end of the best other client.
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
/// Room for the links' names and the marks' words.
const TOP_MARGIN: f64 = 58.0;
/// Where the marks' words stand.
const MARK_LABEL_Y: f64 = 32.0;
/// The mean width of a letter.
const LETTER_WIDTH: f64 = 7.0;
const BOTTOM_MARGIN: f64 = 48.0;
/// More points than this along a line are not seen; neighbours are averaged.
const MAX_POINTS: usize = 160;

impl Chart {
    /// The last moment that it shows, in seconds.
    pub(super) fn span(&self) -> f64 {
        let ends =
            self.series.iter().flat_map(|series| series.runs.iter().map(|run| run.len() as f64 * series.slot_s));
        ends.chain(self.marks.iter().map(|mark| mark.at_s)).fold(0.0, f64::max)
    }

    /// The highest rate that it shows.
    pub(super) fn peak(&self) -> f64 {
        let step = point_interval(self.span());
        let points =
            self.series.iter().flat_map(|series| series.runs.iter().flat_map(move |run| series.points(run, step)));
        points.map(|(_, rate)| rate).fold(0.0, f64::max)
    }

    /// Writes the figure with axes that reach `span` seconds and `peak` Mbit/s.
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
        for (at, word) in rate.ticks() {
            let (at, right) = (coordinate(y(at)), WIDTH - RIGHT_MARGIN);
            let _ =
                writeln!(out, "<line class=\"grid\" x1=\"{LEFT_MARGIN}\" y1=\"{at}\" x2=\"{right}\" y2=\"{at}\"/>");
            let _ = writeln!(
                out,
                "<text x=\"{}\" y=\"{at}\" dy=\".35em\" text-anchor=\"end\">{word}</text>",
                coordinate(LEFT_MARGIN - 7.0)
            );
        }
        let foot = HEIGHT - BOTTOM_MARGIN;
        for (at, word) in time.ticks() {
            let at = coordinate(x(at));
            let _ = writeln!(
                out,
                "<line class=\"axis\" x1=\"{at}\" y1=\"{foot}\" x2=\"{at}\" y2=\"{}\"/>\
                 <text x=\"{at}\" y=\"{}\" text-anchor=\"middle\">{word}</text>",
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
        for (n, series) in self.series.iter().enumerate() {
            let class = n % 4;
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
            let at = coordinate(LEFT_MARGIN + 110.0 * n as f64);
            let name = escape(&series.name);
            let _ = writeln!(out, "<text class=\"key s{class}\" x=\"{at}\" y=\"14\">{name}</text>");
        }
        self.write_marks(out, x, foot);
        out.push_str("</svg></figure>\n");
    }

    /// Marks as lines; their words stand in a row above, each behind a piece of its line, so that words of marks that
    /// are close together do not cover each other.
    fn write_marks(&self, out: &mut String, x: impl Fn(f64) -> f64, foot: f64) {
        let mut marks: Vec<&ChartMark> = self.marks.iter().collect();
        marks.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
        let mut word_at = LEFT_MARGIN;
        for mark in marks {
            let (at, class, label) = (coordinate(x(mark.at_s)), mark.stroke.class(), escape(&mark.label));
            let (from, to, word) = (coordinate(word_at), coordinate(word_at + 22.0), coordinate(word_at + 28.0));
            let _ = writeln!(
                out,
                "<line class=\"{class}\" x1=\"{at}\" y1=\"{}\" x2=\"{at}\" y2=\"{foot}\"/>\
                 <line class=\"{class}\" x1=\"{from}\" y1=\"{MARK_LABEL_Y}\" x2=\"{to}\" y2=\"{MARK_LABEL_Y}\"/>\
                 <text x=\"{word}\" y=\"{MARK_LABEL_Y}\" dy=\".35em\">{label}</text>",
                TOP_MARGIN - 8.0
            );
            word_at += 48.0 + LETTER_WIDTH * mark.label.chars().count() as f64;
        }
    }
}

impl Series {
    /// The middle of each step in seconds, and the mean rate within it.
    fn points(&self, run: &[f64], step_s: f64) -> Vec<(f64, f64)> {
        let slots = ((step_s / self.slot_s).round() as usize).max(1);
        let mean = |(n, part): (usize, &[f64])| {
            let at = (n * slots) as f64 * self.slot_s + part.len() as f64 * self.slot_s / 2.0;
            (at, part.iter().sum::<f64>() / part.len() as f64)
        };
        run.chunks(slots).enumerate().map(mean).collect()
    }
}

/// Seconds that one point of a line stands for.
fn point_interval(span: f64) -> f64 {
    (span / MAX_POINTS as f64 * 10.0).ceil().max(1.0) / 10.0
}
