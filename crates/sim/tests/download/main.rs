//! Downloads over several links in virtual time: random histories and tables of times.

#[path = "../common/cases.rs"]
mod cases;
mod history;
#[path = "../common/saved_tables.rs"]
mod saved_tables;
mod tables;
