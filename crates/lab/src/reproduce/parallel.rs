//! Runs the cases of a figure on all CPU cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Calls `run` with the number of each case and of each of its runs, of which `run_counts` has the number. `on_case_done` is called
/// when all runs of a case are complete. The results are in the order of the cases and runs.
pub(super) fn run_cases<T: Send>(
    run_counts: &[usize],
    run: impl Fn(usize, usize) -> Result<T, String> + Sync,
    on_case_done: impl Fn(usize) + Sync,
) -> Vec<Vec<Result<T, String>>> {
    let items: Vec<(usize, usize)> = run_counts
        .iter()
        .enumerate()
        .flat_map(|(case, count)| (0..*count).map(move |number| (case, number)))
        .collect();
    let left: Vec<AtomicUsize> = run_counts.iter().map(|count| AtomicUsize::new(*count)).collect();
    let results: Mutex<Vec<Option<Result<T, String>>>> = Mutex::new(items.iter().map(|_| None).collect());
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let item = next.fetch_add(1, Ordering::Relaxed);
            let Some((case, number)) = items.get(item).copied() else { return };
            let result = run(case, number);
            if let Ok(mut results) = results.lock() {
                results[item] = Some(result);
            }
            if left[case].fetch_sub(1, Ordering::Relaxed) == 1 {
                on_case_done(case);
            }
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut results = results.into_inner().unwrap_or_default().into_iter();
    let mut next_result = || results.next().flatten().unwrap_or_else(|| Err("was not run".into()));
    run_counts.iter().map(|count| (0..*count).map(|_| next_result()).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_in_the_order_of_the_cases_and_each_case_is_reported_once() {
        let done = Mutex::new(Vec::new());
        let run =
            |case: usize, number: usize| if number == 2 { Err(format!("{case}")) } else { Ok((case, number)) };
        let results = run_cases(&[1, 3, 0, 2], run, |case| done.lock().unwrap().push(case));
        let expected = vec![
            vec![Ok((0, 0))],
            vec![Ok((1, 0)), Ok((1, 1)), Err("1".into())],
            vec![],
            vec![Ok((3, 0)), Ok((3, 1))],
        ];
        assert_eq!(results, expected);
        let mut done = done.into_inner().unwrap();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 3]);
    }
}
