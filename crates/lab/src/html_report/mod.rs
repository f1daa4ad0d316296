//! HTML report: throughput over time per link, marks and tables, in one self-contained file with embedded SVG. It
//! supports light and dark screens and printing.
//!
//! 1. The page is well-formed XML, so that other tools can read it and a test can check it.
//! 2. All charts of a section have the same axes, so that heights and lengths can be compared by eye.
//! 3. Each run is a thin line in its link's color, as in the figures of the thesis; marks are labeled vertical
//!    lines.
//! 4. No scripts, fonts or images are loaded: the file stays readable offline and for years.

mod axis;
mod chart;
mod escape;

use std::fmt::Write;

pub use chart::{Chart, ChartMark, Series, Stroke};
use escape::escape;

/// A report page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Heading of the page.
    pub title: String,
    /// One sentence below the heading.
    pub lead: String,
    /// Names and values at the end of the page: command line, machine, commit.
    pub facts: Vec<(String, String)>,
    /// Sections of the page.
    pub sections: Vec<Section>,
}

/// A section of a page.
#[derive(Clone, Debug, Default)]
pub struct Section {
    /// Heading of the section.
    pub heading: String,
    /// Description of what is shown: links and events.
    pub lead: String,
    /// Charts, drawn with the same axes.
    pub charts: Vec<Chart>,
    /// A table below the charts.
    pub table: Option<Table>,
}

/// A table; the first column names the rows.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// One title per column.
    pub header: Vec<String>,
    /// Rows of cells, one cell per column.
    pub rows: Vec<Vec<String>>,
    /// Text below the table.
    pub note: Option<String>,
}

impl Page {
    /// Renders the page.
    pub fn to_html(&self) -> String {
        let mut out = String::new();
        let title = escape(&self.title);
        out.push_str("<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n");
        out.push_str("<meta charset=\"utf-8\"/>\n<meta name=\"viewport\" content=\"width=device-width\"/>\n");
        let _ = write!(out, "<title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n");
        if !self.lead.is_empty() {
            let _ = writeln!(out, "<p class=\"lead\">{}</p>", escape(&self.lead));
        }
        for section in &self.sections {
            section.write(&mut out);
        }
        if !self.facts.is_empty() {
            out.push_str("<h2>How this was measured</h2>\n<dl>\n");
            for (name, value) in &self.facts {
                let _ = writeln!(out, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
            }
            out.push_str("</dl>\n");
        }
        out.push_str("</body>\n</html>\n");
        out
    }
}

impl Section {
    fn write(&self, out: &mut String) {
        if !self.heading.is_empty() {
            let _ = writeln!(out, "<h2>{}</h2>", escape(&self.heading));
        }
        if !self.lead.is_empty() {
            let _ = writeln!(out, "<p>{}</p>", escape(&self.lead));
        }
        if !self.charts.is_empty() {
            let span = self.charts.iter().map(Chart::span).fold(0.0, f64::max);
            let peak = self.charts.iter().map(Chart::peak).fold(0.0, f64::max);
            out.push_str("<div class=\"charts\">\n");
            for chart in &self.charts {
                chart.write(out, span, peak);
            }
            out.push_str("</div>\n");
        }
        if let Some(table) = &self.table {
            table.write(out);
        }
    }
}

impl Table {
    fn write(&self, out: &mut String) {
        out.push_str("<div class=\"scroll\"><table>\n<thead><tr>");
        for cell in &self.header {
            let _ = write!(out, "<th scope=\"col\">{}</th>", escape(cell));
        }
        out.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            out.push_str("<tr>");
            for (n, cell) in row.iter().enumerate() {
                let cell = escape(cell);
                let _ = match n {
                    0 => write!(out, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(out, "<td>{cell}</td>"),
                };
            }
            out.push_str("</tr>\n");
        }
        out.push_str("</tbody>\n</table></div>\n");
        if let Some(note) = &self.note {
            let _ = writeln!(out, "<p class=\"note\">{}</p>", escape(note));
        }
    }

    /// Renders the table for a terminal: minimal column widths, the first column left-aligned, the others
    /// right-aligned.
    pub fn to_text(&self) -> String {
        let width = |n: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(n)).chain(self.header.get(n));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.header.len()).map(width).collect();
        let mut out = String::new();
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let mut line = String::new();
            for (n, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let _ = match n {
                    0 => write!(line, "{cell:<width$}"),
                    _ => write!(line, "  {cell:>width$}"),
                };
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        if let Some(note) = &self.note {
            out.push_str(note);
            out.push('\n');
        }
        out
    }
}

/// Colors of links can be distinguished with any kind of color vision (blue and orange first, as in the thesis).
/// Text has a contrast of at least 7:1.
const STYLE: &str = "
:root { color-scheme: light dark; --paper: #fdfdfc; --ink: #1d2430; --soft: #5a6472; --line: #d8dce2;
  --s0: #1f63c4; --s1: #c95f00; --s2: #0d7d5a; --s3: #9d3f97; --ideal: #1d2430; --peer: #a11; }
@media (prefers-color-scheme: dark) { :root { --paper: #14181f; --ink: #e6e9ee; --soft: #a4adba; --line: #343c48;
  --s0: #6aa8ff; --s1: #ff9d45; --s2: #4fd1a5; --s3: #dd8fd8; --ideal: #e6e9ee; --peer: #ff8f85; } }
body { background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; max-width: 74rem;
  margin: 2rem auto; padding: 0 1.25rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; } h2 { font-size: 1.2rem; margin: 2.2rem 0 .4rem; }
.lead { font-size: 1.05rem; color: var(--soft); margin-top: 0; } .note, dl { color: var(--soft); font-size: .9rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; } svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 13px; } svg .axis { stroke: var(--soft); } svg .grid { stroke: var(--line); }
.run { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.s0 { stroke: var(--s0); } .s1 { stroke: var(--s1); } .s2 { stroke: var(--s2); } .s3 { stroke: var(--s3); }
svg text.s0 { fill: var(--s0); stroke: none; } svg text.s1 { fill: var(--s1); stroke: none; }
svg text.s2 { fill: var(--s2); stroke: none; } svg text.s3 { fill: var(--s3); stroke: none; }
svg text.key { font-weight: 600; }
.end { stroke: var(--ink); stroke-width: 1.5; } .ideal { stroke: var(--ideal); stroke-dasharray: 2 4; stroke-width: 1.5; }
.peer { stroke: var(--peer); stroke-dasharray: 7 4; stroke-width: 1.5; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; margin-top: .8rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th:first-child { text-align: left; padding-left: 0; } thead th { color: var(--soft); font-weight: 600; }
dt { font-weight: 600; } dd { margin: 0 0 .4rem; overflow-wrap: anywhere; }
@media print { body { max-width: none; } figure { break-inside: avoid; } }
";

#[cfg(test)]
mod tests;
