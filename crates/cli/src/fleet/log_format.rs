//! What relays, edges and the service say by themselves where nobody has asked for a log (`MARLINE_LOG`): a service that does not
//! answer, a list that cannot be read, a certificate that ends.
//!
//! In: events. Out: lines for people on standard error, as the programs' own.
//!
//! 1. Only what is told once and has to be done something about: [`DEFAULT_FILTER`] names the modules whose rule that is.
//! 2. What a command says in its own words (`tell`) is not said twice.

use std::fmt;

use marline_terminal::output::LogWriter;
use tracing::{Event, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Rule 1.
const DEFAULT_FILTER: &str = "off,marline_fleet::renew=info,marline_fleet::relay::heartbeat=info,marline_fleet::relay::trust=warn,marline_fleet::relay::audit=warn,\
                     marline_fleet::service::leader_election=warn,marline_fleet::service::coordinator=warn,marline_fleet::edge::trust=warn,\
                     marline_paths::gateway=warn";

/// From now on.
pub(crate) fn init_default_log() {
    let subscriber =
        tracing_subscriber::fmt().with_env_filter(EnvFilter::new(DEFAULT_FILTER)).with_writer(|| LogWriter);
    // Somebody else's log, in a test, has all of it.
    let _ = subscriber.event_format(NoticeFormat).try_init();
}

/// `marline: WORDS`.
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
    /// A module that was renamed would fall silent without an error.
    #[test]
    fn the_modules_that_are_named_exist() {
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
