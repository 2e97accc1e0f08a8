//! What can be read and written by address: runs, saved output, the session's scratch folder, skills.

use std::fs;
use std::io::{self, Read};
use std::path::{Component, Path, PathBuf};

use super::{Inner, Shell, invalid, shown};
use crate::answer::{Answer, Details, ErrorCode, Status};
use crate::reader::{self, Lines, Range};
use crate::request::{ReadRequest, WriteRequest};
use crate::window;

/// A file that is read whole before a page of it is shown, at most.
const LARGEST_FILE: u64 = 64 << 20;

/// Where an address leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Address<'a> {
    Processes,
    Process(&'a str),
    Kill(&'a str),
    Artifact(&'a str),
    Local(&'a str),
    Skill(&'a str),
}

impl<'a> Address<'a> {
    fn parse(path: &'a str) -> Result<Self, Answer> {
        let known = path.split_once("://").and_then(|(scheme, rest)| match (scheme, rest) {
            ("proc", "") => Some(Self::Processes),
            ("proc", rest) => Some(match rest.strip_suffix("/kill") {
                Some(id) => Self::Kill(id),
                None => Self::Process(rest),
            }),
            ("artifact", rest) => Some(Self::Artifact(rest)),
            ("local", rest) => Some(Self::Local(rest)),
            ("skill", rest) => Some(Self::Skill(rest)),
            _ => None,
        });
        known.ok_or_else(|| {
            invalid(format!(
                "`path` {} is no address of this session: give proc://, proc://ID, artifact://ID, local://PATH or \
                 skill://NAME; files of the workspace have other tools",
                shown(path)
            ))
        })
    }
}

impl Shell {
    /// Reads what an address names. Nothing is consumed by it.
    pub async fn read(&self, request: ReadRequest) -> Answer {
        match self.0.read(&request).await {
            Ok(answer) | Err(answer) => answer,
        }
    }

    /// Writes to what an address names.
    pub async fn write(&self, request: WriteRequest) -> Answer {
        match self.write_to(request).await {
            Ok(answer) | Err(answer) => answer,
        }
    }

    async fn write_to(&self, request: WriteRequest) -> Result<Answer, Answer> {
        self.0.allowed()?;
        match Address::parse(&request.path)? {
            Address::Process(id) => Ok(self.0.input(id, request.content.as_bytes(), request.then).await),
            Address::Kill(id) => {
                let signal = if request.content.is_empty() { "term" } else { request.content.trim() };
                self.0.kill(id, signal)
            }
            Address::Local(path) => self.0.write_local(path, &request.content),
            Address::Processes | Address::Artifact(_) | Address::Skill(_) => Err(invalid(format!(
                "{} cannot be written: local://PATH, proc://ID and proc://ID/kill can",
                request.path
            ))),
        }
    }
}

impl Inner {
    async fn read(&self, request: &ReadRequest) -> Result<Answer, Answer> {
        let range = range(request)?;
        match Address::parse(&request.path)? {
            Address::Processes => Ok(self.list()),
            Address::Process(id) => Ok(self.peek(&*self.run(id)?)),
            Address::Kill(_) => Err(invalid(format!("{} can be written, not read", request.path))),
            Address::Artifact(id) => self.artifact(id, range).await,
            Address::Local(path) => self.file(&self.private.path().join(SCRATCH), path, &request.path, range),
            Address::Skill(path) => self.skill(path, &request.path, range),
        }
    }

    fn list(&self) -> Answer {
        let mut live: Vec<_> = self.all_runs();
        live.retain(|run| !run.status().is_final() || run.lingers());
        let mut listed: Vec<_> = live.iter().map(|run| run.listed()).collect();
        listed.sort_by_key(|run| run.started_at);
        let output: String = listed
            .iter()
            .map(|run| {
                let pid = run.pid.map_or_else(String::new, |pid| format!(" pid {pid}"));
                let command = run.command.lines().next().unwrap_or_default();
                format!("{} {}{pid} {command}\n", run.process_id, run.status.word())
            })
            .collect();
        let mut details = Details::new(Status::Completed);
        if listed.is_empty() {
            details.notices.push("nothing runs".to_owned());
        }
        details.processes = Some(listed);
        Answer::new(output, details)
    }

    async fn artifact(&self, id: &str, range: Range) -> Result<Answer, Answer> {
        let gone = || {
            Answer::error(
                ErrorCode::UnresolvedUrl,
                format!(
                    "there is no saved output artifact://{id} in this session: see `saved_output` of its run"
                ),
            )
        };
        let run = self.run(id).map_err(|_| gone())?;
        let log = run.log().ok_or_else(gone)?;
        let page = reader::page(&log, range).await.map_err(|error| {
            Answer::error(ErrorCode::UnresolvedUrl, format!("artifact://{id} cannot be read now: {error}"))
        })?;
        let mut answer = text(&page, range);
        if page.lost.bytes > 0 {
            answer.details.notices.insert(
                0,
                format!("{} lines ({} bytes) before this were not saved", page.lost.lines, page.lost.bytes),
            );
            (answer.details.dropped_bytes, answer.details.dropped_lines) = (page.lost.bytes, page.lost.lines);
        }
        Ok(answer)
    }

    fn skill(&self, path: &str, address: &str, range: Range) -> Result<Answer, Answer> {
        let (name, rest) = path.split_once('/').unwrap_or((path, ""));
        let rest = if rest.is_empty() { "SKILL.md" } else { rest };
        let is_name = |name: &str| {
            !name.is_empty() && Path::new(name).components().all(|c| matches!(c, Component::Normal(_)))
        };
        let folder =
            self.options.skills.iter().map(|folder| folder.join(name)).find(|folder| folder.is_dir());
        let folder = folder.filter(|_| is_name(name)).ok_or_else(|| {
            unresolved(address, "there is no such skill below the folders of [runtime.skills] paths")
        })?;
        self.file(&folder, rest, address, range)
    }

    #[expect(clippy::unused_self, reason = "beside its kind")]
    fn file(&self, folder: &Path, path: &str, address: &str, range: Range) -> Result<Answer, Answer> {
        let path = inside(folder, path).map_err(|why| unresolved(address, why))?;
        let whole = path.canonicalize().map_err(|error| unresolved(address, &error.to_string()))?;
        let is_inside = folder.canonicalize().is_ok_and(|folder| whole.starts_with(folder));
        if !is_inside {
            return Err(unresolved(address, "it leads out of its folder"));
        }
        let bytes = read_file(&whole).map_err(|error| unresolved(address, &error.to_string()))?;
        let start = match range.skip {
            0 => 0,
            skip => {
                let nth = usize::try_from(skip - 1).unwrap_or(usize::MAX);
                memchr::memchr_iter(b'\n', &bytes).nth(nth).map_or(bytes.len(), |at| at + 1)
            }
        };
        let shown = window::first(&bytes[start..], window::BYTES, range.most);
        let more = start + shown < bytes.len();
        Ok(text(&Lines { bytes: bytes[start..start + shown].to_vec(), more, ..Lines::default() }, range))
    }

    fn write_local(&self, path: &str, content: &str) -> Result<Answer, Answer> {
        let address = format!("local://{path}");
        let scratch =
            self.private.folder(SCRATCH).map_err(|error| unresolved(&address, &error.to_string()))?;
        let file = inside(&scratch, path).map_err(|why| unresolved(&address, why))?;
        let write = || -> io::Result<()> {
            let parent = file.parent().unwrap_or(&scratch);
            fs::create_dir_all(parent)?;
            let leads_out = || io::Error::new(io::ErrorKind::PermissionDenied, "it leads out of its folder");
            let root = scratch.canonicalize()?;
            if !parent.canonicalize()?.starts_with(&root) {
                return Err(leads_out());
            }
            if fs::symlink_metadata(&file).is_ok_and(|found| found.is_symlink())
                && !file.canonicalize().is_ok_and(|target| target.starts_with(&root))
            {
                return Err(leads_out());
            }
            fs::write(&file, content)
        };
        write().map_err(|error| unresolved(&address, &error.to_string()))?;
        let mut details = Details::new(Status::Completed);
        details.notices.push(format!("{} bytes written to {address}", content.len()));
        Ok(Answer::new("", details))
    }
}

/// Name of the scratch folder.
const SCRATCH: &str = "local";

/// A path below a folder, as it is written.
fn inside(folder: &Path, path: &str) -> Result<PathBuf, &'static str> {
    if path.contains('\0') {
        return Err("a path has no NUL");
    }
    let path = Path::new(path);
    if path.as_os_str().is_empty() {
        return Err("it names no file");
    }
    if !path.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
        return Err("it leads out of its folder");
    }
    Ok(folder.join(path))
}

fn read_file(path: &Path) -> io::Result<Vec<u8>> {
    let file = fs::File::open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn range(request: &ReadRequest) -> Result<Range, Answer> {
    let skip = u64::try_from(request.offset.unwrap_or(0))
        .map_err(|_| invalid("`offset` is below 0: give the number of lines to skip"))?;
    let most = match request.limit {
        None => window::LINES,
        Some(limit) => usize::try_from(limit)
            .ok()
            .filter(|limit| *limit > 0)
            .ok_or_else(|| invalid("`limit` must be at least 1, in lines"))?,
    };
    Ok(Range { skip, most: most.min(window::LINES) })
}

/// A page of text, and where it goes on.
fn text(page: &Lines, range: Range) -> Answer {
    let mut details = Details::new(Status::Completed);
    details.more = page.more;
    if page.more {
        let lines = memchr::memchr_iter(b'\n', &page.bytes).count() as u64;
        details.notices.push(format!("there is more: read on with offset {}", range.skip + lines));
    }
    Answer::new(String::from_utf8_lossy(&page.bytes), details)
}

fn unresolved(address: &str, why: &str) -> Answer {
    Answer::error(ErrorCode::UnresolvedUrl, format!("{address} cannot be used: {why}"))
}
