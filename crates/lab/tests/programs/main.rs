//! Tests of `marline` and `marline-lab` as users run them: real programs and kernel TCP over emulated links, and the
//! documents that describe them.
#![allow(clippy::unwrap_used, reason = "what a test needs is there, or the test fails")]

mod accel;
mod accel_rtp;
mod bass;
mod bench_accel;
mod common;
mod documents;
mod greenbag;
mod live;
mod live_priority;
mod paths;
