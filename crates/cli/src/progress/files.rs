//! Progress of several files: one line for each running download and one for the total.
//!
//! Long names are shortened in the middle, since the parts of an archive differ at the end of their names. Widths are in
//! terminal columns: a Chinese character takes two.

use marline_download::{BatchProgress, FileProgress};
use marline_net::printable::printable;
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::bar_style::BarStyle;
use super::figures::{clock, percent, rate, size};

/// The lines of one drawing, none of them wider than `columns - 1`.
pub(super) fn draw(overview: &BatchProgress, ink: BarStyle, columns: usize, rows: usize) -> Vec<String> {
    let width = columns.saturating_sub(1);
    let head = files_summary(overview);
    // One row is for the total and one for the cursor below it.
    let file_rows = rows.saturating_sub(2);
    let hidden_count = overview.files.len().saturating_sub(file_rows);
    let shown = overview.files.get(..overview.files.len() - hidden_count).unwrap_or_default();
    let longest = shown.iter().map(|file| printable(&file.name).width()).max().unwrap_or(0).max(head.width());
    // Names get a third of a wide terminal; on a narrow one, the columns that the figures leave.
    let names = longest.min((width / 3).max(12)).min(width.saturating_sub(FIGURES).max(width.saturating_sub(5)));
    let bar = width.saturating_sub(names + FIGURES).min(40);
    let mut lines: Vec<String> = shown.iter().map(|file| file_line(file, ink, names, bar, width)).collect();
    lines.push(total_line(overview, &head, ink, names, bar, width));
    lines.into_iter().map(|line| truncate(&line, width)).collect()
}

/// `2 of 5 files`.
fn files_summary(overview: &BatchProgress) -> String {
    match overview.failed {
        0 => format!("{} of {} files", overview.complete, overview.total),
        failed => format!("{} of {} files, {failed} failed", overview.complete, overview.total),
    }
}

fn file_line(file: &FileProgress, ink: BarStyle, names: usize, bar: usize, width: usize) -> String {
    let progress = &file.progress;
    let name = padded(&shorten_middle(&printable(&file.name), names), names);
    let share = match (progress.checked_bytes, progress.total) {
        (Some(checked), total) => format!("check {:>3}%", percent(checked, total.unwrap_or(progress.received))),
        (None, Some(total)) => format!("{:>3}%", percent(progress.received, total)),
        (None, None) => "   -".to_owned(),
    };
    let (done, speed) = (size(progress.received), rate(progress.rate));
    let left = progress.eta_s.map(clock).unwrap_or_default();
    match width.saturating_sub(names) {
        0..18 => format!("{name} {share}"),
        18..44 => format!("{name} {speed:>12} {share}"),
        _ => {
            format!(
                "{name} {} {done:>8} {speed:>12} {share}  {left}",
                ink.bar(progress.received, progress.total, bar)
            )
        }
    }
}

fn total_line(
    overview: &BatchProgress,
    head: &str,
    ink: BarStyle,
    names: usize,
    bar: usize,
    width: usize,
) -> String {
    let head = padded(&shorten_middle(head, names), names);
    let share = overview.size.map_or("   -".to_owned(), |all| format!("{:>3}%", percent(overview.received, all)));
    let (done, speed) = (size(overview.received), rate(overview.rate));
    let left = eta(overview).map(clock).map(|left| format!("{left} left")).unwrap_or_default();
    match width.saturating_sub(names) {
        0..18 => format!("{head} {share}"),
        18..44 => format!("{head} {speed:>12} {share}"),
        _ => format!(
            "{head} {} {done:>8} {speed:>12} {share}  {left}",
            ink.bar(overview.received, overview.size, bar)
        ),
    }
}

fn eta(overview: &BatchProgress) -> Option<f64> {
    let left = overview.size?.saturating_sub(overview.received);
    (overview.rate > 0.0).then(|| left as f64 * 8.0 / overview.rate)
}

/// One line for output without a terminal: `2 of 5 files, 41.2MB of 200.0MB (20%) at 78.4 Mbit/s, ETA 0:25; a.iso 12%, b.iso 50%`.
pub(super) fn text(overview: &BatchProgress) -> String {
    let mut text = files_summary(overview);
    text += &match overview.size {
        Some(all) => {
            format!(", {} of {} ({}%)", size(overview.received), size(all), percent(overview.received, all))
        }
        None => format!(", {}", size(overview.received)),
    };
    text += &format!(" at {}", rate(overview.rate));
    if let Some(eta) = eta(overview) {
        text += &format!(", ETA {}", clock(eta));
    }
    let mut separator = ';';
    for FileProgress { name, progress } in &overview.files {
        text += &format!("{separator} {name} ");
        text += &match progress.total {
            Some(total) => format!("{}%", percent(progress.received, total)),
            None => size(progress.received),
        };
        separator = ',';
    }
    text
}

/// Replaces the middle of a text by `~` if it is wider than `width` columns.
fn shorten_middle(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let available = width.saturating_sub(1);
    let front = truncate(text, available / 2);
    let mut back: Vec<char> = Vec::new();
    let mut used = front.width();
    for c in text.chars().rev() {
        used += c.width().unwrap_or(0);
        if used > available {
            break;
        }
        back.push(c);
    }
    let back: String = back.into_iter().rev().collect();
    if width == 0 { String::new() } else { format!("{front}~{back}") }
}

/// The beginning of a text, at most `width` columns.
fn truncate(text: &str, width: usize) -> String {
    let mut used = 0;
    let fits = |c: &char| {
        used += c.width().unwrap_or(0);
        used <= width
    };
    text.chars().take_while(fits).collect()
}

fn padded(text: &str, width: usize) -> String {
    let blanks = width.saturating_sub(text.width());
    format!("{text}{}", " ".repeat(blanks))
}

/// Columns of a line without name and bar: ` ` + `  999.9MB` + ` 999.9 Mbit/s` + ` 100%` + `  0:00:00 left`, and three to spare.
const FIGURES: usize = 45;

#[cfg(test)]
mod tests {
    use marline_download::Progress;

    use super::*;

    fn overview() -> BatchProgress {
        let file = |name: &str, done, total| FileProgress {
            name: name.into(),
            progress: Progress { received: done, total, rate: 39.2e6, eta_s: Some(15.3), ..Progress::default() },
        };
        BatchProgress {
            files: vec![
                file("ubuntu-24.04.1-desktop-amd64.iso", 60_000_000, Some(250_000_000)),
                file("b.7z.001", 5_000, None),
                file("報告書 第三四半期 最終版.pdf", 9, Some(10)),
            ],
            total: 20,
            complete: 3,
            failed: 0,
            received: 100_000_000,
            size: Some(500_000_000),
            rate: 78.4e6,
            elapsed_s: 3.0,
        }
    }

    #[test]
    fn each_file_and_the_total_have_a_line() {
        let lines = draw(&overview(), BarStyle::Ascii, 80, 24);
        assert_eq!(lines.len(), 4);
        assert!(lines[0].starts_with("ubuntu-24.04~") && lines[0].contains("amd64.iso"), "{}", lines[0]);
        assert!(
            lines[0].contains(" 24%") && lines[0].contains("39.2 Mbit/s") && lines[0].ends_with("0:15"),
            "{}",
            lines[0]
        );
        assert!(lines[1].starts_with("b.7z.001 ") && lines[1].contains("   -"), "{}", lines[1]);
        assert!(lines[3].starts_with("3 of 20 files ") && lines[3].contains(" 20%"), "{}", lines[3]);
    }

    #[test]
    fn no_line_is_wider_than_the_terminal_and_names_and_shares_stay() {
        for columns in 0..220 {
            for line in draw(&overview(), BarStyle::Unicode, columns, 24) {
                assert!(line.width() <= columns.saturating_sub(1), "{columns}: {line}");
            }
        }
        for columns in [40, 60, 80, 120, 200] {
            let lines = draw(&overview(), BarStyle::Ascii, columns, 24);
            for (line, share) in lines.iter().zip(["24%", "-", "90%", "20%"]) {
                assert!(line.contains(share), "{columns}: {line}");
            }
            assert!(lines[0].contains("iso") && lines[1].contains("001"), "{columns}: {lines:?}");
        }
    }

    #[test]
    fn a_terminal_with_few_rows_shows_fewer_files_and_the_total() {
        let lines = draw(&overview(), BarStyle::Ascii, 80, 4);
        assert_eq!(lines.len(), 3);
        assert!(lines[2].starts_with("3 of 20"));
        assert_eq!(draw(&overview(), BarStyle::Ascii, 80, 2).len(), 1);
    }

    #[test]
    fn progress_without_a_terminal_is_one_line() {
        let text = text(&overview());
        assert!(
            text.starts_with("3 of 20 files, 100.0MB of 500.0MB (20%) at 78.4 Mbit/s, ETA 0:41; ubuntu"),
            "{text}"
        );
        assert!(text.contains(", b.7z.001 5.0kB, "), "{text}");
        let failed = BatchProgress { failed: 2, size: None, rate: 0.0, files: Vec::new(), ..overview() };
        assert_eq!(super::text(&failed), "3 of 20 files, 2 failed, 100.0MB at 0 kbit/s");
    }
}
