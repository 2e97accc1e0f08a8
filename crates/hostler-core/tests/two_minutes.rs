//! The example of the crate's page is a program: it is run as one, and shows and leaves what its page says.

use std::fs;

use hostler_testkit::{NoProcessLeft, TestEnv, Token, bin};

#[test]
fn the_example_shows_what_its_programs_said_and_leaves_nothing_behind() {
    let (env, token) = (TestEnv::new(), Token::new("two_minutes"));
    let _left = NoProcessLeft::new(&token);
    let (name, value) = token.env();
    let output = env.command(bin("two-minutes")).env(name, value).output().unwrap();

    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", output.status);
    let printed = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = printed.lines().collect();
    let [said, ended, stopped] = lines[..] else { panic!("{printed}") };
    assert_eq!(said, "cat says hello");
    assert!(ended.starts_with("cat has ended: ") && ended.contains("Completed"), "{ended}");
    assert!(stopped.starts_with("0 survivors of the stop: ") && stopped.contains("Killed"), "{stopped}");
    // The folder for output has gone with its host.
    assert_eq!(fs::read_dir(env.state_home().join("hostler")).unwrap().count(), 0);
}
