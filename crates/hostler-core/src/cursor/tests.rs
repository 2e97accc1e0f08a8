//! Readers in one thread, in tasks and in many threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use super::*;
use crate::capture::{Budget, BufferPool, Policy, SeqCounter, Stream};

#[derive(Default)]
struct Wakes(AtomicUsize);

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

impl Wakes {
    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn shared(policy: Policy, buffer_bytes: usize) -> Arc<SharedLog> {
    SharedLog::new(LogOptions {
        stream: Stream::Stdout,
        policy,
        buffer_bytes,
        pool: BufferPool::new(0),
        account: Budget::root(1 << 20),
        disk: None,
        name: "p1.stdout".to_owned(),
    })
}

#[test]
fn an_armed_consumer_is_woken_once() {
    let log = shared(Policy::Record, 4096);
    let wakes = Arc::new(Wakes::default());
    let seq = SeqCounter::default();
    log.set_consumer(Arc::clone(&wakes).into());
    log.append(seq.next(), b"a\n");
    log.append(seq.next(), b"b\n");
    assert_eq!(wakes.count(), 1, "not again before it arms");
    let seen = log.status();
    assert_eq!(log.arm(&seen), Armed::Waiting);
    log.end();
    assert_eq!(wakes.count(), 2);
}

#[test]
fn news_between_looking_and_arming_is_told() {
    let log = shared(Policy::Record, 4096);
    let wakes = Arc::new(Wakes::default());
    log.set_consumer(Arc::clone(&wakes).into());
    let seen = log.status();
    log.append(SeqCounter::default().next(), b"x");
    assert_eq!(log.arm(&seen), Armed::Changed(log.status()));
    assert_eq!(wakes.count(), 1);
}

#[test]
fn a_pause_wakes_the_consumer_and_a_take_wakes_the_driver() {
    let log = shared(Policy::Relay, 16);
    let (consumer, driver) = (Arc::new(Wakes::default()), Arc::new(Wakes::default()));
    log.set_room_waker(&Arc::clone(&driver).into());
    assert_eq!(log.begin_read(100), 16);
    log.append(SeqCounter::default().next(), &[b'x'; 16]);
    log.set_consumer(Arc::clone(&consumer).into());
    assert_eq!(log.begin_read(100), 0);
    assert_eq!(consumer.count(), 1);
    assert!(log.status().full, "the line goes out in pieces now");
    log.take(10);
    assert_eq!(driver.count(), 1);
    assert!(!log.status().full);
    assert_eq!(log.begin_read(100), 10);
}

#[test]
fn a_cursor_gets_bytes_gaps_with_exact_lines_and_the_end() {
    let log = shared(Policy::Record, 4);
    let seq = SeqCounter::default();
    let mut cursor = Cursor::from_start(Arc::clone(&log));
    let mut buffer = [0; 64];
    assert_eq!(cursor.read(&mut buffer).unwrap(), Read::Pending);
    log.append(seq.next(), b"a\nb\n");
    assert_eq!(cursor.read(&mut buffer[..3]).unwrap(), Read::Chunk(3));
    log.append(seq.next(), b"c\nd\ne\n");
    log.end();
    assert_eq!(cursor.read(&mut buffer).unwrap(), Read::Gap(Gap { bytes: 3, lines: Some(2) }));
    let peek = cursor.clone().read(&mut buffer).unwrap();
    assert_eq!(peek, Read::Chunk(4));
    assert_eq!(cursor.read(&mut buffer).unwrap(), Read::Chunk(4));
    assert_eq!(&buffer[..4], b"d\ne\n");
    assert_eq!(cursor.read(&mut buffer).unwrap(), Read::End);
}

#[test]
fn a_follower_of_a_relay_holds_nothing_back() {
    let log = shared(Policy::Relay, 8);
    let seq = SeqCounter::default();
    let mut follower = Cursor::from_start(Arc::clone(&log));
    for _ in 0..5 {
        assert_eq!(log.begin_read(8), 8);
        log.append(seq.next(), b"1234567\n");
        log.take(log.status().end);
    }
    let mut buffer = [0; 64];
    assert_eq!(follower.read(&mut buffer).unwrap(), Read::Gap(Gap { bytes: 32, lines: None }));
    assert_eq!(follower.read(&mut buffer).unwrap(), Read::Chunk(8));
    assert_eq!(log.totals().dropped.bytes, 0, "the owner had everything");
}

#[tokio::test]
async fn next_waits_for_bytes_and_a_dropped_next_loses_none() {
    let log = shared(Policy::Record, 4096);
    let seq = SeqCounter::default();
    let mut cursor = Cursor::from_start(Arc::clone(&log));
    let mut buffer = [0; 16];
    {
        let mut dropped = pin!(cursor.next(&mut buffer));
        std::future::poll_fn(|cx| {
            assert!(dropped.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        log.append(seq.next(), b"hello");
    }
    assert_eq!(cursor.next(&mut buffer).await.unwrap(), Read::Chunk(5));
    let reader = tokio::spawn(async move {
        let mut buffer = [0; 16];
        let mut got = Vec::new();
        while let Read::Chunk(n) = cursor.next(&mut buffer).await.unwrap() {
            got.extend_from_slice(&buffer[..n]);
        }
        got
    });
    for _ in 0..100 {
        log.append(seq.next(), b"0123456789");
        tokio::task::yield_now().await;
    }
    log.end();
    assert_eq!(reader.await.unwrap(), b"0123456789".repeat(100));
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn this_thread() -> Waker {
    Arc::new(Unpark(std::thread::current())).into()
}

const BYTES: u64 = 300_000;

/// Appends `BYTES` bytes as room comes up.
fn produce(log: &SharedLog) {
    log.set_room_waker(&this_thread());
    let seq = SeqCounter::default();
    let mut written = 0;
    while written < BYTES {
        let granted = log.begin_read(700.min((BYTES - written) as usize));
        if granted == 0 {
            std::thread::park();
            continue;
        }
        let bytes: Vec<u8> = (written..written + granted as u64).map(|at| (at % 251) as u8).collect();
        assert_eq!(log.append(seq.next(), &bytes), granted);
        written += granted as u64;
    }
    log.end();
}

/// Takes everything from all logs, sleeping only when none of them has news.
fn consume(logs: &[Arc<SharedLog>]) {
    let mut offsets = vec![0_u64; logs.len()];
    let mut scratch = Vec::new();
    while offsets.iter().any(|offset| *offset < BYTES) {
        let mut news = false;
        for (log, offset) in logs.iter().zip(&mut offsets) {
            let seen = log.status();
            log.read_with(|log| {
                if let View::Bytes(bytes) = log.view(*offset, 500, &mut scratch).unwrap() {
                    assert!(bytes.iter().zip(*offset..).all(|(byte, at)| *byte == (at % 251) as u8));
                    *offset += bytes.len() as u64;
                    news = true;
                }
                log.take(*offset);
            });
            news |= matches!(log.arm(&seen), Armed::Changed(_));
        }
        if !news && offsets.iter().any(|offset| *offset < BYTES) {
            std::thread::park();
        }
    }
}

/// A lost wake-up would let this test hang.
#[test]
fn a_small_quota_among_many_loses_no_wake_up_and_no_byte() {
    let session = Budget::root(1 << 20).child(3000);
    let options = |name: String| LogOptions {
        stream: Stream::Stdout,
        policy: Policy::Relay,
        buffer_bytes: 1000,
        pool: BufferPool::new(1 << 16),
        account: session.child(2000),
        disk: None,
        name,
    };
    let logs: Vec<_> = (0..4).map(|i| SharedLog::new(options(format!("p{i}.stdout")))).collect();
    std::thread::scope(|scope| {
        let consumer = this_thread();
        logs.iter().for_each(|log| log.set_consumer(consumer.clone()));
        for log in &logs {
            scope.spawn(|| produce(log));
        }
        consume(&logs);
    });
    assert_eq!(session.used(), 0);
}
