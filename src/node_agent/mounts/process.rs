//! What `/proc/<pid>` says of the files a process has open or mapped. (proc_pid_fdinfo(5), proc_pid_maps(5))

use crate::api::text::printable;

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use super::mountinfo::{Device, Unreadable};

/// The folder of `/proc` that tells of a process. When its first thread has ended, that one tells nothing any more, though
/// the others hold what they all had: then that of another. `NOENT` if no thread is left.
pub fn folder(process: &Path) -> io::Result<PathBuf> {
    if !has_ended(process)? {
        return Ok(process.to_owned());
    }
    for thread in std::fs::read_dir(process.join("task"))? {
        let thread = thread?.path();
        // Threads come and go while they are counted.
        if thread.file_name() != process.file_name() && matches!(has_ended(&thread), Ok(false)) {
            return Ok(thread);
        }
    }
    Err(Errno::NOENT.into())
}

/// Whether a thread has ended, and is only still there to be waited for.
fn has_ended(thread: &Path) -> io::Result<bool> {
    let text = std::fs::read(thread.join("stat"))?;
    // The name, in brackets, can hold anything.
    let after = text.iter().rposition(|byte| *byte == b')').and_then(|at| text.get(at + 1..)).unwrap_or_default();
    Ok(matches!(after, [b' ', b'Z' | b'X' | b'x', ..]))
}

/// The mount that a file was opened through, from its `fdinfo`.
pub fn mount_id(fdinfo: &str) -> Result<u64, Unreadable> {
    let line = fdinfo.lines().find_map(|line| line.strip_prefix("mnt_id:"));
    line.and_then(|value| value.trim().parse().ok()).ok_or_else(|| Unreadable(fdinfo.to_owned()))
}

/// A mapped file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped<'a> {
    /// Device of the file.
    pub device: Device,
    /// Path, seen from the process's root.
    pub path: &'a str,
}

/// The mapped files of a `maps`. Memory that is of no file is left out.
pub fn mapped(maps: &str) -> impl Iterator<Item = Result<Mapped<'_>, Unreadable>> {
    maps.lines().filter_map(|line| {
        let wrong = || Some(Err(Unreadable(line.to_owned())));
        // address perms offset dev inode path
        let mut fields = line.splitn(6, ' ');
        let (Some(device), Some(inode)) = (fields.nth(3), fields.next()) else { return wrong() };
        if inode == "0" {
            return None;
        }
        let path = fields.next().unwrap_or_default().trim_start();
        let numbers = device.split_once(':').and_then(|(major, minor)| {
            Some(Device { major: u32::from_str_radix(major, 16).ok()?, minor: u32::from_str_radix(minor, 16).ok()? })
        });
        match numbers {
            Some(device) => Some(Ok(Mapped { device, path })),
            None => wrong(),
        }
    })
}

/// A process's name made fit to be shown: it may set it to anything.
pub fn shown_name(comm: &[u8]) -> String {
    printable(String::from_utf8_lossy(comm).trim_end())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_mount_of_an_open_file() {
        assert_eq!(mount_id("pos:\t0\nflags:\t02100000\nmnt_id:\t1234\nino:\t5\n"), Ok(1234));
        assert!(mount_id("pos:\t0\n").is_err());
        assert!(mount_id("mnt_id:\tx\n").is_err());
    }

    #[test]
    fn only_memory_of_files_counts() {
        let maps = "7f00-7f01 r-xp 00000000 fd:01 1234                       /data/a file (deleted)\n\
                    7f02-7f03 rw-p 00000000 00:00 0                          [heap]\n\
                    7f04-7f05 rw-s 00000000 00:2a 77 /x\n";
        let found: Vec<_> = mapped(maps).collect::<Result<_, _>>().unwrap();
        let device = |major, minor| Device { major, minor };
        assert_eq!(
            found,
            [
                Mapped { device: device(0xfd, 1), path: "/data/a file (deleted)" },
                Mapped { device: device(0, 0x2a), path: "/x" }
            ]
        );
        assert!(mapped("7f00-7f01 r-xp").next().unwrap().is_err());
        assert!(mapped("7f00-7f01 r-xp 0 zz:1 5 /x").next().unwrap().is_err());
    }

    #[test]
    fn the_threads_that_are_left_tell_of_a_process() {
        let base = std::env::temp_dir().join(format!("bulkhead-threads-{}", std::process::id()));
        let process = base.join("7");
        let thread = |name: &str, stat: &str| {
            std::fs::create_dir_all(process.join("task").join(name)).unwrap();
            std::fs::write(process.join("task").join(name).join("stat"), stat).unwrap();
            process.join("task").join(name)
        };
        let first = |stat: &str| {
            thread("7", stat);
            std::fs::write(process.join("stat"), stat).unwrap();
        };
        first("7 (a) Z b) S 1 1");
        assert_eq!(folder(&process).unwrap(), process);
        first("7 (a) Z 1 1");
        thread("8", "8 (a) Z 1 1");
        assert_eq!(folder(&process).unwrap_err().raw_os_error(), Some(Errno::NOENT.raw_os_error()));
        let lives = thread("9", "9 (a) D 1 1");
        assert_eq!(folder(&process).unwrap(), lives);
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_name_cannot_draw_on_the_terminal() {
        assert_eq!(shown_name(b"post\x1b[31mgres\n"), "post?[31mgres");
        assert_eq!(shown_name("post\u{202e}gr\u{200b}es\u{e0041}ü\n".as_bytes()), "post?gr?es?ü");
    }

    proptest! {
        #[test]
        fn nothing_panics(text in "\\PC{0,200}") {
            let _ = mount_id(&text);
            let _ = mapped(&text).count();
        }
    }
}
