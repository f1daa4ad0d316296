//! TCP_INFO of the sender's connections, read by `ss -tin` at the server's end.
//!
//! It uses `ss` and no socket of its own, because the sender is nginx.

use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::accel::topology;
use crate::{Lab, LabError};

/// A connection at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Seconds since the start of the run.
    pub(crate) at: f64,
    /// The server's port: 443 or 80.
    pub(crate) port: u16,
    /// The client's port.
    pub(crate) peer: u16,
    /// In segments.
    pub(crate) cwnd: u32,
    /// In segments; none: there was no loss yet.
    pub(crate) ssthresh: Option<u32>,
    /// In milliseconds.
    pub(crate) rtt: f64,
    /// In milliseconds.
    pub(crate) rto: f64,
    /// How often the retransmission timer has doubled since the last new ACK.
    pub(crate) backoff: u32,
    /// Segments in flight.
    pub(crate) unacked: u32,
    /// Retransmitted segments in total.
    pub(crate) retransmitted: u64,
    /// Payload in total, retransmissions included.
    pub(crate) sent: u64,
    /// Of these, retransmitted.
    pub(crate) sent_again: u64,
}

/// Samples of the server's established connections.
pub(crate) fn samples(lab: &Lab, at: Duration) -> Result<Vec<Sample>, LabError> {
    let program = crate::server::find_program("ss")
        .ok_or(LabError::MissingProgram { program: "ss".into(), package: "iproute2" })?;
    let mut command = Command::new(program);
    command.args(["-tinHO", "state", "established", "( sport = :443 or sport = :80 )"]);
    let output =
        lab.run_at_site(topology::server_site_index(), || command.output()).map_err(LabError::at_step("ss"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    Ok(text.lines().filter_map(|line| parse(line, at)).collect())
}

fn parse(line: &str, at: Duration) -> Option<Sample> {
    let mut fields = line.split_whitespace();
    let mut ports = fields.by_ref().skip(2).take(2).map(|address| address.rsplit(':').next()?.parse().ok());
    let mut sample = Sample {
        at: (at.as_secs_f64() * 1e3).round() / 1e3,
        port: ports.next()??,
        peer: ports.next()??,
        ..Sample::default()
    };
    for (name, value) in fields.filter_map(|field| field.split_once(':')) {
        let first = value.split('/').next().unwrap_or_default();
        let integer = || first.parse().unwrap_or(0);
        match name {
            "cwnd" => sample.cwnd = integer(),
            "ssthresh" => sample.ssthresh = first.parse().ok(),
            "rtt" => sample.rtt = first.parse().unwrap_or(0.0),
            "rto" => sample.rto = first.parse().unwrap_or(0.0),
            "backoff" => sample.backoff = integer(),
            "unacked" => sample.unacked = integer(),
            // Outstanding / in total.
            "retrans" => sample.retransmitted = value.split('/').nth(1)?.parse().unwrap_or(0),
            "bytes_sent" => sample.sent = first.parse().unwrap_or(0),
            "bytes_retrans" => sample.sent_again = first.parse().unwrap_or(0),
            _ => {}
        }
    }
    Some(sample)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_ss_is_read() {
        let line = "0 1404560 10.99.0.2:443 10.1.0.2:40412 cubic wscale:7,7 rto:300 backoff:2 rtt:95.2/1.1 ato:40 mss:1448 \
                    cwnd:212 ssthresh:179 bytes_sent:8000000 bytes_retrans:14480 bytes_acked:7900000 segs_out:5600 \
                    send 25Mbps unacked:176 retrans:1/10 lost:1 sacked:3 minrtt:50";
        let sample = parse(line, Duration::from_millis(1234)).unwrap();
        let expected = Sample {
            at: 1.234,
            port: 443,
            peer: 40412,
            cwnd: 212,
            ssthresh: Some(179),
            rtt: 95.2,
            rto: 300.0,
            backoff: 2,
            unacked: 176,
            retransmitted: 10,
            sent: 8_000_000,
            sent_again: 14_480,
        };
        assert_eq!(sample, expected);
        assert_eq!(parse("", Duration::ZERO), None);
    }
}
