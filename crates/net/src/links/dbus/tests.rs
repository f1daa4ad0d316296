//! The reader of messages, on bytes of any kind.

use proptest::prelude::*;

use super::*;

proptest! {
    #[test]
    fn no_bytes_make_the_reader_of_messages_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut message = vec![b'l', 2, 0, 1];
        message.extend(bytes);
        parse_message(&message);
    }
}
