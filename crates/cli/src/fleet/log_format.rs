//! Default log of relays, edges and the fleet service when `MARLINE_LOG` is not set.
//!
//! It prints log events that need the operator's attention (a service that does not respond, an unreadable revocation list,
//! an expiring certificate) on standard error, in the same format as notices.
//!
//! 1. [`DEFAULT_FILTER`] names the modules that log such an event once and not repeatedly.
//! 2. Modules whose events the commands print as notices of their own are not in the filter, so that nothing appears twice.

use std::fmt;

use marline_terminal::log::parse_filter;
use marline_terminal::output::LogWriter;
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// Modules and levels of the default log.
const DEFAULT_FILTER: &str = "off,marline_fleet::renew=info,marline_fleet::relay::heartbeat=info,marline_fleet::server_trust=warn,marline_fleet::relay::audit=warn,\
                     marline_fleet::service::leader_election=warn,marline_fleet::service::coordinator=warn,marline_fleet::edge::trust=warn,marline_fleet::list_reload=warn,\
                     marline_paths::gateway=warn";

/// Installs the default log.
pub(crate) fn init_default_log() {
    // A test proves that the filter is valid.
    let Ok(filter) = parse_filter(DEFAULT_FILTER) else { return };
    let format = tracing_subscriber::fmt::layer().with_writer(|| LogWriter).event_format(NoticeFormat);
    // Fails if a test has installed its own subscriber, which then receives all events.
    let _ = tracing_subscriber::registry().with(format).with(filter).try_init();
}

/// Formats an event like a notice: `marline: MESSAGE`, without time, level and target.
struct NoticeFormat;

impl<S, N> FormatEvent<S, N> for NoticeFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        write!(writer, "marline: ")?;
        context.field_format().format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

#[cfg(test)]
mod tests {
    /// A renamed module would no longer match the filter, without any error.
    #[test]
    fn the_modules_of_the_default_filter_exist() {
        assert!(super::parse_filter(super::DEFAULT_FILTER).is_ok());
        let crates = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for target in super::DEFAULT_FILTER
            .split(',')
            .filter_map(|directive| directive.split_once('='))
            .map(|(target, _)| target.trim())
        {
            let path = target.strip_prefix("marline_").unwrap().replacen("::", "/src/", 1).replace("::", "/");
            let (file, folder) = (crates.join(format!("{path}.rs")), crates.join(path).join("mod.rs"));
            assert!(file.is_file() || folder.is_file(), "{target}");
        }
    }
}
