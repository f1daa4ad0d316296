//! MPTCP path management in virtual time: random histories, a host with many connections, pauses, tables of time and energy.

#[path = "../common/cases.rs"]
mod cases;
mod history;
mod host;
mod pauses;
#[path = "../common/saved_tables.rs"]
mod saved_tables;
mod survey;
mod tables;
mod throughput;
