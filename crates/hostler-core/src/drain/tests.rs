//! Short stories with a clock in milliseconds, and random ones against a model of two pipes.

use proptest::prelude::*;

use super::*;

const BOTH: &[Stream] = &[Stream::Stdout, Stream::Stderr];
const EOF: Drain = Drain::Done(DrainReason::Eof);
const SILENCE: Drain = Drain::Done(DrainReason::Silence);
const LIMIT: Drain = Drain::Done(DrainReason::Limit);

/// A drainer whose calls take milliseconds.
struct Story {
    start: Instant,
    drainer: Drainer,
}

impl Story {
    #[expect(
        clippy::disallowed_methods,
        reason = "an Instant has no other origin; only differences are used"
    )]
    fn new(streams: &[Stream]) -> Self {
        Self { start: Instant::now(), drainer: Drainer::new(DrainLimits::default(), streams) }
    }

    fn at(&self, ms: u64) -> Instant {
        self.start + Duration::from_millis(ms)
    }

    fn exited(&mut self, ms: u64, stdout: u64, stderr: u64) -> Drain {
        self.drainer.exited(self.at(ms), Pending { stdout, stderr })
    }

    fn read(&mut self, ms: u64, bytes: u64) -> Drain {
        self.drainer.read(Stream::Stdout, bytes, self.at(ms))
    }

    fn ended(&mut self, ms: u64, stream: Stream) -> Drain {
        self.drainer.ended(stream, self.at(ms))
    }

    fn paused(&mut self, ms: u64) -> Drain {
        self.drainer.paused(Stream::Stdout, self.at(ms))
    }

    fn resumed(&mut self, ms: u64) -> Drain {
        self.drainer.resumed(Stream::Stdout, self.at(ms))
    }

    fn taken(&mut self, ms: u64, upto: u64) -> Drain {
        self.drainer.taken(Stream::Stdout, upto, self.at(ms))
    }

    fn tick(&mut self, ms: u64) -> Drain {
        self.drainer.tick(self.at(ms))
    }

    fn grace(&self, until_ms: u64) -> Drain {
        Drain::Grace { until: Some(self.at(until_ms)) }
    }
}

#[test]
fn done_at_once_when_every_stream_ended_before_the_exit() {
    let mut story = Story::new(BOTH);
    assert_eq!(story.read(0, 100), Drain::Reading);
    assert_eq!(story.ended(1, Stream::Stderr), Drain::Reading);
    assert_eq!(story.ended(2, Stream::Stdout), Drain::Reading);
    assert_eq!(story.exited(3, 0, 0), EOF);
    assert_eq!(story.drainer.root_end(Stream::Stdout), Some(100));
}

#[test]
fn done_at_once_when_the_streams_end_after_the_exit_in_either_order() {
    for (first, second) in [(Stream::Stdout, Stream::Stderr), (Stream::Stderr, Stream::Stdout)] {
        let mut story = Story::new(BOTH);
        assert_eq!(story.exited(0, 10, 0), Drain::RootBytes { left: 10 });
        let _ = story.read(1, 10);
        assert_ne!(story.ended(2, first), EOF);
        assert_eq!(story.ended(3, second), EOF);
        assert_eq!(story.drainer.deadline(), None);
    }
}

#[test]
fn a_process_without_streams_is_done_at_its_exit() {
    let mut story = Story::new(&[]);
    assert_eq!(story.tick(0), Drain::Reading);
    assert_eq!(story.exited(1, 0, 0), EOF);
}

#[test]
fn a_process_with_one_stream_waits_for_that_one_alone() {
    let mut story = Story::new(&[Stream::Stdout]);
    assert_eq!(story.exited(0, 0, 0), story.grace(250));
    assert_eq!(story.ended(1, Stream::Stdout), EOF);
}

#[test]
fn every_byte_of_the_root_is_read_first_however_long_the_reader_takes() {
    let mut story = Story::new(BOTH);
    let _ = story.read(0, 1000);
    assert_eq!(story.exited(1, 70, 30), Drain::RootBytes { left: 100 });
    assert_eq!(story.drainer.deadline(), None);
    assert_eq!(story.tick(3_600_000), Drain::RootBytes { left: 100 });
    assert_eq!(story.drainer.read(Stream::Stderr, 30, story.at(3_600_001)), Drain::RootBytes { left: 70 });
    // Bytes of a descendant on one stream do not stand for the root's on the other.
    assert_eq!(story.drainer.read(Stream::Stderr, 500, story.at(3_600_002)), Drain::RootBytes { left: 70 });
    assert_eq!(story.read(7_200_000, 70), story.grace(7_200_250));
    assert_eq!(story.drainer.root_end(Stream::Stdout), Some(1070));
    assert_eq!(story.drainer.root_end(Stream::Stderr), Some(30));
}

#[test]
fn a_stream_that_ends_short_of_its_count_does_not_hold_the_end_back() {
    let mut story = Story::new(BOTH);
    let _ = story.exited(0, 50, 0);
    assert_eq!(story.ended(1, Stream::Stdout), story.grace(251));
}

#[test]
fn a_silent_lingerer_is_waited_for_250_ms() {
    let mut story = Story::new(BOTH);
    assert_eq!(story.exited(1000, 0, 0), story.grace(1250));
    assert_eq!(story.tick(1249), story.grace(1250));
    assert_eq!(story.tick(1250), SILENCE);
    assert_eq!(story.drainer.deadline(), None);
}

#[test]
fn a_writing_lingerer_is_read_for_one_second_at_most() {
    let mut story = Story::new(BOTH);
    let _ = story.exited(0, 0, 0);
    for ms in (200..1000).step_by(200) {
        let until = (ms + 250).min(1000);
        assert_eq!(story.read(ms, 5), story.grace(until));
        assert_eq!(story.tick(ms + 1), story.grace(until));
    }
    assert_eq!(story.tick(999), story.grace(1000));
    // A tick that comes late reports what was due first.
    assert_eq!(story.tick(3000), LIMIT);
}

#[test]
fn a_read_never_finishes_a_drain_and_one_answered_by_done_is_late() {
    let mut story = Story::new(BOTH);
    let _ = story.exited(0, 0, 0);
    // The loop was held up: these bytes were in the pipe in time, as far as anybody knows.
    assert_eq!(story.read(5000, 5), story.grace(1000));
    assert_eq!(story.tick(5000), LIMIT);
    assert_eq!(story.read(5001, 5), LIMIT);
    assert!(!story.drainer.has_ended());
    assert_eq!(story.ended(6000, Stream::Stdout), LIMIT);
    assert_eq!(story.ended(6000, Stream::Stderr), LIMIT);
    assert!(story.drainer.has_ended());
}

#[test]
fn the_clocks_stand_still_while_reading_is_paused_over_bytes_of_the_root() {
    let mut story = Story::new(BOTH);
    let _ = story.read(0, 10);
    let _ = story.exited(0, 0, 0);
    assert_eq!(story.paused(100), Drain::Grace { until: None });
    assert_eq!(story.tick(90_000), Drain::Grace { until: None });
    assert_eq!(story.drainer.deadline(), None);
    assert_eq!(story.resumed(100_000), story.grace(100_150));
    assert_eq!(story.tick(100_150), SILENCE);
}

#[test]
fn a_flood_that_holds_itself_back_is_read_for_one_second_at_most() {
    let mut story = Story::new(BOTH);
    let _ = story.read(0, 1000);
    let _ = story.exited(0, 10, 0);
    let _ = story.read(1, 500);
    // The reader is behind: what it has not taken is the root's.
    assert_eq!(story.paused(2), Drain::Grace { until: None });
    assert_eq!(story.taken(3000, 1009), Drain::Grace { until: None });
    assert_eq!(story.taken(5000, 1010), story.grace(5999), "the last byte of the root is taken");
    // It takes on, and the flood fills what it leaves.
    for ms in (5100..5900).step_by(100) {
        let _ = story.resumed(ms);
        let _ = story.read(ms, 500);
        assert_eq!(story.paused(ms + 1), story.grace(5999));
    }
    assert_eq!(story.tick(5998), story.grace(5999));
    assert_eq!(story.tick(5999), LIMIT);
}

#[test]
fn silence_is_no_sign_while_nobody_listens() {
    let mut story = Story::new(BOTH);
    let _ = story.exited(0, 0, 0);
    assert_eq!(story.paused(100), story.grace(1000));
    assert_eq!(story.tick(400), story.grace(1000));
    assert_eq!(story.resumed(500), story.grace(650));
    assert_eq!(story.tick(650), SILENCE);
}

#[test]
fn the_root_is_taken_when_both_streams_are_as_far_as_they_were_read() {
    let mut story = Story::new(BOTH);
    let _ = story.read(0, 10);
    let _ = story.exited(0, 0, 30);
    let _ = story.drainer.read(Stream::Stderr, 20, story.at(0));
    // It ends short of what was said to lie in it.
    let _ = story.ended(0, Stream::Stderr);
    let _ = story.paused(100);
    assert_eq!(story.taken(200, 10), Drain::Grace { until: None });
    assert_eq!(story.drainer.taken(Stream::Stderr, 20, story.at(300)), story.grace(1200));
}

#[test]
fn a_pause_before_the_grace_does_not_lengthen_it() {
    let mut story = Story::new(BOTH);
    assert_eq!(story.paused(0), Drain::Reading);
    let _ = story.exited(100, 10, 0);
    let _ = story.read(5_000, 10);
    assert_eq!(story.resumed(6_000), story.grace(6_250));
}

#[test]
fn the_clock_runs_again_when_the_last_paused_stream_goes_on_or_ends() {
    let mut story = Story::new(BOTH);
    let _ = story.read(0, 10);
    let _ = story.exited(0, 0, 0);
    let _ = story.paused(50);
    let _ = story.drainer.paused(Stream::Stderr, story.at(60));
    assert_eq!(story.resumed(1_000), Drain::Grace { until: None });
    assert_eq!(story.ended(2_050, Stream::Stderr), story.grace(2_250));
    // Twice the same is once, and an ended stream cannot be paused.
    assert_eq!(story.resumed(2_060), story.grace(2_250));
    assert_eq!(story.drainer.paused(Stream::Stderr, story.at(2_070)), story.grace(2_250));
}

#[test]
fn only_the_first_exit_counts() {
    let mut story = Story::new(BOTH);
    let _ = story.exited(0, 10, 0);
    assert_eq!(story.exited(1, 99, 99), Drain::RootBytes { left: 10 });
    let _ = story.read(2, 10);
    assert_eq!(story.exited(200, 5, 0), story.grace(252));
    assert_eq!(story.tick(252), SILENCE);
    assert_eq!(story.exited(300, 5, 0), SILENCE);
}

#[test]
fn time_never_runs_backwards() {
    let mut story = Story::new(BOTH);
    let _ = story.tick(1_000);
    assert_eq!(story.exited(500, 0, 0), story.grace(1_250));
    assert_eq!(story.tick(0), story.grace(1_250));
    let _ = story.paused(1_100);
    assert_eq!(story.resumed(200), story.grace(1_250));
}

#[test]
fn no_grace_is_wanted_and_endless_limits_do_not_overflow() {
    let limits = DrainLimits { silence: Duration::ZERO, total: Duration::MAX };
    let mut story = Story::new(BOTH);
    story.drainer = Drainer::new(limits, BOTH);
    assert_eq!(story.exited(5, 0, 0), story.grace(5));
    assert_eq!(story.tick(5), SILENCE);
    story.drainer = Drainer::new(DrainLimits { silence: Duration::MAX, total: Duration::MAX }, BOTH);
    let _ = story.exited(5, 0, 0);
    let _ = story.paused(6);
    assert!(matches!(story.resumed(1_000_000), Drain::Grace { until: Some(_) }));
}

#[derive(Debug, Clone, Copy)]
enum Event {
    Write(Stream, u64),
    Close(Stream),
    Exit,
    Read(Stream, u64),
    Pause(Stream),
    Resume(Stream),
    Take(Stream, u64),
    Wait(u64),
}

/// A pipe with what its writers did, and what the reader saw of it.
#[derive(Debug, Default, Clone, Copy)]
struct ModelPipe {
    unread: u64,
    unread_of_root: u64,
    closed: bool,
    end_seen: bool,
    paused: bool,
    read: u64,
    taken: u64,
    /// Of what was read, where the last byte of the root is, once it has exited.
    root_read: u64,
}

/// Two pipes and the time that counts, in milliseconds, kept by sums instead of dates.
#[derive(Debug, Default)]
struct Model {
    pipes: [ModelPipe; 2],
    exited: bool,
    /// Time since every root byte was read, but for pauses over some that are not taken; and unpaused time since the last
    /// byte. `None` before.
    grace: Option<(u64, u64)>,
}

impl Model {
    fn pipe(&mut self, stream: Stream) -> &mut ModelPipe {
        &mut self.pipes[usize::from(stream == Stream::Stderr)]
    }

    fn is_paused(&self) -> bool {
        self.pipes.iter().any(|p| p.paused && !p.end_seen)
    }

    fn is_held(&self) -> bool {
        self.is_paused() && self.pipes.iter().any(|p| p.taken < p.root_read)
    }

    fn wait(&mut self, ms: u64) {
        let (total_runs, silence_runs) = (u64::from(!self.is_held()), u64::from(!self.is_paused()));
        self.grace = self.grace.map(|(total, silent)| (total + ms * total_runs, silent + ms * silence_runs));
    }

    fn root_is_read(&self) -> bool {
        self.exited && self.pipes.iter().all(|p| p.unread_of_root == 0)
    }
}

fn stream() -> impl Strategy<Value = Stream> {
    prop::sample::select(BOTH)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (stream(), 1..2000_u64).prop_map(|(s, n)| Event::Write(s, n)),
        1 => stream().prop_map(Event::Close),
        2 => Just(Event::Exit),
        6 => (stream(), 1..3000_u64).prop_map(|(s, n)| Event::Read(s, n)),
        1 => stream().prop_map(Event::Pause),
        2 => stream().prop_map(Event::Resume),
        3 => (stream(), 1..4000_u64).prop_map(|(s, n)| Event::Take(s, n)),
        4 => (0..400_u64).prop_map(Event::Wait),
    ]
}

/// Lets one event happen to the model and tells the drainer what a driver would see of it.
fn play(model: &mut Model, drainer: &mut Drainer, event: Event, now: Instant) {
    let exited = model.exited;
    let answer = match event {
        Event::Write(stream, bytes) => {
            let pipe = model.pipe(stream);
            if !pipe.closed {
                pipe.unread += bytes;
                pipe.unread_of_root += if exited { 0 } else { bytes };
            }
            drainer.state()
        }
        Event::Close(stream) => {
            model.pipe(stream).closed = true;
            drainer.state()
        }
        Event::Exit => {
            let pending = Pending { stdout: model.pipes[0].unread, stderr: model.pipes[1].unread };
            model.exited = true;
            drainer.exited(now, pending)
        }
        Event::Read(stream, room) => {
            let pipe = model.pipe(stream);
            let bytes = room.min(pipe.unread);
            if pipe.end_seen || pipe.paused || (bytes == 0 && !pipe.closed) {
                return;
            }
            pipe.unread -= bytes;
            pipe.read += bytes;
            pipe.root_read += if exited { bytes.min(pipe.unread_of_root) } else { bytes };
            pipe.unread_of_root = pipe.unread_of_root.saturating_sub(bytes);
            if bytes == 0 {
                pipe.end_seen = true;
                drainer.ended(stream, now)
            } else {
                model.grace = model.grace.map(|(total, _)| (total, 0));
                drainer.read(stream, bytes, now)
            }
        }
        Event::Pause(stream) => {
            model.pipe(stream).paused = true;
            drainer.paused(stream, now)
        }
        Event::Resume(stream) => {
            model.pipe(stream).paused = false;
            drainer.resumed(stream, now)
        }
        Event::Take(stream, bytes) => {
            let pipe = model.pipe(stream);
            pipe.taken = (pipe.taken + bytes).min(pipe.read);
            drainer.taken(stream, pipe.taken, now)
        }
        Event::Wait(ms) => {
            model.wait(ms);
            drainer.tick(now)
        }
    };
    assert_eq!(answer, drainer.state());
    if model.root_is_read() && model.grace.is_none() {
        model.grace = Some((0, 0));
    }
}

/// What must be so after every event, told by the model.
fn expected(model: &Model, event: Event, before: Drain) -> Drain {
    if let Drain::Done(_) = before {
        return before;
    }
    let Some((total, silent)) = model.grace else {
        let left = model.pipes.iter().map(|p| p.unread_of_root).sum();
        return if model.exited { Drain::RootBytes { left } } else { Drain::Reading };
    };
    let ticked = matches!(event, Event::Wait(_));
    // What was due first, were both due by the same tick.
    let silence_first = total - silent + 250 <= 1000;
    if model.pipes.iter().all(|p| p.end_seen) {
        EOF
    } else if ticked && !model.is_paused() && silence_first && silent >= 250 {
        SILENCE
    } else if ticked && !model.is_held() && total >= 1000 {
        LIMIT
    } else {
        Drain::Grace { until: None }
    }
}

proptest! {
    #[test]
    fn any_story_ends_as_a_model_of_the_pipes_says(events in prop::collection::vec(event(), 0..60)) {
        let mut story = Story::new(BOTH);
        let mut model = Model::default();
        let mut ms = 0;
        for event in events {
            if let Event::Wait(wait) = event {
                ms += wait;
            }
            let (before, now) = (story.drainer.state(), story.at(ms));
            play(&mut model, &mut story.drainer, event, now);
            let found = match story.drainer.state() {
                Drain::Grace { .. } => Drain::Grace { until: None },
                other @ (Drain::Reading | Drain::RootBytes { .. } | Drain::Done(_)) => other,
            };
            prop_assert_eq!(found, expected(&model, event, before), "after {:?} at {} ms, {:?}", event, ms, model);
            let runs = matches!(found, Drain::Grace { .. }) && !model.is_held();
            prop_assert_eq!(story.drainer.deadline().is_some(), runs);
            if let (Drain::Done(DrainReason::Silence | DrainReason::Limit), false) = (found, found == before) {
                prop_assert!(model.root_is_read(), "every byte of the root comes first");
            }
        }
    }
}
