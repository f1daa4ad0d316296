//! `marline accel rtp`: a player's stream of RTSP over two links, until it is stopped.
//!
//! In: the words of the command. Out: a stream on the loopback; what was done, at the end.
//!
//! Nothing of this machine is changed, so that nothing has to be put back.

use marline_rtp::{Front, RtpError, Served, Stream};
use tokio::signal::unix::{SignalKind, signal};

use super::args::RtpArgs;
use super::{json_of, print, say};
use crate::Exit;
use crate::confine::{Daemon, confine};
use crate::hangup::Hangup;

/// Serves players until stopped.
pub(super) fn run(args: RtpArgs) -> Result<(), Exit> {
    let stream = Stream {
        listen: args.listen,
        first: args.primary,
        second: args.secondary,
        address: args.address,
        base: args.base,
        hold: args.hold,
    };
    confine(Daemon::Proxy);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| Exit::failed(format!("the event loop cannot be started: {error}")))?;
    let (first, second) = (stream.first.clone(), stream.second.clone());
    let served = tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut signals = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            signals.push(signal(kind).map_err(|error| Exit::failed(format!("signals cannot be caught: {error}")))?);
        }
        let hangup = Hangup::caught()?;
        let front = Front::open(stream, say).await.map_err(exit)?;
        if !args.quiet {
            say(&format!(
                "play {} (RTP over UDP); media over {first}, reports over {second}; Ctrl-C stops it",
                front.address()
            ));
        }
        tokio::select! {
            () = front.run() => {}
            never = hangup.changes_nothing(args.quiet) => match never {},
            () = std::future::poll_fn(|cx| {
                let came = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                if came { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }) => {}
        }
        front.close().await;
        Ok::<Served, Exit>(front.served())
    })?;
    if args.json {
        return print(&json_of(&served)?);
    }
    if !args.quiet {
        say(&summary(&served));
    }
    Ok(())
}

/// What was done, in a line.
fn summary(served: &Served) -> String {
    let Served { requests, doubled, reports, offloaded, feedback, media, filled, lost, .. } = served;
    let base = match served.mirroring {
        "off" => String::new(),
        how => format!("; base layer {how}: {} packets, {filled} of them filled holes", served.base_media),
    };
    format!(
        "{requests} requests, {doubled} over both links; {reports} reports, {offloaded} over the second link alone; \
         {feedback} commands by RTCP; {media} packets of media, {lost} missing{base}"
    )
}

/// How errors of a stream end the process.
fn exit(error: RtpError) -> Exit {
    let code = match &error {
        RtpError::Wrong(_) => Exit::USAGE,
        RtpError::Link(_) => Exit::NETWORK,
        RtpError::Unfit(_) => Exit::FAILED,
    };
    Exit::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_layer_that_is_not_asked_for_is_not_spoken_of() {
        let off = Served { mirroring: "off", media: 7, ..Served::default() };
        assert!(summary(&off).ends_with("7 packets of media, 0 missing"));
        let on = Served { mirroring: "aligned", filled: 3, base_media: 9, ..off };
        assert!(summary(&on).ends_with("; base layer aligned: 9 packets, 3 of them filled holes"));
    }
}
