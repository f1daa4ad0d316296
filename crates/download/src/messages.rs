//! Renders the notices of the machine as lines for the user: with the name of the link, the problem, and what
//! marline does about it.

use marline_core::fetch::{ConnError, Notice, UrlId};
use marline_core::link::LinkId;

use super::link_stats::LinkStats;
use super::url_table::UrlTable;

/// The first failure on a link; the machine retries.
pub(super) fn conn_error_message(link_stats: &[LinkStats], link: LinkId, error: &ConnError) -> String {
    let name = link_stats.get(usize::from(link.0)).map_or("?", |stats| stats.profile.name.as_str());
    format!("link {name}: {}; trying again", error.text)
}

/// One line, without a line end. `opening_phase` returns what a link without a connection is waiting for.
pub(super) fn notice_message(
    notice: &Notice,
    link_stats: &[LinkStats],
    url_table: &UrlTable,
    opening_phase: impl Fn(LinkId) -> Option<&'static str>,
) -> String {
    let name = |link: &LinkId| link_stats.get(usize::from(link.0)).map_or("?", |stats| stats.profile.name.as_str());
    let url = |url_id: &UrlId| url_table.url(*url_id).map_or_else(|| "?".to_owned(), ToString::to_string);
    match notice {
        Notice::Banned { link, reason: why, will_probe: true } => {
            format!("link {}: not used for now, {why}; it is retried later", name(link))
        }
        Notice::Banned { link, reason: why, will_probe: false } => format!("link {}: not used, {why}", name(link)),
        Notice::Recovered { link } => format!("link {}: carries data again", name(link)),
        Notice::Stalled { link, duration: after } => {
            let carries =
                |(n, stats): (usize, &LinkStats)| n != usize::from(link.0) && stats.first_byte_at.is_some();
            let others = link_stats.iter().enumerate().any(carries);
            let next = if others { "the other links continue" } else { "it is retried" };
            let phase = opening_phase(*link).map(|phase| format!(" ({phase})")).unwrap_or_default();
            format!("link {}: no data for {:.1}s{phase}; {next}", name(link), after.as_secs_f64())
        }
        Notice::MeteredInUse { link } => {
            format!(
                "link {}: it is metered, and used because no other link works (--metered never forbids it)",
                name(link)
            )
        }
        Notice::BudgetSpent { link, budget } => {
            format!("link {}: its data budget of {budget} is used up; the link is no longer used", name(link))
        }
        Notice::Unconfirmed { link, accepted_from: confirmed_by } => format!(
            "link {}: no response in time; the response of link {} is accepted without its confirmation",
            name(link),
            name(confirmed_by)
        ),
        Notice::SingleResponse { reason: why } if link_stats.len() > 1 => {
            format!("only one link can be used: {why}")
        }
        Notice::SingleResponse { reason: why } => format!("this download cannot be resumed: {why}"),
        Notice::ServerBusy { link, wait, retry_after: requested, status } => {
            let prefix = if link_stats.len() > 1 { format!("link {}: ", name(link)) } else { String::new() };
            let requested =
                requested.map(|requested| format!(" (Retry-After: {} s)", requested.as_secs())).unwrap_or_default();
            format!("{prefix}the server answers {status}: waiting {:.1}s{requested}", wait.as_secs_f64())
        }
        Notice::MirrorSwitched { failed: previous, next, reason: why, discards_data: from_zero } => {
            let restart_note = if *from_zero { "; the bytes received so far are discarded" } else { "" };
            format!("{}: {why}: the whole file is fetched from {} instead{restart_note}", url(previous), url(next))
        }
        Notice::DigestMismatch { range: span, mirror: Some(mirror) } => format!(
            "{}: bytes {} to {} do not match their digest; this mirror is no longer used",
            url(mirror),
            span.start,
            span.end.saturating_sub(1)
        ),
        Notice::DigestMismatch { range: span, mirror: None } => {
            let last = span.end.saturating_sub(1);
            format!("bytes {} to {last} do not match their digest and are fetched again", span.start)
        }
        Notice::FileChanged => "the file has changed on the server: starting again".to_owned(),
        Notice::LinkMirrorSwitched { link, previous, reason: why } => {
            format!("{}: link {} switches to the next mirror, {why}", url(previous), name(link))
        }
    }
}

#[cfg(test)]
mod tests {
    use marline_core::fetch::ByteRange;

    use super::*;

    #[test]
    fn a_digest_mismatch_names_the_first_and_the_last_byte() {
        let url_table = UrlTable::new(&"https://a.example/f".parse().unwrap(), &[], None);
        for (mirror, prefix) in [(None, ""), (Some(UrlId(0)), "https://a.example/f: ")] {
            let notice = Notice::DigestMismatch { range: ByteRange::new(1000, 2000), mirror };
            let message = notice_message(&notice, &[], &url_table, |_| None);
            assert!(message.starts_with(&format!("{prefix}bytes 1000 to 1999 do not match")), "{message}");
        }
    }
}
