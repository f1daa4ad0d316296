//! `marline accel rtp`: offers an RTSP stream over two links to players on this host, until it is stopped.
//!
//! The host configuration is not changed, so that nothing has to be restored.

use marline_rtp::{RtpError, RtpStats, RtspListener, StreamOptions};
use tokio::signal::unix::{SignalKind, signal};

use super::args::RtpArgs;
use super::print_notice;
use crate::CliError;
use crate::output::{print_result, to_json};
use crate::privileges::{Daemon, drop_privileges};
use crate::reload_signal::ReloadSignal;

/// Serves players until SIGINT or SIGTERM, then prints the counters.
pub(super) fn run(args: RtpArgs) -> Result<(), CliError> {
    let stream = StreamOptions {
        listen: args.listen,
        primary: args.primary,
        secondary: args.secondary,
        url: args.url,
        base_layer: args.base,
        reorder_wait: args.reorder_wait,
    };
    drop_privileges(Daemon::Proxy);
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = built.map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))?;
    let (primary, secondary) = (stream.primary.clone(), stream.secondary.clone());
    let stats = tokio::task::LocalSet::new().block_on(&runtime, async move {
        let mut signals = Vec::new();
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            signals
                .push(signal(kind).map_err(|error| CliError::failed(format!("cannot handle signals: {error}")))?);
        }
        let reload = ReloadSignal::register()?;
        let listener = RtspListener::open(stream, print_notice).await.map_err(exit)?;
        if !args.quiet {
            print_notice(&format!(
                "play {} (RTP over UDP); media over {primary}, reports over {secondary}; press Ctrl-C to stop",
                listener.url()
            ));
        }
        tokio::select! {
            () = listener.run() => {}
            never = reload.ignore_with_notice(args.quiet) => match never {},
            () = std::future::poll_fn(|cx| {
                let received = signals.iter_mut().any(|signal| signal.poll_recv(cx).is_ready());
                if received { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
            }) => {}
        }
        listener.close().await;
        Ok::<RtpStats, CliError>(listener.stats())
    })?;
    if args.format.json {
        return print_result(&to_json(&stats)?);
    }
    if !args.quiet {
        print_notice(&summary(&stats));
    }
    Ok(())
}

/// Counters as one line for people.
fn summary(stats: &RtpStats) -> String {
    let RtpStats { requests, duplicated, reports, offloaded, feedback, media, filled, lost, .. } = stats;
    let base = match stats.base_layer {
        "off" => String::new(),
        state => format!("; base layer {state}: {} packets, {filled} of them filled holes", stats.base_media),
    };
    format!(
        "{requests} requests, {duplicated} over both links; {reports} reports, {offloaded} over the secondary link alone; \
         {feedback} RTCP feedback; {media} media packets, {lost} lost{base}"
    )
}

/// Maps an error of the stream to an exit code.
fn exit(error: RtpError) -> CliError {
    let code = match &error {
        RtpError::Usage(_) => CliError::USAGE,
        RtpError::Link(_) => CliError::NETWORK,
        RtpError::Listen(_) => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_mentions_the_base_layer_only_if_one_was_requested() {
        let off = RtpStats { base_layer: "off", media: 7, ..RtpStats::default() };
        assert!(summary(&off).ends_with("7 media packets, 0 lost"));
        let on = RtpStats { base_layer: "aligned", filled: 3, base_media: 9, ..off };
        assert!(summary(&on).ends_with("; base layer aligned: 9 packets, 3 of them filled holes"));
    }
}
