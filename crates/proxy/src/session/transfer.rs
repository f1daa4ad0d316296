//! Starts the transfer that fills the body of one response: grants its window (buffer memory) and runs it in a task.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;

use marline_core::units::DataSize;
use marline_download::{DownloadObserver as _, KnownResource, RangeDownload};
use marline_net::egress::EgressPolicy;
use url::Url;

use super::Session;
use super::table::Sessions;
use crate::abort_on_drop::AbortOnDrop;
use crate::client::buffer_budget::{Client, GrantError, WindowGrant};
use crate::delivery::StreamDecisions;
use crate::delivery::stream_body::{StreamBody, TransferState};
use crate::delivery::transfer_observer::TransferObserver;
use crate::upstream::request_error::RequestError;

impl Sessions {
    pub(crate) fn build_download(
        &self,
        session: &Session,
        (url, egress): (Url, EgressPolicy),
        known: Option<KnownResource>,
        range: Range<u64>,
    ) -> Result<RangeDownload, RequestError> {
        let link_order =
            self.links.ranked_for_url(&url)?.into_iter().flatten().map(|interface| interface.name).collect();
        // The login is valid for the host that the player named; the URL of a redirect has its own.
        let user = session.login.clone().filter(|_| url.origin() == session.url.origin());
        let end = known.as_ref().map(|_| range.end);
        let (from, window) = (range.start, DataSize::ZERO);
        let config = self.options.stream.clone();
        let prices = self.options.prices.clone();
        let expected = match session.segment_at(range.start) {
            Some((playback, _)) => playback.rates.borrow().estimates(),
            None => session.delivery.estimates_at(range.start),
        };
        Ok(RangeDownload {
            headers: session.headers.headers_for(&url),
            cross_origin_headers: session.headers.cross_origin(),
            cookie_jar: Rc::clone(&session.headers.cookie_jar),
            url,
            basic_auth: user,
            egress,
            config,
            preferred_links: link_order,
            link_estimates: expected,
            link_prices: prices,
            trace: None,
            resource: known,
            start: from,
            end,
            window,
        })
    }

    /// Starts a download: grants its window, registers the response in the session, and runs the transfer in a task.
    pub(crate) fn start_stream(
        &self,
        session: &Rc<Session>,
        mut download: RangeDownload,
        range: Range<u64>,
    ) -> Result<StreamBody, RequestError> {
        // The grant treats bytes that this session may not use as already granted, which limits the window to
        // `max_window`.
        let unused_window = self.buffer_budget.max_window() - session.delivery.max_window.get();
        let held = session.delivery.responses.granted().max(unused_window);
        let grant = self.grant_window(session, held)?;
        download.window = grant.size();
        let (id, from) = (self.take_id(), download.start);
        download.trace = self.options.trace_dir.as_ref().map(|folder| folder.join(format!("{id:06}.ndjson")));
        let standby_links = download
            .link_estimates
            .iter()
            .filter(|(.., is_standby)| *is_standby)
            .map(|(name, ..)| name.clone())
            .collect();
        let (reader, transfer) = download.split();
        let (reader, window) = (Rc::new(reader), grant.size());
        let delivery = &session.delivery;
        delivery.film.on_request(delivery.now(), from);
        *delivery.decisions.borrow_mut() = StreamDecisions { standby_links, ..StreamDecisions::default() };
        delivery.responses.add(id, range, &reader, window);
        let (description, outcome) = (Rc::new(RefCell::new(None)), Rc::new(RefCell::new(None)));
        let all_links_down = Rc::new(Cell::new(false));
        let segment = session.segment_at(from);
        let mut observer = TransferObserver::new(
            (session.id, id),
            segment.clone(),
            delivery,
            window,
            &all_links_down,
            self.accounting.clone(),
        );
        let (network, learnt_slot, outcome_slot) =
            (Rc::clone(&self.links.network), Rc::clone(&description), Rc::clone(&outcome));
        let task = tokio::task::spawn_local(async move {
            let result = transfer.run(&network, &mut observer, learnt_slot).await;
            if let Err(error) = &result {
                observer.on_message(&error.to_string());
            }
            *outcome_slot.borrow_mut() = Some(result);
            observer.on_transfer_ended();
        });
        // The window owns the transfer: revoking or dropping it aborts the task.
        let window_handle =
            self.windows.add_granted(delivery.now(), &session.egress, grant, reader, AbortOnDrop(task));
        let transfer_state = TransferState { description, outcome, all_links_down };
        let segment = segment.map(|(_, segment)| segment);
        Ok(StreamBody::new(id, from, Rc::clone(delivery), segment, window_handle, transfer_state))
    }

    /// Grants a window for another response. If none is left, revokes one of the client that has the most.
    fn grant_window(&self, session: &Session, held: DataSize) -> Result<WindowGrant, RequestError> {
        let client = Client::of_egress(&session.egress);
        let grant = self.buffer_budget.grant(client, held);
        let grant = grant.or_else(|denied| {
            let is_revoked = self.windows.revoke_for(&session.egress, denied == GrantError::RemoteShareExhausted);
            if is_revoked { self.buffer_budget.grant(client, held) } else { Err(denied) }
        });
        grant.map_err(|_| RequestError::OutOfMemory)
    }
}
