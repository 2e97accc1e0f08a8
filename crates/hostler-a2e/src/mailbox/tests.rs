//! Clients that come and go, against all that was said.

use std::sync::Arc;
use std::time::Duration;

use hostler_core::capture::FolderDisk;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const NOW: Duration = Duration::from_secs(5);

fn now() -> Timestamp {
    Timestamp::from_unix(NOW)
}

/// A mailbox, and the client at the other end of its streams.
struct Rig {
    mailbox: Mailbox,
    stream: Option<StreamId>,
    /// Frames that were handed out and of which nobody knows yet how many were taken.
    outstanding: Vec<u8>,
    /// What the client of the stream has got.
    got: Vec<u8>,
    said: Vec<String>,
    _folder: TempDir,
}

impl Rig {
    fn new(window: ReplayWindow) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let disk = Arc::new(FolderDisk::new(folder.path()));
        let spool = Spool::new(Some(disk), "said".to_owned(), CAPACITY);
        let mailbox = Mailbox::new(spool, MessageIds::new(1), window);
        Self {
            mailbox,
            stream: None,
            outstanding: Vec::new(),
            got: Vec::new(),
            said: Vec::new(),
            _folder: folder,
        }
    }

    fn say(&mut self, kind: Kind, length: usize) {
        let word = match kind {
            Kind::Reply => "reply",
            Kind::Event => "event",
        };
        let line = format!("{{\"{word}\":{},\"x\":\"{}\"}}", self.said.len(), "x".repeat(length));
        self.mailbox.say(format!("{line}\n").as_bytes(), kind);
        self.said.push(line);
    }

    /// The client comes, for what is behind what it has got, or without saying.
    fn come(&mut self, after: Option<u64>) {
        self.leave(usize::MAX);
        self.stream = Some(self.mailbox.open(after, now()).unwrap());
    }

    /// Takes all that is outstanding, and the next frames; false when there are none.
    fn next(&mut self) -> bool {
        let Some(stream) = self.stream else { return false };
        self.got.append(&mut self.outstanding);
        match self.mailbox.poll_next(stream, now(), &mut Context::from_waker(Waker::noop())) {
            Poll::Ready(next) => match next.unwrap() {
                Next::Frames(frames) => self.outstanding = frames.into(),
                Next::End => panic!("nobody has ended it"),
            },
            Poll::Pending => return false,
        }
        true
    }

    /// The connection goes when it has taken so many of the outstanding bytes.
    fn leave(&mut self, taken: usize) {
        let Some(stream) = self.stream.take() else { return };
        let mut taken = std::mem::take(&mut self.outstanding).into_iter().take(taken).collect::<Vec<u8>>();
        self.mailbox.gone(stream, &taken);
        self.got.append(&mut taken);
        // Of a message that has not come to its end, nothing is known.
        let whole = memchr::memmem::rfind(&self.got, b"\n\n").map_or(0, |end| end + 2);
        self.got.truncate(whole);
    }

    fn read_all(&mut self) {
        while self.next() {}
    }

    /// The messages that the client has got, gaps as `gap`.
    fn messages(&self) -> Vec<String> {
        let text = String::from_utf8(self.got.clone()).unwrap();
        let data = text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|line| if line.contains("replay_gap") { "gap".to_owned() } else { line.to_owned() })
            .collect()
    }
}

const CAPACITY: u64 = 64 << 20;
const LARGE: ReplayWindow = ReplayWindow { bytes: CAPACITY, replies: 1024 };

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_client_that_says_what_it_has_got_gets_everything_once_and_in_order(
        steps in prop::collection::vec((0..5_u8, 0..70_000_usize, any::<prop::sample::Index>()), 1..60),
    ) {
        let mut rig = Rig::new(LARGE);
        rig.come(None);
        for (what, length, cut) in steps {
            match what {
                0 => rig.say(Kind::Reply, length % 300),
                1 => rig.say(Kind::Event, length),
                2 => drop(rig.next()),
                3 => {
                    let taken = cut.index(rig.outstanding.len() + 1);
                    rig.leave(taken);
                    // More of it was lost on the way.
                    let lost = length % 3 * 1000;
                    rig.got.truncate(rig.got.len().saturating_sub(lost));
                    let whole = memchr::memmem::rfind(&rig.got, b"\n\n").map_or(0, |end| end + 2);
                    rig.got.truncate(whole);
                }
                _ => {
                    let after = sse::last_id(&rig.got).unwrap_or(0);
                    rig.leave(cut.index(rig.outstanding.len() + 1));
                    rig.got.truncate(memchr::memmem::rfind(&rig.got, b"\n\n").map_or(0, |end| end + 2));
                    let after = sse::last_id(&rig.got).unwrap_or(after);
                    rig.come(Some(after));
                }
            }
        }
        let after = sse::last_id(&rig.got).unwrap_or(0);
        rig.leave(0);
        rig.come(Some(after));
        rig.read_all();
        prop_assert_eq!(rig.messages(), rig.said);
    }

    #[test]
    fn a_client_that_says_nothing_gets_what_no_connection_has_taken_once_and_in_order(
        steps in prop::collection::vec((0..4_u8, 0..70_000_usize, any::<prop::sample::Index>()), 1..60),
    ) {
        let mut rig = Rig::new(ReplayWindow { bytes: 0, replies: 0 });
        for (what, length, cut) in steps {
            match what {
                0 => rig.say(Kind::Reply, length % 300),
                1 => rig.say(Kind::Event, length),
                2 => drop(rig.next()),
                _ => {
                    rig.leave(cut.index(rig.outstanding.len() + 1));
                    rig.come(None);
                }
            }
        }
        rig.come(None);
        rig.read_all();
        prop_assert_eq!(rig.messages(), rig.said);
        prop_assert_eq!(rig.mailbox.untaken(), 0);
    }
}

#[test]
fn what_is_too_old_is_said_to_be_missing_and_the_replies_in_it_come_all_the_same() {
    let mut rig = Rig::new(ReplayWindow { bytes: 1000, replies: 3 });
    rig.say(Kind::Event, 10);
    rig.come(None);
    rig.read_all();
    let after = sse::last_id(&rig.got).unwrap();
    for _ in 0..5 {
        rig.say(Kind::Reply, 10);
        rig.say(Kind::Event, 200);
    }
    for _ in 0..3 {
        rig.say(Kind::Event, 300);
    }
    rig.read_all();
    assert_eq!(rig.messages(), rig.said, "so far nothing was missing");
    rig.got.clear();
    rig.come(Some(after));
    assert!(rig.next());
    assert!(!rig.next());
    let expected = ["gap".to_owned()]
        .into_iter()
        .chain([5, 7, 9].map(|at| rig.said[at].clone()))
        .chain(rig.said[11..].to_vec());
    assert_eq!(rig.messages(), expected.collect::<Vec<_>>());
    // Cut behind the first of these replies, it gets the others, and the gap is still one.
    let second = memchr::memmem::find(&rig.got, b"\n\nid: ").unwrap();
    let first_reply =
        sse::last_id(&rig.got[..memchr::memmem::find(&rig.got[second + 2..], b"\n\n").unwrap() + second + 4]);
    rig.got.clear();
    rig.come(first_reply);
    rig.read_all();
    assert_eq!(rig.messages()[..3], ["gap".to_owned(), rig.said[7].clone(), rig.said[9].clone()]);
}

#[test]
fn an_id_that_no_message_has_opens_nothing_and_ends_no_stream() {
    let mut rig = Rig::new(LARGE);
    rig.say(Kind::Event, 10);
    rig.come(None);
    rig.read_all();
    for unknown in [1, 5, 1000] {
        assert_eq!(rig.mailbox.open(Some(unknown), now()), Err(UnknownId), "{unknown}");
    }
    rig.say(Kind::Event, 10);
    rig.read_all();
    assert_eq!(rig.messages(), rig.said);
}

#[test]
fn a_newer_stream_ends_the_older_one_and_a_closed_mailbox_every_stream_behind_its_last_word() {
    let mut rig = Rig::new(LARGE);
    rig.come(None);
    let older = rig.stream.unwrap();
    rig.come(None);
    let mut cx = Context::from_waker(Waker::noop());
    let ready_end = |poll: Poll<io::Result<Next>>| matches!(poll, Poll::Ready(Ok(Next::End)));
    assert!(ready_end(rig.mailbox.poll_next(older, now(), &mut cx)));
    rig.say(Kind::Reply, 1);
    rig.mailbox.close();
    assert!(rig.next());
    rig.got.append(&mut rig.outstanding);
    assert!(ready_end(rig.mailbox.poll_next(rig.stream.unwrap(), now(), &mut cx)));
    assert_eq!(rig.messages(), rig.said);
}

#[test]
fn a_disk_that_gives_nothing_back_costs_no_message_that_was_never_taken() {
    let folder = tempfile::tempdir().unwrap();
    let disk = Arc::new(FolderDisk::new(folder.path()));
    let mut mailbox =
        Mailbox::new(Spool::new(Some(disk), "said".to_owned(), CAPACITY), MessageIds::new(1), LARGE);
    let line = format!("{{\"x\":\"{}\"}}\n", "x".repeat(1000));
    for _ in 0..1000 {
        mailbox.say(line.as_bytes(), Kind::Event);
    }
    let mut cx = Context::from_waker(Waker::noop());
    let stream = mailbox.open(None, now()).unwrap();
    let mut read = |mailbox: &mut Mailbox, stream| {
        let mut frames = Vec::new();
        while let Poll::Ready(next) = mailbox.poll_next(stream, now(), &mut cx) {
            match next.unwrap() {
                Next::Frames(more) => frames.extend(more),
                Next::End => break,
            }
        }
        frames
    };
    assert_eq!(memchr::memmem::find_iter(&read(&mut mailbox, stream), b"data: ").count(), 1000);
    for file in std::fs::read_dir(folder.path()).unwrap() {
        std::fs::OpenOptions::new().write(true).open(file.unwrap().path()).unwrap().set_len(0).unwrap();
    }
    mailbox.say(line.as_bytes(), Kind::Event);
    let again = mailbox.open(Some(0), now()).unwrap();
    let frames = read(&mut mailbox, again);
    let gaps = memchr::memmem::find_iter(&frames, b"replay_gap").count();
    let whole = memchr::memmem::find_iter(&frames, b"data: {\"x\"").count();
    assert!(gaps == 1 && (100..1000).contains(&whole), "{gaps} gap, {whole} messages");
    assert_eq!(sse::last_id(&frames), Some(1001 * line.len() as u64));
}
