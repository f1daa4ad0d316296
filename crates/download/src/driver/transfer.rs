//! Executes the outputs of a download's machine on its connections, store, URLs and links.

use std::net::IpAddr;

use marline_core::fetch::{
    ConnError, ConnErrorKind, ConnId, Input, Notice, Output, ReqId, RequestRange, UrlId, Validator,
};
use marline_core::link::LinkId;
use marline_core::stream::{LinkMode, StreamEvent};
use marline_core::units::DataSize;

use crate::body_sink::BodySink;
use crate::connections::ConnTable;
use crate::digest_verifier::Verifier;
use crate::error::DownloadError;
use crate::link_stats::LinkStats;
use crate::machine::MachineOutput;
use crate::messages;
use crate::request::DownloadObserver;
use crate::uplinks::Uplinks;
use crate::url_table::UrlTable;

/// What the outputs of a machine act on: everything of a download except the machine and the event loop.
pub(crate) struct Transfer<'a> {
    pub(crate) body: BodySink,
    pub(crate) conns: ConnTable,
    pub(crate) urls: UrlTable,
    pub(crate) uplinks: Uplinks,
    pub(crate) observer: &'a mut dyn DownloadObserver,
    pub(crate) link_stats: Vec<LinkStats>,
    /// Verifies the pieces that are complete in the store.
    pub(crate) verifier: Verifier,
    /// Content-Disposition of the first usable response; the caller decides whether it names the file.
    pub(crate) disposition: Option<String>,
    /// Size and validator of the file, once the first usable response has arrived.
    pub(crate) identity: Option<(Option<DataSize>, Option<Validator>)>,
    /// Bytes stored by an earlier run.
    pub(crate) resumed_bytes: u64,
    /// Whether the Last-Modified of the first response was compared with that of the earlier run.
    pub(super) is_date_checked: bool,
    /// End of the bytes that the reader of a stream has consumed.
    pub(super) consumed_end: u64,
    /// Stream events that the observer has not taken yet.
    pub(crate) stream_events: Vec<StreamEvent>,
    /// The machine has emitted an output that takes effect only when the sockets are polled again.
    pub(super) has_new_outputs: bool,
    /// Inputs for the machine in the next iteration.
    pub(super) pending_inputs: Vec<Input>,
    /// Whether the machine or the store has shown a message about the current event, so that the driver shows none.
    pub(super) notice_shown: bool,
    /// Set once: the download is complete, or why it is not.
    pub(super) result: Option<Result<(), DownloadError>>,
}

impl<'a> Transfer<'a> {
    pub(super) fn new(
        body: BodySink,
        conns: ConnTable,
        urls: UrlTable,
        uplinks: Uplinks,
        observer: &'a mut dyn DownloadObserver,
    ) -> Self {
        Self {
            body,
            conns,
            urls,
            uplinks,
            observer,
            link_stats: Vec::new(),
            verifier: Verifier::default(),
            disposition: None,
            identity: None,
            resumed_bytes: 0,
            is_date_checked: false,
            consumed_end: 0,
            stream_events: Vec::new(),
            has_new_outputs: false,
            pending_inputs: Vec::new(),
            notice_shown: false,
            result: None,
        }
    }

    /// Executes an output of the machine. Nothing here calls the machine: results go to
    /// [`pending_inputs`](Self::pending_inputs), because the machine must be drained before its next input.
    pub(super) fn execute(&mut self, machine_output: MachineOutput) {
        // The transfer has ended: outputs are still drained (and recorded), but no longer executed.
        if self.result.is_some() {
            return;
        }
        let output = match machine_output {
            MachineOutput::Fetch(output) => output,
            // Nothing to do: the reader takes bytes from the store when they are in order.
            MachineOutput::Stream(StreamEvent::Deliver { .. }) => return,
            MachineOutput::Stream(event) => {
                self.set_standby(&event);
                self.stream_events.push(event);
                return;
            }
        };
        self.has_new_outputs |= !matches!(output, Output::Notice(_));
        match output {
            Output::Connect { conn, link, url: url_id, address: at } => self.connect(conn, link, url_id, at),
            Output::Request { req, conn, range, if_range } => self.request(req, conn, range, if_range),
            Output::AcceptBody { req, offset: at, len, .. } => {
                self.body.accept(req, at, len);
                self.conns.accept(req, len);
            }
            Output::Cancel { req } => {
                self.body.forget(req);
                self.conns.cancel(req);
            }
            Output::Close { conn } => self.close_conn(conn),
            Output::Identified { total, validator } => self.on_identified(total, validator.as_ref()),
            Output::Restart => {
                // The download begins again (another version, another mirror, a lost single response): what counts or
                // describes the discarded bytes is reset.
                self.consumed_end = 0;
                self.is_date_checked = false;
                self.resumed_bytes = 0;
                self.body.prefix.clear();
                if let Err(error) = self.body.store.restart() {
                    self.result = Some(Err(error.into()));
                }
            }
            Output::Verify { range: span } => self.verifier.start(span),
            Output::Notice(notice) => self.show_notice(&notice),
            Output::Done => self.result = Some(Ok(())),
            Output::Failed(failure) => {
                let url = self.urls.url(UrlId(0)).map(ToString::to_string).unwrap_or_default();
                self.result = Some(Err(DownloadError::Failed { url, failure }));
            }
        }
    }

    /// Closes the idle connections of links that become standby. Later use or closing would wake the radio.
    fn set_standby(&self, event: &StreamEvent) {
        let is_standby = |id: LinkId| match *event {
            StreamEvent::Standby { link, standby: true, .. } => id == link,
            StreamEvent::Mode { mode: LinkMode::Only(link), .. } => id != link,
            _ => false,
        };
        let standby_ids = self.uplinks.ids().filter(|id| is_standby(*id));
        standby_ids
            .filter_map(|id| self.uplinks.interface(id))
            .for_each(|interface| self.conns.on_standby(interface));
    }

    pub(super) fn connect(&mut self, conn: ConnId, link: LinkId, url_id: UrlId, at: Option<IpAddr>) {
        match (self.urls.url(url_id), self.urls.egress(url_id)) {
            (Some(url), Some(egress)) => {
                self.conns.connect(conn, link, url_id, (url, at, egress), self.uplinks.interface(link).cloned());
            }
            _ => self.reject_output(conn, "its URL ID is unknown"),
        }
    }

    pub(super) fn request(&mut self, req: ReqId, conn: ConnId, range: RequestRange, if_range: Option<Validator>) {
        let Some((link, url_id)) = self.conns.link_and_url(conn) else {
            return self.reject_output(conn, "it does not exist");
        };
        let Some(get) = self.urls.request_for(url_id, range, if_range) else {
            return self.reject_output(conn, "its URL has no host");
        };
        if !self.conns.request(req, conn, &get) {
            return self.reject_output(conn, "it is not open");
        }
        if let Some(stats) = self.link_stats.get_mut(usize::from(link.0)) {
            stats.requests += 1;
        }
    }

    /// Reports a connection whose output cannot be executed as closed, so that the machine gets a result for each
    /// output (rule 6 of its contract).
    fn reject_output(&mut self, conn: ConnId, why: &str) {
        self.close_conn(conn);
        let error =
            ConnError { kind: ConnErrorKind::ClosedLocally, text: format!("the connection cannot be used: {why}") };
        self.pending_inputs.push(Input::Closed { conn, error });
    }

    pub(super) fn close_conn(&mut self, conn: ConnId) {
        for req in self.conns.close(conn) {
            self.body.forget(req);
        }
    }

    fn on_identified(&mut self, total: Option<DataSize>, validator: Option<&Validator>) {
        if let Some(suggested) = self.uplinks.server_name(self.disposition.as_deref(), self.urls.url(UrlId(0))) {
            self.body.store.suggest_name(suggested.name.as_ref());
            if let Some(note) = suggested.note {
                self.observer.on_message(&note);
            }
        }
        self.identity = Some((total, validator.cloned()));
        if let Err(error) = self.body.store.on_identified(total, validator) {
            self.result = Some(Err(error.into()));
        }
        self.forward_notes();
    }

    /// The file name that the server suggests, if server names are enabled.
    pub(crate) fn suggested_name(&self) -> Option<String> {
        let name = self.uplinks.server_name(self.disposition.as_deref(), self.urls.url(UrlId(0)));
        name.map(|suggested| suggested.name)
    }

    /// Passes the messages of the store to the user.
    pub(super) fn forward_notes(&mut self) {
        while let Some(note) = self.body.store.take_note() {
            self.observer.on_message(&note);
            self.notice_shown = true;
        }
    }

    fn show_notice(&mut self, notice: &Notice) {
        // From now on the journal belongs to the URL of the new mirror.
        if let Notice::MirrorSwitched { next, .. } = notice
            && let Some(url) = self.urls.url(*next)
        {
            self.body.store.set_url(url);
        }
        let message =
            messages::notice_message(notice, &self.link_stats, &self.urls, |link| self.conns.opening_phase(link));
        self.observer.on_message(&message);
        self.notice_shown = true;
    }
}
