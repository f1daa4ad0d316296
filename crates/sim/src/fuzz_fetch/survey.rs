//! Defects of many histories, grouped by kind.

use std::collections::BTreeMap;

use super::Defect;

/// Counts the defects of each kind and keeps the one with the shortest log.
///
/// The kind is the policy with the beginning of the description, without numbers: these are times and offsets.
#[derive(Clone, Default, Debug)]
pub struct DefectSurvey {
    kinds: BTreeMap<String, (u32, Defect)>,
}

impl DefectSurvey {
    /// Adds a defect.
    pub fn add(&mut self, defect: Defect) {
        let kind = format!("{} {}", defect.policy, defect.problem);
        let kind = kind.chars().filter(|c| !c.is_ascii_digit()).take(KIND_LEN).collect();
        let (count, shortest) = self.kinds.entry(kind).or_insert_with(|| (0, defect.clone()));
        *count += 1;
        if defect.log.len() < shortest.log.len() {
            *shortest = defect;
        }
    }

    /// One line for each kind: how often it occurred, and its shortest history.
    pub fn summary(&self) -> Vec<String> {
        let line = |(count, shortest): &(u32, Defect)| {
            format!("{count} times; in {} records: {shortest}", shortest.log.len())
        };
        self.kinds.values().map(line).collect()
    }
}

/// Number of characters that distinguish two kinds.
const KIND_LEN: usize = 60;
