//! Video over several links in virtual time: random histories, GreenBag's experiments, playback.

#[path = "../common/cases.rs"]
mod cases;
mod greenbag;
mod history;
mod playback;
