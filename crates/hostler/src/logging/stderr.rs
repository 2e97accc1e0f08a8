//! Standard error behind a bounded queue.
//!
//! Owns the queue and the one thread that writes. Invariants:
//! - [`Stderr::send`] never waits for a reader; what finds no room is dropped and counted.
//! - A gap is named once, at its place between the lines, when there is room again.
//! - The thread exists only from the first line on, so a quiet program has none. Where the system has no thread to give,
//!   which is what the line may be about, whoever sends it writes it.
//! - The descriptor's flags are left alone: they belong to everybody who shares the open file.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::config::LogFormat;

/// Bytes that may wait: some two thousand messages.
const LIMIT: usize = 256 * 1024;

/// A handle on the queue; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Stderr {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// There is something to write.
    filled: Condvar,
    /// The last line has been written.
    drained: Condvar,
}

#[derive(Debug)]
struct State {
    backlog: Backlog,
    format: LogFormat,
    writer: Writer,
}

#[derive(Debug)]
enum Writer {
    /// Not started; the descriptor, when it could be duplicated.
    Waiting(Option<OwnedFd>),
    /// In `write`, or about to be.
    Busy,
    /// Waits for lines.
    Idle,
    /// There is no thread: the sender writes.
    Direct(Arc<File>),
    /// There is none, and there will be none.
    Absent,
}

impl Stderr {
    /// Makes the queue for this process's standard error.
    pub(crate) fn new() -> Self {
        Self::with_descriptor(io::stderr().as_fd().try_clone_to_owned().ok(), LIMIT)
    }

    fn with_descriptor(descriptor: Option<OwnedFd>, limit: usize) -> Self {
        let state = State {
            backlog: Backlog::new(limit),
            format: LogFormat::Text,
            writer: Writer::Waiting(descriptor),
        };
        let shared = Shared { state: Mutex::new(state), filled: Condvar::new(), drained: Condvar::new() };
        Self { shared: Arc::new(shared) }
    }

    /// The form of the notes that the queue itself writes.
    pub(super) fn set_format(&self, format: LogFormat) {
        self.shared.state.lock().format = format;
    }

    /// Takes whole lines, or drops them when there is no room.
    pub(crate) fn send(&self, lines: Vec<u8>) {
        let mut state = self.shared.state.lock();
        if let Writer::Waiting(descriptor) = &mut state.writer {
            let descriptor = descriptor.take();
            state.writer = self.start(descriptor);
        }
        match &state.writer {
            Writer::Direct(file) => write_what_fits(file, &lines),
            Writer::Waiting(_) | Writer::Busy | Writer::Idle => {
                state.backlog.push(lines);
                self.shared.filled.notify_one();
            }
            Writer::Absent => {}
        }
    }

    /// Sends a message of the program about itself.
    pub(super) fn send_note(&self, message: &str) {
        let format = self.shared.state.lock().format;
        self.send(note(format, message));
    }

    fn start(&self, descriptor: Option<OwnedFd>) -> Writer {
        let Some(descriptor) = descriptor else { return Writer::Absent };
        let file = Arc::new(File::from(descriptor));
        let (shared, theirs) = (Arc::clone(&self.shared), Arc::clone(&file));
        let thread = std::thread::Builder::new().name("stderr".into());
        // Nobody joins it: it may stand in `write` for ever, and ends with the process.
        match thread.spawn(move || shared.write_all_lines(&theirs)) {
            Ok(_detached) => Writer::Busy,
            Err(_) => Writer::Direct(file),
        }
    }

    /// Waits until all lines are written, `limit` at most. Says whether they are.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let result = self.shared.drained.wait_while_for(&mut state, |state| !state.is_settled(), limit);
        !result.timed_out() || state.is_settled()
    }
}

impl Write for Stderr {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.send(buffer.to_vec());
        Ok(buffer.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl State {
    fn is_settled(&self) -> bool {
        match self.writer {
            Writer::Busy => false,
            Writer::Waiting(_) | Writer::Idle | Writer::Direct(_) | Writer::Absent => {
                self.backlog.items.is_empty()
            }
        }
    }
}

impl Shared {
    fn write_all_lines(&self, file: &File) -> ! {
        loop {
            let mut state = self.state.lock();
            let item = loop {
                match state.backlog.pop() {
                    Some(item) => break item,
                    None => {
                        state.writer = Writer::Idle;
                        self.drained.notify_all();
                        self.filled.wait(&mut state);
                    }
                }
            };
            state.writer = Writer::Busy;
            let format = state.format;
            drop(state);
            match item {
                Item::Lines(lines) => write_fully(file, &lines),
                Item::Dropped(count) => {
                    write_fully(
                        file,
                        &note(format, &format!("{count} messages were dropped: standard error was full")),
                    );
                }
            }
        }
    }
}

/// Writes and waits as long as it takes. A descriptor that fails loses the line: there is nobody to tell.
fn write_fully(mut file: &File, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return,
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // Somebody who shares the open file made it non-blocking.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if poll(&mut [PollFd::new(file, PollFlags::OUT)], None)
                    .is_err_and(|e| e != rustix::io::Errno::INTR)
                {
                    return;
                }
            }
            Err(_) => return,
        }
    }
}

/// Writes without waiting; what finds no room is lost. A descriptor that is ready takes a piece of this size at once.
fn write_what_fits(mut file: &File, bytes: &[u8]) {
    const PIPE_BUF: usize = 4096;
    for piece in bytes.chunks(PIPE_BUF) {
        let mut state = [PollFd::new(file, PollFlags::OUT)];
        let is_ready = poll(&mut state, Some(&Timespec::default())).is_ok_and(|count| count > 0);
        if !is_ready || !file.write(piece).is_ok_and(|written| written == piece.len()) {
            return;
        }
    }
}

fn note(format: LogFormat, message: &str) -> Vec<u8> {
    let line = match format {
        LogFormat::Text => format!("hostler: {message}\n"),
        LogFormat::Json => format!(
            "{}\n",
            serde_json::json!({"level": "ERROR", "target": "hostler", "fields": {"message": message}})
        ),
    };
    line.into_bytes()
}

/// The queue itself: bounded in bytes, with gaps counted in place.
#[derive(Debug)]
struct Backlog {
    items: VecDeque<Item>,
    bytes: usize,
    limit: usize,
}

#[derive(Debug, PartialEq, Eq)]
enum Item {
    Lines(Vec<u8>),
    /// This many messages found no room here.
    Dropped(u64),
}

impl Backlog {
    fn new(limit: usize) -> Self {
        Self { items: VecDeque::new(), bytes: 0, limit }
    }

    fn push(&mut self, lines: Vec<u8>) {
        match self.items.back_mut() {
            // A gap goes on until half of the room is free, so that a trickle does not make a gap of each message.
            Some(Item::Dropped(count)) if self.bytes + lines.len() > self.limit / 2 => *count += 1,
            Some(_) | None if self.bytes + lines.len() > self.limit => self.items.push_back(Item::Dropped(1)),
            Some(_) | None => {
                self.bytes += lines.len();
                self.items.push_back(Item::Lines(lines));
            }
        }
    }

    fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Item::Lines(lines) = &item {
            self.bytes -= lines.len();
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, Read};

    use rustix::fs::OFlags;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);
    const AT_ONCE: Duration = Duration::from_millis(20);

    fn over_pipe(limit: usize) -> (Stderr, PipeReader, OwnedFd) {
        let (reader, writer) = io::pipe().unwrap();
        let writer = OwnedFd::from(writer);
        (Stderr::with_descriptor(Some(writer.try_clone().unwrap()), limit), reader, writer)
    }

    #[test]
    fn without_a_thread_the_sender_writes_and_waits_for_nobody() {
        let (stderr, mut reader, writer) = over_pipe(1000);
        stderr.shared.state.lock().writer = Writer::Direct(Arc::new(File::from(writer.try_clone().unwrap())));
        stderr.send(b"one\n".to_vec());
        assert!(stderr.flush(AT_ONCE));
        let mut line = [0; 4];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"one\n");
        fill(&writer);
        stderr.send(b"two\n".to_vec());
        assert!(stderr.flush(AT_ONCE));
    }

    /// Writes until there is no room left for a single byte.
    fn fill(writer: &OwnedFd) -> usize {
        let size = rustix::pipe::fcntl_setpipe_size(writer, 4096).unwrap();
        File::from(writer.try_clone().unwrap()).write_all(&vec![b'.'; size]).unwrap();
        size
    }

    /// Reads up to this line, and leaves out the filling.
    fn read_up_to(mut reader: PipeReader, last: &str, filling: usize) -> String {
        let mut text = Vec::new();
        while !text.ends_with(last.as_bytes()) {
            let mut chunk = [0; 512];
            let count = reader.read(&mut chunk).unwrap();
            assert!(count > 0, "ended before {last:?}");
            text.extend(&chunk[..count]);
        }
        String::from_utf8(text.split_off(filling)).unwrap()
    }

    /// Lines that came, and messages that notes count as dropped.
    fn account(text: &str) -> (Vec<u64>, u64) {
        let dropped = |line: &str| line.strip_prefix("hostler: ")?.split(' ').next()?.parse::<u64>().ok();
        let counts = text.lines().filter_map(dropped).sum();
        (text.lines().filter_map(|line| line.parse().ok()).collect(), counts)
    }

    fn check_full_pipe(blocking: OFlags) {
        let (stderr, reader, writer) = over_pipe(1000);
        let filling = fill(&writer);
        rustix::fs::fcntl_setfl(&writer, blocking).unwrap();
        for n in 0..2000_u64 {
            stderr.send(format!("{n}\n").into_bytes());
        }
        assert!(!stderr.flush(AT_ONCE), "nothing can have been written");
        let reading = std::thread::spawn(move || read_up_to(reader, "\nlast\n", filling));
        assert!(stderr.flush(PATIENCE));
        stderr.send(b"last\n".to_vec());
        let text = reading.join().unwrap();
        let (lines, dropped) = account(&text);
        assert!(lines.is_sorted() && lines.first() == Some(&0), "{text}");
        assert!(dropped > 0 && lines.len() as u64 + dropped == 2000, "{text}");
        assert_eq!(text.matches("were dropped").count(), 1, "{text}");
        assert_eq!(rustix::fs::fcntl_getfl(&writer).unwrap() & OFlags::NONBLOCK, blocking);
    }

    #[test]
    fn a_full_pipe_holds_nobody_up_and_every_message_is_written_or_counted() {
        check_full_pipe(OFlags::empty());
    }

    #[test]
    fn a_full_pipe_that_somebody_made_non_blocking_loses_nothing_more() {
        check_full_pipe(OFlags::NONBLOCK);
    }

    #[test]
    fn a_reader_that_has_left_holds_nobody_up() {
        let (stderr, reader, _writer) = over_pipe(1000);
        drop(reader);
        stderr.send(b"unheard\n".to_vec());
        assert!(stderr.flush(PATIENCE));
    }

    #[test]
    fn without_a_descriptor_there_is_nothing_to_wait_for() {
        let stderr = Stderr::with_descriptor(None, 1000);
        stderr.send(b"unheard\n".to_vec());
        assert!(stderr.flush(PATIENCE));
    }

    #[test]
    fn a_quiet_program_starts_no_thread() {
        let (stderr, _reader, _writer) = over_pipe(1000);
        assert!(stderr.flush(PATIENCE));
        assert!(matches!(stderr.shared.state.lock().writer, Writer::Waiting(Some(_))));
    }

    #[test]
    fn notes_have_the_form_of_the_messages() {
        assert_eq!(note(LogFormat::Text, "a"), b"hostler: a\n");
        let line = String::from_utf8(note(LogFormat::Json, "a \"b\"\nc")).unwrap();
        assert!(line.ends_with('\n') && line.matches('\n').count() == 1);
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["fields"]["message"], "a \"b\"\nc");
    }

    #[test]
    fn a_gap_stands_in_its_place_and_goes_on_until_half_is_free() {
        let mut backlog = Backlog::new(10);
        let push = |backlog: &mut Backlog, text: &str| backlog.push(text.into());
        for text in ["aaaa", "bbbb", "cccc", "d"] {
            push(&mut backlog, text);
        }
        // The `d` would fit, but the gap has begun.
        assert_eq!(backlog.pop(), Some(Item::Lines(b"aaaa".to_vec())));
        push(&mut backlog, "ee");
        push(&mut backlog, "f");
        assert_eq!(backlog.pop(), Some(Item::Lines(b"bbbb".to_vec())));
        push(&mut backlog, "g");
        assert_eq!(backlog.pop(), Some(Item::Dropped(3)));
        assert_eq!(backlog.pop(), Some(Item::Lines(b"f".to_vec())));
        assert_eq!(backlog.pop(), Some(Item::Lines(b"g".to_vec())));
        assert_eq!((backlog.pop(), backlog.bytes), (None, 0));
    }
}
