//! Responses of the proxy: bodies of all kinds, and texts of its own.

pub(crate) mod body;
pub(crate) mod own;
