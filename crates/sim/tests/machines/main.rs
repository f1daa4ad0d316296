//! All machines: the machine contract, and replay of the recorded decision logs in `tests/replay`.

mod contract;
mod replay;
