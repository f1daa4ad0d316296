//! A field that only its own module may change.

use core::ops::Deref;

/// Lets every module read `T` like a plain field, so that several fields can be borrowed at once. Only the module
/// `transfers` and its submodules may change it, with [`ReadOnly::write`].
#[derive(Debug)]
pub(in crate::fetch) struct ReadOnly<T>(T);

impl<T> ReadOnly<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(value)
    }

    pub(super) const fn write(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Deref for ReadOnly<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
