//! Adapts suggested file names to the target's file system.
//!
//! A suggested name that the file system rejects is adapted, because the user did not choose it. First, characters
//! and device names are replaced that FAT, exFAT and NTFS reserve. Then the name is shortened step by step. A name
//! that the user chose is never changed: it is rejected, with the reason.

use crate::name::{MAX_NAME_LEN, MAX_SUFFIX_LEN, has_reserved_suffix, shorten_name};

/// Every file system accepts names of this length, in bytes.
const SAFE_NAME_LEN: usize = 64;

/// Candidates for a name, in the order of preference, on a file system with names of at most `max_len` bytes.
pub(super) fn name_candidates(name: &str, max_len: usize) -> Vec<String> {
    let stem_len = |max_len: usize| max_len.saturating_sub(MAX_SUFFIX_LEN).min(MAX_NAME_LEN);
    let sanitized = portable_name(name);
    let mut names = vec![shorten_name(name, stem_len(max_len)), shorten_name(&sanitized, stem_len(max_len))];
    // File systems that encrypt names (eCryptfs: 143 bytes) do not all report their limit.
    names.extend([143, SAFE_NAME_LEN].map(|cap| shorten_name(&sanitized, stem_len(max_len.min(cap)))));
    names.dedup();
    names.retain(|name| !name.is_empty());
    names
}

/// Whether some file system might reject this name, so that it must be tested.
pub(super) fn needs_probe(name: &str) -> bool {
    name.len() > SAFE_NAME_LEN - MAX_SUFFIX_LEN || !name.is_ascii() || portable_name(name) != name
}

/// Replaces what Windows reserves ("Naming Files, Paths, and Namespaces"): characters, device names, and trailing
/// dots and spaces.
pub(super) fn portable_name(name: &str) -> String {
    let reserved = |c: char| matches!(c, '<' | '>' | ':' | '"' | '/' | '\\' | '|' | '?' | '*') || c.is_control();
    let replaced: String = name.chars().map(|c| if reserved(c) { '_' } else { c }).collect();
    let replaced = replaced.trim_end_matches(['.', ' ']);
    let (stem, extension) = replaced.split_at(replaced.find('.').unwrap_or(replaced.len()));
    let renamed =
        if is_dos_device(stem) { format!("{}_{extension}", stem.trim_end()) } else { replaced.to_owned() };
    if has_reserved_suffix(&renamed) { format!("{renamed}_") } else { renamed }
}

/// Whether a name without extension is that of a DOS device, such as `CON` or `com1`.
fn is_dos_device(stem: &str) -> bool {
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
    fn names_reserved_by_windows_are_replaced() {
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
            assert_eq!(portable_name(name), want);
            assert_eq!(portable_name(want), want);
        }
    }

    #[test]
    fn candidates_become_shorter_and_keep_the_extension() {
        assert_eq!(name_candidates("plain.iso", 255), ["plain.iso"]);
        assert_eq!(name_candidates("Q3?.pdf", 255), ["Q3?.pdf", "Q3_.pdf"]);
        let long = format!("{}.iso", "\u{e9}".repeat(110));
        for most in [255, 143, 100] {
            let names = name_candidates(&long, most);
            assert!(
                names.iter().all(|name| name.len() <= most - MAX_SUFFIX_LEN && name.ends_with(".iso")),
                "{names:?}"
            );
            assert!(names.last().unwrap().len() <= 64 - MAX_SUFFIX_LEN);
        }
        assert!(name_candidates("x", 10).is_empty(), "no name fits");
    }
}
