//! Tests of the message parser with arbitrary bytes.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_make_the_message_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut message = vec![b'l', 2, 0, 1];
        message.extend(bytes);
        parse_message(&message);
    }
}
