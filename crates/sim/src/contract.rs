//! Contract checks for state machines: does a machine, and does its driver, obey [`marline_core::machine`]?
//!
//! Any driver can drive a machine through [`ContractChecker`], which panics with the number of the violated rule.
//! It also records a log that [`replay`] and [`replay_with_stale_times`] check afterwards.
//!
//! 1. Outputs are drained before the next call: asserted at each call, against the driver.
//! 2. Time never goes back: [`replay_with_stale_times`] runs the log again with some times in the past.
//! 3. The deadline is later than `now`: asserted after the drain that follows a tick, against the machine.
//! 4. Equal inputs give equal outputs: [`replay`] runs the log again.
//!
//! Rules 5 and 6 concern the meaning of inputs and outputs; the tests of each machine cover them.

use marline_core::decision_log::{Difference, Record, Replayer};
use marline_core::machine::Machine;
use marline_core::units::Instant;

/// Recorded inputs and outputs of a machine of type `M`, created from a configuration `C`.
pub type DecisionLog<C, M> = Vec<Record<C, <M as Machine>::Input, <M as Machine>::Output>>;

/// Wraps a machine and checks its contract. It is a machine itself, so any driver can drive it.
pub struct ContractChecker<C, M: Machine> {
    machine: M,
    now: Instant,
    is_drained: bool,
    after_tick: bool,
    log: DecisionLog<C, M>,
}

impl<C, M: Machine> ContractChecker<C, M>
where
    M::Input: Clone,
    M::Output: Clone,
{
    /// Checks `machine`, which was created from `config`.
    pub fn new(config: C, machine: M) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_string();
        let log = vec![Record::Start { version, config }];
        Self { machine, now: Instant::ZERO, is_drained: true, after_tick: false, log }
    }

    /// The wrapped machine, for reading its state.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The wrapped machine and the complete log.
    pub fn into_parts(self) -> (M, DecisionLog<C, M>) {
        (self.machine, self.log)
    }

    fn begin_call(&mut self, now: Instant, ticked: bool) {
        assert!(self.is_drained, "rule 1: called at {now} before poll had returned None");
        self.now = self.now.max(now);
        self.is_drained = false;
        self.after_tick = ticked;
    }
}

impl<C, M: Machine> Machine for ContractChecker<C, M>
where
    M::Input: Clone,
    M::Output: Clone,
{
    type Input = M::Input;
    type Output = M::Output;
    type Reason = M::Reason;

    fn handle(&mut self, now: Instant, input: M::Input) {
        self.begin_call(now, false);
        self.log.push(Record::In { at: now, input: input.clone() });
        self.machine.handle(now, input);
    }

    fn tick(&mut self, now: Instant) {
        self.begin_call(now, true);
        self.log.push(Record::Tick { at: now });
        self.machine.tick(now);
    }

    fn poll(&mut self) -> Option<M::Output> {
        let output = self.machine.poll();
        match &output {
            Some(output) => self.log.push(Record::Out { output: output.clone() }),
            None => {
                self.is_drained = true;
                // A driver may call `handle` before an overdue tick, so the deadline is checked only after a tick.
                let overdue = self.machine.deadline().filter(|(at, _)| *at <= self.now && self.after_tick);
                assert!(
                    overdue.is_none(),
                    "rule 3: after tick and drain at {} the deadline is {overdue:?}",
                    self.now
                );
            }
        }
        output
    }

    fn deadline(&self) -> Option<(Instant, M::Reason)> {
        self.machine.deadline()
    }
}

/// Checks rule 4: a new machine gives equal outputs for the log's inputs. Returns the numbers of records and of
/// equal outputs.
///
/// # Errors
/// The first difference between logged and actual outputs.
pub fn replay<C: Clone, M>(
    make: impl Fn(&C) -> M,
    log: &DecisionLog<C, M>,
) -> Result<(u64, u64), Difference<M::Output>>
where
    M: Machine,
    M::Input: Clone,
    M::Output: Clone + PartialEq,
{
    let Some(Record::Start { config, .. }) = log.first() else { return Ok((0, 0)) };
    let mut replayer = Replayer::new(make(config));
    for record in log {
        replayer.feed(record.clone())?;
    }
    Ok(replayer.counts())
}

/// Checks rule 2: a machine that gets a third of its calls (those whose record number is 2 modulo 3) with time zero must behave as one that
/// gets the latest time instead.
///
/// # Errors
/// The first difference between the two machines.
pub fn replay_with_stale_times<C, M>(
    make: impl Fn(&C) -> M,
    log: &DecisionLog<C, M>,
) -> Result<(), Difference<M::Output>>
where
    M: Machine,
    M::Input: Clone,
    M::Output: PartialEq,
{
    let Some(Record::Start { config, .. }) = log.first() else { return Ok(()) };
    let (mut clamped, mut machine) = (make(config), make(config));
    let mut latest = Instant::ZERO;
    for (record, record_number) in log.iter().zip(0..) {
        let (Record::In { at, .. } | Record::Tick { at }) = record else { continue };
        let is_stale = record_number % 3 == 2;
        latest = if is_stale { latest } else { latest.max(*at) };
        let passed_time = if is_stale { Instant::ZERO } else { latest };
        if let Record::In { input, .. } = record {
            clamped.handle(latest, input.clone());
            machine.handle(passed_time, input.clone());
        } else {
            clamped.tick(latest);
            machine.tick(passed_time);
        }
        loop {
            let (logged, actual) = (clamped.poll(), machine.poll());
            if logged != actual {
                return Err(Difference { record: record_number, logged, actual });
            }
            if actual.is_none() {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::*;

    /// A test machine that outputs the sum of its input and the time, with a deadline one second after each input.
    #[derive(Default)]
    struct Clock {
        now: Instant,
        deadline_at: Option<Instant>,
        outputs: Vec<u64>,
        trusts_now: bool,
    }

    impl Machine for Clock {
        type Input = u64;
        type Output = u64;
        type Reason = ();

        fn handle(&mut self, now: Instant, input: u64) {
            self.now = if self.trusts_now { now } else { self.now.max(now) };
            self.deadline_at = Some(self.now + Duration::from_secs(1));
            self.outputs.push(input + self.now.as_nanos());
        }
        fn tick(&mut self, now: Instant) {
            self.now = self.now.max(now);
            if self.deadline_at.is_some_and(|next| next <= self.now) && !self.trusts_now {
                self.deadline_at = None;
            }
        }
        fn poll(&mut self) -> Option<u64> {
            self.outputs.pop()
        }
        fn deadline(&self) -> Option<(Instant, ())> {
            self.deadline_at.map(|next| (next, ()))
        }
    }

    fn drain(checked: &mut ContractChecker<(), Clock>) {
        while checked.poll().is_some() {}
    }

    fn driven_log() -> DecisionLog<(), Clock> {
        let mut checked = ContractChecker::new((), Clock::default());
        for ms in 1..20 {
            checked.handle(Instant::from_millis(ms), ms);
            drain(&mut checked);
        }
        checked.tick(Instant::from_millis(5000));
        drain(&mut checked);
        checked.into_parts().1
    }

    #[test]
    fn a_correct_machine_passes_all_checks() {
        let log = driven_log();
        assert_eq!(replay(|()| Clock::default(), &log), Ok((40, 19)));
        assert!(replay_with_stale_times(|()| Clock::default(), &log).is_ok());
    }

    #[test]
    fn a_machine_that_accepts_times_in_the_past_is_detected() {
        let naive = |(): &()| Clock { trusts_now: true, ..Clock::default() };
        assert!(replay(naive, &driven_log()).is_ok());
        assert!(replay_with_stale_times(naive, &driven_log()).is_err());
    }

    #[test]
    #[should_panic(expected = "rule 1")]
    fn a_driver_that_does_not_drain_is_detected() {
        let mut checked = ContractChecker::new((), Clock::default());
        checked.handle(Instant::ZERO, 1);
        checked.handle(Instant::ZERO, 2);
    }

    #[test]
    #[should_panic(expected = "rule 3")]
    fn a_deadline_that_stays_in_the_past_is_detected() {
        let mut checked = ContractChecker::new((), Clock { trusts_now: true, ..Clock::default() });
        checked.handle(Instant::ZERO, 1);
        drain(&mut checked);
        checked.tick(Instant::from_millis(2000));
        drain(&mut checked);
    }
}
