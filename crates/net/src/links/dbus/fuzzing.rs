//! D-Bus for the fuzz targets: bytes in, how many values were understood out.

use super::parse_message;
use super::value::{ByteOrder, Value, ValueReader};

/// Reads a whole message, as it comes from the bus; says how many values it carries.
pub fn bus_message(bytes: &[u8]) -> Option<usize> {
    parse_message(bytes).map(|answer| answer.values.iter().map(count_values).sum())
}

/// Reads one value of this signature; says how many values are in it and how many bytes were read.
pub fn bus_value(signature: &[u8], bytes: &[u8], big: bool) -> Option<(usize, usize)> {
    let mut reader =
        ValueReader { byte_order: if big { ByteOrder::Big } else { ByteOrder::Little }, bytes, offset: 0 };
    let (value, _) = reader.read_value(signature, 0)?;
    Some((count_values(&value), reader.offset))
}

fn count_values(value: &Value) -> usize {
    1 + value.as_list().iter().map(count_values).sum::<usize>()
}
