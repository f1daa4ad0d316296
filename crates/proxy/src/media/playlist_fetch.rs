//! Fetches a playlist completely.
//!
//! A playlist is one small response, so it is fetched over the best link. If that has not delivered it after
//! [`HEDGE_DELAY`], the next one is tried as well, and the first complete response counts: a live player must not stall
//! because a link has failed. A response that the server delays on purpose ([`blocking_reload`]) is waited for instead.
//!
//! The bytes are charged to the buffer budget as they arrive.

use std::rc::Rc;
use std::time::Duration;

use marline_core::fetch::{ByteRange, RequestRange};
use marline_core::units::DataSize;
use marline_download::ClientContext;
use marline_net::egress::EgressPolicy;
use marline_net::http::ResponseMeta;
use marline_net::links::Interface;
use tokio::task::JoinSet;
use tokio::time::timeout;
use url::Url;

use super::format_detection::unknown_encoding_error;
use crate::client::buffer_budget::{BufferBudget, Client, Purpose, Reservation};
use crate::playlist::blocking_reload;
use crate::playlist::format::PlaylistFormat;
use crate::playlist::parse_budget::MAX_HLS_BYTES;
use crate::playlist::response_sniffer::{BodyEnd, ResponseSniffer, SniffResult};
use crate::session::Session;
use crate::session::table::Sessions;
use crate::upstream::request_error::RequestError;
use crate::upstream::single_link::{FIRST_BYTE_TIMEOUT, SingleLinkRequest, SingleLinkResponse};

/// A playlist as received.
pub(crate) struct FetchedPlaylist {
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: Option<String>,
    /// Its Content-Encoding; servers apply one although the proxy does not request it.
    pub(crate) encoding: Option<String>,
    /// The URL after all redirects.
    pub(crate) url: Url,
    /// The destinations to which its URLs may lead.
    pub(crate) referred_egress: EgressPolicy,
    pub(crate) reservation: Reservation,
}

/// A playlist that is being received.
pub(crate) struct PlaylistDownload {
    body: Vec<u8>,
    reservation: Reservation,
}

impl PlaylistDownload {
    pub(crate) fn new(memory: &BufferBudget, egress: &EgressPolicy) -> Result<Self, RequestError> {
        let client = Client::of_egress(egress);
        let reservation = memory.reserve(client, Purpose::Playlists, 0).ok_or(RequestError::OutOfMemory)?;
        Ok(Self { body: Vec::new(), reservation })
    }

    pub(crate) fn push(&mut self, chunk: &[u8]) -> Result<(), RequestError> {
        if self.body.len() + chunk.len() > MAX_HLS_BYTES {
            let line = format!("the playlist has more than {} MiB; play it without the proxy", MAX_HLS_BYTES >> 20);
            return Err(RequestError::BadGateway(line));
        }
        let (old_capacity, must_grow) =
            (self.body.capacity(), self.body.len() + chunk.len() > self.body.capacity());
        if must_grow {
            // Doubling the capacity would use much more memory than needed.
            self.body.reserve_exact(chunk.len().max(self.body.len() / 8));
        }
        if must_grow && !self.reservation.grow((self.body.capacity() - old_capacity) as u64) {
            return Err(RequestError::OutOfMemory);
        }
        self.body.extend_from_slice(chunk);
        Ok(())
    }

    pub(crate) fn finish(
        self,
        described: ResponseMeta,
        url: Url,
        referred_egress: EgressPolicy,
    ) -> FetchedPlaylist {
        let Self { body, reservation: reserved } = self;
        let ResponseMeta { content_type, content_encoding: encoding, .. } = described;
        FetchedPlaylist { body, content_type, encoding, url, referred_egress, reservation: reserved }
    }
}

/// Fetches a playlist over the best link, and over the next one if that does not deliver it in time. `None`: it is no
/// playlist.
pub(crate) async fn fetch(sessions: &Sessions, session: &Session) -> Result<Option<FetchedPlaylist>, RequestError> {
    let mut request = session.single_link_request(RequestRange::Full);
    let blocking_timeout = blocking_reload::is_blocking(&session.url).then(|| {
        blocking_reload::blocking_timeout(sessions.followed_playlists.target_duration(&session.requester()))
    });
    request.timeout = blocking_timeout.unwrap_or(request.timeout);
    let mut links = sessions.links_for_single_request(session)?.into_iter();
    let (mut requests, mut sent_flags) = (JoinSet::new(), Vec::new());
    let mut last_error = RequestError::BadGateway("no response in time".to_owned());
    loop {
        // Each round tries one more link, and then waits for the first complete response of all links that were
        // tried.
        let next_link = links.next();
        let is_last = links.len() == 0;
        match next_link {
            Some(link) => {
                let download = PlaylistDownload::new(&sessions.buffer_budget, &session.egress)?;
                request.is_sent = Rc::default();
                sent_flags.push(Rc::clone(&request.is_sent));
                requests.spawn_local(fetch_over(
                    Rc::clone(&sessions.links.network),
                    link,
                    request.clone(),
                    download,
                ));
            }
            None if requests.is_empty() => return Err(last_error),
            None => {}
        }
        let mut outcome = timeout(if is_last { RESPONSE_TIMEOUT } else { HEDGE_DELAY }, requests.join_next()).await;
        if let (Err(_), Some(hold_time)) = (&outcome, blocking_timeout.filter(|_| request.is_sent.get())) {
            // The request was sent, so the link works: now the server is waited for.
            outcome = timeout(hold_time, requests.join_next()).await;
        } else if outcome.is_err() && is_last && sent_flags.iter().any(|sent| sent.get()) {
            outcome = timeout(FIRST_BYTE_TIMEOUT - RESPONSE_TIMEOUT, requests.join_next()).await;
        }
        match outcome {
            Ok(Some(Ok(Err(RequestError::BadGateway(why))))) => last_error = RequestError::BadGateway(why),
            Ok(Some(Ok(result))) => return result,
            Ok(Some(Err(_)) | None) => {}
            Err(_) if is_last => return Err(last_error),
            Err(_) => {}
        }
    }
}

async fn fetch_over(
    network: Rc<ClientContext>,
    link: Option<Interface>,
    request: SingleLinkRequest,
    mut download: PlaylistDownload,
) -> Result<Option<FetchedPlaylist>, RequestError> {
    let mut response = SingleLinkResponse::request(&network, &[link], &request).await?;
    // From now on, missing data means that the link stalls, not that the server delays its response.
    request.is_sent.set(false);
    let referred_egress = response.referred_egress();
    let range = response.head.range;
    match response.head.status {
        // 203: a proxy has changed something (RFC 9110 section 15.3.4).
        200 | 203 => {}
        // Some servers respond to every request with 206.
        206 if range.is_some_and(|range| is_complete_range(range.range, range.total)) => {}
        status => return Err(RequestError::Status(status)),
    }
    let encoding = response.described.content_encoding.clone();
    let declared_format = PlaylistFormat::declared(&request.url, response.described.content_type.as_deref());
    let sniffer = ResponseSniffer::new(encoding.as_deref(), declared_format, 0);
    let mut result = SniffResult::NeedMore;
    while let Some(chunk) = response.next_chunk().await {
        download.push(&chunk?)?;
        result = sniffer.sniff(&download.body);
        // If a server declares a playlist and sends something else, that is played like any resource, with ranges if
        // possible.
        if result == SniffResult::NotAPlaylist {
            return Ok(None);
        }
    }
    if result == SniffResult::NeedMore {
        result = sniffer.sniff_at_end(&download.body, BodyEnd::Complete);
    }
    match result {
        SniffResult::Playlist(_) => {
            Ok(Some(download.finish(response.described.clone(), response.url.clone(), referred_egress)))
        }
        SniffResult::UnknownEncoding => Err(unknown_encoding_error(encoding.as_deref())),
        SniffResult::NotAPlaylist | SniffResult::NeedMore => Ok(None),
    }
}

/// Whether a range extends from the first byte to the last one. The server may not know the total.
fn is_complete_range(range: Option<ByteRange>, total: Option<DataSize>) -> bool {
    range.is_some_and(|span| span.start == 0 && total.is_none_or(|total| total.bytes() == span.end))
}

/// How long a link may take to deliver the playlist before the next one is tried as well. Our choice: three times the
/// RTT of a loaded mobile link. A second request costs a few kilobytes.
const HEDGE_DELAY: Duration = Duration::from_millis(1500);
/// How long to wait for a complete response after the last link was tried; longer, up to [`FIRST_BYTE_TIMEOUT`], if a
/// server has received a request and not responded. Our choice: three segments of six seconds.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(18);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_all_bytes_counts_as_the_whole_resource() {
        let is = |from, to, total: Option<u64>| {
            is_complete_range(Some(ByteRange::new(from, to)), total.map(DataSize::from_bytes))
        };
        assert!(is(0, 9, Some(9)) && is(0, 9, None));
        assert!(!is(0, 9, Some(10)) && !is(1, 9, Some(9)) && !is_complete_range(None, None));
    }
}
