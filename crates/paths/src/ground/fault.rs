//! A machine that dies between two steps, for tests.
//!
//! In: after how many steps. Out: from then on no step is carried out any more, whatever the code still tries.

use std::cell::Cell;
use std::io;

thread_local! {
    /// Steps that are left; none: no end.
    static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
}

/// One change of the machine or of the ledger.
pub(super) fn step() -> io::Result<()> {
    match LEFT.get() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("the run was killed here")),
        Some(left) => {
            LEFT.set(Some(left - 1));
            Ok(())
        }
    }
}

/// This thread's run dies after so many steps; none: it lives.
pub(super) fn dies_after(steps: Option<u32>) {
    LEFT.set(steps);
}

/// Whether it would die at the next step, or has.
pub(super) fn is_dying() -> bool {
    LEFT.get() == Some(0)
}
