//! Measures what is not stored yet, in real time or in virtual time.
//!
//! 1. Uploads over the same links never run at once. Several labs may run in parallel, each with its own links
//!    (`--jobs`).
//! 2. The routes of one case are measured one after the other, so that a disturbance of the machine affects all of
//!    them.

use super::config::{UploadCase, UploadRoute};
use super::measurement::{UploadId, UploadMeasurement, UploadResult};
use super::real::UploadRunner;
use super::simulate;
use crate::LabError;
use crate::bench::is_interrupted;
use crate::mptcp::http_client::STOPPED_BY_USER;
use crate::reproduce::result_set::ResultSet;
use crate::worker_pool::JOB_COST;

pub(super) fn measure_real(
    cases: &[UploadCase],
    results: &ResultSet<UploadId, UploadResult>,
    runner: &UploadRunner,
    jobs: usize,
) -> Result<(), LabError> {
    let each = |case: &UploadCase, route: UploadRoute| match runner.upload(case, route)? {
        Err(why) if is_interrupted() || why == STOPPED_BY_USER => Ok(None),
        result => Ok(Some(result)),
    };
    measure_all(cases, results, runner.congestion.name(), jobs, each)
}

/// Measures in virtual time, on all CPU cores.
pub(super) fn measure_simulated(
    cases: &[UploadCase],
    congestion: &str,
) -> Result<Vec<UploadMeasurement>, LabError> {
    let results = ResultSet::new(None).with_line_prefix(None);
    let at_once = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    measure_all(cases, &results, congestion, at_once, |case, route| Ok(Some(simulate::upload(case, route))))?;
    Ok(results.into_measurements())
}

fn measure_all(
    cases: &[UploadCase],
    results: &ResultSet<UploadId, UploadResult>,
    congestion: &str,
    jobs: usize,
    measure_one: impl Fn(&UploadCase, UploadRoute) -> Result<Option<Result<UploadResult, String>>, LabError> + Sync,
) -> Result<(), LabError> {
    let routes = |case| move |route: &UploadRoute| (case, *route);
    let all: Vec<Vec<(&UploadCase, UploadRoute)>> =
        cases.iter().map(|case| case.routes.iter().map(routes(case)).collect()).collect();
    let name = |(case, route): &(&UploadCase, UploadRoute)| UploadId::new(case, *route, congestion);
    results.measure(&all, jobs, name, |_| JOB_COST, |(case, route)| measure_one(case, *route))
}
