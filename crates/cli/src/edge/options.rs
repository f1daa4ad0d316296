//! Options of an edge: identity, trusted authorities, relays and settings of the fleet client, built from its arguments.
//!
//! All arguments are checked and all files that they name are read here, before anything listens.

use std::path::PathBuf;

use marline_core::fleet::relay_selection::SelectorConfig;
use marline_core::paths::Goal;
use marline_fleet::ca::Fingerprint;
use marline_fleet::edge::{AdmissionConfig, ClientTrust, Config, LiveMatch, RelayConfig, StateFile, read_crl};
use marline_fleet::identity::{Identity, Role};
use marline_fleet::renew::MemberCert;
use marline_fleet::service::Client;
use marline_fleet::tls::Credentials;
use marline_net::http::host_and_port;

use super::args::RunArgs;
use crate::CliError;
use crate::directories::unit_state_dir;

/// Validated options of an edge.
pub(super) struct EdgeOptions {
    pub(super) identity: Identity,
    pub(super) credentials: Credentials,
    /// Files of the certificate, for renewal.
    pub(super) member_cert: MemberCert,
    pub(super) trust: ClientTrust,
    /// Path of the revocation list; the file need not exist.
    pub(super) revocation_path: PathBuf,
    pub(super) config: Config,
    pub(super) fleet: Option<FleetOptions>,
    /// State file of an edge without a fleet service.
    pub(super) state_file: Option<StateFile>,
}

/// Options of an edge with a fleet service.
pub(super) struct FleetOptions {
    pub(super) client: Client,
    pub(super) selector_config: SelectorConfig,
    pub(super) state_file: StateFile,
}

impl EdgeOptions {
    pub(super) fn from_args(args: &RunArgs) -> Result<Self, CliError> {
        let usage_error = |error: &dyn std::fmt::Display| CliError::usage(error.to_string());
        if args.fleet.is_none() && args.relay.is_empty() {
            return Err(CliError::usage(
                "no relay is configured: use --fleet URL (its service assigns a relay) or --relay HOST[:PORT]",
            ));
        }
        let member = args.member_files.read_member(Role::Edge)?;
        let identity = member.identity.clone();
        let default_state_file = || match &args.fleet_requests.state_file {
            Some(path) => Ok(path.clone()),
            None => Ok::<_, CliError>(state_dir()?.join(format!("edge-{}.json", identity.name))),
        };
        let revocation_path = match (&args.fleet, args.revocations.given_path()) {
            // Without a service the list cannot be downloaded, so the named file must exist.
            (None, Some(_)) => args.revocations.existing_path(&member)?,
            (Some(_), None) if !args.revocations.path(&member).exists() => {
                // The name contains the authority's fingerprint, so that an edge that changes its fleet does not use the old list.
                let fingerprint = Fingerprint::of(member.credentials.authority()).to_string();
                default_state_file()?.with_file_name(format!("revoked-{fingerprint:.16}.pem"))
            }
            _ => args.revocations.path(&member),
        };
        let revocations = read_crl(&member.credentials, &revocation_path).map_err(|error| usage_error(&error))?;
        let trust = ClientTrust::new(&member.credentials, revocations).map_err(|error| usage_error(&error))?;
        if let Some(congestion) = &args.congestion_args.congestion {
            congestion.check().map_err(|error| CliError::usage(format!("--congestion {error}")))?;
        }
        let allows_direct = args.allows_direct();
        let relays = args.relay.iter().map(|relay| parse_relay(relay)).collect::<Result<Vec<_>, _>>()?;
        let admission = AdmissionConfig {
            live_matches: [vec![LiveMatch::rtmp()], args.live_streams.clone()].concat(),
            ..AdmissionConfig::default()
        };
        let config = Config {
            listen: args.listen.clone(),
            relays,
            spare_connections: args.spare_connections,
            allow_direct: allows_direct,
            congestion: args.congestion_args.congestion.clone(),
            lan: !args.lan.is_empty(),
            admission,
            portal_probe: args.portal_probe.clone(),
            local_domains: args.local_domain.clone(),
        };
        let fleet = args.fleet.as_ref().map(|url| {
            let client = member.client(url)?;
            let state_path = default_state_file()?;
            let selector_config = SelectorConfig {
                origin: args.fleet_requests.origin.clone(),
                target_rate: args.fleet_requests.target_rate,
                position: args.fleet_requests.position,
                prefer_near: args.goal == Goal::Latency,
                probe_bytes: args.fleet_requests.probe_bytes,
                never_direct: !allows_direct,
            };
            Ok::<_, CliError>(FleetOptions { client, selector_config, state_file: StateFile::new(&state_path) })
        });
        let fleet = fleet.transpose()?;
        let state_file =
            args.fleet_requests.state_file.as_ref().filter(|_| fleet.is_none()).map(|state| StateFile::new(state));
        Ok(Self {
            identity,
            credentials: member.credentials,
            member_cert: member.member_cert,
            trust,
            revocation_path,
            config,
            fleet,
            state_file,
        })
    }
}

/// Default directory of the state file: that of the systemd unit, else one for root or for the user.
fn state_dir() -> Result<PathBuf, CliError> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(unit_dir) = unit_state_dir() {
        return Ok(unit_dir);
    }
    if rustix::process::geteuid().is_root() {
        return Ok("/var/lib/marline".into());
    }
    let user_dir = variable("XDG_STATE_HOME").or_else(|| variable("HOME").map(|home| home.join(".local/state")));
    let user_dir = user_dir.ok_or_else(|| {
        CliError::usage("no home directory for the state file: set HOME or use --state-file FILE")
    })?;
    Ok(user_dir.join("marline"))
}

/// Parses `HOST[:PORT]`. The certificate of the relay must be for the host.
fn parse_relay(relay: &str) -> Result<RelayConfig, CliError> {
    let usage_error = |reason: &dyn std::fmt::Display| CliError::usage(format!("--relay {relay}: {reason}"));
    let (host, port) = split_host_port(relay).map_err(|why| usage_error(&why))?;
    let server = host.to_owned().try_into().map_err(|_| usage_error(&"neither a DNS name nor an IP address"))?;
    let endpoint = host_and_port(host, port).parse().map_err(|why: String| usage_error(&why))?;
    Ok(RelayConfig { label: host.to_owned(), server_name: server, endpoints: vec![endpoint], member: None })
}

/// Splits a host and an optional port. An IPv6 address needs brackets if a port follows.
fn split_host_port(relay: &str) -> Result<(&str, u16), &'static str> {
    let (host, port) = match relay.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') || host.starts_with('[') => {
            (host, port.parse().map_err(|_| "the text after the colon is not a port")?)
        }
        _ => (relay, DEFAULT_RELAY_PORT),
    };
    Ok((host.trim_start_matches('[').trim_end_matches(']'), port))
}

/// Port of a relay that `--relay` names without one. Our choice: it is unassigned in IANA's registry and similar to the port of HTTPS.
const DEFAULT_RELAY_PORT: u16 = 4443;
