//! `marline relay`: carries edges' connections to the servers that they mean.

pub mod head;
pub mod rules;
pub mod share;
