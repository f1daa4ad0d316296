//! The media port's answers: a request for `/https://host/path` in, a head and a body out.
//!
//! 1. GET and HEAD only. The head says what the origin says of the resource: type, validators, size.
//! 2. Every site comes out of one origin here, so nothing that a browser could run may act: what is no plain medium is
//!    put in a sandbox (CSP), and no type is guessed.
//! 3. What of a player's fields goes on to servers is decided in [`fields`](super::fields). Cookies that servers set stay in the
//!    proxy: a browser would send one site's to another.
//! 4. An error is one line of text.

use std::net::SocketAddr;
use std::rc::Rc;

use http::header::{
    ACCEPT_RANGES, ALLOW, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE,
    ETAG, HOST, HeaderMap, HeaderValue, IF_RANGE, LAST_MODIFIED, RETRY_AFTER, USER_AGENT, X_CONTENT_TYPE_OPTIONS,
};
use http::{Method, Request, Response, StatusCode};
use hyper::body::Body as _;
use marline_net::reach::Right;

use super::body::{Reply, text};
use super::clients::Seat;
use super::fields::{Fields, Sent};
use super::playlist_answer::{self, Answered, Asked, Kind};
use super::range::{self, Wanted};
use super::session::{Bytes, Head, Refusal, Session, Sessions};
use super::target;
use super::{guard, home, marks, memory};

/// Answers one request.
pub(super) async fn answer<B>(
    sessions: &Rc<Sessions>,
    request: &Request<B>,
    (listener, peer): (SocketAddr, SocketAddr),
    seat: &Rc<Seat>,
) -> Response<Reply> {
    let fields = request.headers();
    match guard::media(fields, listener) {
        Err(guard::Refused::Host) => return plain(StatusCode::MISDIRECTED_REQUEST, "this Host is not the proxy's"),
        Err(guard::Refused::Page) => {
            return plain(StatusCode::FORBIDDEN, "a page of another site may not play here");
        }
        Ok(()) => {}
    }
    let head_only = request.method() == Method::HEAD;
    if !head_only && request.method() != Method::GET {
        let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD can be played");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    if path == "/" {
        return home::answer(request.method(), fields);
    }
    let given = sessions.terms.given.as_ref();
    let given = given.and_then(|given| Some((given, given.behind(path)?)));
    let host = fields.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let (host, path) = match given {
        Some((given, path)) => (format!("{host}/{}", given.prefix().trim_end_matches('/')), path),
        None => (host.to_owned(), path),
    };
    let (led, unmarked) = marks::behind(path);
    let asked = &Asked { host: &host, path, is_marked: led.is_some(), seat };
    let target = match target::parse(unmarked) {
        Ok(target) => target,
        Err(line) => return plain(StatusCode::BAD_REQUEST, &line),
    };
    let agent = fields.get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let player = memory::player(peer.ip(), agent);
    let Some(mut sent) = Fields::of(fields, listener) else {
        let line = "the header fields of the request are longer than servers take";
        return plain(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, line);
    };
    let home = match given {
        Some((given, _)) => given.url.clone(),
        None => match sessions.ahead.home(&player, &target.url) {
            Some(home) => home,
            None => {
                let mut home = target.url.clone();
                if led.is_some() {
                    // A list of another program has named it, or one that is not known any more: it may be of any origin.
                    // No origin has this port.
                    let _ = home.set_port(Some(0));
                }
                home
            }
        },
    };
    if let Some((given, _)) = given {
        sent = sent.with(&given.fields);
    }
    if target.user.is_some() {
        sent = sent.without_login();
    }
    let sent = Sent::new(&sessions.jars, &player, Rc::new(sent), home, target.user.as_ref());
    let sent = if given.is_some() { sent.of_given() } else { sent };
    let right = Right::of_peer(peer).at(listener);
    let right = led.map_or(right, |zone| right.led_by_zone(zone));
    let right = sessions.ahead.right(&player, &target.url, right);
    let session = sessions.of(target, player, sent, right);

    if session.list.get().is_some()
        && let Some(answer) = list(sessions, &session, request, asked).await
    {
        return answer;
    }
    // Ranges are of GET only, and conditions come before them (RFC 9110 §14.2, §13.2.2).
    if head_only || range::is_conditional(fields) {
        let head = match sessions.head(&session, Wanted::Whole).await {
            Ok(head) => head,
            Err(refusal) => return refused(refusal),
        };
        if is_list(&session, &head)
            && let Some(answer) = list(sessions, &session, request, asked).await
        {
            return answer;
        }
        if range::is_not_modified(fields, &described(&head)) {
            return not_modified(&head);
        }
        if head_only {
            return with_head(&head, text_free());
        }
    }
    let mut wanted = Wanted::of(fields);
    // A condition of ranges that does not hold asks for the whole, which is always an answer to it.
    if range::are_several(fields) && !fields.contains_key(IF_RANGE) {
        match sessions.head(&session, Wanted::Whole).await {
            Ok(Head { total: Some(total), ranges: true, .. }) => match Wanted::of_several(fields, total) {
                Ok(one) => wanted = one,
                Err(range::Beyond) => return refused(Refusal::Beyond(total)),
            },
            Ok(_) => {}
            Err(refusal) => return refused(refusal),
        }
    }
    let mut turn = sessions.ahead.turn(sessions, &session, wanted);
    let held = match turn.as_mut().filter(|_| !fields.contains_key(IF_RANGE)) {
        Some(turn) => turn.held(wanted).await,
        None => None,
    };
    let early = match turn.as_mut().filter(|_| held.is_none() && !fields.contains_key(IF_RANGE)) {
        Some(turn) => turn.early(sessions, &session, wanted).await,
        None => None,
    };
    if let Some((head, mut late)) = early {
        late.seat = Some(Rc::clone(seat));
        turn.into_iter().for_each(|turn| turn.follow(sessions, &session));
        return with_head(&head, Reply::Late(late));
    }
    let opened = match held {
        Some(held) => Ok(held),
        None => sessions.open(&session, wanted, |validator| range::if_range_holds(fields, validator)).await,
    };
    if let Some(turn) = turn.filter(|_| opened.is_ok()) {
        turn.follow(sessions, &session);
    }
    match opened {
        Ok((mut head, mut bytes)) => {
            let recognized = playlist_answer::recognized(&session, (&mut head, &mut bytes), wanted).await;
            let kind = match recognized {
                Ok(kind) => kind,
                Err(refusal) => return refused(refusal),
            };
            if let Some(kind) = kind {
                let is_whole = head.span.is_none() || matches!(wanted, Wanted::Whole | Wanted::Part(0, None));
                let opened = is_whole.then_some((head, bytes));
                return match opened {
                    Some(opened) => {
                        let answer = playlist_answer::answer_with(sessions, &session, kind, opened, asked).await;
                        answer.map_or_else(refused, |mut answer| {
                            guarded(answer.headers_mut());
                            answer
                        })
                    }
                    // A range of a list is no list.
                    None => list(sessions, &session, request, asked)
                        .await
                        .unwrap_or_else(|| plain(StatusCode::BAD_GATEWAY, "it is called a playlist and is none")),
                };
            }
            match bytes {
                Bytes::Play(play) => {
                    play.set_connection(seat);
                    with_head(&head, Reply::Play(play))
                }
                Bytes::Single(single) => with_head(&head, Reply::single(single)),
            }
        }
        Err(refusal) => refused(refusal),
    }
}

/// Whether the type says what the name did not.
fn is_list(session: &Session, head: &Head) -> bool {
    if session.list.get().is_some() || session.not_a_list.get() {
        // It was asked for as one, and was none.
        return false;
    }
    session.list.set(head.described.content_type.as_deref().and_then(Kind::typed));
    session.list.get().is_some()
}

/// The answer for a playlist or manifest; none: it is none.
async fn list<B>(
    sessions: &Rc<Sessions>,
    session: &Rc<Session>,
    request: &Request<B>,
    asked: &Asked<'_>,
) -> Option<Response<Reply>> {
    let kind = session.list.get()?;
    let mut answer = match playlist_answer::answer(sessions, session, kind, asked).await {
        Ok(Answered::With(answer)) => answer,
        Ok(Answered::NoList) => {
            session.list.set(None);
            return None;
        }
        Err(refusal) => return Some(refused(refusal)),
    };
    guarded(answer.headers_mut());
    if request.method() == Method::HEAD {
        let length = answer.body().size_hint().exact();
        answer.headers_mut().extend(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
        *answer.body_mut() = text_free();
    }
    Some(answer)
}

/// A head with its body.
fn with_head(head: &Head, body: Reply) -> Response<Reply> {
    let mut answer = Response::new(body);
    let fields = answer.headers_mut();
    *fields = described(head);
    guarded(fields);
    let ranges = if head.ranges { "bytes" } else { "none" };
    fields.insert(ACCEPT_RANGES, HeaderValue::from_static(ranges));
    if let Some(len) = head.span.as_ref().map(|span| span.end - span.start).or(head.total) {
        fields.insert(CONTENT_LENGTH, HeaderValue::from(len));
    }
    if let Some(span) = &head.span {
        let total = head.total.map_or_else(|| "*".to_owned(), |total| total.to_string());
        let range = format!("bytes {}-{}/{total}", span.start, span.end - 1);
        fields.extend(HeaderValue::from_str(&range).ok().map(|range| (CONTENT_RANGE, range)));
        *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    answer
}

/// What the origin says of the resource.
fn described(head: &Head) -> HeaderMap {
    let known = &head.described;
    let said = [
        (CONTENT_TYPE, &known.content_type),
        (CONTENT_ENCODING, &known.encoding),
        (ETAG, &known.etag),
        (LAST_MODIFIED, &known.last_modified),
    ];
    said.into_iter()
        .filter_map(|(name, text)| Some((name, HeaderValue::from_str(text.as_deref()?).ok()?)))
        .collect()
}

/// No type is guessed, nothing acts, and no page of another site may embed it.
fn guarded(fields: &mut HeaderMap) {
    fields.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/octet-stream"));
    fields.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    fields.insert("cross-origin-resource-policy", HeaderValue::from_static("same-site"));
    let medium = fields.get(CONTENT_TYPE).and_then(|medium| medium.to_str().ok()).is_some_and(is_plain);
    if !medium {
        fields.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_static("sandbox; default-src 'none'"));
    }
}

/// Whether a type is a medium that no browser runs.
fn is_plain(content_type: &str) -> bool {
    // Of a list browsers take the last one.
    if content_type.contains(',') {
        return false;
    }
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let (kind, name) = essence.split_once('/').unwrap_or_default();
    match kind {
        "audio" | "video" => true,
        "image" => !name.contains("xml"),
        _ => matches!(essence.as_str(), "application/octet-stream" | "application/ogg" | "text/vtt"),
    }
}

fn not_modified(head: &Head) -> Response<Reply> {
    let mut answer = Response::new(text_free());
    *answer.status_mut() = StatusCode::NOT_MODIFIED;
    *answer.headers_mut() = described(head);
    answer.headers_mut().remove(CONTENT_TYPE);
    answer
}

fn refused(refusal: Refusal) -> Response<Reply> {
    match refusal {
        Refusal::Beyond(total) => {
            let mut answer = plain(StatusCode::RANGE_NOT_SATISFIABLE, "the range lies beyond the end");
            let range = HeaderValue::from_str(&format!("bytes */{total}")).ok();
            answer.headers_mut().extend(range.map(|range| (CONTENT_RANGE, range)));
            answer
        }
        Refusal::Status(status) => {
            // A login is asked for in the URL: a browser would offer one site's to another.
            let code =
                StatusCode::from_u16(status).ok().filter(|code| code.is_client_error() || code.is_server_error());
            plain(code.unwrap_or(StatusCode::BAD_GATEWAY), &format!("the server answers {status}"))
        }
        Refusal::Gone(why) => plain(StatusCode::BAD_GATEWAY, &why),
        Refusal::Forbidden(why) => plain(StatusCode::FORBIDDEN, &why),
        Refusal::Loop(why) => plain(StatusCode::LOOP_DETECTED, &why),
        Refusal::Silent(why) => plain(StatusCode::GATEWAY_TIMEOUT, &why),
        Refusal::NoLink(why) => busy(&why),
        Refusal::Full => busy("too many players: no memory is left for one more"),
    }
}

fn busy(why: &str) -> Response<Reply> {
    let mut answer = plain(StatusCode::SERVICE_UNAVAILABLE, why);
    answer.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("5"));
    answer
}

/// One line.
pub(super) fn plain(status: StatusCode, line: &str) -> Response<Reply> {
    let mut answer = Response::new(text(line));
    *answer.status_mut() = status;
    let fields = answer.headers_mut();
    fields.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    guarded(fields);
    answer
}

/// No body: the fields speak for one that is not sent.
fn text_free() -> Reply {
    Reply::Text(http_body_util::Full::default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_media_stay_out_of_the_sandbox() {
        for (content_type, plain) in [
            ("video/mp4", true),
            ("Audio/MPEG; x=y", true),
            ("image/png", true),
            ("application/octet-stream", true),
            ("image/svg+xml", false),
            ("text/html", false),
            ("application/xhtml+xml", false),
            ("text/javascript", false),
            ("multipart/x-mixed-replace", false),
            ("nonsense", false),
            ("video/mp4, text/html", false),
            ("video/mp4; x=y, text/html", false),
        ] {
            assert_eq!(is_plain(content_type), plain, "{content_type}");
        }
    }

    #[test]
    fn a_head_says_which_bytes_follow() {
        let mut head = Head { described: Default::default(), total: Some(100), span: Some(10..20), ranges: true };
        let answer = with_head(&head, text_free());
        assert_eq!(answer.status(), 206);
        assert_eq!(answer.headers()[CONTENT_RANGE], "bytes 10-19/100");
        assert_eq!(answer.headers()[CONTENT_LENGTH], "10");
        head.span = None;
        let answer = with_head(&head, text_free());
        assert_eq!((answer.status().as_u16(), &answer.headers()[CONTENT_LENGTH]), (200, &HeaderValue::from(100)));
    }
}
