//! Entry points of the D-Bus parser for the fuzz targets.

use super::parse_message;
use super::value::{ByteOrder, Value, ValueReader};

/// Parses a whole message; returns the number of values in it.
pub fn bus_message(bytes: &[u8]) -> Option<usize> {
    parse_message(bytes).map(|reply| reply.values.iter().map(count_values).sum())
}

/// Parses one value of this signature; returns the number of values in it, and the number of bytes read.
pub fn bus_value(signature: &[u8], bytes: &[u8], big: bool) -> Option<(usize, usize)> {
    let mut reader =
        ValueReader { byte_order: if big { ByteOrder::Big } else { ByteOrder::Little }, bytes, offset: 0 };
    let (value, _) = reader.read_value(signature, 0)?;
    Some((count_values(&value), reader.offset))
}

fn count_values(value: &Value) -> usize {
    1 + value.as_list().iter().map(count_values).sum::<usize>()
}
