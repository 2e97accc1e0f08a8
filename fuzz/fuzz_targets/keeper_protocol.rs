//! Whatever comes over a keeper's or the nursery's socket is read or refused, never a crash; what is read as one of
//! the fixed messages is written back to the same bytes.
#![no_main]

use hostler_core::keeper::protocol::{Body, Control, KeeperEvent, NurseryEvent, SpawnRequest, StartKeeper, VERSION};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(data);
    // Most inputs would fail at the version word.
    check(&[&VERSION.to_le_bytes(), data].concat());
});

fn check(packet: &[u8]) {
    if let Ok(message) = Control::decode(packet) {
        assert_eq!(Control::decode(&message.encode()), Ok(message));
    }
    if let Ok(message) = KeeperEvent::decode(packet) {
        assert_eq!(KeeperEvent::decode(&message.encode()).as_ref(), Ok(&message));
    }
    if let Ok(message) = NurseryEvent::decode(packet) {
        assert_eq!(message.encode(), packet);
    }
    if let Ok(message) = StartKeeper::decode(packet) {
        assert_eq!(message.encode(), packet);
    }
    if let Ok(message) = SpawnRequest::decode(packet) {
        assert_eq!(message.encode(), packet);
    }
    match SpawnRequest::body(packet) {
        Ok(Body::File { id, len }) => assert_eq!(SpawnRequest::by_file(id, len), packet),
        Ok(Body::Inline(body)) => assert_eq!(body, packet),
        Err(_) => {}
    }
}
