//! `cargo xtask stall`: the tests of a client that stops reading, with a pause as long as one likes.
//!
//! Their clients check what they read after it: every line of every process in its order, and every answer.

use anyhow::Result;

use crate::house;

/// Each of them reads nothing for as long as this says.
const SECONDS: &str = "HOSTLER_TEST_PAUSE_SECONDS";

/// Tests of `crates/hostler/tests/a2e` that pause.
const TESTS: [&str; 2] = [
    "stalled::a_client_that_stops_reading_for_a_while_gets_everything_in_order",
    "pressure::answers_that_nobody_reads_cost_no_memory_and_hold_up_nothing_and_none_is_lost",
];

/// How long to stall.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(crate) struct Options {
    /// Read nothing for this long
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u32,
}

/// Runs the tests that pause.
pub(crate) fn stall(options: Options) -> Result<()> {
    let mut tests = house::cargo(&["test", "--package", "hostler", "--test", "a2e", "--locked", "--"]);
    tests.args(["--exact", "--nocapture"]).args(TESTS).env(SECONDS, options.seconds.to_string());
    house::run(&mut tests)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_tests_that_are_to_pause_are_there_and_do() {
        let folder = house::root().join("crates/hostler/tests/a2e");
        for test in TESTS {
            let (module, name) = test.split_once("::").unwrap();
            let text = fs::read_to_string(folder.join(module).with_extension("rs")).unwrap();
            let (_, body) = text.split_once(&format!("fn {name}(")).unwrap();
            let (body, _) = body.split_once("\n}").unwrap();
            assert!(body.contains("pause("), "{test}");
        }
        assert!(fs::read_to_string(folder.join("stalled.rs")).unwrap().contains(SECONDS));
    }
}
