use proptest::prelude::*;

use super::{
    frames::{at_once, frames, id_is_the_id, same_however_cut},
    made::{answer_over_http, bytes, cases, message},
};
use crate::transport::frame::{Frame, FrameReader, id_in};

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn frames_are_the_same_however_the_stream_is_cut_and_memory_is_bounded(
        messages in prop::collection::vec(bytes(), 0..6),
        ends in prop::sample::select(vec!["\n", "\r\n", "\n\n"]),
        sizes in prop::collection::vec(1_usize..3_000, 1..6),
        small in prop::collection::vec(1_usize..7, 1..4),
        limit in prop::sample::select(vec![0, 1, 16, 100, 1_000, 100_000]),
    ) {
        let stream = messages.join(ends.as_bytes());
        for sizes in [&sizes, &small] {
            same_however_cut(&stream, sizes, limit);
        }
    }

    #[test]
    fn an_id_that_is_found_is_the_id(message in message()) {
        id_is_the_id(&message);
    }

    #[test]
    fn bytes_that_say_how_they_are_cut_are_read_the_same(
        cut in any::<[u8; 2]>(), messages in prop::collection::vec(bytes(), 0..3),
    ) {
        frames(&[&cut[..], &messages.join(&b'\n')].concat());
    }

    #[test]
    fn no_bytes_make_the_search_for_an_id_panic(bytes in bytes(), cut in any::<prop::sample::Index>()) {
        let _ = id_in(&bytes);
        let _ = id_in(&bytes[..cut.index(bytes.len() + 1)]);
    }
}

#[cfg(feature = "http")]
proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn an_answer_over_http_is_taken_for_one_only_where_it_is_one(answer in answer_over_http()) {
        super::exchange(&answer);
    }
}

#[test]
fn a_line_without_an_end_is_not_kept() {
    let stream = tokio::io::AsyncReadExt::take(tokio::io::repeat(b'x'), 64 << 20);
    let mut reader = FrameReader::new(stream, 10_000);
    let frame = at_once(reader.next()).unwrap();
    assert_eq!(frame, Frame::TooLarge(None));
    assert!(reader.kept() <= 64 * 1024, "{}", reader.kept());
}

#[test]
fn a_number_that_is_no_whole_one_is_no_id() {
    for (frame, id) in [
        (r#"{"id":7}"#, Some(7)),
        (r#"{"id": 7 ,"result":{}}"#, Some(7)),
        (r#"{"id":"7"}"#, Some(7)),
        (r#"{"id":7.5}"#, None),
        (r#"{"id":7e1}"#, None),
        (r#"{"id":"call-7"}"#, None),
        (r#"{"id":"7 5"}"#, None),
        (r#"{"id":"\u0037"}"#, None),
        (r#"{"id":00000000000000000007}"#, None),
        (r#"{"id":-123456789012345678901}"#, None),
        (r#"{"id":null}"#, None),
        (r#"{"id":[7]}"#, None),
        (r#"{"id":{"id":7}}"#, None),
    ] {
        assert_eq!(id_in(frame.as_bytes()), id, "{frame}");
    }
}
