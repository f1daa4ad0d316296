//! The laboratory and its program `marline-lab`: real programs and real kernel TCP over emulated links, on one
//! machine.
//!
//! A [`Lab`] is two network namespaces, client and server, joined by one pair of TUN devices per link. Between the
//! two devices of a pair runs the link model of `marline_sim`, driven in real time by one thread. Programs run in
//! the client namespace unchanged ([`Lab::run`]). A [`CommandRun`] reports what they and the links did.
//!
//! ```no_run
//! use marline_lab::{Lab, LabSpec, Service, Task};
//! marline_lab::acquire_privileges()?; // first in main, before any thread
//! let spec = LabSpec { service: Service::Files("big.iso".into()), ..LabSpec::new(vec!["wifi,rate=80Mbit/s,rtt=20ms".parse()?]) };
//! let lab = Lab::start(&spec)?;
//! let run = lab.run(&Task::new("curl").args(["-so/dev/null", "{url}"]))?;
//! println!("{:?} at p99 lateness {:?}", run.wall, run.emulation.lateness.p99);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! 1. Labs run without root where the machine permits it; see [`acquire_privileges`] and `marline-lab doctor`.
//! 2. Nothing is left behind, not even after `kill -9`: namespaces have no names and end with their last process,
//!    and processes start in a PID namespace that ends with the lab ([`marline_sys::process::PidNamespace`]).
//! 3. A measurement from a machine that was too busy is reported and marked as unreliable
//!    ([`EmulationReport::unreliable_reason`]).

mod accel;
mod bench;
pub mod cli;
mod clients;
mod demo;
pub mod doctor;
mod emulator;
mod error;
mod fleet;
pub mod html_report;
mod http;
mod interrupt;
mod lab;
mod lan;
mod live;
mod mp4_fixture;
mod mptcp;
mod network;
mod peak_rss;
mod player;
mod privileges;
mod program;
mod reproduce;
mod result_file;
pub mod results;
mod run;
mod runner;
mod scenarios;
mod server;
mod spec;
mod summary;
mod veth;
mod wan_topology;
mod worker_pool;

pub use emulator::{EmulationReport, Lateness, LinkReport, MpPrioRequest, TrafficSample};
pub use error::LabError;
pub use lab::Lab;
pub use network::CongestionReport;
pub use privileges::{Privileges, acquire_privileges};
pub use run::{CommandRun, Output, Task};
pub use server::{Payload, TempDir};
pub use spec::{Congestion, LabSpec, Segment, ServerTcp, Service};

/// The program's name, printed before its messages.
const NAME: &str = "marline-lab";
