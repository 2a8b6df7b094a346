//! One shell for a page: what a block sets, the next one has.

use std::process::{Command, Stdio};
use std::time::Duration;

use libtest_mimic::Failed;
use tempfile::NamedTempFile;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

/// How long a block may take. The commands have deadlines of their own, which are shorter.
const LIMIT: Duration = Duration::from_secs(400);
/// Says that a block is done. Nothing else prints it.
const DONE: &str = "=== this block is done ===";
/// The shell ends with the first command that fails, and names it. Errors are printed where they happen.
const RULES: &str = "exec 2>&1\nset -o errexit -o errtrace -o nounset\ntrap 'echo \"failed: $BASH_COMMAND\"' ERR\n";

/// A shell that waits for commands.
pub struct Shell {
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    // Ends with the value.
    _child: Child,
}

impl Shell {
    /// Starts `bash`, with what the command says of its surroundings.
    pub fn start(mut bash: Command) -> Result<Self, Failed> {
        bash.args(["--noprofile", "--norc"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = tokio::process::Command::from(bash).kill_on_drop(true).spawn()?;
        let input = child.stdin.take().ok_or("the shell has no input")?;
        let output = child.stdout.take().ok_or("the shell has no output")?;
        Ok(Self { input, output: BufReader::new(output).lines(), _child: child })
    }

    /// Runs a block and returns what it prints; the error has that too, and what failed.
    pub async fn run(&mut self, commands: &str) -> Result<String, String> {
        // From a file: the commands must not read what comes after them.
        let file = NamedTempFile::new().map_err(|error| error.to_string())?;
        std::fs::write(file.path(), format!("{RULES}{commands}\n")).map_err(|error| error.to_string())?;
        let line = format!("source {} </dev/null; echo '{DONE}'\n", file.path().display());
        self.input.write_all(line.as_bytes()).await.map_err(|error| format!("the shell is gone: {error}"))?;
        let mut printed = String::new();
        let ended = timeout(LIMIT, async {
            while let Ok(Some(line)) = self.output.next_line().await {
                if line == DONE {
                    return Ok(());
                }
                printed += &format!("{line}\n");
            }
            Err("the shell ended".to_owned())
        });
        let ended = ended.await.unwrap_or_else(|_| Err(format!("not done after {LIMIT:?}")));
        match ended {
            Ok(()) => Ok(printed),
            Err(why) => Err(format!("{why}. It printed:\n{printed}")),
        }
    }
}
