//! This machine's own addresses, which nobody from elsewhere is carried to.
//!
//! In: the kernel's list, asked for at most each [`FRESH`]: addresses come and go with leases. Out: whether one is of them. The list
//! is for addresses within others (NAT64, 6to4); whether packets to an address end here the kernel says each time ([`leads_here`]).

use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use marline_net::links::{self, LinksError, survey};

/// chosen: a new address is protected before anybody can have learnt of it.
const FRESH: Duration = Duration::from_secs(2);

/// The list.
#[derive(Debug)]
pub(crate) struct Own(Mutex<(Instant, Vec<IpAddr>)>);

impl Own {
    /// Asks the kernel.
    pub(crate) fn ask() -> Result<Self, LinksError> {
        Ok(Self(Mutex::new((Instant::now(), addresses()?))))
    }

    /// The addresses of now; those of before where the kernel does not answer.
    pub(crate) fn addresses(&self) -> Vec<IpAddr> {
        let mut own = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if own.0.elapsed() >= FRESH {
            match addresses() {
                Ok(addresses) => own.1 = addresses,
                Err(error) => tracing::warn!(%error, "this machine's addresses"),
            }
            own.0 = Instant::now();
        }
        own.1.clone()
    }
}

/// Whether packets to there end at this machine; where the kernel does not say, they do.
pub(crate) fn leads_here(address: IpAddr) -> bool {
    links::leads_here(address).inspect_err(|error| tracing::warn!(%error, "where packets go")).unwrap_or(true)
}

fn addresses() -> Result<Vec<IpAddr>, LinksError> {
    let of = |interface: marline_net::links::Interface| [interface.addresses, interface.passing].concat();
    Ok(survey()?.interfaces.into_iter().flat_map(of).collect())
}
