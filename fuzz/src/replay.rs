//! A decision log of `marline get --trace`, possibly edited, replayed on the machine as `marline replay` does.
//!
//! Such a log can violate the driver's part of the contract in every way: events of connections that were never opened,
//! reversed ranges, times out of order. The machine makes no promise about its outputs then, but it must not panic.

use marline_core::decision_log::Record;
use marline_core::fetch::{Config, Fetch, Input, Output};
use marline_core::machine::Machine;

/// A log with one record per line. Lines that are not a record are skipped, and so are recorded outputs.
pub fn log(bytes: &[u8]) {
    let mut machine = None;
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(record) = serde_json::from_slice::<Record<Config, Input, Output>>(line) else { continue };
        let written = serde_json::to_string(&record).expect("a record can be written");
        let again: Record<Config, Input, Output> = serde_json::from_str(&written).expect("a written record parses");
        assert_eq!(record, again, "a record changes when it is written and parsed");
        match (&mut machine, record) {
            (_, Record::Start { config, .. }) => machine = Some(Fetch::new(config)),
            (Some(machine), Record::In { at, input }) => {
                machine.handle(at, input);
                drain(machine);
            }
            (Some(machine), Record::Tick { at }) => {
                machine.tick(at);
                drain(machine);
            }
            _ => {}
        }
    }
}

fn drain(machine: &mut Fetch) {
    let mut outputs = 0;
    while machine.poll().is_some() {
        outputs += 1;
        assert!(outputs <= crate::fetch::MAX_OUTPUTS, "outputs without end");
    }
    let _ = (machine.status(), machine.deadline());
}
