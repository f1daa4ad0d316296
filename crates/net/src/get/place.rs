//! Where each answer's bytes belong: the way from a socket's buffer to the store.

use std::collections::BTreeMap;

use marline_core::fetch::ReqId;

use crate::http::Sink;
use crate::store::{Store, StoreError};

/// The store, and the offset at which each accepted answer goes on.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) store: Store,
    next: BTreeMap<ReqId, u64>,
    error: Option<StoreError>,
}

impl Place {
    pub(super) fn new(store: Store) -> Self {
        Self { store, next: BTreeMap::new(), error: None }
    }

    /// The body of this answer belongs at `at` onwards.
    pub(super) fn accept(&mut self, req: ReqId, at: u64) {
        self.next.insert(req, at);
    }

    /// Nothing more is taken of this answer.
    pub(super) fn forget(&mut self, req: ReqId) {
        self.next.remove(&req);
    }

    /// What went wrong since the last call.
    pub(super) fn take_error(&mut self) -> Option<StoreError> {
        self.error.take()
    }
}

impl Sink for Place {
    fn body(&mut self, req: ReqId, bytes: &[u8]) {
        let Some(at) = self.next.get_mut(&req) else { return };
        if let Err(error) = self.store.write(*at, bytes) {
            self.error.get_or_insert(error);
        }
        *at += bytes.len() as u64;
    }
}
