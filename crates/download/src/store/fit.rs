//! Names that the target's file system can take.
//!
//! A suggested name that a file system refuses is adapted, because the user did not choose it: first without the
//! characters and device names that FAT, exFAT and NTFS reserve, then shorter and shorter. A name that the user chose is
//! never changed; it is refused with the reason.

use crate::name::{is_reserved, shorten};

use super::place::{LONGEST_ENDING, NAME_MAX};

/// Any file system takes names of so many bytes.
const SHORTEST: usize = 64;

/// Names to try, the best one first, for a file system whose names have `most` bytes.
pub(super) fn candidates(name: &str, most: usize) -> Vec<String> {
    let room = |most: usize| most.saturating_sub(LONGEST_ENDING).min(NAME_MAX);
    let plain = portable(name);
    let mut names = vec![shorten(name, room(most)), shorten(&plain, room(most))];
    // Those that encrypt names (eCryptfs: 143 bytes) do not all say so.
    names.extend([143, SHORTEST].map(|less| shorten(&plain, room(most.min(less)))));
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

/// Whether some file system refuses this name, so that it has to be tried.
pub(super) fn is_doubtful(name: &str) -> bool {
    name.len() > SHORTEST - LONGEST_ENDING || !name.is_ascii() || portable(name) != name
}

/// The name without what Windows reserves ("Naming Files, Paths, and Namespaces"): characters, device names, and dots
/// and blanks at the end.
pub(super) fn portable(name: &str) -> String {
    let reserved = |c: char| matches!(c, '<' | '>' | ':' | '"' | '/' | '\\' | '|' | '?' | '*') || c.is_control();
    let plain: String = name.chars().map(|c| if reserved(c) { '_' } else { c }).collect();
    let plain = plain.trim_end_matches(['.', ' ']);
    let (stem, extension) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let safe = if is_device(stem) { format!("{}_{extension}", stem.trim_end()) } else { plain.to_owned() };
    if is_reserved(&safe) { format!("{safe}_") } else { safe }
}

/// `CON`, `com1` and the like, with any extension.
fn is_device(stem: &str) -> bool {
    let stem = stem.trim_end().to_ascii_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$" | "CLOCK$") {
        return true;
    }
    let port = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT"));
    let mut digits = port.unwrap_or_default().chars();
    matches!((digits.next(), digits.next()), (Some('0'..='9' | '\u{b9}' | '\u{b2}' | '\u{b3}'), None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_windows_reserves_is_replaced() {
        for (name, want) in [
            ("Report: Q3?.pdf", "Report_ Q3_.pdf"),
            ("a<b>c\"d|e*f\\g.txt", "a_b_c_d_e_f_g.txt"),
            ("CON", "CON_"),
            ("con.txt", "con_.txt"),
            ("Aux .tar.gz", "Aux_.tar.gz"),
            ("lpt9.log", "lpt9_.log"),
            ("COM\u{b9}", "COM\u{b9}_"),
            ("com10.txt", "com10.txt"),
            ("console.txt", "console.txt"),
            ("x. .", "x"),
            ("tab\there", "tab_here"),
            ("x.part:", "x.part_"),
            ("x.part.", "x.part_"),
            ("na\u{ef}ve.txt", "na\u{ef}ve.txt"),
        ] {
            assert_eq!(portable(name), want);
            assert_eq!(portable(want), want);
        }
    }

    #[test]
    fn candidates_become_shorter_and_keep_the_extension() {
        assert_eq!(candidates("plain.iso", 255), ["plain.iso"]);
        assert_eq!(candidates("Q3?.pdf", 255), ["Q3?.pdf", "Q3_.pdf"]);
        let long = format!("{}.iso", "\u{e9}".repeat(110));
        for most in [255, 143, 100] {
            let names = candidates(&long, most);
            assert!(
                names.iter().all(|name| name.len() <= most - LONGEST_ENDING && name.ends_with(".iso")),
                "{names:?}"
            );
            assert!(names.last().unwrap().len() <= 64 - LONGEST_ENDING);
        }
        assert!(candidates("x", 10).is_empty(), "no room at all");
    }
}
