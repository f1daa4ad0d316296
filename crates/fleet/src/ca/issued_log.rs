//! What was issued: DIR/issued.jsonl, one line of JSON for each certificate, before anybody sees the certificate.
//!
//! So whatever certificate there is in the world, its serial is found by its name and can be revoked. The list only grows;
//! a last line without its end belongs to a certificate that nobody has got.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ids::Serial;
use super::timestamp::UtcSeconds;
use super::{CaError, atomic_file, serde_text};
use crate::identity::Identity;

/// One certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuedCert {
    /// Its number.
    #[serde(with = "serde_text")]
    pub serial: Serial,
    /// Whose it is.
    #[serde(with = "serde_text")]
    pub identity: Identity,
    /// It is valid from here,
    #[serde(with = "serde_text")]
    pub not_before: UtcSeconds,
    /// to here.
    #[serde(with = "serde_text")]
    pub not_after: UtcSeconds,
    /// The certificate that was shown for it; none: it came by a token, or by hand.
    #[serde(default, with = "serde_text::optional", skip_serializing_if = "Option::is_none")]
    pub renews: Option<Serial>,
}

/// How a certificate stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CertState {
    /// It opens doors.
    Valid,
    /// It is over.
    Expired,
    /// It was taken back.
    Revoked,
}

pub(super) fn log_path(dir: &Path) -> PathBuf {
    dir.join("issued.jsonl")
}

/// Puts it on the list of a locked directory.
pub(super) fn append_record(dir: &Path, issued: &IssuedCert) -> Result<(), CaError> {
    let line = serde_json::to_string(issued).map_err(|error| CaError::Library(error.to_string()))?;
    atomic_file::append(&log_path(dir), &line)
}

pub(super) fn read_records(dir: &Path) -> Result<Vec<IssuedCert>, CaError> {
    let path = log_path(dir);
    let missing = || CaError::damaged(&path, "it is missing: put it back from a copy");
    let text = atomic_file::read(&path)?.ok_or_else(missing)?;
    let complete = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| CaError::damaged(&path, format!("line {}: {error}", at + 1)))
    };
    complete.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_without_the_line_that_was_cut_off_and_damage_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = |text: &str| text.parse().unwrap();
        let issued = IssuedCert {
            serial: "4f0123456789abcdef0123456789abcd".parse().unwrap(),
            identity: "marline://edge/cam-7".parse().unwrap(),
            not_before: at("2026-10-02T12:00:00Z"),
            not_after: at("2026-11-02T12:00:00Z"),
            renews: None,
        };
        std::fs::write(log_path(dir.path()), "").unwrap();
        assert_eq!(read_records(dir.path()).unwrap(), []);
        append_record(dir.path(), &issued).unwrap();
        append_record(dir.path(), &issued).unwrap();
        let text = std::fs::read_to_string(log_path(dir.path())).unwrap();
        std::fs::write(log_path(dir.path()), &text[..text.len() - 3]).unwrap();
        assert_eq!(read_records(dir.path()).unwrap(), [issued]);
        std::fs::write(log_path(dir.path()), format!("{text}{{}}\n{text}")).unwrap();
        let message = read_records(dir.path()).unwrap_err().to_string();
        assert!(message.contains("issued.jsonl: line 3: "), "{message}");
    }
}
