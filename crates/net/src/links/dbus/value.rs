//! Parses D-Bus values by their signature, in the byte order of the sender.
//!
//! The result is a [`Value`], or nothing if bytes and signature do not match. Depth is bounded, lengths are checked,
//! and arrays of empty elements are rejected because they would not terminate.

/// A parsed value. Variants are replaced by their content; structures, arrays and dictionary entries are lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Any integer or boolean; floating-point numbers as their bits.
    Number(u64),
    /// A string, an object path or a signature.
    Text(String),
    /// An array of bytes.
    Bytes(Vec<u8>),
    /// The elements of an array, structure or dictionary entry.
    List(Vec<Value>),
}

impl Value {
    pub(crate) fn as_number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn as_text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn as_bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The elements of a list; empty for any other value.
    pub(crate) fn as_list(&self) -> &[Value] {
        if let Self::List(values) = self { values } else { &[] }
    }
}

#[derive(Clone, Copy)]
pub(super) enum ByteOrder {
    Little,
    Big,
}

impl ByteOrder {
    pub(super) fn u32(self, bytes: &[u8]) -> u32 {
        self.number(bytes) as u32
    }

    fn number(self, bytes: &[u8]) -> u64 {
        let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
        match self {
            Self::Little => bytes.iter().rev().fold(0, add),
            Self::Big => bytes.iter().fold(0, add),
        }
    }
}

/// The byte order that the sender of the message chose.
pub(super) fn byte_order(message: &[u8]) -> Option<ByteOrder> {
    match message.first()? {
        b'l' => Some(ByteOrder::Little),
        b'B' => Some(ByteOrder::Big),
        _ => None,
    }
}

/// Reads values at an offset; alignment is relative to the start of `bytes`.
pub(super) struct ValueReader<'a> {
    pub(super) byte_order: ByteOrder,
    pub(super) bytes: &'a [u8],
    pub(super) offset: usize,
}

impl<'a> ValueReader<'a> {
    /// Reads the next value; returns it with the rest of the signature.
    pub(super) fn read_value<'s>(&mut self, signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        /// The specification allows 32 nested arrays and 32 nested structures; the values that are read here have
        /// four levels.
        const MAX_DEPTH: u8 = 16;
        if depth > MAX_DEPTH {
            return None;
        }
        let (code, remaining_signature) = signature.split_first()?;
        let value = match code {
            b'y' => Value::Number(u64::from(self.read_bytes(1)?[0])),
            b'n' | b'q' => self.read_number(2)?,
            b'b' | b'i' | b'u' | b'h' => self.read_number(4)?,
            b'x' | b't' | b'd' => self.read_number(8)?,
            b's' | b'o' => {
                let length = self.read_length()?;
                self.read_text(length)?
            }
            b'g' => {
                let length = usize::from(self.read_bytes(1)?[0]);
                self.read_text(length)?
            }
            b'v' => {
                let length = usize::from(self.read_bytes(1)?[0]);
                let Value::Text(inner) = self.read_text(length)? else { return None };
                self.read_value(inner.as_bytes(), depth + 1)?.0
            }
            b'a' => return self.read_array(remaining_signature, depth),
            b'(' | b'{' => return self.read_struct(remaining_signature, depth),
            _ => return None,
        };
        Some((value, remaining_signature))
    }

    fn read_array<'s>(&mut self, element: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        let remaining_signature = element.get(type_len(element)?..)?;
        let length = self.read_length()?;
        if element.first() == Some(&b'y') {
            return Some((Value::Bytes(self.read_bytes(length)?.to_vec()), remaining_signature));
        }
        self.align(if matches!(element.first()?, b'x' | b't' | b'd' | b'(' | b'{') { 8 } else { 1 })?;
        let end = self.offset.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let mut values = Vec::new();
        while self.offset < end {
            let before = self.offset;
            values.push(self.read_value(element, depth + 1)?.0);
            // An empty element, `()`, would never reach the end.
            if self.offset == before {
                return None;
            }
        }
        (self.offset == end).then_some((Value::List(values), remaining_signature))
    }

    fn read_struct<'s>(&mut self, mut signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        self.align(8)?;
        let mut values = Vec::new();
        while !matches!(signature.first()?, b')' | b'}') {
            let (value, remaining_signature) = self.read_value(signature, depth + 1)?;
            values.push(value);
            signature = remaining_signature;
        }
        Some((Value::List(values), &signature[1..]))
    }

    fn read_number(&mut self, size: usize) -> Option<Value> {
        self.align(size)?;
        Some(Value::Number(self.byte_order.number(self.read_bytes(size)?)))
    }

    fn read_length(&mut self) -> Option<usize> {
        self.align(4)?;
        usize::try_from(self.byte_order.u32(self.read_bytes(4)?)).ok()
    }

    /// A string of this length, followed by a zero byte.
    fn read_text(&mut self, length: usize) -> Option<Value> {
        let bytes = self.read_bytes(length)?;
        self.read_bytes(1)?;
        Some(Value::Text(std::str::from_utf8(bytes).ok()?.to_owned()))
    }

    fn read_bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.offset..self.offset.checked_add(length)?)?;
        self.offset += length;
        Some(bytes)
    }

    pub(super) fn align(&mut self, multiple: usize) -> Option<()> {
        self.offset = self.offset.div_ceil(multiple) * multiple;
        (self.offset <= self.bytes.len()).then_some(())
    }
}

/// The length of the first complete type in a signature.
fn type_len(signature: &[u8]) -> Option<usize> {
    let mut open = 0_usize;
    for (at, code) in signature.iter().enumerate() {
        match code {
            b'(' | b'{' => open += 1,
            b')' | b'}' => open = open.checked_sub(1)?,
            _ => {}
        }
        if open == 0 && *code != b'a' {
            return Some(at + 1);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(signature: &str, order: ByteOrder, bytes: &[u8]) -> Option<Value> {
        ValueReader { byte_order: order, bytes, offset: 0 }
            .read_value(signature.as_bytes(), 0)
            .map(|(value, _)| value)
    }

    #[test]
    fn values_of_each_type_and_byte_order_are_read() {
        let number = |n| Some(Value::Number(n));
        assert_eq!(read("u", ByteOrder::Little, &[1, 2, 0, 0]), number(0x201));
        assert_eq!(read("u", ByteOrder::Big, &[0, 0, 2, 1]), number(0x201));
        assert_eq!(read("q", ByteOrder::Big, &[2, 1]), number(0x201));
        assert_eq!(read("t", ByteOrder::Little, &[1; 8]), number(0x0101_0101_0101_0101));
        assert_eq!(read("v", ByteOrder::Little, &[1, b'y', 0, 9]), number(9));
        assert_eq!(read("s", ByteOrder::Little, b"\x02\0\0\0hi\0"), Some(Value::Text("hi".into())));
        assert_eq!(read("ay", ByteOrder::Little, b"\x02\0\0\0\x07\x08"), Some(Value::Bytes(vec![7, 8])));
        let list = Some(Value::List(vec![Value::Number(1), Value::Number(2)]));
        assert_eq!(read("(uu)", ByteOrder::Little, &[1, 0, 0, 0, 2, 0, 0, 0]), list);
        assert_eq!(read("au", ByteOrder::Little, &[8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), list);
        let empty = read("aa{sv}", ByteOrder::Little, &[0; 4]);
        assert_eq!(empty, Some(Value::List(Vec::new())));
    }

    #[test]
    fn invalid_values_are_rejected() {
        for (signature, bytes) in [
            ("u", &[1, 2][..]),
            ("s", b"\xff\xff\xff\xffhi\0"),
            ("s", b"\x02\0\0\0\xff\xff\0"),
            ("au", &[3, 0, 0, 0, 1, 0, 0, 0]),
            ("(u", &[1, 0, 0, 0]),
            ("a", &[0; 8]),
            ("z", &[0; 8]),
            ("", &[]),
            ("v", &[1, b'v', 0]),
            ("a()", &[8; 32]),
        ] {
            assert_eq!(read(signature, ByteOrder::Little, bytes), None, "{signature}");
        }
        let deep = [&b"\x01v\0"[..]].concat().repeat(40);
        assert_eq!(read("v", ByteOrder::Little, &deep), None, "variants in variants");
        assert_eq!(read(&format!("{}u", "a".repeat(60)), ByteOrder::Little, &[4, 0, 0, 0].repeat(80)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            signature in "[a(){}vsuyg]{0,12}",
        ) {
            read(&signature, ByteOrder::Little, &bytes);
        }
    }
}
