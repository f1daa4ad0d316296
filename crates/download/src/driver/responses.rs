//! Processes what connections report: response heads, bodies and failures.
//!
//! Each event updates the counters and reaches the machine. A response head also changes what the driver knows of the
//! file: cookies, redirect targets, mirrors and digests that the server advertises.

use marline_core::fetch::{ConnError, ConnErrorKind, ConnId, DigestScope, Input, UrlId};
use marline_core::link::LinkId;
use marline_net::http::{Event, ResponseMeta};

use super::DownloadDriver;
use crate::error::DownloadError;
use crate::link_stats::LinkStats;
use crate::machine::DownloadMachine;
use crate::{html_page, messages};

impl<M: DownloadMachine> DownloadDriver<'_, M> {
    /// Processes an HTTP event of an open connection: updates the counters, and reports it to the machine.
    pub(super) fn on_event(&mut self, conn: ConnId, link: LinkId, url_id: UrlId, event: Event) {
        let now = self.now();
        match event {
            Event::Data { req, len } => {
                if let Some(stats) = self.transfer.link_stats.get_mut(usize::from(link.0)) {
                    stats.on_data(now, len);
                }
                self.limiter.consume(link, len);
                self.last_served = conn;
                self.add_unreported(now, req, len);
            }
            Event::Head { req, mut head, location, content_disposition: disposition, meta } => {
                // Cookies and redirect targets are stored before the machine sees the response, because its next
                // request may need them.
                self.transfer.urls.store_cookies(url_id, &meta.set_cookies);
                if let Some(location) = location {
                    if self.transfer.urls.is_full() {
                        self.transfer.urls.evict_redirects(&self.transfer.conns.url_ids());
                    }
                    match self.transfer.urls.resolve_redirect(
                        url_id,
                        &location,
                        self.transfer.conns.server_addr(conn),
                    ) {
                        Ok(id) => head.location = Some(id),
                        Err(why) => self.transfer.observer.on_message(&why),
                    }
                }
                head.is_html_page = matches!(head.status, 200 | 206) && self.is_unexpected_page(url_id, &meta);
                let mirror_inputs = self.advertised_mirrors(url_id, conn, head.status, &meta);
                // Compared only for a range (206): a full response does not continue an earlier run.
                let date_validators = (head.status == 206 && !self.transfer.is_date_checked)
                    .then(|| meta.etag.clone().zip(meta.last_modified.clone()));
                if matches!(head.status, 200 | 206) {
                    self.accept_encoded(&mut head.is_encoded, meta.content_encoding.as_deref());
                    self.transfer.disposition = self.transfer.disposition.take().or(disposition);
                    self.response_meta = Some((url_id, self.transfer.conns.server_addr(conn), *meta));
                }
                // The response first: its mirrors and digest describe the file that it identifies.
                self.feed_machine(Input::Head { req, head });
                mirror_inputs.into_iter().for_each(|input| self.feed_machine(input));
                if let Some((etag, modified)) = date_validators.flatten() {
                    self.check_last_modified(&etag, &modified);
                }
            }
            Event::End { req, unconfirmed } => {
                if unconfirmed {
                    self.transfer.observer.on_message(UNCONFIRMED_END);
                }
                self.transfer.conns.on_request_done(req);
                self.feed_machine(Input::End { req });
                self.transfer.body.forget(req);
            }
            Event::Aborted { req, error } => {
                self.transfer.conns.on_request_done(req);
                self.transfer.body.forget(req);
                let why = error.clone();
                self.transfer.notice_shown = false;
                self.feed_machine(Input::Aborted { req, error });
                self.on_failure(link, &why, false);
            }
            Event::Closed { error } => {
                self.transfer.close_conn(conn);
                let why = error.clone();
                self.transfer.notice_shown = false;
                self.feed_machine(Input::Closed { conn, error });
                self.on_failure(link, &why, false);
            }
        }
    }

    /// Mirrors and the digest that a server named by the user advertises (RFC 6249, RFC 9530). A digest that the
    /// user gave has priority.
    fn advertised_mirrors(&mut self, url_id: UrlId, conn: ConnId, status: u16, meta: &ResponseMeta) -> Vec<Input> {
        let is_final = matches!(status, 200 | 206 | 301 | 302 | 303 | 307 | 308);
        if !self.accepts_mirrors || !is_final || !self.transfer.urls.is_from_user(url_id) {
            return Vec::new();
        }
        let Some(base) = self.transfer.urls.url(url_id).cloned() else { return Vec::new() };
        let mut inputs = Vec::new();
        let server = self.transfer.conns.server_addr(conn);
        for url in meta.mirrors(&base) {
            let mirror = self.transfer.urls.add_mirror(url_id, &url, server);
            inputs.extend(mirror.map(|url_id| Input::Mirror { mirror: url_id }));
        }
        let is_usable = self.transfer.verifier.has_no_digest() && self.transfer.body.store.supports_late_checksum();
        if let Some(checksum) = meta.full_digest().filter(|_| is_usable) {
            self.transfer.body.store.expect_checksum(checksum.clone());
            self.transfer.verifier.set_full_digest(checksum);
            inputs.push(Input::Digest { scope: DigestScope::File });
        }
        // A redirect describes the same file, so the next response may add to it. The final response is the last
        // one used.
        self.accepts_mirrors = matches!(status, 300..=399);
        inputs
    }

    /// Compares Last-Modified with the value of an earlier run. A strong ETag decides whether two responses are of
    /// one version (RFC 9110 section 8.8). If the date has changed under the same ETag, the user gets a message,
    /// because the server may reuse ETags by mistake.
    fn check_last_modified(&mut self, etag: &str, modified: &str) {
        self.transfer.is_date_checked = true;
        match self.transfer.body.store.set_last_modified(etag, modified) {
            Ok(None) => {}
            Ok(Some(before)) => self.transfer.observer.on_message(&format!(
                "the server's Last-Modified is {modified} and was {before}, under the same ETag: the ETag decides, \
                 the download goes on"
            )),
            Err(error) => self.transfer.result = Some(Err(error.into())),
        }
    }

    /// Whether a response is an HTML page although its URL does not suggest one.
    fn is_unexpected_page(&self, url_id: UrlId, meta: &ResponseMeta) -> bool {
        let content_type = meta.content_type.as_deref();
        self.transfer.urls.url(url_id).is_some_and(|url| html_page::may_be_error_page(url, content_type))
    }

    /// Accepts an encoded body although the request excluded encodings. Such servers often mean the file itself:
    /// for a .tgz they derive the encoding from the extension. Ranges and validators refer to the encoded bytes
    /// (RFC 9110 §8.4, §14.2), so responses fit together. The user gets a message.
    fn accept_encoded(&mut self, encoded: &mut bool, encoding: Option<&str>) {
        if !self.accepts_encoded || !std::mem::take(encoded) || std::mem::replace(&mut self.encoding_reported, true)
        {
            return;
        }
        let encoding = encoding.unwrap_or("unknown coding");
        self.transfer.observer.on_message(&format!(
            "the server reports that the file is encoded ({encoding}), although no encoding was accepted; it is saved as received"
        ));
    }

    /// A failure that the machine has already processed. If the machine has shown a notice, no second line follows.
    pub(super) fn on_failure(&mut self, link: LinkId, error: &ConnError, denied: bool) {
        let is_usual = matches!(
            error.kind,
            ConnErrorKind::CleanClose
                | ConnErrorKind::ClosedLocally
                | ConnErrorKind::Http1Required
                | ConnErrorKind::StreamRefused
        );
        if is_usual {
            return;
        }
        let Some(stats) = self.transfer.link_stats.get_mut(usize::from(link.0)) else { return };
        let is_first = stats.on_failure(error, denied);
        if self.transfer.result.is_some() {
            return;
        }
        if denied && self.is_unknown_host(error) {
            let url = self.transfer.urls.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
            self.transfer.result = Some(Err(DownloadError::UnknownHost { url, why: error.text.clone() }));
        } else if is_first && !self.transfer.notice_shown {
            self.transfer.observer.on_message(&messages::conn_error_message(
                &self.transfer.link_stats,
                link,
                error,
            ));
        }
    }

    /// Whether every link that tried to resolve the name received an authoritative denial. The machine does not
    /// decide this: the links work, the server is not unresponsive, and there is only one URL.
    fn is_unknown_host(&self, error: &ConnError) -> bool {
        let denied = |stats: &LinkStats| stats.is_name_denied || (stats.retries == 0 && stats.connections == 0);
        error.kind == ConnErrorKind::Dns
            && self.transfer.urls.has_single_url()
            && self.transfer.conns.ids().is_empty()
            && self.transfer.link_stats.iter().all(|stats| stats.connections == 0 && denied(stats))
    }
}

/// Shown for a body that ends with the connection. Other downloaders accept it without a message.
const UNCONFIRMED_END: &str = "the server closed the connection without closing TLS and stated no length: the file may \
                               be truncated (verify it with --checksum)";
