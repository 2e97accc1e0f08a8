//! The helper child: a program that does to a process host what real programs do by accident, one mode at a time.
//!
//! `hostler-evil MODE [ARGUMENT…] TOKEN`. The token is there to be found in `/proc/*/cmdline`.
//!
//! **In every mode the first line on standard output is `ready`.** It is written when all signal dispositions are set
//! and all descendants exist and have reported through a pipe that they are set up. Until something ends it, a mode
//! that does not end by itself goes on for 15 minutes and then exits with status 75: no test leaves it for ever.
//!
//! Trees: the root stays alive unless said otherwise. Descendants run this program again, as `member SHAPE …`, so the
//! token is in their arguments too; only links and bombs are mere forks.
//!
//! | mode | tree |
//! |---|---|
//! | `plain` | a child |
//! | `pgid` | a child in its own process group |
//! | `setsid` | a child in its own session |
//! | `double-fork` | a daemon: fork, setsid, fork; the process between exits |
//! | `hard-daemon` | the same, then no environment, no descriptors, no parent-death signal, working folder `/` |
//! | `orphan` | a grandchild in the root's group, whose parent exited |
//! | `clone-parent` | a child of the root's own parent, in the root's group and session (clone(2), CLONE_PARENT) |
//! | `ignore-term` | a child; both ignore TERM, INT and HUP |
//! | `exit-after-double-fork` | as `double-fork`, but the root exits with 0 |
//! | `fork-chain COUNTER` | a process that for ever counts, pauses 0 to 1000 µs, forks and exits; each link in its own session. COUNTER is the file of a `SharedCounter` |
//! | `fork-chains N COUNTER` | N such chains at once, without pauses |
//! | `fork-bomb N [COUNTER]` | every process forks until there are N in all, the root among them |
//! | `linger silent\|flood SECONDS` | a child holds both pipes for that time, silently or with lines that begin with `L`; the root writes `LINGER_LINES` numbered lines to each of stdout and stderr and exits with 3 at once |
//!
//! Output and input (numbered lines: `hostler_testkit::numbered`):
//!
//! | mode | what it does after `ready` |
//! |---|---|
//! | `echo` | copies stdin to stdout until end of file, exits with 0 |
//! | `lines N` | writes N numbered lines, exits with 0 |
//! | `flood [BYTES]` | writes numbered lines in blocks of 64 KiB (the last one of each 800,000 bytes is shorter), for ever or up to BYTES |
//! | `long-line BYTES` | writes a line of so many letters `a` to `z` and a newline, exits with 0 |
//! | `close-stdin` | has closed descriptor 0 before `ready`; stays |
//! | `close-all-out` | closes descriptors 1 and 2; stays |
//!
//! Ends: `exit STATUS`; `signal-self NAME|NUMBER` (default disposition, unblocked, then sent; exits with 0 if it
//! survives); `pause` stays.
//!
//! What the host gave it, then exit with 0: `print-env` (`NAME=VALUE` lines); `print-fds` (`NUMBER TARGET`);
//! `print-signals` (`SigBlk HEX`, `SigIgn HEX`, `SigCgt HEX`); `print-limits` (`nofile SOFT HARD`, a number or
//! `unlimited`); `print-ids` (`pid N`, `pgid N`, `sid N`, `oom_score_adj N`).
//!
//! Not a mode: `hostler-evil without-clone3 PROGRAM [ARGUMENT…]` becomes that program, for which clone3(2) does not exist,
//! as on an old kernel or behind the filter of a container.
//!
//! It handles no signal by itself and has no runtime of std around it: that would ignore SIGPIPE, catch SIGSEGV and
//! SIGBUS and open `/dev/null` for closed descriptors, and so hide what the host did.
//!
//! Exit statuses of its own: 64 wrong usage, 71 a system call failed, 75 the 15 minutes are over.
#![no_main]
#![expect(unsafe_code, reason = "it does by hand what the runtime of std would do otherwise")]
#![expect(
    clippy::disallowed_methods,
    reason = "the helper child reads the clock and sleeps to bound its own life"
)]

mod output;
mod report;
mod sys;
mod trees;

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::str::FromStr;
use std::time::Duration;

const USAGE_STATUS: i32 = 64;
const FAILED_STATUS: i32 = 71;
const FUSE_STATUS: i32 = 75;

/// How long a mode without an end lives at most.
const FUSE: Duration = Duration::from_secs(15 * 60);

/// Why a mode could not do what it is for.
enum Failure {
    Usage,
    Call { what: &'static str, source: io::Error },
}

impl Failure {
    fn of<E: Into<io::Error>>(what: &'static str) -> impl Fn(E) -> Self {
        move |error| Self::Call { what, source: error.into() }
    }
}

/// The exit status, or why there is none.
type Outcome = Result<i32, Failure>;

/// The entry point of C.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    // SAFETY: the C runtime passes `argc` pointers to strings that live and stay unchanged as long as the process.
    let args =
        (0..usize::try_from(argc).unwrap_or(0)).map(|index| unsafe { CStr::from_ptr(*argv.add(index)) });
    let args: Vec<String> = args.map(|arg| arg.to_string_lossy().into_owned()).collect();
    let outcome = match args.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [_, "without-clone3", command @ ..] => Err(sys::become_without_clone3(command)),
        [_, mode, arguments @ .., token] => run(mode, arguments, token),
        _ => Err(Failure::Usage),
    };
    match outcome {
        Ok(status) => status,
        Err(Failure::Usage) => {
            sys::complain(&format!(
                "no mode of hostler-evil, or wrong arguments: {:?}",
                &args[1.min(args.len())..]
            ));
            USAGE_STATUS
        }
        Err(Failure::Call { what, source }) => {
            sys::complain(&format!("failed to {what}: {source}"));
            FAILED_STATUS
        }
    }
}

fn run(mode: &str, arguments: &[&str], token: &str) -> Outcome {
    if let Some(outcome) = trees::run(mode, arguments, token) {
        return outcome;
    }
    match (mode, arguments) {
        ("echo", []) => output::echo(),
        ("lines", [count]) => output::lines(number(count)?),
        ("flood", []) => output::flood(None),
        ("flood", [bytes]) => output::flood(Some(number(bytes)?)),
        ("long-line", [bytes]) => output::long_line(number(bytes)?),
        ("close-stdin", []) => {
            sys::close(0);
            sys::say_ready()?;
            Ok(sys::stay())
        }
        ("close-all-out", []) => {
            sys::say_ready()?;
            sys::close(1);
            sys::close(2);
            Ok(sys::stay())
        }
        ("pause", []) => {
            sys::say_ready()?;
            Ok(sys::stay())
        }
        ("exit", [status]) => {
            let status = number(status)?;
            sys::say_ready()?;
            Ok(status)
        }
        ("signal-self", [signal]) => {
            let signal = sys::signal_number(signal).ok_or(Failure::Usage)?;
            sys::say_ready()?;
            sys::signal_self(signal)
        }
        ("print-env", []) => report::print(report::environment),
        ("print-fds", []) => report::print(report::descriptors),
        ("print-signals", []) => report::print(report::signals),
        ("print-limits", []) => report::print(report::limits),
        ("print-ids", []) => report::print(report::ids),
        _ => Err(Failure::Usage),
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, Failure> {
    text.parse().map_err(|_| Failure::Usage)
}
