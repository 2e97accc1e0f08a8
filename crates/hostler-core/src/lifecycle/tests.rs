//! Tables, a search through every reachable state, and a second opinion on what an end counts as.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_secs(2);

#[expect(clippy::disallowed_methods, reason = "an Instant has no other origin; only differences are used")]
fn origin() -> Instant {
    Instant::now()
}

fn stop(cause: StopCause) -> Input {
    Input::Stop { cause, grace: GRACE }
}

const fn by_signal(signal: i32) -> ExitStatus {
    ExitStatus::Signal { number: signal, core_dumped: false }
}

/// Feeds (seconds since the origin, input) and returns the last state with all actions but `None`.
fn run(steps: &[(f64, Input)]) -> (Lifecycle, Vec<Action>) {
    let start = origin();
    let mut life = Lifecycle::new();
    let mut actions = Vec::new();
    for (seconds, input) in steps {
        let (next, action) = life.step(*input, start + Duration::from_secs_f64(*seconds));
        life = next;
        if action != Action::None {
            actions.push(action);
        }
    }
    (life, actions)
}

/// What the end of a running process counts as after these steps.
#[track_caller]
fn check_outcome(steps: &[(f64, Input)], expected: Outcome) {
    let mut all = vec![(0.0, Input::Launch), (0.0, Input::Started)];
    all.extend_from_slice(steps);
    let (life, _) = run(&all);
    match life.end() {
        Some(End::Exited(exit)) => assert_eq!(exit.outcome, expected, "after {steps:?}"),
        other => panic!("no exit but {other:?} after {steps:?}"),
    }
}

const INTERRUPT: Input = Input::Signal(Signal::Int);
const TERMINATE: Input = Input::Signal(Signal::Term);
const KILL: Input = Input::Signal(Signal::Kill);
const EXIT_0: Input = Input::Exited(ExitStatus::Code(0));

#[test]
fn an_end_nobody_asked_for_counts_by_its_status() {
    check_outcome(&[(1.0, EXIT_0)], Outcome::Completed);
    check_outcome(&[(1.0, Input::Exited(ExitStatus::Code(3)))], Outcome::Failed);
    check_outcome(&[(1.0, Input::Exited(by_signal(libc::SIGSEGV)))], Outcome::Failed);
    // Killed by somebody else, the kernel for want of memory say: not by us.
    check_outcome(&[(1.0, Input::Exited(by_signal(libc::SIGKILL)))], Outcome::Failed);
    check_outcome(&[(1.0, Input::Exited(ExitStatus::KeeperLost))], Outcome::Lost);
}

#[test]
fn an_end_after_a_stop_counts_by_its_cause() {
    for cause in [StopCause::Request, StopCause::SessionEnd, StopCause::Cancel] {
        check_outcome(&[(1.0, stop(cause)), (1.1, EXIT_0)], Outcome::Killed);
    }
    check_outcome(&[(1.0, stop(StopCause::Timeout)), (1.1, EXIT_0)], Outcome::TimedOut);
    check_outcome(
        &[
            (1.0, stop(StopCause::Timeout)),
            (3.0, Input::Tick),
            (3.1, Input::Exited(by_signal(libc::SIGKILL))),
        ],
        Outcome::TimedOut,
    );
    check_outcome(
        &[(1.0, stop(StopCause::Request)), (1.1, Input::Exited(ExitStatus::KeeperLost))],
        Outcome::Lost,
    );
}

#[test]
fn the_first_cause_wins() {
    check_outcome(&[(1.0, stop(StopCause::Timeout)), (1.1, KILL), (1.2, EXIT_0)], Outcome::TimedOut);
    check_outcome(&[(1.0, stop(StopCause::Timeout)), (1.1, TERMINATE), (1.2, EXIT_0)], Outcome::TimedOut);
    check_outcome(&[(1.0, stop(StopCause::Timeout)), (1.1, INTERRUPT), (1.2, EXIT_0)], Outcome::TimedOut);
    check_outcome(
        &[(1.0, stop(StopCause::Request)), (1.1, stop(StopCause::Timeout)), (1.2, EXIT_0)],
        Outcome::Killed,
    );
    check_outcome(&[(1.0, TERMINATE), (9.0, stop(StopCause::Timeout)), (9.1, EXIT_0)], Outcome::Killed);
    check_outcome(&[(1.0, KILL), (1.1, stop(StopCause::Timeout)), (1.2, EXIT_0)], Outcome::Killed);
}

#[test]
fn a_graceful_shutdown_after_sigterm_counts_as_killed_however_long_it_takes() {
    check_outcome(&[(1.0, TERMINATE), (3.0, Input::SignalSettled), (60.0, EXIT_0)], Outcome::Killed);
}

#[test]
fn a_later_exit_does_not_count_as_killed_after_an_interrupt_that_was_survived() {
    check_outcome(&[(1.0, INTERRUPT), (1.5, EXIT_0)], Outcome::Killed);
    check_outcome(&[(1.0, INTERRUPT), (3.0, Input::SignalSettled), (9.0, EXIT_0)], Outcome::Completed);
    check_outcome(
        &[(1.0, INTERRUPT), (3.0, Input::SignalSettled), (9.0, Input::Exited(ExitStatus::Code(1)))],
        Outcome::Failed,
    );
    check_outcome(
        &[(1.0, INTERRUPT), (3.0, Input::SignalSettled), (9.0, Input::Exited(by_signal(libc::SIGINT)))],
        Outcome::Killed,
    );
    // The second interrupt is still in flight when the first one's wait ends.
    check_outcome(
        &[(1.0, INTERRUPT), (2.0, INTERRUPT), (3.0, Input::SignalSettled), (3.5, EXIT_0)],
        Outcome::Killed,
    );
    // Survived, then timed out.
    check_outcome(
        &[(1.0, INTERRUPT), (3.0, Input::SignalSettled), (5.0, stop(StopCause::Timeout)), (5.1, EXIT_0)],
        Outcome::TimedOut,
    );
    check_outcome(
        &[(1.0, INTERRUPT), (2.0, stop(StopCause::Timeout)), (3.0, Input::SignalSettled), (3.9, EXIT_0)],
        Outcome::TimedOut,
    );
}

#[test]
fn a_process_that_had_exited_before_the_stop_keeps_its_own_outcome() {
    check_outcome(&[(1.0, EXIT_0), (1.1, stop(StopCause::Request)), (1.2, KILL)], Outcome::Completed);
}

#[test]
fn term_then_kill_after_grace() {
    let running = [(0.0, Input::Launch), (0.0, Input::Started), (1.0, stop(StopCause::Request))];
    let (life, actions) = run(&[&running[..], &[(2.9, Input::Tick)]].concat());
    assert_eq!(actions, [Action::Spawn, Action::TermTree]);
    assert!(life.deadline().is_some());
    let (life, actions) = run(&[&running[..], &[(3.0, Input::Tick), (9.0, Input::Tick)]].concat());
    assert_eq!(actions, [Action::Spawn, Action::TermTree, Action::KillTree]);
    assert_eq!(life.deadline(), None);
}

#[test]
fn a_stop_without_grace_kills_at_once() {
    let now = Input::Stop { cause: StopCause::Request, grace: Duration::ZERO };
    let (_, actions) = run(&[(0.0, Input::Launch), (0.0, Input::Started), (1.0, now)]);
    assert_eq!(actions, [Action::Spawn, Action::KillTree]);
}

#[test]
fn a_shorter_grace_replaces_a_longer_one_never_the_reverse() {
    let ask = |seconds| Input::Stop { cause: StopCause::Request, grace: Duration::from_secs(seconds) };
    for (first, second, kill_at) in [(10, 1, 2.0), (1, 10, 1.0)] {
        let (mut life, start) = (Lifecycle::new(), origin());
        for (seconds, input) in
            [(0.0, Input::Launch), (0.0, Input::Started), (0.0, ask(first)), (1.0, ask(second))]
        {
            life = life.step(input, start + Duration::from_secs_f64(seconds)).0;
        }
        let expected = if second < first { Some(start + Duration::from_secs_f64(kill_at)) } else { None };
        // The second request of the reverse order comes when the first grace is just over: it kills.
        assert_eq!(life.deadline(), expected);
    }
    let (life, actions) = run(&[
        (0.0, Input::Launch),
        (0.0, Input::Started),
        (0.0, ask(5)),
        (1.0, ask(10)),
        (5.0, Input::Tick),
    ]);
    assert_eq!(actions, [Action::Spawn, Action::TermTree, Action::KillTree]);
    assert_eq!(life.stop(), Stop::Killing { cause: StopCause::Request });
}

#[test]
fn an_endless_grace_does_not_overflow() {
    let ask = Input::Stop { cause: StopCause::Request, grace: Duration::MAX };
    let (life, _) = run(&[(0.0, Input::Launch), (0.0, Input::Started), (0.0, ask), (1e6, Input::Tick)]);
    assert!(life.deadline().is_some());
}

#[test]
fn a_stop_in_the_queue_ends_at_once() {
    let (life, actions) = run(&[(0.0, stop(StopCause::SessionEnd))]);
    assert_eq!(actions, [Action::Finish]);
    assert_eq!(life.end(), Some(End::Canceled { cause: StopCause::SessionEnd }));
}

#[test]
fn a_stop_while_starting_is_carried_out_when_started() {
    let (life, actions) = run(&[(0.0, Input::Launch), (0.0, stop(StopCause::Cancel)), (0.5, Input::Started)]);
    assert_eq!(actions, [Action::Spawn, Action::TermTree]);
    assert!(life.deadline().is_some());
    let (_, actions) =
        run(&[(0.0, Input::Launch), (0.0, INTERRUPT), (0.0, TERMINATE), (0.5, Input::Started)]);
    assert_eq!(actions, [Action::Spawn, Action::SignalGroup(Signal::Term)]);
    let (_, actions) = run(&[(0.0, Input::Launch), (0.0, INTERRUPT), (0.5, Input::Started)]);
    assert_eq!(actions, [Action::Spawn, Action::SignalGroup(Signal::Int)]);
    // The wait of this interrupt has ended before the start: whoever sent it was told that nothing ended.
    let (_, actions) =
        run(&[(0.0, Input::Launch), (0.0, INTERRUPT), (2.0, Input::SignalSettled), (3.0, Input::Started)]);
    assert_eq!(actions, [Action::Spawn]);
}

#[test]
fn an_exec_that_hangs_can_be_killed() {
    let hung = [(0.0, Input::Launch), (1.0, stop(StopCause::Timeout)), (3.0, Input::Tick)];
    let (life, actions) = run(&[&hung[..], &[(3.1, Input::StartFailed)]].concat());
    assert_eq!(actions, [Action::Spawn, Action::KillTree, Action::Finish]);
    assert_eq!(life.end(), Some(End::Canceled { cause: StopCause::Timeout }));
    // The start came through just before the kill: it is killed again, now that there is something to kill.
    let (life, actions) = run(&[&hung[..], &[(3.1, Input::Started), (3.2, Input::Tick)]].concat());
    assert_eq!(actions, [Action::Spawn, Action::KillTree, Action::KillTree]);
    assert_eq!(life.state(), State::Running);
}

#[test]
fn an_interrupt_that_was_never_sent_does_not_count() {
    let starting = [(0.0, Input::Launch), (0.1, INTERRUPT), (0.2, stop(StopCause::Timeout))];
    for rest in [&[(0.3, Input::Started)][..], &[(2.2, Input::Tick)]] {
        let (life, _) = run(&[&starting[..], rest, &[(2.3, EXIT_0)]].concat());
        let exit = Exit { status: ExitStatus::Code(0), outcome: Outcome::TimedOut };
        assert_eq!(life.end(), Some(End::Exited(exit)));
    }
}

#[test]
fn a_start_that_fails_by_itself_is_not_canceled() {
    let (life, actions) =
        run(&[(0.0, Input::Launch), (0.1, stop(StopCause::Cancel)), (0.2, Input::StartFailed)]);
    assert_eq!(actions, [Action::Spawn, Action::Finish]);
    assert_eq!(life.end(), Some(End::NotStarted));
}

#[test]
fn lingerers_are_stopped_after_the_end_was_reported() {
    let lingering = [
        (0.0, Input::Launch),
        (0.0, Input::Started),
        (1.0, EXIT_0),
        (1.2, Input::Drained(Remains::Lingerers)),
        (2.0, stop(StopCause::Timeout)),
        (4.0, Input::Tick),
    ];
    let (life, actions) = run(&lingering);
    assert_eq!(actions, [Action::Spawn, Action::Finish, Action::TermTree, Action::KillTree]);
    let exit = Exit { status: ExitStatus::Code(0), outcome: Outcome::Completed };
    assert_eq!(life.end(), Some(End::Exited(exit)));
    let (life, action) = life.step(Input::Gone, origin());
    assert_eq!((life.state(), action), (State::Closed { end: End::Exited(exit) }, Action::Release));
}

#[test]
fn what_survived_a_kill_is_killed_by_the_next_stop() {
    let survived = [(0.0, Input::Launch), (0.0, Input::Started), (1.0, KILL), (3.0, Input::KillSettled)];
    for next in [KILL, stop(StopCause::SessionEnd)] {
        let (life, actions) = run(&[&survived[..], &[(4.0, next), (4.1, next)]].concat());
        assert_eq!(actions, [Action::Spawn, Action::KillTree, Action::KillTree]);
        assert_eq!(life.stop(), Stop::Killing { cause: StopCause::Request });
    }
}

/// Every state met by every input, no stop being under way: `-` changes nothing, `next` or `next/action` otherwise.
const TABLE: &str = "
input          queued           starting          running             exited            lingering       closed
launch         starting/spawn   -                 -                   -                 -               -
started        -                running           -                   -                 -               -
startfailed    -                closed/finish     -                   -                 -               -
int            closed/finish    starting+         running+/int        -                 -               -
term           closed/finish    starting+         running+/term       -                 -               -
kill           closed/finish    starting+/killtree running+/killtree  exited+/killtree  lingering+/killtree -
settled        -                -                 -                   -                 -               -
stop           closed/finish    starting+         running+/termtree   exited+/termtree  lingering+/termtree -
stopnow        closed/finish    starting+/killtree running+/killtree  exited+/killtree  lingering+/killtree -
tick           -                -                 -                   -                 -               -
killsettled    -                -                 -                   -                 -               -
exited         -                exited            exited              -                 -               -
drained        -                -                 -                   closed/finish     -               -
drainedopen    -                -                 -                   lingering/finish  -               -
gone           -                -                 -                   -                 closed/release  -
";

fn named_input(name: &str) -> Input {
    match name {
        "launch" => Input::Launch,
        "started" => Input::Started,
        "startfailed" => Input::StartFailed,
        "int" => INTERRUPT,
        "term" => TERMINATE,
        "kill" => KILL,
        "settled" => Input::SignalSettled,
        "stop" => stop(StopCause::Timeout),
        "stopnow" => Input::Stop { cause: StopCause::SessionEnd, grace: Duration::ZERO },
        "tick" => Input::Tick,
        "killsettled" => Input::KillSettled,
        "exited" => Input::Exited(ExitStatus::Code(1)),
        "drained" => Input::Drained(Remains::Nothing),
        "drainedopen" => Input::Drained(Remains::Lingerers),
        "gone" => Input::Gone,
        other => panic!("no input {other}"),
    }
}

fn named_state(name: &str) -> Lifecycle {
    let path: &[Input] = match name {
        "queued" => &[],
        "starting" => &[Input::Launch],
        "running" => &[Input::Launch, Input::Started],
        "exited" => &[Input::Launch, Input::Started, EXIT_0],
        "lingering" => &[Input::Launch, Input::Started, EXIT_0, Input::Drained(Remains::Lingerers)],
        "closed" => &[Input::Launch, Input::Started, EXIT_0, Input::Drained(Remains::Nothing)],
        other => panic!("no state {other}"),
    };
    let steps: Vec<_> = path.iter().map(|input| (0.0, *input)).collect();
    run(&steps).0
}

fn state_name(state: State) -> &'static str {
    match state {
        State::Queued => "queued",
        State::Starting => "starting",
        State::Running => "running",
        State::Exited(_) => "exited",
        State::Lingering(_) => "lingering",
        State::Closed { .. } => "closed",
    }
}

fn action_name(action: Action) -> &'static str {
    match action {
        Action::None => "",
        Action::Spawn => "/spawn",
        Action::SignalGroup(Signal::Int) => "/int",
        Action::SignalGroup(Signal::Term) => "/term",
        Action::SignalGroup(Signal::Kill) => "/kill",
        Action::TermTree => "/termtree",
        Action::KillTree => "/killtree",
        Action::Finish => "/finish",
        Action::Release => "/release",
    }
}

#[test]
fn every_state_answers_every_input_as_the_table_says() {
    let mut lines = TABLE.trim().lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let states = lines.next().unwrap();
    let mut cells = 0;
    for row in lines {
        assert_eq!(row.len(), states.len(), "{row:?}");
        for (state, expected) in states.iter().zip(&row).skip(1) {
            let before = named_state(state);
            let (after, action) = before.step(named_input(row[0]), origin());
            let facts =
                if (after.stop, after.interrupt) == (before.stop, before.interrupt) { "" } else { "+" };
            let found = format!("{}{facts}{}", state_name(after.state), action_name(action));
            let found = if after == before && action == Action::None { "-" } else { &found };
            assert_eq!(found, *expected, "{} while {state}", row[0]);
            cells += 1;
        }
    }
    assert_eq!(cells, 15 * 6);
}

/// Everything that can arrive, with one short and one long grace.
fn all_inputs() -> Vec<Input> {
    let mut inputs = vec![
        Input::Launch,
        Input::Started,
        Input::StartFailed,
        INTERRUPT,
        TERMINATE,
        KILL,
        Input::SignalSettled,
        Input::Tick,
        Input::KillSettled,
        EXIT_0,
        Input::Exited(by_signal(libc::SIGINT)),
        Input::Exited(ExitStatus::KeeperLost),
        Input::Drained(Remains::Nothing),
        Input::Drained(Remains::Lingerers),
        Input::Gone,
    ];
    for cause in [StopCause::Request, StopCause::Timeout] {
        inputs.extend([0, 1, 3].map(|s| Input::Stop { cause, grace: Duration::from_secs(s) }));
    }
    inputs
}

/// The invariants that one step can break.
fn check_step(before: Lifecycle, input: Input, now: Instant) -> Lifecycle {
    let (after, action) = before.step(input, now);
    let context = || format!("{before:?} -- {input:?} --> {after:?}, {action:?}");
    if let State::Closed { .. } = before.state {
        assert_eq!((after, action), (before, Action::None), "Closed is final: {}", context());
    }
    if before.end().is_some() {
        assert_eq!(after.end(), before.end(), "the end does not change: {}", context());
    }
    if action == Action::KillTree {
        assert!(matches!(after.stop, Stop::Killing { .. }), "{}", context());
        let again = matches!(before.stop, Stop::Killing { .. });
        assert!(!again || input == Input::Started, "one KillTree per escalation: {}", context());
    }
    if action == Action::TermTree {
        assert!(matches!(after.stop, Stop::Asked { .. }), "{}", context());
    }
    if let (Some(first), Some(second)) = (before.deadline(), after.deadline()) {
        assert!(second <= first, "a grace never gets longer: {}", context());
    }
    if let Some(kill_at) = after.deadline() {
        assert!(matches!(after.stop, Stop::Asked { .. }), "{}", context());
        assert!(input != Input::Tick || kill_at > now, "a tick leaves nothing due: {}", context());
    }
    let reported = |life: Lifecycle| matches!(life.state, State::Lingering(_) | State::Closed { .. });
    assert_eq!(
        action == Action::Finish,
        !reported(before) && reported(after),
        "reported once: {}",
        context()
    );
    let lingering = matches!(before.state, State::Lingering(_));
    let closes = lingering && matches!(after.state, State::Closed { .. });
    assert_eq!(action == Action::Release, closes, "released once: {}", context());
    after
}

#[test]
fn every_reachable_state_keeps_the_invariants() {
    let (start, inputs) = (origin(), all_inputs());
    let mut seen = HashSet::new();
    let mut open = vec![Lifecycle::new()];
    // One second passes at each depth, so a grace of three runs out within the search.
    for second in 0..7 {
        let now = start + Duration::from_secs(second);
        let mut next = HashSet::new();
        for life in open.drain(..) {
            for input in &inputs {
                let after = check_step(life, *input, now);
                if seen.insert((second, after)) {
                    next.insert(after);
                }
            }
        }
        open.extend(next);
    }
    let reached = |wanted: fn(&Lifecycle) -> bool| seen.iter().any(|(_, life)| wanted(life));
    assert!(reached(|l| matches!(l.state, State::Lingering(_)) && matches!(l.stop, Stop::Survived { .. })));
    assert!(reached(|l| matches!(l.interrupt, Interrupt::InFlight { waits: 3 })));
    assert!(reached(|l| matches!(l.end(), Some(End::Canceled { cause: StopCause::Timeout }))));
}

/// The rules of the outcome told a second time, by looking back over all that happened between start and exit.
fn outcome_by_history(history: &[Input], status: ExitStatus) -> Outcome {
    if status == ExitStatus::KeeperLost {
        return Outcome::Lost;
    }
    let first = history.iter().position(|i| matches!(*i, Input::Stop { .. } | TERMINATE | KILL));
    let before = &history[..first.unwrap_or(history.len())];
    let interrupts = before.iter().filter(|i| **i == INTERRUPT).count();
    if interrupts > 0 && status == by_signal(libc::SIGINT) {
        return Outcome::Killed;
    }
    // Waits end in the order in which they began; one that ends before any interrupt belongs to none.
    let mut waiting = 0_usize;
    for (at, input) in history.iter().enumerate() {
        if *input == INTERRUPT && at < before.len() {
            waiting += 1;
        } else if *input == Input::SignalSettled {
            waiting = waiting.saturating_sub(1);
        }
    }
    if waiting > 0 {
        return Outcome::Killed;
    }
    match first.map(|at| history[at]) {
        Some(Input::Stop { cause: StopCause::Timeout, .. }) => Outcome::TimedOut,
        Some(_) => Outcome::Killed,
        None if status == ExitStatus::Code(0) => Outcome::Completed,
        None => Outcome::Failed,
    }
}

proptest! {
    #[test]
    fn an_outcome_follows_from_what_happened_before(
        history in prop::collection::vec((prop::sample::select(vec![
            INTERRUPT, TERMINATE, KILL, Input::SignalSettled, Input::Tick, Input::KillSettled,
            stop(StopCause::Request), stop(StopCause::Timeout), stop(StopCause::SessionEnd),
        ]), 0_u64..3), 0..8),
        status in prop::sample::select(vec![
            ExitStatus::Code(0), ExitStatus::Code(7), by_signal(libc::SIGINT), by_signal(libc::SIGKILL),
            ExitStatus::KeeperLost,
        ]),
    ) {
        let mut now = origin();
        let mut life = Lifecycle::new();
        for input in [Input::Launch, Input::Started] {
            life = check_step(life, input, now);
        }
        for (input, seconds) in &history {
            now += Duration::from_secs(*seconds);
            life = check_step(life, *input, now);
        }
        life = check_step(life, Input::Exited(status), now);
        let inputs: Vec<Input> = history.iter().map(|(input, _)| *input).collect();
        let outcome = outcome_by_history(&inputs, status);
        prop_assert_eq!(life.end(), Some(End::Exited(Exit { status, outcome })));
    }

    #[test]
    fn any_sequence_of_inputs_keeps_the_invariants(
        steps in prop::collection::vec((prop::sample::select(all_inputs()), 0_u64..4), 0..40),
    ) {
        let mut now = origin();
        let mut life = Lifecycle::new();
        let mut kills = 0;
        let mut escalations = 0;
        for (input, seconds) in steps {
            now += Duration::from_secs(seconds);
            let (_, action) = life.step(input, now);
            kills += u32::from(action == Action::KillTree);
            // An escalation begins with a request, or again with a start that came through in spite of one.
            escalations += u32::from(matches!(input, Input::Stop { .. } | KILL | Input::Started));
            life = check_step(life, input, now);
        }
        prop_assert!(kills <= escalations);
    }
}
