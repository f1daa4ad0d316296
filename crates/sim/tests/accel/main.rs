//! The TCP accelerator in virtual time: random histories, tables of gains, fairness to other flows, effect of each option.

#[path = "../common/cases.rs"]
mod cases;
mod experiments;
mod fairness;
mod history;
mod options;
#[path = "../common/saved_tables.rs"]
mod saved_tables;
mod tables;
