//! Does a machine, and does its driver, keep the contract of [`marline_core::machine`]?
//!
//! In: a machine, driven by anything through [`Checked`]. Out: a panic that names the broken rule, and a log that
//! [`replay`] and [`clamp`] put to the proof afterwards.
//!
//! 1. Drained before the next call: asserted at each call, against the driver.
//! 2. Time never goes back: [`clamp`] runs the log again with old times in it.
//! 3. A deadline after `now`: asserted when a drain after a tick ends, against the machine.
//! 4. Equal inputs, equal outputs: [`replay`] runs the log again.
//!
//! Rules 5 and 6 are about meaning and are left to each machine's own tests.

use marline_core::decision_log::{Difference, Record, Replayer};
use marline_core::machine::Machine;
use marline_core::units::Instant;

/// What a machine of type `M`, made from a `C`, has been through.
pub type Log<C, M> = Vec<Record<C, <M as Machine>::Input, <M as Machine>::Output>>;

/// A machine under watch. It is a machine itself, so any driver can drive it.
pub struct Checked<C, M: Machine> {
    machine: M,
    now: Instant,
    drained: bool,
    ticked: bool,
    log: Log<C, M>,
}

impl<C, M: Machine> Checked<C, M>
where
    M::Input: Clone,
    M::Output: Clone,
{
    /// Watches `machine`, which was made from `config`.
    pub fn new(config: C, machine: M) -> Self {
        let version = env!("CARGO_PKG_VERSION").to_string();
        let log = vec![Record::Start { version, config }];
        Self { machine, now: Instant::ZERO, drained: true, ticked: false, log }
    }

    /// The machine.
    pub const fn machine(&self) -> &M {
        &self.machine
    }

    /// The machine and everything that has happened.
    pub fn into_parts(self) -> (M, Log<C, M>) {
        (self.machine, self.log)
    }

    fn called(&mut self, now: Instant, ticked: bool) {
        assert!(self.drained, "rule 1: called at {now} before poll had answered None");
        self.now = self.now.max(now);
        self.drained = false;
        self.ticked = ticked;
    }
}

impl<C, M: Machine> Machine for Checked<C, M>
where
    M::Input: Clone,
    M::Output: Clone,
{
    type Input = M::Input;
    type Output = M::Output;
    type Reason = M::Reason;

    fn handle(&mut self, now: Instant, input: M::Input) {
        self.called(now, false);
        self.log.push(Record::In { at: now, input: input.clone() });
        self.machine.handle(now, input);
    }

    fn tick(&mut self, now: Instant) {
        self.called(now, true);
        self.log.push(Record::Tick { at: now });
        self.machine.tick(now);
    }

    fn poll(&mut self) -> Option<M::Output> {
        let output = self.machine.poll();
        match &output {
            Some(output) => self.log.push(Record::Out { output: output.clone() }),
            None => {
                self.drained = true;
                let late = self.machine.deadline().filter(|(at, _)| *at <= self.now && self.ticked);
                assert!(late.is_none(), "rule 3: after tick and drain at {} the deadline is {late:?}", self.now);
            }
        }
        output
    }

    fn deadline(&self) -> Option<(Instant, M::Reason)> {
        self.machine.deadline()
    }
}

/// Rule 4: a fresh machine does the same with the log's inputs. Gives the number of records and of equal outputs.
///
/// # Errors
/// When it does not, with the first difference.
pub fn replay<C: Clone, M>(make: impl Fn(&C) -> M, log: &Log<C, M>) -> Result<(u64, u64), Difference<M::Output>>
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

/// Rule 2: a machine that hears every third call with a time long past does what one does that hears it with the
/// newest time so far.
///
/// # Errors
/// When it does not, with the first difference.
pub fn clamp<C, M>(make: impl Fn(&C) -> M, log: &Log<C, M>) -> Result<(), Difference<M::Output>>
where
    M: Machine,
    M::Input: Clone,
    M::Output: PartialEq,
{
    let Some(Record::Start { config, .. }) = log.first() else { return Ok(()) };
    let (mut clamped, mut machine) = (make(config), make(config));
    let mut newest = Instant::ZERO;
    for (record, n) in log.iter().zip(0..) {
        let (Record::In { at, .. } | Record::Tick { at }) = record else { continue };
        let old = n % 3 == 2;
        newest = if old { newest } else { newest.max(*at) };
        let told = if old { Instant::ZERO } else { newest };
        if let Record::In { input, .. } = record {
            clamped.handle(newest, input.clone());
            machine.handle(told, input.clone());
        } else {
            clamped.tick(newest);
            machine.tick(told);
        }
        loop {
            let (logged, done) = (clamped.poll(), machine.poll());
            if logged != done {
                return Err(Difference { record: n, logged, actual: done });
            }
            if done.is_none() {
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

    /// Counts its calls and says the sum of all times once a second.
    #[derive(Default)]
    struct Clock {
        now: Instant,
        next: Option<Instant>,
        out: Vec<u64>,
        naive: bool,
    }

    impl Machine for Clock {
        type Input = u64;
        type Output = u64;
        type Reason = ();

        fn handle(&mut self, now: Instant, input: u64) {
            self.now = if self.naive { now } else { self.now.max(now) };
            self.next = Some(self.now + Duration::from_secs(1));
            self.out.push(input + self.now.as_nanos());
        }
        fn tick(&mut self, now: Instant) {
            self.now = self.now.max(now);
            if self.next.is_some_and(|next| next <= self.now) && !self.naive {
                self.next = None;
            }
        }
        fn poll(&mut self) -> Option<u64> {
            self.out.pop()
        }
        fn deadline(&self) -> Option<(Instant, ())> {
            self.next.map(|next| (next, ()))
        }
    }

    fn drain(checked: &mut Checked<(), Clock>) {
        while checked.poll().is_some() {}
    }

    fn driven() -> Log<(), Clock> {
        let mut checked = Checked::new((), Clock::default());
        for ms in 1..20 {
            checked.handle(Instant::from_millis(ms), ms);
            drain(&mut checked);
        }
        checked.tick(Instant::from_millis(5000));
        drain(&mut checked);
        checked.into_parts().1
    }

    #[test]
    fn a_good_machine_replays_and_clamps() {
        let log = driven();
        assert_eq!(replay(|()| Clock::default(), &log), Ok((40, 19)));
        assert!(clamp(|()| Clock::default(), &log).is_ok());
    }

    #[test]
    fn a_machine_that_believes_old_times_is_found() {
        let naive = |(): &()| Clock { naive: true, ..Clock::default() };
        assert!(replay(naive, &driven()).is_ok());
        assert!(clamp(naive, &driven()).is_err());
    }

    #[test]
    #[should_panic(expected = "rule 1")]
    fn a_driver_that_does_not_drain_is_found() {
        let mut checked = Checked::new((), Clock::default());
        checked.handle(Instant::ZERO, 1);
        checked.handle(Instant::ZERO, 2);
    }

    #[test]
    #[should_panic(expected = "rule 3")]
    fn a_deadline_that_stays_in_the_past_is_found() {
        let mut checked = Checked::new((), Clock { naive: true, ..Clock::default() });
        checked.handle(Instant::ZERO, 1);
        drain(&mut checked);
        checked.tick(Instant::from_millis(2000));
        drain(&mut checked);
    }
}
