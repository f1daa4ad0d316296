//! Rows of the shared store: the replicated state of members, as a key and JSON.
//!
//! Rows that cannot be parsed are skipped: the member reports again, and its row is then replaced.

use marline_core::fleet::scheduling::MemberRow;
use serde::de::DeserializeOwned;

use super::store::Row;
use crate::identity::Name;

const RELAY_PREFIX: &str = "relay/";
const EDGE_PREFIX: &str = "edge/";

/// The key and the text of a member's row.
pub(super) fn to_row(row: &MemberRow) -> Row {
    match row {
        MemberRow::Relay(name, heartbeat) => {
            let text = heartbeat.as_ref().and_then(|heartbeat| serde_json::to_string(heartbeat).ok());
            (format!("{RELAY_PREFIX}{name}"), text)
        }
        MemberRow::Edge(name, edge) => {
            (format!("{EDGE_PREFIX}{name}"), edge.as_ref().and_then(|edge| serde_json::to_string(edge).ok()))
        }
    }
}

/// The members in the rows of a store.
pub(super) fn parse_rows(rows: &[(String, String)]) -> Vec<MemberRow> {
    rows.iter().filter_map(|(key, text)| parse_row(key, text)).collect()
}

fn parse_row(key: &str, text: &str) -> Option<MemberRow> {
    if let Some(name) = key.strip_prefix(RELAY_PREFIX) {
        let (name, heartbeat) = parse(name, text)?;
        return Some(MemberRow::Relay(name, Some(heartbeat)));
    }
    let (name, edge) = parse(key.strip_prefix(EDGE_PREFIX)?, text)?;
    Some(MemberRow::Edge(name, Some(edge)))
}

fn parse<T: DeserializeOwned>(name: &str, text: &str) -> Option<(Name, T)> {
    Some((name.parse().ok()?, serde_json::from_str(text).ok()?))
}

#[cfg(test)]
mod tests {
    use marline_core::fleet::messages::AssignmentRequest;
    use marline_core::fleet::scheduling::StoredEdge;

    use super::*;

    #[test]
    fn rows_are_read_as_they_were_written_and_invalid_ones_are_skipped() {
        let request = AssignmentRequest {
            origin: "live.example:1935".parse().unwrap(),
            best_link_rate: marline_core::units::Bitrate::from_mbps(1),
            target_rate: None,
            position: None,
            measurements: Vec::new(),
        };
        let member = MemberRow::Edge("a".parse().unwrap(), Some(StoredEdge { request, assignment: None }));
        let (key, text) = to_row(&member);
        assert_eq!(key, "edge/a");
        assert_eq!(parse_rows(&[(key, text.unwrap())]), [member]);
        assert_eq!(to_row(&MemberRow::Relay("fra".parse().unwrap(), None)), ("relay/fra".to_owned(), None));
        let odd = [("relay/fra", "{}"), ("edge/a", "null"), ("edge/A b", "{}"), ("x", "y"), ("relay/", "")];
        let odd = odd.map(|(key, text)| (key.to_owned(), text.to_owned()));
        assert_eq!(parse_rows(&odd), []);
    }
}
