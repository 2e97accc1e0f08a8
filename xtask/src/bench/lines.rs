//! Reading lines from a pipe in blocks of 64 KiB. The same reader serves the host's events and, as the baseline, the
//! bare output of a program, so that what is compared is the way to it.

use std::io::{self, Read};
use std::ops::Range;

/// How much one read asks for.
pub(crate) const BLOCK: usize = 64 * 1024;

/// A reader of lines that lends each without copying it.
#[derive(Debug)]
pub(crate) struct Lines<R> {
    from: R,
    buffer: Vec<u8>,
    /// What of `buffer` has been read and not yet lent.
    start: usize,
    end: usize,
}

impl<R: Read> Lines<R> {
    /// Reads from `from`, which nobody else reads.
    pub(crate) fn new(from: R) -> Self {
        Self { from, buffer: vec![0; 2 * BLOCK], start: 0, end: 0 }
    }

    /// The next line without its newline; `None` at the end of the pipe. Waits until there is one.
    pub(crate) fn next(&mut self) -> io::Result<Option<&[u8]>> {
        Ok(self.place()?.map(|line| &self.buffer[line]))
    }

    /// The next line that begins with `start`, without it; others are left out.
    pub(crate) fn next_behind(&mut self, start: &[u8]) -> io::Result<Option<&[u8]>> {
        while let Some(line) = self.place()? {
            if self.buffer[line.clone()].starts_with(start) {
                return Ok(Some(&self.buffer[line.start + start.len()..line.end]));
            }
        }
        Ok(None)
    }

    /// Where in the buffer the next line is.
    fn place(&mut self) -> io::Result<Option<Range<usize>>> {
        let mut searched = 0;
        loop {
            let unread = &self.buffer[self.start..self.end];
            if let Some(at) = memchr::memchr(b'\n', &unread[searched..]) {
                let line = self.start..self.start + searched + at;
                self.start = line.end + 1;
                return Ok(Some(line));
            }
            searched = unread.len();
            if self.fill()? == 0 {
                let rest = self.start..self.end;
                self.start = self.end;
                return Ok(if rest.is_empty() { None } else { Some(rest) });
            }
        }
    }

    /// Makes room for a block behind what is left over, and reads.
    fn fill(&mut self) -> io::Result<usize> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        if self.buffer.len() - self.end < BLOCK {
            self.buffer.resize(self.end + BLOCK, 0);
        }
        loop {
            match self.from.read(&mut self.buffer[self.end..self.end + BLOCK]) {
                Ok(count) => {
                    self.end += count;
                    return Ok(count);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives a few bytes at a time.
    struct Trickle<'a>(&'a [u8], usize);

    impl Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(buffer.len());
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn lines_are_the_same_however_they_arrive() {
        let long = "x".repeat(3 * BLOCK);
        let text = format!("one\n\n{long}\nrest");
        for step in [1, 7, BLOCK, usize::MAX] {
            let mut lines = Lines::new(Trickle(text.as_bytes(), step));
            for expected in ["one", "", &long, "rest"] {
                let line = lines.next().expect("reads").expect("a line");
                assert!(line == expected.as_bytes(), "steps of {step}: {} bytes", line.len());
            }
            assert!(lines.next().expect("reads").is_none());
        }
    }
}
