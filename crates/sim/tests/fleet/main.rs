//! The fleet's machines in virtual time: the machine contract and the matching of edges with relays.

mod assignment;
mod contract;
