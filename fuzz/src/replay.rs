//! A log of `marline get --trace`, as anybody may have edited it, fed to the machine as `marline replay` does it.
//!
//! The driver's side of the contract is broken here in every way: inputs for connections that were never asked for, spans
//! and times out of all order. The machine promises nothing about what it does then, but it may not panic.

use marline_core::fetch::{Config, Fetch, Input, Output};
use marline_core::machine::Machine;
use marline_core::replay::Record;

/// Each line one record; what is no record is passed over, and so are the outputs.
pub fn log(bytes: &[u8]) {
    let mut machine = None;
    for line in bytes.split(|byte| *byte == b'\n') {
        let Ok(record) = serde_json::from_slice::<Record<Config, Input, Output>>(line) else { continue };
        let written = serde_json::to_string(&record).expect("a record can be written");
        let again: Record<Config, Input, Output> = serde_json::from_str(&written).expect("and read");
        assert_eq!(record, again, "a record reads back as another one");
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
        assert!(outputs <= crate::fetch::MOST_OUTPUTS, "outputs without end");
    }
    let _ = (machine.status(), machine.deadline());
}
