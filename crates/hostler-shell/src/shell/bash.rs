//! Starting a command, and waiting for its end or not.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hostler_core::sys::clock;
use hostler_core::{CursorRead, Process, SpawnError, SpawnSpec, StderrMode, StdinMode, StopCause, Stream};
use tokio::sync::OwnedSemaphorePermit;

use super::{Inner, Shell, invalid, os, shown};
use crate::answer::{Answer, Details, ErrorCode, Status};
use crate::capture::{self, Plan, Prepared, RunFolder, Taken, Takes};
use crate::exports;
use crate::reader::{self, LastLine, Place};
use crate::request::{BashRequest, Mode, SavedState, Terminal};
use crate::run::{Phase, Run, StartFailure, StopRequest, begin_stop};
use crate::state::{Bytes, FOR_THE_SHELL, Left, Saved};

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(600);

/// What has become of a request for a command.
#[derive(Debug)]
pub enum Started {
    /// It is answered: it was refused, or goes on in the background.
    Answered(Answer),
    /// Its end is to be waited for.
    Foreground(Foreground),
}

/// A command whose end is waited for. Dropping it changes nothing: the command goes on in the background.
#[derive(Debug)]
pub struct Foreground {
    shell: Arc<Inner>,
    run: Arc<Run>,
    timeout: Duration,
    deadline: Instant,
    notices: Vec<String>,
}

/// Why a command is not waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detach {
    /// Its timeout is over.
    Timeout,
    /// The client shows no progress, and may give up soon.
    ShortPatience,
    /// The client has given up waiting.
    ClientTimeout,
}

/// A request that can be carried out.
struct Checked {
    command: String,
    env: Vec<(String, String)>,
    mode: Mode,
    timeout: Duration,
    /// Where it is asked to start; else it starts in the session's directory of that moment.
    cwd: Option<PathBuf>,
    notices: Vec<String>,
}

impl Shell {
    /// Starts a command. Answers when it runs, has a place in the queue, or cannot be started.
    pub async fn bash(&self, request: BashRequest) -> Started {
        let begun = clock::now();
        let shell = &self.0;
        let checked = match shell.allowed().and_then(|()| shell.check(request)) {
            Ok(checked) => checked,
            Err(refused) => return Started::Answered(refused),
        };
        let run = Run::new(checked.command.clone(), checked.mode);
        let place = Arc::clone(&shell.places).try_acquire_owned().ok();
        if place.is_none() && shell.queued() >= shell.options.max_queued {
            return Started::Answered(shell.too_many());
        }
        shell.enter(&run);
        let (mode, timeout, notices) = (checked.mode, checked.timeout, checked.notices.clone());
        shell.launch(&run, checked, place).await;
        match mode {
            Mode::Background => Started::Answered(shell.in_background(&run, notices)),
            Mode::Foreground => Started::Foreground(Foreground {
                shell: Arc::clone(shell),
                run,
                timeout,
                deadline: begun + timeout,
                notices,
            }),
        }
    }
}

impl Inner {
    fn check(&self, request: BashRequest) -> Result<Checked, Answer> {
        check_text(&request)?;
        let mut notices = Vec::new();
        let timeout = timeout(&request, &mut notices)?;
        if request.name.is_some() || request.ready.is_some() {
            let notice =
                "this host has no named services: leave `name` and `ready` out and use run_in_background";
            return Err(Answer::error(ErrorCode::Unsupported, notice));
        }
        if request.terminal == Terminal::Pty {
            let notice = "this host gives no terminals: leave `pty` out";
            return Err(Answer::error(ErrorCode::Unsupported, notice));
        }
        if request.state == SavedState::Discarded {
            self.reset();
        }
        let from = self.state_to_start_with(&mut notices).0.cwd;
        let cwd = request.cwd.as_ref().map(|cwd| directory(&from, cwd)).transpose()?;
        Ok(Checked { command: request.command, env: request.env, mode: request.mode, timeout, cwd, notices })
    }

    /// The state, whose directory is there.
    fn state_to_start_with(&self, notices: &mut Vec<String>) -> (Saved, u64) {
        let mut memory = self.memory.lock();
        if memory.saved.cwd != self.workspace && !memory.saved.cwd.is_dir() {
            notices.push(format!(
                "the working directory {} is gone: started in {}",
                memory.saved.cwd.display(),
                self.workspace.display()
            ));
            memory.saved.cwd.clone_from(&self.workspace);
        }
        (memory.saved.clone(), memory.generation)
    }

    fn too_many(&self) -> Answer {
        Answer::error(
            ErrorCode::ProcessLimit,
            format!(
                "{} processes run and {} wait already, as many as may ([runtime.processes]): wait for one to end, or stop one",
                self.options.max_running, self.options.max_queued
            ),
        )
    }

    /// Starts the run, or lets it wait for a place; from there on a task sees to it.
    async fn launch(self: &Arc<Self>, run: &Arc<Run>, checked: Checked, place: Option<OwnedSemaphorePermit>) {
        match place {
            Some(place) => {
                // It waits for no place, whenever its task runs: who asked may go, and it is started all the same.
                run.enter(Phase::Starting);
                tokio::spawn(Launch::new(self, run, checked).start(place));
                run.until(|phase| !matches!(phase, Phase::Queued | Phase::Starting)).await;
            }
            None => {
                let places = Arc::clone(&self.places);
                let mut waiting = Box::pin(places.acquire_owned());
                // Once, so that places are given in the order of the calls.
                let early = std::future::poll_fn(|cx| {
                    std::task::Poll::Ready(match waiting.as_mut().poll(cx) {
                        std::task::Poll::Ready(place) => place.ok(),
                        std::task::Poll::Pending => None,
                    })
                })
                .await;
                let place = async {
                    match early {
                        Some(place) => Some(place),
                        None => waiting.await.ok(),
                    }
                };
                // Whoever waits keeps no session.
                tokio::spawn(wait_for_place(Arc::downgrade(self), Arc::clone(run), checked, place));
            }
        }
    }

    pub(crate) fn stop_request(&self, cause: StopCause) -> StopRequest {
        StopRequest { cause, grace: self.options.stop_grace }
    }

    /// The answer for a run that nobody waits for, from its start on.
    fn in_background(&self, run: &Run, mut notices: Vec<String>) -> Answer {
        if let Phase::NotStarted(failure) = run.phase() {
            self.forget(run);
            return Answer::error(failure.code, failure.text);
        }
        let mut details = Details { background: true, process_id: Some(run.id.to_string()), ..run.details() };
        // What has ended already is said by bash_output, to which this answer leads.
        details.status = if details.status == Status::Queued { Status::Queued } else { Status::Running };
        (details.exit_code, details.signal) = (None, None);
        details.cwd = Some(self.cwd());
        notices.push(match details.status {
            Status::Queued => format!("queued: process_id {}; it starts when another one has ended", run.id),
            Status::Running
            | Status::Completed
            | Status::Failed
            | Status::Killed
            | Status::TimedOut
            | Status::Canceled
            | Status::Refused
            | Status::Error => {
                format!("running in the background: process_id {}; read it with bash_output", run.id)
            }
        });
        details.notices = notices;
        Answer::new("", details)
    }
}

async fn wait_for_place(
    shell: Weak<Inner>,
    run: Arc<Run>,
    checked: Checked,
    place: impl Future<Output = Option<OwnedSemaphorePermit>>,
) {
    let place = tokio::select! {
        biased;
        () = run.is_stopped() => None,
        place = place => place,
    };
    match (shell.upgrade(), place) {
        (Some(shell), Some(place)) => Launch::new(&shell, &run, checked).start(place).await,
        (shell, _) => {
            run.enter(Phase::Canceled);
            if let Some(shell) = shell {
                shell.changed();
            }
        }
    }
}

/// A run that is being started.
struct Launch {
    shell: Arc<Inner>,
    run: Arc<Run>,
    checked: Checked,
    saved: Saved,
    generation: u64,
}

impl Launch {
    /// It starts with the state of this moment.
    fn new(shell: &Arc<Inner>, run: &Arc<Run>, checked: Checked) -> Self {
        let mut notices = Vec::new();
        let (saved, generation) = shell.state_to_start_with(&mut notices);
        notices.into_iter().for_each(|notice| run.note(notice));
        Self { shell: Arc::clone(shell), run: Arc::clone(run), checked, saved, generation }
    }

    /// Returns when it runs or cannot be started.
    async fn start(self, place: OwnedSemaphorePermit) {
        self.run.enter(Phase::Starting);
        let prepared = match self.prepare() {
            Ok(prepared) => prepared,
            Err(failure) => return self.not_started(failure),
        };
        let spec = self.spec(&prepared);
        match self.shell.session.spawn(spec).await {
            Ok(process) => {
                if let Some(stop) = self.run.begun(process.clone()) {
                    begin_stop(&process, stop);
                }
                self.shell.changed();
                tokio::spawn(self.launched(process, prepared.folder).see_through(place));
            }
            Err(error) => self.not_started(failure(&error)),
        }
    }

    fn not_started(self, failure: StartFailure) {
        self.run.enter(Phase::NotStarted(failure));
        self.shell.changed();
    }

    fn prepare(&self) -> Result<Prepared, StartFailure> {
        let takes = match self.checked.mode {
            Mode::Foreground => Takes::State,
            Mode::Background => Takes::Nothing,
        };
        let later: Vec<(&'static str, Bytes)> =
            FOR_THE_SHELL.into_iter().filter_map(|name| Some((name, self.effective(name)?))).collect();
        let plan = Plan { command: &self.checked.command, takes, later: &later };
        let error = match capture::prepare(&self.shell.private, &self.run.id.to_string(), plan) {
            Ok(prepared) => return Ok(prepared),
            Err(error) => error,
        };
        let text = format!("cannot write below {}: {error}", self.shell.private.path().display());
        if plan.needs_files() {
            return Err(StartFailure { code: ErrorCode::StartFailed, text });
        }
        self.run.note(format!("{text}; directory and variables were not kept"));
        Ok(capture::plain(&self.checked.command))
    }

    /// The value that the command is to find.
    fn effective(&self, name: &str) -> Option<Bytes> {
        let given = self.checked.env.iter().rev().find(|(known, _)| known == name);
        given
            .map(|(_, value)| value.clone().into_bytes())
            .or_else(|| self.saved.effective(&self.shell.env, name.as_bytes()).cloned())
    }

    fn spec(&self, prepared: &Prepared) -> SpawnSpec {
        let is_for_the_shell = |name: &[u8]| FOR_THE_SHELL.iter().any(|known| known.as_bytes() == name);
        let saved = self.saved.vars.iter().map(|(name, value)| (os(name), os(value)));
        let given = self.checked.env.iter().map(|(name, value)| (name.into(), value.into()));
        let mut env: Vec<_> = saved
            .chain(given)
            .filter(|(name, _): &(std::ffi::OsString, _)| !is_for_the_shell(name.as_encoded_bytes()))
            .collect();
        if let Some(path) = &prepared.bash_env {
            env.push(("BASH_ENV".into(), path.into()));
        }
        let words = ["bash", "--noprofile", "--norc", "-c", "--"].map(std::ffi::OsString::from);
        SpawnSpec {
            cwd: Some(self.checked.cwd.as_ref().unwrap_or(&self.saved.cwd).clone()),
            env,
            stdin: match self.checked.mode {
                Mode::Foreground => StdinMode::Null,
                Mode::Background => StdinMode::Pipe,
            },
            stderr: StderrMode::Merged,
            ..SpawnSpec::new(words.into_iter().chain([os(&prepared.text)]))
        }
    }

    /// What is to be known until its end: no copy of the session's variables.
    fn launched(self, process: Process, folder: Option<RunFolder>) -> Launched {
        let Saved { cwd, mut vars } = self.saved;
        let env = self.checked.env;
        vars.retain(|name, _| env.iter().any(|(given, _)| given.as_bytes() == name));
        Launched {
            shell: Arc::downgrade(&self.shell),
            run: self.run,
            process,
            folder,
            env,
            before: Saved { cwd, vars },
            generation: self.generation,
        }
    }
}

/// A run that has been started. It keeps no session: with the last handle of that it ends.
struct Launched {
    shell: Weak<Inner>,
    run: Arc<Run>,
    process: Process,
    folder: Option<RunFolder>,
    env: Vec<(String, String)>,
    /// What the session had saved for the names in `env`.
    before: Saved,
    generation: u64,
}

impl Launched {
    /// Takes what the command has left, and gives its place back when nothing of it is left.
    async fn see_through(mut self, place: OwnedSemaphorePermit) {
        self.process.finished().await;
        self.run.output_is_complete();
        let folder = self.folder.take();
        match folder.as_ref().map_or(Taken::Nothing, RunFolder::taken) {
            Taken::State(left) => self.keep(left),
            Taken::Nothing => {}
            Taken::TooMuch => self.run.note(format!(
                "the exported variables are more than {} bytes: directory and variables were not kept",
                capture::MOST_STATE
            )),
        }
        drop(folder);
        let Self { shell, run, process, .. } = self;
        run.enter(Phase::Ended(process.clone()));
        let changed = || {
            if let Some(shell) = shell.upgrade() {
                shell.changed();
            }
        };
        changed();
        process.closed().await;
        // The run has it, for as long as anybody can ask for its output.
        if let Some(shell) = shell.upgrade() {
            shell.session.forget(process.id());
        }
        drop(place);
        changed();
    }

    /// What the command has left is the session's state from here on, unless nobody waits for it or a reset came between.
    fn keep(&self, left: Left) {
        let Some(shell) = self.shell.upgrade() else { return };
        let mut memory = shell.memory.lock();
        if memory.generation == self.generation && self.run.is_attached() {
            memory.saved = self.before.after(left, &self.env, &shell.env, &shell.workspace);
        }
    }
}

impl Foreground {
    /// When its timeout is over, which counts from the request.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Waits until it has ended. Dropping the future changes nothing.
    pub async fn ended(&self) {
        self.run.ended().await;
    }

    /// Waits until there is more output than `seen` bytes, and says how much. Dropping the future changes nothing.
    pub async fn more_output(&self, seen: &mut u64) {
        let process = self.run.started().await;
        let Some(mut cursor) = process.and_then(|process| process.cursor(Stream::Stdout)) else {
            return std::future::pending().await;
        };
        cursor.go_to_end();
        if cursor.offset() <= *seen {
            let mut byte = [0];
            // An end, or an error of the disk, is nothing that would come again and again.
            if !matches!(cursor.next(&mut byte).await, Ok(CursorRead::Chunk(_))) {
                return std::future::pending().await;
            }
        }
        *seen = cursor.offset();
    }

    /// The newest line of its output that is not blank.
    pub fn last_line(&self) -> Option<String> {
        reader::last_line(&*self.run.log()?)
    }

    /// Waits for its end, and answers with its output.
    pub async fn finish(self) -> Answer {
        self.run.ended().await;
        let Self { shell, run, timeout, mut notices, .. } = self;
        if let Phase::NotStarted(failure) = run.phase() {
            shell.forget(&run);
            let mut answer = Answer::error(failure.code, failure.text);
            answer.details.notices.splice(0..0, notices);
            answer.details.cwd = Some(shell.cwd());
            return answer;
        }
        let mut answer = shell.show_both_ends(&run);
        if let Some(log) = run.log() {
            run.with_place(|place| *place = Place::behind(&log, LastLine::Whole));
        }
        let details = &mut answer.details;
        if !details.survivors.is_empty() || run.lingers() {
            details.process_id = Some(run.id.to_string());
            notices.push(format!(
                "processes that it started still run: process_id {}; they end with the session, or by kill_process",
                run.id
            ));
        }
        details.timeout = Some(timeout);
        details.cwd = Some(shell.cwd());
        notices.append(&mut details.notices);
        notices.extend(run.take_notices());
        notices.extend(verdict(details, &answer.output));
        details.notices = notices;
        if details.process_id.is_none() && details.saved_output.is_none() {
            shell.forget(&run);
        }
        answer
    }

    /// Waits no longer: it goes on in the background, and its later output is bash_output's.
    pub async fn detach(self, why: Detach) -> Answer {
        self.run.detach();
        let Self { shell, run, timeout, mut notices, .. } = self;
        let (mut answer, place) = match run.log() {
            Some(log) => (shell.show_both_ends(&run), Place::behind(&log, LastLine::Grows)),
            None => (Answer::new("", run.details()), Place::default()),
        };
        run.with_place(|known| *known = place);
        let details = &mut answer.details;
        if details.status != Status::Queued {
            details.status = Status::Running;
        }
        details.background = true;
        details.process_id = Some(run.id.to_string());
        details.timeout = Some(timeout);
        details.cwd = Some(shell.cwd());
        notices.append(&mut details.notices);
        notices.push(why.notice(timeout));
        notices.push(format!("running in the background: process_id {}; read it with bash_output", run.id));
        details.notices = notices;
        answer
    }

    /// Stops its tree. Nobody is told, and its state is not kept.
    pub fn stop(self) {
        self.run.detach();
        self.run.stop(self.shell.stop_request(StopCause::Cancel));
    }
}

impl Detach {
    fn notice(self, timeout: Duration) -> String {
        let rule = "it goes on: do not run it again";
        match self {
            Self::Timeout => format!("not done after {} ms; {rule}", timeout.as_millis()),
            Self::ShortPatience => {
                format!("not done yet, and this client shows no progress of longer calls; {rule}")
            }
            Self::ClientTimeout => format!("the client has stopped waiting; {rule}"),
        }
    }
}

/// The line that says how a command has ended, where its output does not.
fn verdict(details: &Details, output: &str) -> Option<String> {
    match (details.status, &details.signal, details.exit_code) {
        (Status::Completed, _, _) => output.is_empty().then(|| "no output, exit 0".to_owned()),
        (Status::Killed, Some(signal), _) => Some(format!("killed by {signal}")),
        (Status::Killed, None, Some(code)) => Some(format!("killed, exit {code}")),
        (Status::Killed, None, None) => Some("killed: its keeper was lost".to_owned()),
        (_, Some(signal), Some(code)) => Some(format!("ended by {signal}, exit {code}")),
        (_, _, Some(code)) => Some(format!("exit {code}")),
        (status, _, None) => Some(status.word().to_owned()),
    }
}

fn check_text(request: &BashRequest) -> Result<(), Answer> {
    if request.command.trim().is_empty() {
        return Err(invalid("`command` is blank: give the text of a command"));
    }
    if request.command.contains('\0') {
        return Err(invalid(
            "`command` holds a NUL, which no command can: leave it out, or write it as \\0 for printf",
        ));
    }
    for (name, value) in &request.env {
        if name.is_empty() || exports::name_length(name.as_bytes()) != name.len() {
            return Err(invalid(format!(
                "`env` has the name {}: names are letters, digits and _, and begin with no digit",
                shown(name)
            )));
        }
        if value.contains('\0') {
            return Err(invalid(format!("`env` has a NUL in the value of {name}, which no value can have")));
        }
    }
    Ok(())
}

fn timeout(request: &BashRequest, notices: &mut Vec<String>) -> Result<Duration, Answer> {
    let Some(asked) = request.timeout_ms else { return Ok(DEFAULT_TIMEOUT) };
    let asked = u64::try_from(asked).ok().filter(|asked| *asked > 0).map(Duration::from_millis);
    let Some(asked) = asked else {
        return Err(invalid("`timeout` must be at least 1, in milliseconds; without it 120000 is the limit"));
    };
    if request.mode == Mode::Background {
        notices.push("`timeout` has no effect with run_in_background".to_owned());
    }
    if asked > LONGEST_TIMEOUT {
        notices.push(format!("`timeout` was lowered to {}, the most there is", LONGEST_TIMEOUT.as_millis()));
    }
    Ok(asked.min(LONGEST_TIMEOUT))
}

/// A directory that exists, as it really is.
fn directory(from: &Path, cwd: &str) -> Result<PathBuf, Answer> {
    let wrong = |why: &str| invalid(format!("`cwd` {} {why}: give a directory that exists", shown(cwd)));
    if cwd.is_empty() {
        return Err(wrong("is empty"));
    }
    if cwd.contains('\0') {
        return Err(wrong("holds a NUL"));
    }
    let path = from.join(cwd).canonicalize().map_err(|error| wrong(&format!("cannot be used ({error})")))?;
    if path.is_dir() { Ok(path) } else { Err(wrong("is no directory")) }
}

fn failure(error: &SpawnError) -> StartFailure {
    let (code, advice) = match error {
        SpawnError::Limit(_) => (ErrorCode::ProcessLimit, ""),
        SpawnError::TooLarge { .. } => {
            (ErrorCode::StartFailed, "; `reset` discards the saved variables, which are part of it")
        }
        SpawnError::Spec(_)
        | SpawnError::SessionClosed
        | SpawnError::Cwd { .. }
        | SpawnError::Exec { .. }
        | SpawnError::Resources(_)
        | SpawnError::NoKeeper(_)
        | SpawnError::KeeperLost
        | SpawnError::Canceled => (ErrorCode::StartFailed, ""),
    };
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    StartFailure { code, text: text + advice }
}
