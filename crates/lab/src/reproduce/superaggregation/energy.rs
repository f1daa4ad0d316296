//! Super-aggregation's account of 10 MB (§8): E = (E_m − E_psm) · N_p / T + E_wifi · N_p + E_3g · N_s. N_p and N_s are the bytes over Wi-Fi
//! and 3G, T is the throughput.
//!
//! The paper takes its parameters from a table of another one (HTC Wizard) and does not repeat them. The constants here are solved from its
//! three sums: default TCP 65.82 J, super-aggregation 65.69 J, simple aggregation 79.51 J, with the throughputs that it gives for that
//! phone (11.6 and 0.42 Mbit/s, 31 % more with ACKs offloaded, an ACK of 52 bytes for two segments). Three sums and three unknowns have one
//! solution; it says what the sums presuppose, and not what an HTC Wizard draws (5.55 W for Wi-Fi is no phone's). So the account is
//! circular: that the sums come out shows nothing. `ours` sends its ACKs over 3G by the paper's constant and not by what was sent.

/// Power of the Wi-Fi connection beyond that of its power saving, in watts.
const WIFI_WATTS: f64 = 5.55;
/// Joules a megabyte over Wi-Fi.
const WIFI_J_PER_MB: f64 = 2.754;
/// Joules a megabyte over 3G.
const CELLULAR_J_PER_MB: f64 = 49.6;
/// What is downloaded, in megabytes (§8).
pub(super) const DOWNLOAD_MB: f64 = 10.0;
/// Bytes of an ACK over those of the two segments that it is for.
pub(super) const ACK_SHARE: f64 = 52.0 / 2896.0;

/// Joules for so many megabytes over Wi-Fi (`primary`) and 3G (`secondary`), at so many Mbit/s in all.
pub(super) fn download_energy(primary: f64, secondary: f64, mbps: f64) -> f64 {
    WIFI_WATTS * primary * 8.0 / mbps.max(1e-9) + WIFI_J_PER_MB * primary + CELLULAR_J_PER_MB * secondary
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_three_sums_come_out() {
        let near = |measured: f64, paper: f64| assert!((measured - paper).abs() < 0.05 * 1.0, "{measured} {paper}");
        near(download_energy(DOWNLOAD_MB, 0.0, 11.6), 65.82);
        near(download_energy(DOWNLOAD_MB, DOWNLOAD_MB * ACK_SHARE, 11.6 * 1.31), 65.69);
        let share = 0.42 / 12.02;
        near(download_energy(DOWNLOAD_MB * (1.0 - share), DOWNLOAD_MB * share, 12.02), 79.51);
    }
}
