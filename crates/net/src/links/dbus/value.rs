//! Values of D-Bus, read by their signature.
//!
//! In: bytes in the sender's byte order, and a signature. Out: [`Value`]s, or nothing when the two do not fit. Depth is
//! bounded, lengths are checked, and an element of no bytes cannot hold the reader.

/// A value of the answer. Variants are opened; structures, arrays and dictionary entries are lists.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Value {
    /// Any integer or boolean, as its bits.
    Number(u64),
    /// A string, an object's path or a signature.
    Text(String),
    /// An array of bytes.
    Bytes(Vec<u8>),
    /// Several values.
    List(Vec<Value>),
}

impl Value {
    pub(crate) fn number(&self) -> Option<u64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        if let Self::Text(text) = self { Some(text) } else { None }
    }

    pub(crate) fn bytes(&self) -> Option<&[u8]> {
        if let Self::Bytes(bytes) = self { Some(bytes) } else { None }
    }

    /// The parts; none of anything else than a list.
    pub(crate) fn list(&self) -> &[Value] {
        if let Self::List(values) = self { values } else { &[] }
    }
}

#[derive(Clone, Copy)]
pub(super) enum Order {
    Little,
    Big,
}

impl Order {
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
pub(super) fn order(message: &[u8]) -> Option<Order> {
    match message.first()? {
        b'l' => Some(Order::Little),
        b'B' => Some(Order::Big),
        _ => None,
    }
}

/// Reads values by their signature.
pub(super) struct Reader<'a> {
    pub(super) order: Order,
    pub(super) bytes: &'a [u8],
    pub(super) at: usize,
}

impl<'a> Reader<'a> {
    /// The next value, and the signature behind it.
    pub(super) fn value<'s>(&mut self, signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        /// The specification allows 32 arrays in 32 structures; what is asked for here has four levels.
        const DEEPEST: u8 = 16;
        if depth > DEEPEST {
            return None;
        }
        let (code, rest) = signature.split_first()?;
        let value = match code {
            b'y' => Value::Number(u64::from(self.take(1)?[0])),
            b'n' | b'q' => self.number(2)?,
            b'b' | b'i' | b'u' | b'h' => self.number(4)?,
            b'x' | b't' | b'd' => self.number(8)?,
            b's' | b'o' => {
                let length = self.length()?;
                self.text(length)?
            }
            b'g' => {
                let length = usize::from(self.take(1)?[0]);
                self.text(length)?
            }
            b'v' => {
                let length = usize::from(self.take(1)?[0]);
                let Value::Text(inner) = self.text(length)? else { return None };
                self.value(inner.as_bytes(), depth + 1)?.0
            }
            b'a' => return self.array(rest, depth),
            b'(' | b'{' => return self.structure(rest, depth),
            _ => return None,
        };
        Some((value, rest))
    }

    fn array<'s>(&mut self, element: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        let rest = element.get(width(element)?..)?;
        let length = self.length()?;
        if element.first() == Some(&b'y') {
            return Some((Value::Bytes(self.take(length)?.to_vec()), rest));
        }
        self.align(if matches!(element.first()?, b'x' | b't' | b'd' | b'(' | b'{') { 8 } else { 1 })?;
        let end = self.at.checked_add(length).filter(|end| *end <= self.bytes.len())?;
        let mut values = Vec::new();
        while self.at < end {
            let before = self.at;
            values.push(self.value(element, depth + 1)?.0);
            // An element of no bytes, `()`, would go on for ever.
            if self.at == before {
                return None;
            }
        }
        (self.at == end).then_some((Value::List(values), rest))
    }

    fn structure<'s>(&mut self, mut signature: &'s [u8], depth: u8) -> Option<(Value, &'s [u8])> {
        self.align(8)?;
        let mut values = Vec::new();
        while !matches!(signature.first()?, b')' | b'}') {
            let (value, rest) = self.value(signature, depth + 1)?;
            values.push(value);
            signature = rest;
        }
        Some((Value::List(values), &signature[1..]))
    }

    fn number(&mut self, size: usize) -> Option<Value> {
        self.align(size)?;
        Some(Value::Number(self.order.number(self.take(size)?)))
    }

    fn length(&mut self) -> Option<usize> {
        self.align(4)?;
        usize::try_from(self.order.u32(self.take(4)?)).ok()
    }

    /// A string of this length and the zero behind it.
    fn text(&mut self, length: usize) -> Option<Value> {
        let bytes = self.take(length)?;
        self.take(1)?;
        Some(Value::Text(std::str::from_utf8(bytes).ok()?.to_owned()))
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let bytes = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(bytes)
    }

    pub(super) fn align(&mut self, multiple: usize) -> Option<()> {
        self.at = self.at.div_ceil(multiple) * multiple;
        (self.at <= self.bytes.len()).then_some(())
    }
}

/// How many characters the first complete type of a signature has.
fn width(signature: &[u8]) -> Option<usize> {
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

    fn read(signature: &str, order: Order, bytes: &[u8]) -> Option<Value> {
        Reader { order, bytes, at: 0 }.value(signature.as_bytes(), 0).map(|(value, _)| value)
    }

    #[test]
    fn values_of_each_type_and_byte_order_are_read() {
        let number = |n| Some(Value::Number(n));
        assert_eq!(read("u", Order::Little, &[1, 2, 0, 0]), number(0x201));
        assert_eq!(read("u", Order::Big, &[0, 0, 2, 1]), number(0x201));
        assert_eq!(read("q", Order::Big, &[2, 1]), number(0x201));
        assert_eq!(read("t", Order::Little, &[1; 8]), number(0x0101_0101_0101_0101));
        assert_eq!(read("v", Order::Little, &[1, b'y', 0, 9]), number(9));
        assert_eq!(read("s", Order::Little, b"\x02\0\0\0hi\0"), Some(Value::Text("hi".into())));
        assert_eq!(read("ay", Order::Little, b"\x02\0\0\0\x07\x08"), Some(Value::Bytes(vec![7, 8])));
        let list = Some(Value::List(vec![Value::Number(1), Value::Number(2)]));
        assert_eq!(read("(uu)", Order::Little, &[1, 0, 0, 0, 2, 0, 0, 0]), list);
        assert_eq!(read("au", Order::Little, &[8, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]), list);
        let empty = read("aa{sv}", Order::Little, &[0; 4]);
        assert_eq!(empty, Some(Value::List(Vec::new())));
    }

    #[test]
    fn what_cannot_be_read_is_nothing() {
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
            assert_eq!(read(signature, Order::Little, bytes), None, "{signature}");
        }
        let deep = [&b"\x01v\0"[..]].concat().repeat(40);
        assert_eq!(read("v", Order::Little, &deep), None, "variants in variants");
        assert_eq!(read(&format!("{}u", "a".repeat(60)), Order::Little, &[4, 0, 0, 0].repeat(80)), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            signature in "[a(){}vsuyg]{0,12}",
        ) {
            read(&signature, Order::Little, &bytes);
        }
    }
}
