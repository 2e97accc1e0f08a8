//! Sessions with real commands.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests, which clippy does not take for tests"
)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostler_core::{HelperProgram, Host, HostOptions, Nursery, Places};
use hostler_shell::{
    Answer, BashRequest, Detach, Eof, ErrorCode, Foreground, InputRequest, KillRequest, Look, Mode,
    OutputRequest, Policy, ReadRequest, SavedState, Shell, ShellOptions, Started, Status, WriteRequest,
};
use hostler_testkit::{NoProcessLeft, TestEnv, Token, bin, fd_count, wait_until, wait_until_async};

/// Longer than anything here takes, also where the machine is busy.
const LONG: Duration = Duration::from_secs(60);

/// A session in a workspace of its own.
struct House {
    shell: Shell,
    workspace: PathBuf,
    env: TestEnv,
}

impl House {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut ShellOptions)) -> Self {
        let env = TestEnv::new();
        let nursery = Nursery::start(HelperProgram::Path(bin("embedder"))).unwrap();
        let places = Places { xdg_state_home: Some(env.state_home()), home: None, tmpdir: Some(env.tmp()) };
        let vars = env.vars();
        let options = HostOptions { places, env: ShellOptions::inherited(&vars), ..HostOptions::default() };
        let host = Host::start(nursery, options).unwrap();
        let mut options = ShellOptions { private_base: env.tmp(), ..ShellOptions::new() };
        options.stop_grace = Duration::from_millis(200);
        change(&mut options);
        let workspace = env.work().canonicalize().unwrap();
        let shell = Shell::open(&host, &workspace, &vars, options).unwrap();
        Self { shell, workspace, env }
    }

    async fn start(&self, request: BashRequest) -> Foreground {
        match self.shell.bash(request).await {
            Started::Foreground(command) => command,
            Started::Answered(answer) => panic!("{answer:?}"),
        }
    }

    async fn run(&self, command: &str) -> Answer {
        self.start(foreground(command)).await.finish().await
    }

    /// The output of a command that must succeed.
    async fn output_of(&self, command: &str) -> String {
        let answer = self.run(command).await;
        assert_eq!(answer.details.status, Status::Completed, "{command}: {answer:?}");
        answer.output
    }

    async fn background(&self, command: &str) -> String {
        let request = BashRequest { mode: Mode::Background, ..foreground(command) };
        match self.shell.bash(request).await {
            Started::Answered(Answer { details, .. }) => details.process_id.unwrap(),
            Started::Foreground(_) => panic!("in the foreground"),
        }
    }

    async fn next(&self, id: &str, wait_ms: i64) -> Answer {
        self.look(id, Look::Next, wait_ms).await
    }

    async fn look(&self, id: &str, look: Look, wait_ms: i64) -> Answer {
        self.shell.output(OutputRequest { process_id: id.to_owned(), look, wait_ms: Some(wait_ms) }).await
    }

    async fn peek(&self, id: &str) -> Answer {
        self.look(id, Look::Peek, 0).await
    }

    /// Its end, which is waited for without reading anything.
    async fn ended(&self, id: &str) -> Answer {
        wait_until_async("its end", LONG, async || {
            let answer = self.peek(id).await;
            if answer.details.status.is_final() { Ok(answer) } else { Err(answer) }
        })
        .await
    }

    async fn kill(&self, id: &str, signal: &str) -> Answer {
        self.shell.kill(KillRequest { process_id: id.to_owned(), signal: Some(signal.to_owned()) }).await
    }

    async fn read(&self, path: &str) -> Answer {
        self.shell.read(ReadRequest { path: path.to_owned(), offset: None, limit: None }).await
    }

    async fn write(&self, path: &str, content: &str) -> Answer {
        let request = WriteRequest { path: path.to_owned(), content: content.to_owned(), then: Eof::Open };
        self.shell.write(request).await
    }

    fn file(&self, name: &str) -> PathBuf {
        self.workspace.join(name)
    }
}

fn foreground(command: &str) -> BashRequest {
    BashRequest { command: command.to_owned(), ..BashRequest::default() }
}

#[tokio::test]
async fn state_is_kept_from_one_command_to_the_next_until_it_is_reset() {
    let house = House::new();
    house.output_of("mkdir d; cd d; export A='1 2'; B=no; f() { :; }").await;
    assert_eq!(house.output_of("echo $A-$B; pwd").await, format!("1 2-\n{}\n", house.file("d").display()));
    let id = house.background("echo $A").await;
    house.ended(&id).await;
    assert_eq!(house.next(&id, 0).await.output, "1 2\n");
    let request = BashRequest { state: SavedState::Discarded, ..foreground("echo ${A-none}; pwd") };
    let answer = house.start(request).await.finish().await;
    assert_eq!(answer.output, format!("none\n{}\n", house.workspace.display()));
    house.shell.close().await;
}

#[tokio::test]
async fn a_reset_keeps_what_is_under_way_from_leaving_its_state() {
    let house = House::new();
    let command = house.start(foreground("export A=old; until [ -e go ]; do sleep .02; done")).await;
    house.shell.reset();
    fs::write(house.file("go"), "").unwrap();
    command.finish().await;
    assert_eq!(house.output_of("echo ${A-none}").await, "none\n");
    house.shell.close().await;
}

#[tokio::test]
async fn of_commands_that_run_at_a_time_the_one_that_ends_last_leaves_its_state_whole() {
    let house = House::new();
    let first = house.start(foreground("export A=1 B=1; until [ -e go ]; do sleep .02; done")).await;
    house.output_of("export A=2 C=2").await;
    fs::write(house.file("go"), "").unwrap();
    first.finish().await;
    assert_eq!(house.output_of("echo $A$B${C-none}").await, "11none\n");
    house.shell.close().await;
}

#[tokio::test]
async fn a_command_that_is_detached_goes_on_and_every_line_comes_once() {
    let house = House::new();
    let count = "i=0; until [ -e go ]; do i=$((i+1)); echo $i; done; echo total $i";
    let command = house.start(foreground(count)).await;
    let mut seen = 0;
    command.more_output(&mut seen).await;
    let answer = command.detach(Detach::Timeout).await;
    assert_eq!((answer.details.status, answer.details.background), (Status::Running, true));
    let id = answer.details.process_id.unwrap();
    fs::write(house.file("go"), "").unwrap();
    let mut lines: Vec<String> = Vec::new();
    // What was left out of the window can be read where it is saved.
    let shown = if answer.details.truncated { 0 } else { answer.output.matches('\n').count() as i64 };
    house.ended(&id).await;
    loop {
        let next = house.next(&id, 0).await;
        lines.extend(next.output.lines().map(str::to_owned));
        if !next.details.more {
            break;
        }
    }
    let total: i64 = lines.pop().unwrap().strip_prefix("total ").unwrap().parse().unwrap();
    let numbers: Vec<i64> = lines.iter().map(|line| line.parse().unwrap()).collect();
    let first = numbers.first().copied().unwrap_or(total + 1);
    assert_eq!(numbers, (first..=total).collect::<Vec<_>>());
    assert!(answer.details.truncated || first == shown + 1, "{first} after {shown}");
    // Nobody waited for it, so it has left no state.
    assert_eq!(house.output_of("echo ${i-none}").await, "none\n");
    house.shell.close().await;
}

#[tokio::test]
async fn a_stop_ends_the_tree_and_leaves_no_state() {
    let house = House::new();
    let token = Token::new("shell-stop");
    let _left = NoProcessLeft::new(&token);
    let text = format!("export A=1; setsid sleep 600.{t} & touch up; sleep 600.{t}", t = digits(&token));
    let command = house.start(foreground(&text)).await;
    wait_until("both", LONG, || house.file("up").exists().then_some(()).ok_or("not up"));
    command.stop();
    wait_until_async("the end", LONG, async || {
        let runs = house.shell.runs();
        if runs.is_empty() { Ok(()) } else { Err(runs) }
    })
    .await;
    assert_eq!(house.output_of("echo ${A-none}").await, "none\n");
    house.shell.close().await;
}

/// A part of a number of seconds that is this test's alone.
fn digits(token: &Token) -> String {
    token.as_str().bytes().map(|byte| char::from(b'0' + byte % 10)).collect()
}

#[tokio::test]
async fn what_a_command_leaves_behind_is_named_and_can_be_stopped_and_heard() {
    let house = House::new();
    let answer = house.run("(until [ -e go ]; do sleep .02; done; echo late; sleep 600) & echo first").await;
    assert_eq!((answer.details.status, answer.output.as_str()), (Status::Completed, "first\n"));
    assert!(!answer.details.survivors.is_empty());
    let id = answer.details.process_id.unwrap();
    fs::write(house.file("go"), "").unwrap();
    let late = house.next(&id, 60_000).await;
    assert_eq!((late.output.as_str(), late.details.status), ("late\n", Status::Completed));
    assert_eq!(house.kill(&id, "kill").await.details.error, None);
    wait_until_async("nobody left", LONG, async || {
        let answer = house.kill(&id, "kill").await;
        if answer.details.error == Some(ErrorCode::ProcessDead) { Ok(()) } else { Err(answer) }
    })
    .await;
    house.shell.close().await;
}

#[tokio::test]
async fn commands_wait_for_a_place_in_the_order_of_their_calls() {
    let house = House::with(|options| (options.max_running, options.max_queued) = (1, 3));
    let first = house.background("read x").await;
    let mut waiting = Vec::new();
    for number in 0..3 {
        waiting.push(house.background(&format!("echo {number} >> log")).await);
        assert_eq!(house.peek(&waiting[number]).await.details.status, Status::Queued);
    }
    let refused = house.shell.bash(foreground("touch ran")).await;
    let Started::Answered(refused) = refused else { panic!("{refused:?}") };
    assert_eq!(refused.details.error, Some(ErrorCode::ProcessLimit));
    assert_eq!(house.kill(&waiting[1], "term").await.details.status, Status::Canceled);
    let input = InputRequest { process_id: first, input: "\n".to_owned(), then: Eof::Open };
    assert_eq!(house.shell.input(input).await.details.error, None);
    let statuses =
        [house.ended(&waiting[0]).await, house.ended(&waiting[1]).await, house.ended(&waiting[2]).await];
    assert_eq!(
        statuses.map(|answer| answer.details.status),
        [Status::Completed, Status::Canceled, Status::Completed]
    );
    assert_eq!(fs::read_to_string(house.file("log")).unwrap(), "0\n2\n");
    assert!(!house.file("ran").exists());
    house.shell.close().await;
}

#[tokio::test]
async fn as_many_calls_at_once_as_may_run_and_wait_are_all_carried_out() {
    let house = House::with(|options| (options.max_running, options.max_queued) = (8, 24));
    let calls: Vec<_> = (0..32)
        .map(|number| {
            let shell = house.shell.clone();
            tokio::spawn(async move {
                match shell.bash(foreground(&format!("echo {number}"))).await {
                    Started::Foreground(command) => command.finish().await,
                    Started::Answered(answer) => answer,
                }
            })
        })
        .collect();
    for (number, call) in calls.into_iter().enumerate() {
        assert_eq!(call.await.unwrap().output, format!("{number}\n"));
    }
    house.shell.close().await;
}

#[tokio::test]
async fn long_output_is_shown_at_both_ends_and_saved_whole() {
    let house = House::new();
    let answer = house.run("seq 1 7000").await;
    assert!(answer.output.starts_with("1\n2\n") && answer.output.ends_with("\n7000\n"), "{answer:?}");
    assert!(answer.output.contains("[... 5000 lines, "), "{answer:?}");
    assert_eq!((answer.details.total_lines, answer.details.truncated), (Some(7000), true));
    let address = answer.details.saved_output.unwrap();
    let request = ReadRequest { path: address.clone(), offset: Some(3000), limit: Some(2) };
    assert_eq!(house.shell.read(request).await.output, "3001\n3002\n");
    assert_eq!(house.read("artifact://nothing").await.details.error, Some(ErrorCode::UnresolvedUrl));
    let other = House::new();
    assert_eq!(other.read(&address).await.details.error, Some(ErrorCode::UnresolvedUrl));
    other.shell.close().await;
    house.shell.close().await;
}

#[tokio::test]
async fn at_the_quota_the_command_lives_on_and_what_is_lost_is_counted() {
    let house = House::with(|options| options.bytes_per_process = 100_000);
    let id = house.background("seq -f 'line %06.0f' 1 20000; exit 3").await;
    let end = house.ended(&id).await;
    assert_eq!((end.details.status, end.details.exit_code), (Status::Failed, Some(3)));
    let (mut delivered, mut lost) = (0, 0);
    loop {
        let next = house.next(&id, 0).await;
        delivered += next.output.len() as u64;
        lost += next.details.dropped_bytes;
        if !next.details.more {
            break;
        }
    }
    assert_eq!(delivered + lost, 20_000 * 12);
    assert!(lost > 0);
    house.shell.close().await;
}

#[tokio::test]
async fn addresses_lead_nowhere_but_into_their_folders() {
    let skills = tempfile::tempdir().unwrap();
    fs::create_dir(skills.path().join("demo")).unwrap();
    fs::write(skills.path().join("demo/SKILL.md"), "# demo\n").unwrap();
    fs::write(skills.path().join("secret"), "no").unwrap();
    std::os::unix::fs::symlink(skills.path().join("secret"), skills.path().join("demo/link")).unwrap();
    let house = House::with(|options| options.skills = vec![skills.path().to_owned()]);
    assert_eq!(house.read("skill://demo").await.output, "# demo\n");
    assert_eq!(house.read("skill://demo/SKILL.md").await.output, "# demo\n");
    for path in [
        "skill://none",
        "skill://demo/none",
        "skill://demo/link",
        "skill://demo/../secret",
        "skill://../secret",
    ] {
        assert_eq!(house.read(path).await.details.error, Some(ErrorCode::UnresolvedUrl), "{path}");
    }
    assert_eq!(house.write("local://a/b.txt", "text\n").await.details.status, Status::Completed);
    assert_eq!(house.read("local://a/b.txt").await.output, "text\n");
    for path in ["local://../x", "local:///etc/passwd", "local://", "local://a/../../x"] {
        assert!(house.write(path, "x").await.details.error.is_some(), "{path}");
        assert!(house.read(path).await.details.error.is_some(), "{path}");
    }
    for path in ["/etc/passwd", "file:///etc/passwd", "https://x.example", "proc", ""] {
        assert_eq!(house.read(path).await.details.error, Some(ErrorCode::InvalidArguments), "{path}");
    }
    house.shell.close().await;
}

#[tokio::test]
async fn another_session_s_runs_are_unknown_in_the_same_words() {
    let (house, other) = (House::new(), House::new());
    let id = house.background("sleep 600").await;
    let none = "0".repeat(32);
    let words = async |id: &str| other.next(id, 0).await.text().replace(id, "ID");
    assert_eq!(words(&id).await, words(&none).await);
    assert_eq!(other.kill(&id, "kill").await.details.error, Some(ErrorCode::UnknownProcess));
    assert!(other.read("proc://").await.details.processes.unwrap().is_empty());
    assert_eq!(house.read("proc://").await.details.processes.unwrap().len(), 1);
    other.shell.close().await;
    assert_eq!(house.peek(&id).await.details.status, Status::Running);
    house.shell.close().await;
}

#[tokio::test]
async fn a_child_starts_fresh_knows_nothing_of_its_parent_and_ends_with_it() {
    let token = Token::new("shell-child");
    let _left = NoProcessLeft::new(&token);
    for how in ["closed", "dropped"] {
        let House { shell, workspace, env } = House::new();
        let child = House { shell: shell.child(), workspace: workspace.clone(), env: TestEnv::new() };
        let grandchild =
            House { shell: child.shell.child(), workspace: workspace.clone(), env: TestEnv::new() };
        let house = House { shell, workspace, env };
        house.output_of("export A=1; mkdir -p d; cd d").await;
        let id = house.background("read x").await;
        assert_eq!(
            child.output_of("echo ${A-none}; pwd").await,
            format!("none\n{}\n", house.workspace.display())
        );
        assert_eq!(child.kill(&id, "kill").await.details.error, Some(ErrorCode::UnknownProcess));
        let sleep = format!("trap '' TERM; sleep 600.{}", digits(&token));
        let below = [child.background(&sleep).await, grandchild.background(&sleep).await];
        if how == "closed" {
            house.shell.close().await;
        } else {
            drop(house);
        }
        assert_eq!(child.ended(&below[0]).await.details.status, Status::Killed, "{how}");
        assert_eq!(grandchild.ended(&below[1]).await.details.status, Status::Killed, "{how}");
    }
}

#[tokio::test]
async fn the_policy_keeps_agents_from_acting_but_not_from_reading() {
    for policy in [Policy::Deny, Policy::Ask] {
        let house = House::with(|options| options.policy = policy);
        let Started::Answered(answer) = house.shell.bash(foreground("touch ran")).await else {
            panic!("it ran")
        };
        assert_eq!((answer.details.status, answer.details.error), (Status::Refused, Some(ErrorCode::Policy)));
        assert_eq!(house.kill("x", "term").await.details.error, Some(ErrorCode::Policy));
        assert_eq!(house.write("local://x", "").await.details.error, Some(ErrorCode::Policy));
        assert_eq!(house.read("proc://").await.details.status, Status::Completed);
        assert!(!house.file("ran").exists());
        house.shell.close().await;
    }
}

#[tokio::test]
async fn at_the_end_nothing_is_left_of_a_session() {
    let token = Token::new("shell-end");
    let _left = NoProcessLeft::new(&token);
    let house = House::new();
    let sleep = format!("sleep 600.{}", digits(&token));
    house.background(&format!("trap '' TERM; {sleep}")).await;
    house.run(&format!("(setsid {sleep} >/dev/null 2>&1 &); true")).await;
    let waited_for = house.start(foreground(&sleep)).await;
    house.write("local://file", "x").await;
    let tmp = house.env.tmp();
    assert!(fs::read_dir(&tmp).unwrap().count() > 0, "there is a private folder");
    house.shell.close().await;
    assert_eq!(waited_for.finish().await.details.status, Status::Killed);
    let House { shell, env: _env, .. } = house;
    drop(shell);
    wait_until("no files", LONG, || {
        let left: Vec<_> = fs::read_dir(&tmp).unwrap().map(|entry| entry.unwrap().path()).collect();
        if left.is_empty() { Ok(()) } else { Err(left) }
    });
}

#[tokio::test]
async fn one_command_after_the_other_leaves_no_descriptor_and_no_file() {
    let house = House::new();
    let pid = i32::try_from(std::process::id()).unwrap();
    for _ in 0..20 {
        house.output_of("echo x").await;
    }
    let (descriptors, files) = (fd_count(pid).unwrap(), count_files(house.env.root()));
    for _ in 0..300 {
        house.output_of("echo x").await;
    }
    wait_until("as many as before", LONG, || {
        let now = (fd_count(pid).unwrap(), count_files(house.env.root()));
        if now.0 <= descriptors + 2 && now.1 <= files { Ok(()) } else { Err(now) }
    });
    house.shell.close().await;
}

fn count_files(folder: &Path) -> usize {
    let entries =
        fs::read_dir(folder).map(|entries| entries.flatten().collect::<Vec<_>>()).unwrap_or_default();
    entries.iter().map(|entry| if entry.path().is_dir() { count_files(&entry.path()) } else { 1 }).sum()
}

#[tokio::test]
async fn what_cannot_be_started_is_said_and_a_reset_recovers() {
    let house = House::new();
    for _ in 0..24 {
        // As much as one variable may hold, again and again.
        house
            .run("i=${N:-0}; export N=$((i+1)); export \"V$i=$(head -c 120000 /dev/zero | tr '\\0' x)\"")
            .await;
    }
    let answer = house.run("export BIG=$(head -c 120000 /dev/zero | tr '\\0' x)").await;
    assert!(answer.text().contains("were not kept"), "{answer:?}");
    let request = BashRequest { state: SavedState::Discarded, ..foreground("echo fine") };
    assert_eq!(house.start(request).await.finish().await.output, "fine\n");
    let wrong = [("", "blank"), ("\0x", "NUL")];
    for (command, word) in wrong {
        let Started::Answered(answer) = house.shell.bash(foreground(command)).await else { panic!("it ran") };
        assert!(answer.text().contains(word), "{answer:?}");
    }
    house.shell.close().await;
}
