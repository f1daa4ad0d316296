//! Simulates a crash between two steps, for tests: after a given number of steps every further step fails, whatever
//! the code still tries.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Remaining steps; none: no crash.
    static STEPS_LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Called before each change of the host or of the undo log.
pub(super) fn crash_point() -> io::Result<()> {
    match STEPS_LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("the run was killed here")),
        Some(steps_left) => {
            STEPS_LEFT.set(Some(steps_left - 1));
            Ok(())
        }
    }
}

/// Makes runs of this thread crash after this number of steps; none: never.
pub(super) fn crash_after(steps: Option<u32>) {
    STEPS_LEFT.set(steps);
}

/// Whether the crash has happened or happens at the next step.
pub(super) fn has_crashed() -> bool {
    STEPS_LEFT.get() == Some(0)
}
