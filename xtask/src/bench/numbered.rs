//! Checks every line of the producer: bare, and wrapped in an event. Both compare with the text that must come next,
//! so a lost, doubled or changed line is found at once; the event's envelope is compared in place, without a JSON
//! reader, as long as it looks as expected.

use anyhow::{Context, Result, bail, ensure};

use super::messages::{self, Event, Message, Process};

/// Bytes of a line of the producer without its newline.
const TEXT: usize = 79;
const DIGITS: usize = 12;

/// The text that the producer's next line must have.
#[derive(Debug)]
pub(crate) struct Numbered {
    expected: [u8; TEXT],
    count: u64,
}

impl Numbered {
    /// Expects the line with number 0.
    pub(crate) fn new() -> Self {
        let mut expected = [b'0'; TEXT];
        expected[DIGITS] = b' ';
        for (letter, place) in (b'a'..=b'z').cycle().skip(1).zip(&mut expected[DIGITS + 1..]) {
            *place = letter;
        }
        Self { expected, count: 0 }
    }

    /// How many lines have come.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Takes the next line, given without its newline.
    pub(crate) fn take(&mut self, line: &[u8]) -> Result<()> {
        ensure!(line == self.expected, "line {} is {:?}", self.count, String::from_utf8_lossy(line));
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        self.count += 1;
        for digit in self.expected[..DIGITS].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }
}

/// What one line of the host meant.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// The next line of the producer.
    Line,
    /// The end of the process.
    Terminal(Event),
    /// A message about something else.
    Other,
}

const HEAD: &[u8] = br#"{"type":"proc/read/event","id":""#;
const AFTER_ID: &[u8] = br#"","version":"1.0","ts":"#;

/// The events of one producer.
#[derive(Debug)]
pub(crate) struct Events {
    numbered: Numbered,
    proc_id: String,
    before_text: Vec<u8>,
    after_text: Vec<u8>,
    /// A piece of a line without its end, as a killed process leaves it.
    piece: Option<String>,
}

impl Events {
    /// Expects the events of `process`, which was asked for by `req_id`.
    pub(crate) fn of(process: &Process, req_id: &str) -> Self {
        let proc_id = &process.proc_id;
        let before = format!(r#","proc_id":"{proc_id}","stream_type":"stdout","data":"{{\"text\":\""#);
        let after = format!(r#"\\n\"}}","req_id":"{req_id}"}}"#);
        Self {
            numbered: Numbered::new(),
            proc_id: proc_id.clone(),
            before_text: before.into_bytes(),
            after_text: after.into_bytes(),
            piece: None,
        }
    }

    /// How many lines have come.
    pub(crate) fn count(&self) -> u64 {
        self.numbered.count()
    }

    /// Takes a line of the host.
    pub(crate) fn take(&mut self, line: &[u8]) -> Result<Seen> {
        if self.is_next(line) {
            self.numbered.advance();
            return Ok(Seen::Line);
        }
        self.take_slowly(line)
    }

    /// Whether this is, byte for byte, the usual envelope around the next line.
    fn is_next(&self, line: &[u8]) -> bool {
        let Some(rest) = line.strip_prefix(HEAD) else { return false };
        let Some(end) = memchr::memchr(b'"', rest) else { return false };
        if end == 0 || self.piece.is_some() {
            return false;
        }
        let Some(rest) = rest[end..].strip_prefix(AFTER_ID) else { return false };
        let Some(end) = memchr::memchr(b',', rest) else { return false };
        let Some(rest) = rest[end..].strip_prefix(self.before_text.as_slice()) else { return false };
        let parts = rest.split_at_checked(TEXT);
        parts.is_some_and(|(text, after)| text == self.numbered.expected && after == self.after_text)
    }

    /// Any other message, or an envelope in another order of fields.
    fn take_slowly(&mut self, line: &[u8]) -> Result<Seen> {
        match messages::parse(line)? {
            Message::Event { proc_id, what } if proc_id == self.proc_id => self.event(what),
            Message::Handshake { .. }
            | Message::Spawned { .. }
            | Message::Event { .. }
            | Message::Written { .. }
            | Message::Killed
            | Message::Pong { .. } => Ok(Seen::Other),
        }
    }

    fn event(&mut self, what: Event) -> Result<Seen> {
        match what {
            Event::Stdout(text) => {
                ensure!(self.piece.is_none(), "a line after a piece without an end: {text:?}");
                match text.strip_suffix('\n') {
                    Some(whole) => self.numbered.take(whole.as_bytes())?,
                    None => self.piece = Some(text),
                }
                Ok(Seen::Line)
            }
            Event::Stderr(text) => bail!("the producer complains: {text}"),
            Event::Exited(_) | Event::Killed => {
                self.check_piece()?;
                Ok(Seen::Terminal(what))
            }
        }
    }

    fn check_piece(&self) -> Result<()> {
        let Some(piece) = &self.piece else { return Ok(()) };
        let expected = std::str::from_utf8(&self.numbered.expected).context("the text is ASCII")?;
        ensure!(expected.starts_with(piece.as_str()), "the last piece is {piece:?}");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events() -> Events {
        Events::of(&Process { proc_id: "c0".into(), pid: 2 }, "p1")
    }

    fn line(number: u64) -> String {
        format!("{number:012} bcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyzabcdefghijklmno")
    }

    fn event(id: u64, text: &str) -> String {
        format!(
            r#"{{"type":"proc/read/event","id":"{id}","version":"1.0","ts":4.2,"proc_id":"c0","stream_type":"stdout","data":"{{\"text\":\"{text}\"}}","req_id":"p1"}}"#
        )
    }

    #[test]
    fn lines_are_counted_over_every_carry() {
        let mut numbered = Numbered::new();
        for number in 0..1_100 {
            numbered.take(line(number).as_bytes()).expect("the next one");
        }
        assert_eq!(numbered.count(), 1_100);
    }

    #[test]
    fn a_lost_doubled_or_changed_line_is_found() {
        for wrong in [line(2), line(0), line(1).replace('d', "D"), String::new()] {
            let mut numbered = Numbered::new();
            numbered.take(line(0).as_bytes()).expect("the first one");
            assert!(numbered.take(wrong.as_bytes()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn the_usual_envelope_is_compared_in_place() {
        let mut events = events();
        for number in 0..20 {
            assert!(events.is_next(event(number, &(line(number) + r"\\n")).as_bytes()), "{number}");
            events.numbered.advance();
        }
    }

    #[test]
    fn another_order_of_fields_is_read_the_slow_way() {
        let other =
            r#"{"proc_id":"c0","data":{"text":"LINE\n"},"type":"proc/read/event","stream_type":"stdout"}"#;
        let mut events = events();
        assert_eq!(events.take(other.replace("LINE", &line(0)).as_bytes()).expect("fits"), Seen::Line);
        assert_eq!(events.take(event(1, &(line(1) + r"\\n")).as_bytes()).expect("fits"), Seen::Line);
        assert_eq!(events.count(), 2);
    }

    #[test]
    fn a_lost_event_and_a_changed_byte_are_found() {
        for (wrong, why) in
            [(event(1, &(line(2) + r"\\n")), "lost"), (event(1, &line(1).replace('e', "f")), "changed")]
        {
            let mut events = events();
            events.take(event(0, &(line(0) + r"\\n")).as_bytes()).expect("the first one");
            let result = events.take(wrong.as_bytes()).and_then(|_| events.check_piece());
            assert!(result.is_err(), "{why}");
        }
    }

    #[test]
    fn a_piece_may_only_be_the_last_text() {
        let mut events = events();
        events.take(event(0, &line(0)[..7]).as_bytes()).expect("a piece");
        let killed = br#"{"type":"proc/read/event","proc_id":"c0","stream_type":"killed","data":"{}"}"#;
        assert_eq!(events.take(killed).expect("its beginning fits"), Seen::Terminal(Event::Killed));
        assert!(events.take(event(1, &(line(0) + r"\\n")).as_bytes()).is_err());
    }
}
