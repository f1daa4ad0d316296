//! Decision log: the recorded inputs and outputs of a machine, and their replay on a machine built now.
//!
//! A log begins with one [`Record::Start`], which holds the version of marline that wrote it and the machine's
//! configuration. Each call of the driver is one record, followed directly by the outputs that the driver drained
//! after that call. A [`Replayer`] makes the same calls and reports the first output that differs. It compares
//! record by record, so a log of any length needs no memory.
//!
//! A log may end in the middle of a run, because the process was killed. Outputs that were never drained are no
//! difference.
//!
//! A file holds one JSON object per line; drivers read and write it, and this module defines only the values. The
//! log does not contain the machine's internal state: that would bind every log to the fields of one version, while
//! inputs and outputs are the contract.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::units::Instant;

/// One line of a log. `C` is the machine's configuration, `I` and `O` are its input and output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "log")]
pub enum Record<C, I, O> {
    /// The first line of a log.
    Start {
        /// Version of marline that wrote the log.
        version: alloc::string::String,
        /// Configuration from which the machine was made.
        config: C,
    },
    /// Call of [`Machine::handle`]: the driver reported an event.
    In {
        /// Time of the call.
        at: Instant,
        /// The event.
        input: I,
    },
    /// Call of [`Machine::tick`]: only time has passed.
    Tick {
        /// Time of the call.
        at: Instant,
    },
    /// Output of [`Machine::poll`] after the last `In` or `Tick` above it.
    Out {
        /// The command for the driver.
        output: O,
    },
}

/// First point at which a machine behaves differently from its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference<O> {
    /// Number of the record, counted from zero; the log's length if the machine has more outputs than the log.
    pub record: u64,
    /// Output in the log; `None`: the log has no further output at this point.
    pub logged: Option<O>,
    /// Output of the machine; `None`: the machine has no further output at this point.
    pub actual: Option<O>,
}

impl<O: fmt::Debug> fmt::Display for Difference<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: the log has ", self.record)?;
        match &self.logged {
            Some(output) => write!(f, "{output:?}")?,
            None => f.write_str("nothing more")?,
        }
        match &self.actual {
            Some(output) => write!(f, ", the machine does {output:?}"),
            None => f.write_str(", the machine does nothing more"),
        }
    }
}

/// Feeds a log to a machine and compares the machine's outputs with it.
#[derive(Debug)]
pub struct Replayer<M> {
    machine: M,
    records: u64,
    outputs: u64,
}

impl<M: Machine> Replayer<M>
where
    M::Output: PartialEq,
{
    /// Starts a replay on `machine`, which must be made from the log's [`Record::Start`].
    pub const fn new(machine: M) -> Self {
        Self { machine, records: 0, outputs: 0 }
    }

    /// Processes the next record. [`Record::Start`] is only counted.
    ///
    /// # Errors
    /// If the machine has more outputs, fewer outputs or other outputs than the log.
    pub fn feed<C>(&mut self, record: Record<C, M::Input, M::Output>) -> Result<(), Difference<M::Output>> {
        match record {
            Record::Start { .. } => {}
            Record::In { at, input } => {
                self.expect_drained()?;
                self.machine.handle(at, input);
            }
            Record::Tick { at } => {
                self.expect_drained()?;
                self.machine.tick(at);
            }
            Record::Out { output } => {
                let actual = self.machine.poll();
                if actual.as_ref() != Some(&output) {
                    return Err(Difference { record: self.records, logged: Some(output), actual });
                }
                self.outputs += 1;
            }
        }
        self.records += 1;
        Ok(())
    }

    /// Number of records so far and, among them, of outputs (all equal to the machine's).
    pub const fn counts(&self) -> (u64, u64) {
        (self.records, self.outputs)
    }

    fn expect_drained(&mut self) -> Result<(), Difference<M::Output>> {
        match self.machine.poll() {
            None => Ok(()),
            done => Err(Difference { record: self.records, logged: None, actual: done }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns each input as an output; a tick has no output.
    struct Echo(Option<u32>);

    impl Machine for Echo {
        type Input = u32;
        type Output = u32;
        type Reason = ();

        fn handle(&mut self, _now: Instant, input: u32) {
            self.0 = Some(input);
        }
        fn tick(&mut self, _now: Instant) {}
        fn poll(&mut self) -> Option<u32> {
            self.0.take()
        }
        fn deadline(&self) -> Option<(Instant, ())> {
            None
        }
    }

    type TestRecord = Record<(), u32, u32>;

    fn first_difference(log: impl IntoIterator<Item = TestRecord>) -> Result<(u64, u64), Difference<u32>> {
        let mut replayer = Replayer::new(Echo(None));
        for record in log {
            replayer.feed(record)?;
        }
        Ok(replayer.counts())
    }

    const IN: TestRecord = Record::In { at: Instant::ZERO, input: 7 };
    const TICK: TestRecord = Record::Tick { at: Instant::ZERO };

    #[test]
    fn an_equal_replay_has_no_difference() {
        assert_eq!(first_difference([IN, Record::Out { output: 7 }, TICK]), Ok((3, 1)));
    }

    #[test]
    fn a_different_output_is_reported_with_its_record() {
        let found = first_difference([IN, Record::Out { output: 8 }]);
        assert_eq!(found, Err(Difference { record: 1, logged: Some(8), actual: Some(7) }));
    }

    #[test]
    fn missing_and_additional_outputs_are_reported() {
        let surplus = first_difference([IN, TICK]);
        assert_eq!(surplus, Err(Difference { record: 1, logged: None, actual: Some(7) }));
        let missing = first_difference([TICK, Record::Out { output: 7 }]);
        assert_eq!(missing, Err(Difference { record: 1, logged: Some(7), actual: None }));
    }

    #[test]
    fn a_truncated_log_is_no_difference() {
        assert_eq!(first_difference([IN]), Ok((1, 0)));
    }
}
