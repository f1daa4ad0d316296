//! Formats text and numbers for XML.

/// Escapes the characters that XML reserves; characters that XML 1.0 forbids become `?`.
pub(super) fn escape(text: &str) -> String {
    let allowed = |c| match c {
        '\n' | '\t' => ' ',
        c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => '?',
        c => c,
    };
    quick_xml::escape::escape(text.chars().map(allowed).collect::<String>()).into_owned()
}

/// Formats a coordinate, rounded to a tenth of a pixel.
pub(super) fn coordinate(value: f64) -> String {
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map(str::to_owned).unwrap_or(text)
}
