//! Raises the limit of open files and sockets of this process to what it may set without privileges.
//!
//! The soft limit is raised to the hard limit. The usual soft limit of 1024 protects programs that call `select`,
//! which nothing here does. Child processes inherit the raised limit; the programs that marline starts do not call
//! `select` either.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of open files to the hard limit, and returns the limit that is in force afterwards.
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
    fn the_soft_limit_equals_the_hard_limit_afterwards() {
        let raised_limit = raise_nofile_limit();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!((limit.current, limit.current.unwrap_or(u64::MAX)), (limit.maximum, raised_limit));
    }
}
