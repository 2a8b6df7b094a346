//! What a running program has used of the machine so far, from `/proc`.

use std::io;
use std::time::Duration;

use crate::process::Process;

/// Length of the kernel's clock tick as `/proc` shows it to programs; the same on every Linux.
const TICK: Duration = Duration::from_millis(10);

/// What a program has used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The most memory it held at once, in bytes.
    pub peak_memory: u64,
    /// What it holds now, in bytes.
    pub memory: u64,
    /// Processor time, in the program and in the kernel for it.
    pub processor: Duration,
}

/// What `process` has used so far.
///
/// # Errors
/// When it has ended.
pub fn of(process: &Process) -> io::Result<Usage> {
    let program = id(process)?;
    let status = std::fs::read_to_string(format!("/proc/{program}/status"))?;
    let stat = std::fs::read_to_string(format!("/proc/{program}/stat"))?;
    parse(&status, &stat).ok_or_else(|| io::Error::other(format!("/proc/{program} is not as expected")))
}

/// Lets [`Usage::peak_memory`] begin anew.
///
/// # Errors
/// When it has ended.
pub fn forget_peak(process: &Process) -> io::Result<()> {
    // See proc(5), clear_refs: 5 resets the peak and nothing else.
    std::fs::write(format!("/proc/{}/clear_refs", id(process)?), "5")
}

/// The process id of the program.
///
/// # Errors
/// When it has ended, or does not run yet.
pub fn id(process: &Process) -> io::Result<u32> {
    let supervisor = process.supervisor();
    let children = std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"))?;
    let first = children.split_whitespace().next().and_then(|id| id.parse().ok());
    Ok(first.ok_or(io::ErrorKind::NotFound)?)
}

fn parse(status: &str, stat: &str) -> Option<Usage> {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse().ok()
    };
    let (peak, now) = (kilobytes("VmHWM:")?, kilobytes("VmRSS:")?);
    // The second field is the program's name, which may hold anything; the third follows its closing bracket.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut times = fields.split(' ').skip(11).map_while(|field| field.parse::<u32>().ok());
    let ticks = times.next()? + times.next()?;
    Some(Usage { peak_memory: peak * 1024, memory: now * 1024, processor: TICK * ticks })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Launch;

    #[test]
    fn the_files_of_proc_are_read() {
        let stat = "42 (a ) b) S 1 42 42 0 -1 4194560 900 0 0 0 7 5 0 0 20 0 1 0 100";
        let usage = parse("Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n", stat);
        assert_eq!(usage, Some(Usage { peak_memory: 2 << 20, memory: 1024, processor: Duration::from_millis(120) }));
        assert_eq!(parse("", stat), None);
    }

    #[tokio::test]
    async fn the_program_is_measured_and_not_its_supervisor() {
        let folder = tempfile::tempdir().unwrap();
        let spin = "i=0; while :; do i=$((i + 1)); done";
        let launch = Launch {
            name: "spin".into(),
            program: "sh".into(),
            args: vec!["-c".into(), spin.into()],
            env: Vec::new(),
            log: folder.path().join("log"),
        };
        let process = Process::spawn(launch).unwrap();
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        // Not yet there right after the spawn; on a busy machine it takes a moment to use anything.
        while !of(&process).is_ok_and(|usage| usage.processor >= Duration::from_millis(50)) {
            assert!(std::time::Instant::now() < deadline, "no processor time is seen: {:?}", of(&process));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
