//! What a keeper has to say to its host, as fast as the socket takes it: nobody waits for that.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;

use super::protocol::KeeperEvent;
use crate::sys::clock;
use crate::sys::packet::{self, Wait};

/// Between two tries while the kernel has no memory for a packet.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// See the module. Bounded by what happens to the keeper's processes.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    packets: VecDeque<Vec<u8>>,
    waits_for_room: bool,
    retry_at: Option<Instant>,
}

impl Outbox {
    pub(super) fn push(&mut self, event: &KeeperEvent) {
        self.packets.push_back(event.encode());
    }

    pub(super) fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.packets.clear();
    }

    /// When to flush although nothing has become ready.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    /// Sends what the socket takes. What the socket is to be watched for, if that has changed.
    ///
    /// # Errors
    /// When the host is gone.
    pub(super) fn flush(&mut self, socket: BorrowedFd<'_>) -> io::Result<Option<EventFlags>> {
        self.retry_at = None;
        while let Some(bytes) = self.packets.front() {
            match packet::send(socket, &[IoSlice::new(bytes)], &[], Wait::Never) {
                Ok(()) => {
                    self.packets.pop_front();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if packet::may_pass(&error) => {
                    self.retry_at = Some(clock::now() + RETRY_PAUSE);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let wants_room = !self.packets.is_empty() && self.retry_at.is_none();
        if std::mem::replace(&mut self.waits_for_room, wants_room) == wants_room {
            return Ok(None);
        }
        Ok(Some(if wants_room { EventFlags::IN | EventFlags::OUT } else { EventFlags::IN }))
    }
}
