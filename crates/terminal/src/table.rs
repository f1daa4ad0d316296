//! Tables of status output and lists: columns as wide as their widest cell.
//!
//! All commands render their tables here, so that columns, unknown values and escaping are the same everywhere. Cells are escaped before
//! their width is measured, since escaping makes them wider.

use marline_core::printable::printable;

/// Rows of cells. [`Display`](std::fmt::Display) renders them, one line for each row. The last column is not padded.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table whose first row is this header.
    pub fn new<const COLUMNS: usize>(header: [&str; COLUMNS]) -> Self {
        Self { rows: vec![header.map(str::to_owned).to_vec()] }
    }

    /// A table without a header, such as a list of names and values.
    pub fn without_header() -> Self {
        Self::default()
    }

    /// Appends a row.
    pub fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.into());
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let escape_cell = |cell: &String| printable(cell).into_owned();
        let rows: Vec<Vec<String>> = self.rows.iter().map(|row| row.iter().map(escape_cell).collect()).collect();
        let mut widths: Vec<usize> = Vec::new();
        for row in &rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        for row in &rows {
            let cells = row.iter().zip(&widths);
            let line: String = cells.map(|(cell, width)| format!("{cell:<width$}  ")).collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// Text of a cell; `-` for an unknown value.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(["a", "b"]);
        table.row(["ccc".to_owned(), String::new()]);
        assert_eq!(table.to_string(), "a    b\nccc\n");
    }

    #[test]
    fn control_characters_are_escaped_before_the_width_is_measured() {
        let mut table = Table::without_header();
        table.row(["\u{1b}".to_owned(), or_dash(None::<u32>)]);
        table.row(["x".to_owned(), or_dash(Some(7))]);
        assert_eq!(table.to_string(), "\\u001b  -\nx       7\n");
    }
}
