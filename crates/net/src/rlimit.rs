//! How many files and sockets this process may have open.
//!
//! In: the limits that it was started with. Out: the most that it may give itself.
//!
//! 1. The soft limit is raised to the hard one: 1024, which shells and services begin with, are there for programs that use
//!    `select`, and nothing here does.
//! 2. Programs that are started from here get the raised limit; those of ours do not mind.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as it may be; how far it is now.
pub fn raise_nofile_limit() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: maximum, maximum };
    if current != maximum && setrlimit(Resource::Nofile, raised).is_err() {
        return current.unwrap_or(u64::MAX);
    }
    maximum.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_hard_one_afterwards() {
        let most = raise_nofile_limit();
        let now = getrlimit(Resource::Nofile);
        assert_eq!((now.current, now.current.unwrap_or(u64::MAX)), (now.maximum, most));
    }
}
