//! D-Bus for the fuzz targets: bytes in, how many values were understood out.

use super::answer;
use super::value::{Order, Reader, Value};

/// Reads a whole message, as it comes from the bus; says how many values it carries.
pub fn bus_answer(bytes: &[u8]) -> Option<usize> {
    answer(bytes).map(|answer| answer.values.iter().map(count).sum())
}

/// Reads one value of this signature; says how many values are in it and how many bytes were read.
pub fn bus_value(signature: &[u8], bytes: &[u8], big: bool) -> Option<(usize, usize)> {
    let mut reader = Reader { order: if big { Order::Big } else { Order::Little }, bytes, at: 0 };
    let (value, _) = reader.value(signature, 0)?;
    Some((count(&value), reader.at))
}

fn count(value: &Value) -> usize {
    1 + value.list().iter().map(count).sum::<usize>()
}
