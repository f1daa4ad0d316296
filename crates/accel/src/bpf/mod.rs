//! ACK offload by a BPF program, where that is all that is wanted.

pub(crate) mod driver;
pub(crate) mod redirect;
