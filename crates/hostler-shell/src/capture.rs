//! How the state of a shell is taken at its end, without the command noticing.
//!
//! The command is the text of `bash -c`, as it is. What is ours comes before it: bash reads the file in BASH_ENV, which sets an
//! EXIT trap, puts BASH_ENV back as the command should find it, and leaves nothing else behind. So `$0`, line numbers, error
//! texts, `$-` and all the rest are those of a plain `bash -c`. The trap writes the working directory and the exported
//! variables into files that are there before, in a folder that is ours alone.
//!
//! The trap must work whatever the command has done to its shell: functions with the names of builtins (posix mode finds
//! special builtins first, and they remove the others), `set -e`, `-u`, `-C`, `-x`, DEBUG and ERR traps, closed descriptors,
//! an empty PATH. It needs no program and no variable. What it cannot do is taken for "no state": a trap that was replaced, an
//! exec, a SIGKILL.
//!
//! Under `set -v` bash shows the trap as it reads it, and `trap -p` lists it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::exports;
use crate::state::{Bytes, Left};

/// The most that is read of what a command has left; it can write into the files itself.
pub(crate) const MOST_STATE: u64 = 1 << 20;

/// A string that is longer does not fit into one argument of execve(2), by some margin.
const LONGEST_ARGUMENT: usize = 131_000;

/// Where private files of a session are.
#[derive(Clone, Debug)]
pub(crate) struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// A folder that nobody else can guess, below this one. It is made when it is needed.
    pub(crate) fn below(base: &Path, secret: u128) -> Self {
        Self(base.join(format!("hostler-{secret:032x}")))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes it, if it is not there, and a folder in it, which must not be.
    pub(crate) fn make(&self, name: &str) -> io::Result<PathBuf> {
        self.make_own()?;
        let folder = self.0.join(name);
        private().create(&folder)?;
        Ok(folder)
    }

    /// A folder in it, which is made if it is not there.
    pub(crate) fn folder(&self, name: &str) -> io::Result<PathBuf> {
        self.make_own()?;
        let folder = self.0.join(name);
        private().recursive(true).create(&folder)?;
        Ok(folder)
    }

    fn make_own(&self) -> io::Result<()> {
        match private().create(&self.0) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => self.check(),
            made => made,
        }
    }

    /// What stands in its place must be ours.
    fn check(&self) -> io::Result<()> {
        let found = fs::symlink_metadata(&self.0)?;
        let is_ours =
            found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0;
        if is_ours { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }
}

fn private() -> DirBuilder {
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

/// What a shell is to be started with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan<'p> {
    pub(crate) command: &'p str,
    pub(crate) takes: Takes,
    /// Variables that the shell itself must not see when it starts, with their values.
    pub(crate) later: &'p [(&'static str, Bytes)],
}

impl Plan<'_> {
    /// Whether the command cannot be run without files.
    pub(crate) fn needs_files(&self) -> bool {
        !self.later.is_empty() || self.is_long()
    }

    fn is_long(&self) -> bool {
        self.command.len() > LONGEST_ARGUMENT
    }
}

/// Whether the state at the end is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    State,
    Nothing,
}

/// A shell that can be started.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The text for `bash -c`.
    pub(crate) text: Vec<u8>,
    /// The value for BASH_ENV.
    pub(crate) bash_env: Option<PathBuf>,
    /// What it needs until its end.
    pub(crate) folder: Option<RunFolder>,
}

/// The files of one run, gone when dropped.
#[derive(Debug)]
pub(crate) struct RunFolder(PathBuf);

impl Drop for RunFolder {
    fn drop(&mut self) {
        // The command may have removed it.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Makes the files that a shell needs, if it needs any.
pub(crate) fn prepare(private: &PrivateFolder, name: &str, plan: Plan<'_>) -> io::Result<Prepared> {
    if plan.takes == Takes::Nothing && !plan.needs_files() {
        return Ok(plain(plan.command));
    }
    let folder = RunFolder(private.make(name)?);
    let mut text = plan.command.as_bytes().to_vec();
    if plan.is_long() {
        let path = write_new(&folder.0, "command", plan.command.as_bytes())?;
        text = [b"eval \"$(<", quote(path.as_os_str().as_bytes()).as_slice(), b")\""].concat();
    }
    let mut init = Vec::new();
    if plan.takes == Takes::State {
        let cwd = write_new(&folder.0, CWD, b"")?;
        let exported = write_new(&folder.0, EXPORTED, b"")?;
        init.extend_from_slice(b"trap ");
        init.extend(quote(&trap(&cwd, &exported)));
        init.extend_from_slice(b" EXIT\n");
    }
    init.extend_from_slice(b"unset BASH_ENV\n");
    for (name, value) in plan.later {
        init.extend_from_slice(format!("export {name}=").as_bytes());
        init.extend(quote(value));
        init.push(b'\n');
    }
    // What `$_` is where nothing has run.
    init.extend_from_slice(b": bash\n");
    let bash_env = Some(write_new(&folder.0, "init", &init)?);
    Ok(Prepared { text, bash_env, folder: Some(folder) })
}

/// A shell without anything of ours.
pub(crate) fn plain(command: &str) -> Prepared {
    Prepared { text: command.as_bytes().to_vec(), bash_env: None, folder: None }
}

const CWD: &str = "cwd";
const EXPORTED: &str = "exported";

/// The commands of the trap. The directory comes last: where its line is whole, so is everything.
fn trap(cwd: &Path, exported: &Path) -> Vec<u8> {
    let file = |path: &Path| quote(path.as_os_str().as_bytes());
    [
        // A variable that is given by a redirection is traced nowhere.
        &b"{ POSIXLY_CORRECT=; \\unset -f unset set trap export pwd :; \\unset POSIXLY_CORRECT; \\trap - DEBUG ERR RETURN; \
          \\set +exuv; \\export -p >|"[..],
        &file(exported),
        b" && \\pwd -P >|",
        &file(cwd),
        b"; } >/dev/null 2>&1 {BASH_XTRACEFD}>/dev/null || \\:",
    ]
    .concat()
}

/// A word of bash that stands for these bytes, which have no NUL.
pub(crate) fn quote(bytes: &[u8]) -> Vec<u8> {
    let mut word = Vec::with_capacity(bytes.len() + 2);
    word.push(b'\'');
    for byte in bytes {
        if *byte == b'\'' { word.extend_from_slice(b"'\\''") } else { word.push(*byte) }
    }
    word.push(b'\'');
    word
}

fn write_new(folder: &Path, name: &str, bytes: &[u8]) -> io::Result<PathBuf> {
    let path = folder.join(name);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
    file.write_all(bytes)?;
    Ok(path)
}

/// What a shell has left at its end.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// Its state.
    State(Left),
    /// Nothing: it did not come to that, or the command has removed it.
    Nothing,
    /// More than is read.
    TooMuch,
}

impl RunFolder {
    /// What the shell has left.
    pub(crate) fn taken(&self) -> Taken {
        let (Some(cwd), Some(exported)) = (read(&self.0.join(CWD)), read(&self.0.join(EXPORTED))) else {
            return Taken::Nothing;
        };
        let Some(cwd) = cwd.strip_suffix(b"\n").filter(|cwd| cwd.starts_with(b"/")) else {
            return Taken::Nothing;
        };
        if exported.len() as u64 > MOST_STATE {
            return Taken::TooMuch;
        }
        let cwd = PathBuf::from(std::ffi::OsString::from_vec(cwd.to_vec()));
        Taken::State(Left { cwd, exported: exports::parse(&exported) })
    }
}

/// The bytes of a file, or the first ones of one that is too large.
fn read(path: &Path) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(MOST_STATE + 1).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

#[cfg(test)]
mod tests;
