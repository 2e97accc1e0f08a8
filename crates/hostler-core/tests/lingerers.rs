//! The end of a process whose descendant floods the pipes faster than anybody reads.
#![expect(clippy::unwrap_used, reason = "what the tests share fails as loudly as they do")]

use std::time::Duration;

use hostler_core::{
    Flush, HelperProgram, Host, HostOptions, Nursery, Places, Pulled, SessionOptions, SpawnSpec, Stream,
};
use hostler_testkit::numbered::{LINE_BYTES, LINGER_LINES, line};
use hostler_testkit::{NoProcessLeft, TestEnv, Token, bin, evil};

/// For how long the lingerer floods: longer than any end may take.
const FLOOD: Duration = Duration::from_secs(20);
/// A small quota, so that the flood fills it at once and for as long as it lasts, however fast the reader is.
const QUOTA: u64 = 192 * 1024;
/// What is read in one go.
const TURN: usize = 16 * 1024;

/// A reader of a flood: how long it does nothing at first, and how long after each turn.
#[derive(Clone, Copy, Debug)]
struct Reader {
    stall: Duration,
    pause: Duration,
}

/// What was read before the end, and how long that took from the reader's first look on.
#[expect(clippy::disallowed_methods, reason = "how slow the reader is, is what the tests are about")]
async fn read_a_flood(name: &str, reader: Reader) -> ([Vec<u8>; 2], Duration) {
    let (env, token) = (TestEnv::new(), Token::new(name));
    let none_left = NoProcessLeft::new(&token);
    let nursery = Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap();
    let places =
        Places { xdg_state_home: Some(env.root().join("state")), home: None, tmpdir: Some(env.tmp()) };
    let host = Host::start(nursery, HostOptions { places, ..HostOptions::default() }).unwrap();
    let options = SessionOptions { bytes_per_process: QUOTA, ..SessionOptions::relay() };
    let session = host.open_session(options);
    let outputs = session.outputs();
    let seconds = FLOOD.as_secs().to_string();
    let argv =
        [evil().into_os_string(), "linger".into(), "flood".into(), seconds.into(), token.as_str().into()];
    let process = session.spawn(SpawnSpec::new(argv)).await.unwrap();
    process.ended().await;
    tokio::time::sleep(reader.stall).await;
    outputs.attach(&process);
    let since = tokio::time::Instant::now();
    let (mut scratch, mut got) = (Vec::new(), [Vec::new(), Vec::new()]);
    loop {
        let process = outputs.ready().await;
        let pulled = process.pull(TURN, 1 << 20, &mut scratch, |chunk| {
            let whole = chunk.bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            let taken = if chunk.flush == Flush::Lines { whole } else { chunk.bytes.len() };
            got[usize::from(chunk.stream == Stream::Stderr)].extend_from_slice(&chunk.bytes[..taken]);
            taken
        });
        match pulled.unwrap() {
            // What is lost is missing in the comparison below.
            Pulled::More | Pulled::Lost { .. } => process.requeue(),
            Pulled::Idle => {}
            Pulled::Finished => break,
        }
        tokio::time::sleep(reader.pause).await;
    }
    let took = since.elapsed();
    session.close(Duration::ZERO).await;
    none_left.check();
    (got, took)
}

async fn the_end_comes_in_time_with_all_that_the_root_wrote(name: &str, reader: Reader) {
    let (got, took) = read_a_flood(name, reader).await;
    // A second for the lingerer, and what little there is to read before and behind it.
    assert!(took < Duration::from_secs(3), "{reader:?}: the end came after {took:?}");
    for bytes in got {
        let lines = bytes.split_inclusive(|byte| *byte == b'\n');
        let roots: Vec<_> = lines.filter(|line| line[0] == b'0').collect();
        let expected = (0..LINGER_LINES).map(line);
        assert!(roots.iter().copied().eq(expected), "{reader:?}: {} lines of the root", roots.len());
        assert!(bytes.len() > 2 * roots.len() * LINE_BYTES, "{reader:?}: the flood was there");
    }
}

#[tokio::test]
async fn a_flood_that_is_read_as_fast_as_can_be_does_not_keep_the_end_away() {
    let reader = Reader { stall: Duration::ZERO, pause: Duration::from_millis(1) };
    the_end_comes_in_time_with_all_that_the_root_wrote("flood, fast reader", reader).await;
}

#[tokio::test]
async fn a_flood_that_is_read_at_five_mib_a_second_does_not_keep_the_end_away() {
    let reader = Reader { stall: Duration::ZERO, pause: Duration::from_millis(3) };
    the_end_comes_in_time_with_all_that_the_root_wrote("flood, slow reader", reader).await;
}

#[tokio::test]
async fn a_reader_that_stalls_for_three_seconds_gets_all_that_the_root_wrote() {
    let reader = Reader { stall: Duration::from_secs(3), pause: Duration::from_millis(1) };
    the_end_comes_in_time_with_all_that_the_root_wrote("flood, stalled reader", reader).await;
}
