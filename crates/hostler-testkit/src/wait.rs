//! Waiting for facts, always on the real clock: a paused tokio clock jumps to the next timer while a real child is
//! still working.

use std::fmt::Debug;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// One look at the world: either the awaited fact, or the state that was seen instead.
///
/// `bool` and `Option<T>` do where there is nothing to tell; `Result<T, E>` puts what was seen (`E`, by `Debug`)
/// into the panic text.
pub trait Observation {
    /// What the wait returns.
    type Fact;

    /// The fact, or the text of the state seen instead of it.
    fn settle(self) -> Result<Self::Fact, String>;
}

impl Observation for bool {
    type Fact = ();

    fn settle(self) -> Result<(), String> {
        self.then_some(()).ok_or_else(|| "false".to_owned())
    }
}

impl<T> Observation for Option<T> {
    type Fact = T;

    fn settle(self) -> Result<T, String> {
        self.ok_or_else(|| "None".to_owned())
    }
}

impl<T, E: Debug> Observation for Result<T, E> {
    type Fact = T;

    fn settle(self) -> Result<T, String> {
        self.map_err(|state| format!("{state:?}"))
    }
}

/// Looks every 1 to 20 ms until `look` shows the fact, and returns it.
///
/// # Panics
/// After `max`, with `what` and the state seen last. There is always one look after the last pause.
#[track_caller]
pub fn wait_until<O: Observation>(what: &str, max: Duration, mut look: impl FnMut() -> O) -> O::Fact {
    let mut patience = Patience::new(max);
    loop {
        let state = match look().settle() {
            Ok(fact) => return fact,
            Err(state) => state,
        };
        match patience.next_pause() {
            Some(pause) => thread::sleep(pause),
            None => panic!("{}", patience.out_of_time(what, &state)),
        }
    }
}

/// [`wait_until`] inside a tokio runtime: `look` may await, and other tasks go on between two looks.
///
/// It waits on the real clock even where the runtime's clock is paused, and such a clock stands still meanwhile.
///
/// # Panics
/// As [`wait_until`], and outside a runtime.
pub async fn wait_until_async<O: Observation>(
    what: &str,
    max: Duration,
    mut look: impl AsyncFnMut() -> O,
) -> O::Fact {
    let mut patience = Patience::new(max);
    loop {
        let state = match look().await.settle() {
            Ok(fact) => return fact,
            Err(state) => state,
        };
        let Some(pause) = patience.next_pause() else { panic!("{}", patience.out_of_time(what, &state)) };
        // Not `tokio::time::sleep`: a paused clock would jump over it, and over every timer of the code under test.
        // While a blocking task runs, a paused clock does not move.
        tokio::task::spawn_blocking(move || thread::sleep(pause)).await.expect("a sleep does not panic");
    }
}

/// Reads one line, without its newline, byte by byte, so that what follows it stays in the pipe.
///
/// # Panics
/// After `max`, at end of file and on a read error, each time with what had come so far.
#[track_caller]
pub fn read_line(from: impl AsFd, max: Duration) -> String {
    let patience = Patience::new(max);
    let mut line = Vec::new();
    loop {
        let so_far = || String::from_utf8_lossy(&line).into_owned();
        let Some(left) = patience.left() else {
            panic!("no whole line within {max:?}; it began with {:?}", so_far());
        };
        let timeout = Timespec::try_from(left).expect("a test waits no ages");
        match poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) => {}
            Err(error) => panic!("failed to wait for a line: {error}"),
        }
        let mut byte = [0];
        match rustix::io::read(&from, &mut byte) {
            Ok(0) => panic!("end of file instead of a whole line; it began with {:?}", so_far()),
            Ok(_) if byte[0] == b'\n' => return so_far(),
            Ok(_) => line.push(byte[0]),
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(error) => panic!("failed to read a line: {error}; it began with {:?}", so_far()),
        }
    }
}

/// How long to wait, and how long to pause between two looks.
struct Patience {
    start: Instant,
    max: Duration,
    pause: Duration,
    looks: u32,
}

impl Patience {
    fn new(max: Duration) -> Self {
        Self { start: Instant::now(), max, pause: FIRST_PAUSE, looks: 0 }
    }

    fn left(&self) -> Option<Duration> {
        self.max.checked_sub(self.start.elapsed()).filter(|left| !left.is_zero())
    }

    /// Counts a look that failed; `None` when the time is over.
    fn next_pause(&mut self) -> Option<Duration> {
        self.looks += 1;
        let pause = self.left()?.min(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Some(pause)
    }

    fn out_of_time(&self, what: &str, state: &str) -> String {
        let Self { max, looks, .. } = self;
        format!("waited {max:?} ({looks} looks) for: {what}; last state: {state}")
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    const LONG: Duration = Duration::from_secs(10);
    const SHORT: Duration = Duration::from_millis(30);

    fn panic_text(code: impl FnOnce() + std::panic::UnwindSafe) -> String {
        let payload = std::panic::catch_unwind(code).expect_err("the code should have panicked");
        payload.downcast_ref::<String>().expect("a formatted panic").clone()
    }

    #[test]
    fn returns_the_fact_once_it_is_there() {
        let mut looks = 0;
        let fact = wait_until("third look", LONG, || {
            looks += 1;
            (looks == 3).then_some("here")
        });
        assert_eq!((fact, looks), ("here", 3));
        wait_until("a plain condition", LONG, || true);
    }

    #[test]
    fn names_the_awaited_fact_and_the_last_state_when_time_is_over() {
        let text = panic_text(|| {
            let mut seen = 0;
            wait_until("a million", SHORT, || {
                seen += 1;
                Err::<(), _>(format!("saw {}", seen.min(1)))
            });
        });
        assert!(text.contains("for: a million; last state: \"saw 1\""), "{text}");
        let text = panic_text(|| wait_until("never", SHORT, || false));
        assert!(text.starts_with("waited 30ms") && text.ends_with("last state: false"), "{text}");
    }

    #[test]
    fn looks_at_least_once_even_without_any_time() {
        assert_eq!(wait_until("at once", Duration::ZERO, || Some(7)), 7);
    }

    #[tokio::test]
    async fn async_wait_lets_other_tasks_run() {
        let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
        let task = tokio::spawn(async move { sender.send(5).await });
        assert_eq!(wait_until_async("a message", LONG, async || receiver.try_recv()).await, 5);
        task.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_clock_stands_still_during_an_async_wait() {
        let before = tokio::time::Instant::now();
        let mut looks = 0;
        wait_until_async("fifth look", LONG, async || {
            looks += 1;
            looks == 5
        })
        .await;
        assert_eq!(before.elapsed(), Duration::ZERO);
    }

    #[test]
    fn a_line_is_read_without_what_follows_it() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"ready\nmore").unwrap();
        assert_eq!(read_line(&reader, LONG), "ready");
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "more");
    }

    #[test]
    fn a_line_that_does_not_come_whole_is_shown() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        writer.write_all(b"rea").unwrap();
        let text = panic_text(|| drop(read_line(&reader, SHORT)));
        assert!(text.contains("began with \"rea\""), "{text}");
        writer.write_all(b"dy").unwrap();
        drop(writer);
        let text = panic_text(|| drop(read_line(&reader, LONG)));
        assert!(text.contains("end of file") && text.contains("\"dy\""), "{text}");
    }
}
