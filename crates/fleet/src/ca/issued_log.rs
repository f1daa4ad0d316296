//! Log of issued certificates: DIR/issued.jsonl, one JSON line for each, written before anybody sees the certificate.
//!
//! The serial number of every existing certificate can therefore be found by its name and revoked. The log only grows.
//! A last line without a line end belongs to a certificate that nobody has received.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::ids::Serial;
use super::timestamp::UtcSeconds;
use super::{CaError, atomic_file, serde_text};
use crate::identity::Identity;

/// Record of one issued certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IssuedCert {
    /// Serial number.
    #[serde(with = "serde_text")]
    pub serial: Serial,
    /// Identity that it certifies.
    #[serde(with = "serde_text")]
    pub identity: Identity,
    /// Beginning of its validity.
    #[serde(with = "serde_text")]
    pub not_before: UtcSeconds,
    /// End of its validity.
    #[serde(with = "serde_text")]
    pub not_after: UtcSeconds,
    /// The certificate that it renews; `None` if it was issued for a token or by hand.
    #[serde(default, with = "serde_text::optional", skip_serializing_if = "Option::is_none")]
    pub renews: Option<Serial>,
}

/// State of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CertState {
    /// Valid: it is accepted.
    Valid,
    /// Its validity has ended.
    Expired,
    /// It has been revoked.
    Revoked,
}

pub(super) fn log_path(dir: &Path) -> PathBuf {
    dir.join("issued.jsonl")
}

/// Appends a record. The directory must be locked.
pub(super) fn append_record(dir: &Path, issued: &IssuedCert) -> Result<(), CaError> {
    let line = serde_json::to_string(issued).map_err(|error| CaError::Library(error.to_string()))?;
    atomic_file::append(&log_path(dir), &line)
}

pub(super) fn read_records(dir: &Path) -> Result<Vec<IssuedCert>, CaError> {
    let path = log_path(dir);
    let missing = || CaError::damaged(&path, "it is missing: restore it from a copy");
    let text = atomic_file::read(&path)?.ok_or_else(missing)?;
    let complete = text.rsplit_once('\n').map_or("", |(lines, _)| lines);
    let line = |(at, line): (usize, &str)| {
        serde_json::from_str(line).map_err(|error| CaError::damaged(&path, format!("line {}: {error}", at + 1)))
    };
    complete.lines().enumerate().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_is_read_without_a_truncated_line_and_damage_is_reported_with_its_line() {
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
