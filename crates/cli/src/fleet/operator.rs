//! `marline fleet status`, `watch` and `drain`: requests of an operator to the fleet service.
//!
//! 1. The operator authenticates with a certificate, like every other member ([`crate::credentials`]).
//! 2. Exit codes: 69 if the service cannot be reached, 77 if the operator's role does not permit the request, 1 if the service
//!    refuses it otherwise.
//! 3. While no process of the service is the leader, the process that receives the request still reports its own state and the
//!    reason.

use std::future::Future;
use std::time::Duration;

use clap::Args;
use marline_core::units::Ratio;
use marline_fleet::ca::UtcSeconds;
use marline_fleet::identity::{Name, Role};
use marline_fleet::service::api_types::{EdgeSummary, Endpoint, RelaySummary, ServiceStatus};
use marline_fleet::service::{Client, ClientError, DrainReply, DrainRequest};
use marline_net::printable::printable;
use marline_terminal::screen;
use marline_terminal::table::{Table, or_dash};
use serde::Serialize;

use crate::CliError;
use crate::args::JsonArgs;
use crate::credentials::MemberFileArgs;
use crate::output::print_notice;

/// Options for the service and the operator's credentials.
#[derive(Debug, Args)]
pub(super) struct OperatorArgs {
    /// URL of the fleet service.
    #[arg(long, value_name = "URL")]
    fleet: String,
    #[command(flatten)]
    member_files: MemberFileArgs,
}

impl OperatorArgs {
    fn client(&self) -> Result<Client, CliError> {
        self.member_files.read_member(Role::Operator)?.client(&self.fleet)
    }
}

/// Status of the fleet. Serialises to the output of `--json`.
#[derive(Serialize)]
struct FleetOverview {
    service: ServiceStatus,
    relays: Vec<RelaySummary>,
    edges: Vec<EdgeSummary>,
    /// Why relays and edges are unknown; `None` if they are known.
    #[serde(skip)]
    members_error: Option<String>,
}

async fn fetch_overview(client: &mut Client) -> Result<FleetOverview, CliError> {
    let service = client.get("/v1/service").await.map_err(to_cli_error)?;
    let fetch_members =
        async |client: &mut Client| Ok((client.get("/v1/relays").await?, client.get("/v1/edges").await?));
    match fetch_members(client).await {
        Ok((relays, edges)) => Ok(FleetOverview { service, relays, edges, members_error: None }),
        // No leader: only the state of this process is known.
        Err(ClientError::Refused(problem)) if problem.title == "not_leading" => {
            Ok(FleetOverview { service, relays: vec![], edges: vec![], members_error: Some(problem.detail) })
        }
        Err(error) => Err(to_cli_error(error)),
    }
}

pub(super) fn status(operator_args: &OperatorArgs, format: JsonArgs) -> Result<(), CliError> {
    let mut client = operator_args.client()?;
    let fleet = block_on(async { fetch_overview(&mut client).await })??;
    format.print(&fleet, render)?;
    fleet
        .members_error
        .map_or(Ok(()), |reason| Err(CliError::failed(format!("relays and edges are unknown: {reason}"))))
}

pub(super) fn watch(operator_args: &OperatorArgs) -> Result<(), CliError> {
    let mut client = operator_args.client()?;
    let runtime = new_runtime()?;
    screen::watch(|| runtime.block_on(fetch_overview(&mut client)).map(|fleet| render(&fleet)))
}

pub(super) fn drain(
    operator_args: &OperatorArgs,
    relay: &Name,
    time: Option<Duration>,
    undo: bool,
) -> Result<(), CliError> {
    let mut client = operator_args.client()?;
    let for_ms = time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
    let request = DrainRequest { draining: !undo, duration_ms: for_ms };
    let path = format!("/v1/relays/{relay}/drain");
    let result: DrainReply = block_on(async { client.post(&path, &request).await })?.map_err(to_cli_error)?;
    if !result.known {
        print_notice(&format!("relay {relay} is not connected; it will be drained when it announces itself"));
    }
    if !result.durable {
        print_notice("the store of the service does not answer: the drain is lost when the service restarts");
    }
    Ok(())
}

fn render(fleet: &FleetOverview) -> String {
    let now = UtcSeconds::now();
    let mut relays =
        Table::new(["relay", "state", "free", "capacity", "share", "edges", "last seen", "certificate"]);
    for relay in &fleet.relays {
        let state = match relay {
            RelaySummary { healthy: false, .. } => "unresponsive",
            RelaySummary { draining: true, .. } => "draining",
            _ => "ok",
        };
        let share = Ratio::of(relay.free.bits_per_sec(), relay.capacity.bits_per_sec());
        relays.row([
            relay.name.to_string(),
            state.to_owned(),
            relay.free.to_string(),
            relay.capacity.to_string(),
            format!("{:.0}%", share.as_f64() * 100.0),
            relay.edges.to_string(),
            age_text(relay.age_ms),
            time_left(relay.certificate_not_after.as_deref(), now),
        ]);
    }
    let mut edges = Table::new([
        "edge",
        "relay",
        "reserved",
        "throughput",
        "best link",
        "destination",
        "last seen",
        "certificate",
    ]);
    for edge in &fleet.edges {
        let no_relay = || or_dash(edge.reason.map(|reason| format!("({})", reason.as_str())));
        edges.row([
            edge.name.to_string(),
            edge.relay.as_ref().map_or_else(no_relay, Name::to_string),
            or_dash(edge.reservation),
            edge.throughput.to_string(),
            edge.best_link_rate.to_string(),
            origin_text(&edge.origin),
            age_text(edge.age_ms),
            time_left(edge.certificate_not_after.as_deref(), now),
        ]);
    }
    let mut text = format!("{}\n{relays}\n{edges}", service_line(&fleet.service));
    let relays = fleet.relays.iter().map(|row| (Role::Relay, &row.name, &row.duplicate_addresses));
    let edges = fleet.edges.iter().map(|row| (Role::Edge, &row.name, &row.duplicate_addresses));
    for (role, name, addresses) in relays.chain(edges).filter(|(_, _, addresses)| !addresses.is_empty()) {
        let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        text += &format!(
            "\n{role} {name}: several processes use its certificate at the same time, at {}: enrol all but one of them under other \
             names\n",
            addresses.join(" and ")
        );
    }
    text
}

/// Destination of an edge's flows. Before its first flow an edge reports a name below `.invalid` (RFC 6761 section 6.4).
fn origin_text(origin: &Endpoint) -> String {
    let text = origin.to_string();
    let is_none = text.rsplit_once(':').is_some_and(|(host, _)| host.ends_with(".invalid"));
    if is_none { "-".to_owned() } else { text }
}

/// One line with leader, epoch, region and store of the service, and a second one with its error.
fn service_line(service: &ServiceStatus) -> String {
    let epoch = service.epoch.map_or_else(String::new, |epoch| format!(", epoch {epoch}"));
    let leader_text = match (service.is_leader, &service.leader_address) {
        (true, _) => format!("{} is the leader", service.name),
        (false, Some(address)) if !address.is_empty() => {
            format!("{} responds, {} is the leader", service.name, printable(address))
        }
        (false, _) => format!("{} responds, the leader is unknown", service.name),
    };
    let region = service.region.as_ref().map_or_else(String::new, |region| format!(", region {region}"));
    let error_text =
        service.error.as_ref().map_or_else(String::new, |error| format!("\nerror: {}", printable(error)));
    format!("{leader_text}{epoch}{region}, store {}{error_text}\n", printable(&service.store))
}

fn age_text(millis: u64) -> String {
    format!("{} s ago", millis / 1000)
}

/// Remaining lifetime of a certificate.
fn time_left(not_after: Option<&str>, now: UtcSeconds) -> String {
    let Some(ends) = not_after.and_then(|ends| ends.parse::<UtcSeconds>().ok()) else { return "-".to_owned() };
    match ends.since_epoch().saturating_sub(now.since_epoch()).as_secs() {
        0 => "expired".to_owned(),
        seconds if seconds < 86_400 => format!("{} h", seconds / 3600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// Maps an error of the fleet client to an exit code.
fn to_cli_error(error: ClientError) -> CliError {
    let code = match &error {
        ClientError::Url(_) => CliError::USAGE,
        ClientError::Network { .. } => CliError::NETWORK,
        ClientError::Refused(problem) if problem.status == 403 => CliError::PRIVILEGE,
        ClientError::Refused(_) => CliError::FAILED,
    };
    CliError::new(code, error.to_string())
}

pub(super) fn new_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| CliError::failed(format!("cannot start the event loop: {error}")))
}

fn block_on<T>(future: impl Future<Output = T>) -> Result<T, CliError> {
    Ok(new_runtime()?.block_on(future))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lifetime_left_is_shown_in_days_and_on_the_last_day_in_hours() {
        let now: UtcSeconds = "2026-10-02T12:00:00Z".parse().unwrap();
        let time_left_of = |ends| time_left(ends, now);
        assert_eq!(time_left_of(Some("2026-11-01T12:00:00Z")), "30 d");
        assert_eq!(time_left_of(Some("2026-10-03T11:59:59Z")), "23 h");
        assert_eq!(
            (time_left_of(Some("2026-10-02T12:00:00Z")).as_str(), time_left_of(None).as_str()),
            ("expired", "-")
        );
    }

    #[test]
    fn the_leader_address_from_redis_adds_no_line_and_no_escape_sequence() {
        let service = ServiceStatus {
            name: "f1".parse().unwrap(),
            store: "redis://h:1".into(),
            region: None,
            is_leader: false,
            leader_address: Some("f2:4444\r\n\u{1b}[2Jerror: none\u{202e}".into()),
            epoch: Some(3),
            error: Some("a\nb".into()),
        };
        assert_eq!(
            service_line(&service),
            "f1 responds, f2:4444\\u000d\\u000a\\u001b[2Jerror: none\\u202e is the leader, epoch 3, store redis://h:1\n\
             error: a\\u000ab\n"
        );
    }
}
