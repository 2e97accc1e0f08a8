//! Modes that copy or write text.

use hostler_testkit::numbered::{LINE_BYTES, line};
use rustix::io::Errno;

use crate::sys::{self, Fuse};
use crate::{FUSE_STATUS, Failure, Outcome};

/// What one write takes at most.
const BLOCK: usize = 64 * 1024;

/// Lines that are kept in memory. Their last four digits never change and the digits before those are the same in
/// all of them, so the next lot is made by copying eight bytes a line.
const LOT: u64 = 10_000;
const FRONT_DIGITS: usize = 8;

pub(crate) fn echo() -> Outcome {
    sys::say_ready()?;
    let mut block = vec![0; BLOCK];
    loop {
        match rustix::io::read(rustix::stdio::stdin(), &mut block) {
            Ok(0) => return Ok(0),
            Ok(count) => sys::write_all(1, &block[..count])?,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Failure::of("read")(error)),
        }
    }
}

pub(crate) fn lines(count: u64) -> Outcome {
    flood(Some(count.saturating_mul(LINE_BYTES as u64)))
}

pub(crate) fn flood(bytes: Option<u64>) -> Outcome {
    let fuse = Fuse::lit();
    let mut lot: Vec<u8> = (0..LOT).flat_map(line).collect();
    let mut left = bytes.unwrap_or(u64::MAX);
    sys::say_ready()?;
    for first in (0..).step_by(usize::try_from(LOT).unwrap_or(1)) {
        let front = line(first);
        for line in lot.chunks_exact_mut(LINE_BYTES) {
            line[..FRONT_DIGITS].copy_from_slice(&front[..FRONT_DIGITS]);
        }
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(lot.len());
        for block in lot[..count].chunks(BLOCK) {
            sys::write_all(1, block)?;
        }
        left -= count as u64;
        if left == 0 {
            return Ok(0);
        }
        if fuse.is_burnt() {
            break;
        }
    }
    Ok(FUSE_STATUS)
}

pub(crate) fn long_line(bytes: u64) -> Outcome {
    sys::say_ready()?;
    // A whole number of alphabets, so that every block begins with an `a`.
    let block: Vec<u8> = (b'a'..=b'z').cycle().take(BLOCK / 26 * 26).collect();
    let mut left = bytes;
    while left > 0 {
        let count = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        sys::write_all(1, &block[..count])?;
        left -= count as u64;
    }
    sys::write_all(1, b"\n")?;
    Ok(0)
}
