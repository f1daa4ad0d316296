//! A run as a list of values that can be run again.
//!
//! In: what a driver told a machine and what the machine answered, in order. Out: the first difference between that
//! and what the machine does now, or none.
//!
//! 1. A log begins with one [`Record::Start`]: the version that wrote it and the configuration.
//! 2. Each call of the driver is one record, and the outputs that it drained follow directly behind it.
//! 3. A [`Replayer`] compares as it goes, record by record; a log of any length needs no memory.
//! 4. A log may end in the middle of a run (the process was killed): what was not drained any more is no difference.
//!
//! The form in files is one JSON object a line, written and read where there are files; here are only the values. A
//! dump of the machine's inner state was not used: it would bind every log to one version's fields, while inputs and
//! outputs are the contract.

use core::fmt;

use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::units::Instant;

/// One line of a log. `C` is the machine's configuration, `I` and `O` are its input and output.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "log")]
pub enum Record<C, I, O> {
    /// The first line.
    Start {
        /// The version of marline that wrote the log.
        version: alloc::string::String,
        /// What the machine was made from.
        config: C,
    },
    /// The driver reported something.
    In {
        /// When.
        at: Instant,
        /// What.
        input: I,
    },
    /// The driver let time pass.
    Tick {
        /// Until when.
        at: Instant,
    },
    /// The machine asked for something; belongs to the last `In` or `Tick` above it.
    Out {
        /// What.
        output: O,
    },
}

/// Where a machine does something else than its log says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference<O> {
    /// The record, counted from zero; the log's length if the machine does more than the log holds.
    pub record: u64,
    /// What the log says; none: nothing more at this place.
    pub logged: Option<O>,
    /// What the machine does; none: nothing more at this place.
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

/// Feeds a log to a machine and compares what it does.
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
    /// Replays on `machine`, which was made from the log's [`Record::Start`].
    pub const fn new(machine: M) -> Self {
        Self { machine, records: 0, outputs: 0 }
    }

    /// The next record. [`Record::Start`] is only counted.
    ///
    /// # Errors
    /// When the machine asks for more, for less or for something else than the log says.
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

    /// How many records and, among them, how many equal outputs there were.
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

    /// Says each number back, once for an input and not at all for a tick.
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
    fn an_equal_run_has_no_difference() {
        assert_eq!(first_difference([IN, Record::Out { output: 7 }, TICK]), Ok((3, 1)));
    }

    #[test]
    fn another_output_is_found_at_its_record() {
        let found = first_difference([IN, Record::Out { output: 8 }]);
        assert_eq!(found, Err(Difference { record: 1, logged: Some(8), actual: Some(7) }));
    }

    #[test]
    fn a_missing_and_a_surplus_output_are_found() {
        let surplus = first_difference([IN, TICK]);
        assert_eq!(surplus, Err(Difference { record: 1, logged: None, actual: Some(7) }));
        let missing = first_difference([TICK, Record::Out { output: 7 }]);
        assert_eq!(missing, Err(Difference { record: 1, logged: Some(7), actual: None }));
    }

    #[test]
    fn a_log_that_breaks_off_is_no_difference() {
        assert_eq!(first_difference([IN]), Ok((1, 0)));
    }
}
