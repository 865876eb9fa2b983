//! Laws of the codec: what was said comes back, what was not said is refused, and nothing panics.

use super::{any, decoded, encoded, same, text};
use crate::proto::{Dialect, Joiner, Message, Native, cut, peek};
use proptest::prelude::*;

proptest! {
    #[test]
    fn every_message_comes_back(message in any::message()) {
        let frame = encoded(&message);
        prop_assert_eq!(peek(&frame).unwrap(), Some((frame[0], frame.len())));
        let mut input = &frame[..];
        let back = Native::new(1).decode(&mut input).unwrap().expect("the frame is whole");
        prop_assert!(input.is_empty());
        prop_assert_eq!(text(&back), text(&message));
    }

    #[test]
    fn a_frame_is_taken_off_the_front(one in any::message(), two in any::message()) {
        let both = [encoded(&one), encoded(&two)].concat();
        let mut input = &both[..];
        let mut dialect = Native::new(1);
        prop_assert!(same(&dialect.decode(&mut input).unwrap().unwrap(), &one));
        prop_assert!(same(&dialect.decode(&mut input).unwrap().unwrap(), &two));
        prop_assert!(input.is_empty());
    }

    #[test]
    fn a_directory_of_any_length_comes_back(told in any::told(40)) {
        let mut joiner = Joiner::new();
        let (mut whole, mut pieces) = (None, 0);
        let mut want = told.clone();
        want.more = false;
        cut(told, &mut |message| {
            assert!(whole.is_none(), "nothing follows the last piece");
            pieces += 1;
            whole = joiner.push(decoded(&encoded(&message)).unwrap()).unwrap();
            assert_eq!(joiner.is_open(), whole.is_none());
        });
        let back = Message::Dir(whole.expect("the last piece makes it whole"));
        prop_assert_eq!(text(&back), text(&Message::Dir(Box::new(want))));
        prop_assert_eq!(pieces, 1);
    }
}
