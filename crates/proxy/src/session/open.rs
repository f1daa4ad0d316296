//! Opens the bytes that a player requests: turns a requested range into a response head and a body.
//!
//! 1. A resource whose ranges provably belong together (size and strong validator) is remembered, with the URL that
//!    redirects led to. The first response of each transfer verifies that it is unchanged (If-Range). If it has
//!    changed, it is requested once more from scratch.
//! 2. A resource without ranges is fetched as one response over one link. If it has ranges but no strong validator,
//!    each requested range is passed on separately over one link.

use std::rc::Rc;
use std::time::{Duration, Instant};

use marline_core::fetch::{ByteRange, ConnErrorKind, Failure, RequestRange};
use marline_core::units::DataSize;
use marline_download::store::{StoreError, StreamIdentity};
use marline_download::{DownloadError, KnownResource, ResourceInfo};
use marline_net::http::ResponseMeta;
use marline_net::links::Interface;
use tokio::time::{sleep, timeout};

use super::Session;
use super::resource::{Resource, ResponseBody, ResponseHead, passthrough, upstream_range};
use super::table::Sessions;
use crate::client::range::RequestedRange;
use crate::upstream::request_error::RequestError;
use crate::upstream::single_link::{DRAIN_TIMEOUT, FIRST_BYTE_TIMEOUT, SingleLinkRequest, SingleLinkResponse};

/// The result of probing a resource.
enum ResourceProbe {
    /// Ranges with a size and a strong validator.
    Ranges(Resource),
    /// Ranges without a strong validator, which may belong to different versions.
    WeakRanges(ResponseHead),
    NoRanges(ResponseHead),
}

/// The remembered resource has changed (`None`), or cannot be fetched for this reason.
struct StaleResource(Option<RequestError>);

impl Sessions {
    /// The current head of a resource, according to its origin within the last [`DESCRIPTION_TTL`].
    pub(crate) async fn head(
        &self,
        session: &Session,
        requested: RequestedRange,
    ) -> Result<ResponseHead, RequestError> {
        let fresh = session.resource().filter(|known| known.checked_at.elapsed() < DESCRIPTION_TTL);
        let probed = match fresh {
            Some(resource) => ResourceProbe::Ranges(resource),
            None => self.probe_resource(session).await?,
        };
        match probed {
            ResourceProbe::Ranges(resource) => resource.response_head(requested),
            ResourceProbe::WeakRanges(head) | ResourceProbe::NoRanges(head) => Ok(head),
        }
    }

    /// Opens the bytes that a player requests. `holds` evaluates the player's condition (If-Range) for a validator.
    pub(crate) async fn open(
        &self,
        session: &Rc<Session>,
        requested: RequestedRange,
        holds: impl Fn(Option<&str>) -> bool,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        if let Some(timeout) = self.followed_playlists.blocking_timeout(&session.requester()) {
            return self.open_blocking(session, requested, timeout).await;
        }
        // The second attempt follows if the remembered resource turns out to have changed.
        for last_try in [false, true] {
            let resource = session.resource();
            // A request for the whole resource needs no probe: its own response describes the resource.
            let from_zero =
                matches!(requested, RequestedRange::Full | RequestedRange::Bytes(0, None)) && holds(None);
            let probed = match resource {
                Some(resource) => ResourceProbe::Ranges(resource),
                None if from_zero => return self.open_first(session, requested).await,
                None => self.probe_resource(session).await?,
            };
            match probed {
                ResourceProbe::Ranges(resource) => {
                    let wanted = if holds(Some(resource.known.validator.if_range_value())) {
                        requested
                    } else {
                        RequestedRange::Full
                    };
                    match self.open_known(session, resource, wanted).await {
                        Err(StaleResource(None)) if !last_try => session.forget_resource(),
                        Err(StaleResource(refusal)) => {
                            let changes =
                                || RequestError::BadGateway("the resource changes again and again".to_owned());
                            return Err(refusal.unwrap_or_else(changes));
                        }
                        Ok(opened) => return Ok(opened),
                    }
                }
                ResourceProbe::WeakRanges(head) => {
                    let requested = if holds(None) { requested } else { RequestedRange::Full };
                    return self.open_unverified(session, requested, &head).await;
                }
                ResourceProbe::NoRanges(_) => return self.open_first(session, RequestedRange::Full).await,
            }
        }
        Err(RequestError::BadGateway("the resource changes again and again".to_owned()))
    }

    /// Starts the first transfer of a resource: it reads from the beginning to the end, and its first response
    /// identifies the resource.
    async fn open_first(
        &self,
        session: &Rc<Session>,
        requested: RequestedRange,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let download = self.build_download(session, (session.url.clone(), session.egress), None, 0..u64::MAX)?;
        let mut stream = self.start_stream(session, download, 0..u64::MAX)?;
        let Ok(identity) = timeout(FIRST_BYTE_TIMEOUT, stream.wait_for_identity()).await else {
            return Err(RequestError::Timeout(NO_FIRST_BYTE.to_owned()));
        };
        let Some(StreamIdentity { total, validator }) = identity.filter(|_| !stream.has_failed_without_data())
        else {
            return Err(transfer_error(stream.transfer.outcome.take()));
        };
        // The length of an empty resource is known from a 416, which carries no metadata.
        let source = stream.transfer.description.borrow().clone();
        let (described, (url, egress)) = source.map_or_else(
            || (ResponseMeta::default(), (session.url.clone(), session.egress)),
            |ResourceInfo { meta: described, url, egress, .. }| (described, (url, egress)),
        );
        stream.set_length(total.map(DataSize::bytes));
        let ranges = validator.is_some();
        if let (Some(total), Some(validator)) = (total, validator) {
            let known = KnownResource { total, validator };
            let checked = Instant::now();
            let resource = Resource { known, description: described.clone(), url, egress, checked_at: checked };
            session.remember_resource(resource);
        }
        let total = total.map(DataSize::bytes);
        session.delivery.set_status(if ranges {
            "ranges over all links"
        } else {
            "one response over one link: no provable ranges"
        });
        let range =
            total.filter(|total| ranges && requested != RequestedRange::Full && *total > 0).map(|total| 0..total);
        Ok((
            ResponseHead { description: described, total, range, accepts_ranges: ranges },
            ResponseBody::Stream(Box::new(stream)),
        ))
    }

    /// Starts a transfer of a resource that is already known.
    async fn open_known(
        &self,
        session: &Rc<Session>,
        resource: Resource,
        requested: RequestedRange,
    ) -> Result<(ResponseHead, ResponseBody), StaleResource> {
        let head = resource.response_head(requested).map_err(|refusal| StaleResource(Some(refusal)))?;
        let total = resource.known.total.bytes();
        let range = head.range.clone().unwrap_or(0..total);
        let stale = |refusal| StaleResource(Some(refusal));
        let location = (resource.url.clone(), resource.egress);
        let download =
            self.build_download(session, location, Some(resource.known), range.clone()).map_err(stale)?;
        let mut stream = self.start_stream(session, download, range.clone()).map_err(stale)?;
        stream.set_length(Some(range.end - range.start));
        if !range.is_empty() {
            tokio::select! {
                _ = stream.wait_for_identity() => {}
                // The probe that follows determines the error status of the origin.
                () = stream.wait_until_all_links_down() => return Err(StaleResource(None)),
                () = sleep(FIRST_BYTE_TIMEOUT) => return Err(StaleResource(Some(RequestError::Timeout(NO_FIRST_BYTE.to_owned())))),
            }
            if stream.has_failed_without_data() {
                return Err(match stream.transfer.outcome.take() {
                    // The resource has changed, or the URL that a redirect led to is no longer valid.
                    Some(Err(DownloadError::Store(StoreError::ChangedAfterDelivery { .. }))) => StaleResource(None),
                    Some(Err(DownloadError::Failed { .. })) if resource.url != session.url => StaleResource(None),
                    outcome => StaleResource(Some(transfer_error(outcome))),
                });
            }
        }
        session.on_resource_checked();
        session.delivery.set_status("ranges over all links");
        Ok((head, ResponseBody::Stream(Box::new(stream))))
    }

    /// Passes on one range as the origin server delivers it.
    async fn open_unverified(
        &self,
        session: &Session,
        requested: RequestedRange,
        probed: &ResponseHead,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let single = self.request_single(session, upstream_range(requested, probed.total)).await?;
        session.delivery.set_status("one response over one link: no strong validator");
        passthrough(single)
    }

    /// Requests a part that does not exist yet: the server delays its response until the part exists, for at most
    /// `timeout`. This delay is no stall of the link, so no other link is tried meanwhile.
    async fn open_blocking(
        &self,
        session: &Session,
        requested: RequestedRange,
        timeout: Duration,
    ) -> Result<(ResponseHead, ResponseBody), RequestError> {
        let links = self.links_for_single_request(session)?;
        let request = SingleLinkRequest { timeout, ..session.single_link_request(upstream_range(requested, None)) };
        session.delivery.set_status("one response over one link: the server delays it until the part exists");
        passthrough(SingleLinkResponse::request(&self.links.network, &links, &request).await?)
    }

    /// Requests the first byte, to learn what the resource is.
    async fn probe_resource(&self, session: &Session) -> Result<ResourceProbe, RequestError> {
        let mut response = self.request_single(session, RequestRange::Bounded(ByteRange::new(0, 1))).await?;
        let described = response.described.clone();
        let head = |total: Option<DataSize>, accepts_ranges| ResponseHead {
            description: described.clone(),
            total: total.map(DataSize::bytes),
            range: None,
            accepts_ranges,
        };
        let total = response.head.range.and_then(|range| range.total);
        let probe = match (response.head.status, total, response.head.validator.clone()) {
            (206, Some(total), Some(validator)) => {
                let known = KnownResource { total, validator };
                let resource = Resource {
                    known,
                    description: described,
                    url: response.url.clone(),
                    egress: response.egress,
                    checked_at: Instant::now(),
                };
                session.remember_resource(resource.clone());
                let _ = timeout(DRAIN_TIMEOUT, response.peek(&|first| !first.is_empty())).await;
                session.first_byte.set(response.peeked().first().copied());
                ResourceProbe::Ranges(resource)
            }
            (206, total, _) => ResourceProbe::WeakRanges(head(total, true)),
            // An empty resource has no first byte.
            (416, total, _) => ResourceProbe::NoRanges(head(total.or(Some(DataSize::ZERO)), false)),
            (200, _, _) => ResourceProbe::NoRanges(head(response.head.length, false)),
            (status, ..) => return Err(RequestError::Status(status)),
        };
        response.drain().await;
        Ok(probe)
    }

    /// Sends one request over the link that suits the host.
    async fn request_single(
        &self,
        session: &Session,
        range: RequestRange,
    ) -> Result<SingleLinkResponse, RequestError> {
        let links = self.links_for_single_request(session)?;
        Ok(SingleLinkResponse::request(&self.links.network, &links, &session.single_link_request(range)).await?)
    }

    /// The interfaces for a single request during playback: links on standby come last, so that their radios stay idle.
    pub(crate) fn links_for_single_request(
        &self,
        session: &Session,
    ) -> Result<Vec<Option<Interface>>, RequestError> {
        let mut links = self.links.ranked_for_url(&session.url)?;
        let playbacks = self.playbacks.borrow();
        let is_standby_link = |link: &Option<Interface>| {
            link.as_ref().is_some_and(|link| {
                playbacks
                    .get(&session.player)
                    .is_some_and(|playback| playback.rates.borrow().is_standby(&link.name))
            })
        };
        links.sort_by_key(is_standby_link);
        Ok(links)
    }
}

/// The error that the player gets for a transfer that delivered nothing.
fn transfer_error(outcome: Option<Result<(), DownloadError>>) -> RequestError {
    match outcome {
        Some(Err(DownloadError::Failed { failure: Failure::BadStatus { status }, .. })) => {
            RequestError::Status(status)
        }
        Some(Err(DownloadError::Failed { failure: Failure::RetriesExhausted { error }, .. }))
            if matches!(error.kind, ConnErrorKind::Forbidden | ConnErrorKind::OwnListener) =>
        {
            error.into()
        }
        Some(Err(DownloadError::Failed { failure: Failure::NoLink { error }, .. })) => {
            RequestError::NoLink(error.map_or_else(|| "no link can be used".to_owned(), |error| error.text))
        }
        Some(Err(error @ DownloadError::Failed { failure: Failure::NoResponse, .. })) => {
            RequestError::Timeout(error.to_string())
        }
        Some(Err(DownloadError::Links(error))) => RequestError::NoLink(error.to_string()),
        Some(Err(error)) => RequestError::BadGateway(error.to_string()),
        Some(Ok(())) | None => {
            RequestError::BadGateway("the transfer ended without an error and without data".to_owned())
        }
    }
}

const NO_FIRST_BYTE: &str = "the origin server accepted the request and sent no byte within a minute";
/// How long a probed description answers HEAD and conditional requests without another probe.
const DESCRIPTION_TTL: Duration = Duration::from_secs(1);
