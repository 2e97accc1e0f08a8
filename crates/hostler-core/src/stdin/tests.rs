//! Writes into pipes that are read, full, closed or gone.

use std::io::Read;

use proptest::prelude::*;
use rustix::pipe::{PipeFlags, pipe_with};

use super::*;

fn pair() -> (std::fs::File, Arc<Stdin>) {
    pair_of(&StdinAccount::new(MAX_WAITING_IN_SESSION))
}

fn pair_of(account: &Arc<StdinAccount>) -> (std::fs::File, Arc<Stdin>) {
    let (r, w) = pipe_with(PipeFlags::CLOEXEC).unwrap();
    rustix::io::ioctl_fionbio(&w, true).unwrap();
    (r.into(), Stdin::open(w, account))
}

#[tokio::test]
async fn bytes_arrive_in_order_and_the_pipe_is_closed_after_the_last() {
    let (mut pipe, stdin) = pair();
    let big = vec![b'x'; 3_000_000];
    let first = stdin.write(&big, Then::KeepOpen);
    assert_eq!(first.now(), None);
    let second = stdin.write(b"end", Then::Close);
    assert_eq!(stdin.write(b"late", Then::KeepOpen).now(), Some(Err(WriteError::Closed)));
    let reader = tokio::task::spawn_blocking(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(first.done().await, Ok(()));
    assert_eq!(second.done().await, Ok(()));
    let all = reader.await.unwrap();
    assert_eq!(all.len(), big.len() + 3);
    assert!(all.ends_with(b"xend"));
    assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Closed)));
}

#[tokio::test]
async fn a_blocked_write_is_answered_when_the_process_ends() {
    let (_pipe, stdin) = pair();
    let blocked = stdin.write(&vec![0; 1_000_000], Then::KeepOpen);
    stdin.end();
    assert_eq!(blocked.done().await, Err(WriteError::Ended));
    assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Ended)));
}

#[tokio::test]
async fn a_write_that_is_not_waited_for_any_longer_is_taken_back_to_the_byte() {
    let (mut pipe, stdin) = pair();
    let first = vec![b'a'; 1_000_000];
    let late = stdin.write(&first, Then::Close).done_within(Duration::from_millis(20)).await;
    let Withdrawn::Partly { written } = late else { panic!("{late:?}") };
    assert!(0 < written && written < first.len(), "{written}");
    // It was the one that closes; others come after what is in the pipe.
    let second = stdin.write(b"b", Then::Close);
    let reader = tokio::task::spawn_blocking(move || {
        let mut all = Vec::new();
        pipe.read_to_end(&mut all).unwrap();
        all
    });
    assert_eq!(second.done_within(Duration::from_secs(60)).await, Withdrawn::Answered(Ok(())));
    let all = reader.await.unwrap();
    assert_eq!((all.len(), all.last()), (written + 1, Some(&b'b')));
}

#[tokio::test]
async fn a_closed_reader_is_told_from_an_end() {
    let (pipe, stdin) = pair();
    drop(pipe);
    assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::ClosedByProcess)));
    assert_eq!(
        Stdin::none(&StdinAccount::new(1)).write(b"x", Then::KeepOpen).now(),
        Some(Err(WriteError::NoStdin))
    );
}

#[tokio::test]
async fn a_pipe_that_cannot_be_watched_is_told_from_one_that_the_process_closed() {
    let (_pipe, stdin) = pair();
    let taken = match &stdin.state.lock().pipe {
        // The reactor takes a descriptor once.
        Pipe::Open(fd) => reactor::register(Arc::clone(fd), Interest::WRITABLE),
        Pipe::Shut(why) => panic!("{why}"),
    };
    assert!(taken.is_ok());
    let blocked = stdin.write(&vec![b'x'; 1_000_000], Then::KeepOpen);
    assert_eq!(blocked.done().await, Err(WriteError::Unwatched));
    assert_eq!(stdin.write(b"x", Then::KeepOpen).now(), Some(Err(WriteError::Unwatched)));
}

#[tokio::test]
async fn what_waits_is_bounded() {
    let (_pipe, stdin) = pair();
    let _first = stdin.write(&vec![0; MAX_WAITING], Then::KeepOpen);
    let more = stdin.write(&vec![0; 200_000], Then::KeepOpen);
    assert!(matches!(more.now(), Some(Err(WriteError::Full { .. }))));
}

#[tokio::test]
async fn what_waits_for_all_processes_of_a_session_is_bounded_and_room_comes_back() {
    const LIMIT: usize = 1_000_000;
    let account = StdinAccount::new(LIMIT);
    let ((_first_pipe, first), (mut second_pipe, second)) = (pair_of(&account), pair_of(&account));
    let some = vec![0; LIMIT * 3 / 4];
    let blocked = [first.write(&some, Then::KeepOpen), first.write(&[0; 1000], Then::KeepOpen)];
    let refused = second.write(&some, Then::KeepOpen).now();
    assert!(matches!(refused, Some(Err(WriteError::SessionFull { limit: LIMIT, .. }))), "{refused:?}");
    let small = second.write(&[0; 1000], Then::KeepOpen);
    assert_eq!(small.now(), None, "what finds room waits");
    first.end();
    for blocked in blocked {
        assert_eq!(blocked.done().await, Err(WriteError::Ended));
    }
    let waits = second.write(&some, Then::Close);
    assert_eq!(waits.now(), None);
    let reader = tokio::task::spawn_blocking(move || std::io::copy(&mut second_pipe, &mut std::io::sink()));
    assert_eq!(waits.done().await, Ok(()));
    reader.await.unwrap().unwrap();
    assert_eq!(account.bytes.load(Ordering::Acquire), 0);
}

/// Bytes that show a loss, a repetition or a change of order.
fn pattern(from: usize, length: usize) -> Vec<u8> {
    (from..from + length).map(|at| (at / 251 + at) as u8).collect()
}

/// Reads in pieces of these sizes, in turn, up to `most` bytes or the end, and then closes its end.
fn read_up_to(mut pipe: std::fs::File, sizes: &[usize], most: usize) -> Vec<u8> {
    let mut all = Vec::new();
    for size in sizes.iter().cycle() {
        let mut piece = vec![0; (*size).min(most - all.len())];
        match pipe.read(&mut piece).unwrap() {
            0 => break,
            n => all.extend_from_slice(&piece[..n]),
        }
    }
    all
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

fn sizes(most: usize) -> impl Strategy<Value = Vec<usize>> {
    prop::collection::vec(prop_oneof![0..10_usize, 4000..4200_usize, 0..most], 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn writes_of_any_sizes_arrive_whole_and_in_order_at_any_reader(writes in sizes(150_000), reads in sizes(70_000)) {
        let reads: Vec<usize> = reads.into_iter().map(|size| size + 1).collect();
        let all = runtime().block_on(async {
            let (pipe, stdin) = pair();
            let mut at = 0;
            let mut answers = Vec::new();
            for length in &writes {
                answers.push(stdin.write(&pattern(at, *length), Then::KeepOpen));
                at += length;
            }
            answers.push(stdin.write(&[], Then::Close));
            let reader = tokio::task::spawn_blocking(move || read_up_to(pipe, &reads, usize::MAX));
            for answer in answers {
                assert_eq!(answer.done().await, Ok(()));
            }
            reader.await.unwrap()
        });
        prop_assert!(all == pattern(0, writes.iter().sum()));
    }

    #[test]
    fn when_the_reader_goes_every_write_is_answered_and_what_arrived_is_a_prefix(
        writes in sizes(150_000),
        most in 0..300_000_usize,
        ends in prop::bool::ANY,
    ) {
        let (all, answers) = runtime().block_on(async {
            let (pipe, stdin) = pair();
            let mut at = 0;
            let mut answers = Vec::new();
            for length in &writes {
                answers.push(stdin.write(&pattern(at, *length), Then::KeepOpen));
                at += length;
            }
            // Nobody writes any more: what is there to read, and then the end of it.
            let last = stdin.write(&[], Then::Close);
            let reader = tokio::task::spawn_blocking(move || read_up_to(pipe, &[4096], most));
            let all = reader.await.unwrap();
            if ends {
                stdin.end();
            }
            let mut results = Vec::new();
            for answer in answers.into_iter().chain([last]) {
                results.push(answer.done().await);
            }
            (all, results)
        });
        prop_assert!(all == pattern(0, all.len()));
        let done = answers.iter().take_while(|answer| answer.is_ok()).count();
        let refused = |answer: &Result<(), WriteError>| {
            matches!(answer, Err(WriteError::ClosedByProcess)) || (ends && *answer == Err(WriteError::Ended))
        };
        prop_assert!(answers[done..].iter().all(refused), "{answers:?}");
        let total: usize = writes.iter().sum();
        prop_assert_eq!(all.len(), most.min(total));
        prop_assert!(most < total || done == answers.len(), "all was read, but not all is done: {answers:?}");
    }
}
