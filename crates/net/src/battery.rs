//! Measures the power that this machine draws from its battery, in contrast to the figures of the radio energy model.
//!
//! It reads the kernel's power-supply class in sysfs and returns energy and mean power from [`BatteryMeter::start`]
//! to [`BatteryMeter::finish`], or nothing where the hardware does not report them.
//!
//! 1. A battery reports `power_now` (µW), or `current_now` (µA) and `voltage_now` (µV), whose product is the power
//!    (the multi-link HTTP thesis, section 3.2.1, reads a phone's power chip in this way). Some drivers report the
//!    discharge current as negative.
//! 2. Only a discharging battery shows what the machine draws. With a charger attached there is no figure at all,
//!    rather than a wrong one.
//! 3. One reading a second, as in the thesis: with some firmware a reading takes milliseconds. Therefore a thread of
//!    its own reads, and only where there is a battery. Between readings the power is interpolated linearly.
//! 4. Batteries of mice and headsets (`scope` is `Device`) do not supply this machine and are ignored.
//!
//! Energy counters (`energy_now`) were not used: they advance in steps of many joules.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use marline_core::units::{Energy, Power};

/// Where Linux lists power supplies.
pub const POWER_SUPPLIES: &str = "/sys/class/power_supply";

/// The batteries that supply this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batteries(Vec<PathBuf>);

impl Batteries {
    /// Finds the batteries below `folder` (in production [`POWER_SUPPLIES`]). `None`: there is none that reports its
    /// power.
    pub fn find(folder: &Path) -> Option<Self> {
        let mut found: Vec<PathBuf> = fs::read_dir(folder)
            .ok()?
            .filter_map(|entry| Some(entry.ok()?.path()))
            .filter(|path| read_attribute(path, "type").as_deref() == Some("Battery"))
            .filter(|path| read_attribute(path, "scope").as_deref() != Some("Device"))
            .filter(|path| read_power(path).is_some())
            .collect();
        found.sort();
        (!found.is_empty()).then_some(Self(found))
    }

    /// The power that all of them deliver now. `None`: one is being charged, none discharges, or one cannot be read.
    pub fn power(&self) -> Option<Power> {
        let (mut sum, mut discharging) = (Power::ZERO, false);
        for path in &self.0 {
            match read_attribute(path, "status")?.as_str() {
                "Discharging" => {
                    sum += read_power(path)?;
                    discharging = true;
                }
                // The idle battery of a notebook with two.
                "Full" | "Not charging" => {}
                _ => return None,
            }
        }
        discharging.then_some(sum)
    }
}

/// Energy and mean power drawn between the start and the end of a measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatteryDraw {
    /// Total energy.
    pub energy: Energy,
    /// Mean power: the energy divided by the time between the first and the last reading.
    pub power: Power,
}

/// Reads the batteries once a second until [`BatteryMeter::finish`].
#[derive(Debug)]
pub struct BatteryMeter {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<Option<BatteryDraw>>>,
}

impl BatteryMeter {
    /// Starts the readings of the batteries below `folder`. `None`: there is no battery to read.
    pub fn start(folder: &Path) -> Option<Self> {
        Self::start_with_interval(Batteries::find(folder)?, READ_INTERVAL)
    }

    fn start_with_interval(batteries: Batteries, interval: Duration) -> Option<Self> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stop_flag = Arc::clone(&stop);
        let run = move || {
            let (started, mut sum) = (Instant::now(), PowerIntegral::default());
            loop {
                sum.add_reading(started.elapsed(), batteries.power());
                let (stop, condvar) = &*stop_flag;
                let stop = stop.lock().unwrap_or_else(PoisonError::into_inner);
                let (stop, _) = condvar
                    .wait_timeout_while(stop, interval, |stop| !*stop)
                    .unwrap_or_else(PoisonError::into_inner);
                if *stop {
                    break;
                }
            }
            sum.add_reading(started.elapsed(), batteries.power());
            sum.result()
        };
        let thread = std::thread::Builder::new().name("battery".into()).spawn(run).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }

    /// Takes a last reading and stops. `None`: a reading failed, or the machine did not run on battery for the whole
    /// time.
    pub fn finish(mut self) -> Option<BatteryDraw> {
        self.request_stop();
        self.thread.take()?.join().ok().flatten()
    }

    fn request_stop(&self) {
        let (stop, condvar) = &*self.stop;
        *stop.lock().unwrap_or_else(PoisonError::into_inner) = true;
        condvar.notify_all();
    }
}

/// Stops the thread when the measurement is given up before [`BatteryMeter::finish`].
impl Drop for BatteryMeter {
    fn drop(&mut self) {
        self.request_stop();
    }
}

/// Integral of the readings so far, by the trapezoidal rule.
#[derive(Debug, Default)]
struct PowerIntegral {
    /// Time since the start of the measurement, and the power at that time.
    last_reading: Option<(Duration, Power)>,
    energy: Energy,
    /// A reading yielded no power, so there is no result.
    is_invalid: bool,
}

impl PowerIntegral {
    fn add_reading(&mut self, at: Duration, power: Option<Power>) {
        let Some(power) = power else {
            self.is_invalid = true;
            return;
        };
        // The first reading may be late. Its power counts from the start, because the mean is taken over that time too.
        let (before, previous_power) = self.last_reading.unwrap_or((Duration::ZERO, power));
        let time = at.saturating_sub(before);
        // The sum times half the time, not the halved sum: the sum may be an odd number of microwatts.
        self.energy += (previous_power + power) * (time / 2);
        self.last_reading = Some((at, power));
    }

    fn result(&self) -> Option<BatteryDraw> {
        let (elapsed, power) = self.last_reading.filter(|_| !self.is_invalid)?;
        // With a single reading there is no time to divide by, so its power is the mean.
        let power = if elapsed.is_zero() { power } else { self.energy / elapsed };
        Some(BatteryDraw { energy: self.energy, power })
    }
}

fn read_power(battery: &Path) -> Option<Power> {
    if let Some(power) = read_number(battery, "power_now") {
        return Some(Power::from_microwatts(power));
    }
    let (current, voltage) = (read_number(battery, "current_now")?, read_number(battery, "voltage_now")?);
    // Microamperes times microvolts are picowatts.
    let microwatts = u128::from(current) * u128::from(voltage) / 1_000_000;
    Some(Power::from_microwatts(u64::try_from(microwatts).ok()?))
}

fn read_number(battery: &Path, name: &str) -> Option<u64> {
    read_attribute(battery, name)?.parse::<i64>().ok().map(i64::unsigned_abs)
}

fn read_attribute(battery: &Path, name: &str) -> Option<String> {
    fs::read_to_string(battery.join(name)).ok().map(|text| text.trim().to_owned())
}

const READ_INTERVAL: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn supply(folder: &TempDir, name: &str, files: &[(&str, &str)]) {
        let path = folder.path().join(name);
        fs::create_dir_all(&path).unwrap();
        for (name, text) in files {
            fs::write(path.join(name), format!("{text}\n")).unwrap();
        }
    }

    fn folder() -> TempDir {
        tempfile::tempdir().unwrap()
    }

    const MAINS: (&str, &[(&str, &str)]) = ("AC", &[("type", "Mains"), ("online", "0")]);

    #[test]
    fn power_is_current_times_voltage() {
        let folder = folder();
        supply(&folder, MAINS.0, MAINS.1);
        let battery = [("type", "Battery"), ("status", "Discharging"), ("voltage_now", "3850000")];
        supply(&folder, "battery", &battery);
        supply(&folder, "battery", &[("current_now", "-500000")]);
        let batteries = Batteries::find(folder.path()).unwrap();
        assert_eq!(batteries.power(), Some(Power::from_milliwatts(1925)));
        // If the driver reports the power itself, it is used.
        supply(&folder, "battery", &[("power_now", "2000000")]);
        assert_eq!(batteries.power(), Some(Power::from_milliwatts(2000)));
    }

    #[test]
    fn only_a_discharging_battery_yields_a_power() {
        let folder = folder();
        let battery = |name: &str, status: &str| {
            supply(&folder, name, &[("type", "Battery"), ("status", status), ("power_now", "5000000")]);
        };
        battery("BAT0", "Discharging");
        battery("BAT1", "Full");
        let batteries = Batteries::find(folder.path()).unwrap();
        assert_eq!(batteries.power(), Some(Power::from_milliwatts(5000)));
        battery("BAT1", "Discharging");
        assert_eq!(batteries.power(), Some(Power::from_milliwatts(10_000)));
        for status in ["Charging", "Unknown", ""] {
            battery("BAT1", status);
            assert_eq!(batteries.power(), None, "{status}");
        }
        battery("BAT0", "Full");
        battery("BAT1", "Not charging");
        assert_eq!(batteries.power(), None);
    }

    #[test]
    fn supplies_that_are_not_batteries_of_this_machine_are_ignored() {
        let folder = folder();
        assert_eq!(Batteries::find(&folder.path().join("absent")), None);
        supply(&folder, MAINS.0, MAINS.1);
        let mouse = [("type", "Battery"), ("scope", "Device"), ("status", "Discharging"), ("power_now", "9")];
        supply(&folder, "hidpp_battery_0", &mouse);
        supply(&folder, "BAT0", &[("type", "Battery"), ("status", "Discharging"), ("power_now", "much")]);
        assert_eq!(Batteries::find(folder.path()), None);
        assert!(BatteryMeter::start(folder.path()).is_none());
    }

    #[test]
    fn power_is_integrated_between_readings() {
        let watts = |n: u64| Some(Power::from_milliwatts(1000 * n));
        let mut sum = PowerIntegral::default();
        sum.add_reading(Duration::from_secs(0), watts(1));
        sum.add_reading(Duration::from_secs(1), watts(3));
        sum.add_reading(Duration::from_secs(3), watts(3));
        let draw = sum.result().unwrap();
        assert_eq!(draw.energy, Energy::from_millijoules(8000));
        assert_eq!(draw.power, Power::from_microwatts(2_666_666));
        // The charger was plugged in for a moment.
        sum.add_reading(Duration::from_secs(4), None);
        sum.add_reading(Duration::from_secs(5), watts(3));
        assert_eq!(sum.result(), None);
        assert_eq!(PowerIntegral::default().result(), None);
        let mut late = PowerIntegral::default();
        late.add_reading(Duration::from_secs(1), watts(3));
        late.add_reading(Duration::from_secs(2), watts(3));
        assert_eq!(late.result().unwrap().power, Power::from_milliwatts(3000), "the first reading was late");
    }

    #[test]
    fn a_meter_reads_from_its_start_to_its_end() {
        let folder = folder();
        supply(&folder, "BAT0", &[("type", "Battery"), ("status", "Discharging"), ("power_now", "4000000")]);
        let batteries = Batteries::find(folder.path()).unwrap();
        let (started, meter) =
            (Instant::now(), BatteryMeter::start_with_interval(batteries, Duration::from_millis(5)).unwrap());
        std::thread::sleep(Duration::from_millis(30));
        let draw = meter.finish().unwrap();
        // The energy of each step is rounded down to a nanojoule.
        let power = draw.power.microwatts();
        assert!((3_999_000..=4_000_000).contains(&power), "{power}");
        assert!(draw.energy <= Power::from_milliwatts(4000) * started.elapsed());
        assert!(!draw.energy.is_zero());
    }
}
