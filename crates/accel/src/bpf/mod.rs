//! ACK offload by a BPF program, where nothing else is wanted: `redirect` attaches the program, `driver` watches over
//! the links.

pub(crate) mod driver;
pub(crate) mod redirect;
