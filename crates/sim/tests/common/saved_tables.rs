//! Result tables under review.

use std::path::Path;

/// Compares a table with the saved one in `tests/tables`; with `UPDATE_TABLES=1` saves it.
///
/// # Panics
/// If they differ.
pub(crate) fn compare_with_saved(file: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tables").join(file);
    if std::env::var_os("UPDATE_TABLES").is_some() {
        std::fs::write(&path, table).expect("the table can be written");
        return;
    }
    let saved = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(saved, table, "{file} changes; if the new table is better, run again with UPDATE_TABLES=1");
}
