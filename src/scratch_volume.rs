//! What runs in the pods of a certification (`kubectl bulkhead doctor --certify`), from the image of `bulkhead-controller`: it counts
//! into a file for ever, whatever the disk says, each number made durable before the next; or it says how far a file has got.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Subcommand;

/// Each number has a place of its own: one that is not there was never written, and one that is refused is not tried again.
const RECORD: usize = 64;
/// The time between two numbers.
const EVERY: Duration = Duration::from_millis(100);
/// The time between two signs of life, which need no disk.
const ALIVE: Duration = Duration::from_millis(500);

/// Count into a file of a scratch volume, or read how far it got. For the pods of kubectl bulkhead doctor --certify.
#[derive(Clone, Debug, Subcommand)]
pub enum ScratchVolume {
    /// Count until it is killed.
    Write {
        /// The file.
        file: PathBuf,
    },
    /// Say the highest number.
    Read {
        /// The file.
        file: PathBuf,
    },
}

impl ScratchVolume {
    /// Does it. Blocks.
    pub fn run(&self) -> io::Result<()> {
        match self {
            Self::Write { file } => write(file),
            Self::Read { file } => {
                let mut text = Vec::new();
                File::open(file)?.read_to_end(&mut text)?;
                say(&format!("found {}", highest(&text)))
            }
        }
    }
}

fn write(path: &Path) -> io::Result<()> {
    let began = Instant::now();
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(path)?;
    std::thread::spawn(move || {
        while say(&format!("alive at {}", began.elapsed().as_millis())).is_ok() {
            std::thread::sleep(ALIVE);
        }
    });
    for number in 1_u64.. {
        say(&format!("tried {number} at {}", began.elapsed().as_millis()))?;
        let written = record(&file, number);
        let at = began.elapsed().as_millis();
        match written {
            Ok(()) => say(&format!("written {number} at {at}"))?,
            Err(error) => say(&format!("refused {number} at {at}: {error}"))?,
        }
        std::thread::sleep(EVERY);
    }
    Ok(())
}

/// Durable when it returns Ok.
fn record(file: &File, number: u64) -> io::Result<()> {
    let line = format!("{number:<width$}\n", width = RECORD - 1);
    file.write_all_at(line.as_bytes(), (number - 1) * RECORD as u64)?;
    file.sync_data()
}

/// The highest number of a file; records that are torn or empty are none.
fn highest(bytes: &[u8]) -> u64 {
    let number = |record: &[u8]| std::str::from_utf8(record).ok()?.trim().parse().ok();
    bytes.chunks(RECORD).filter_map(number).max().unwrap_or(0)
}

fn say(line: &str) -> io::Result<()> {
    writeln!(io::stdout(), "{line}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_found_also_behind_holes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("counter");
        let file = File::create(&path).unwrap();
        for number in [1, 2, 5] {
            record(&file, number).unwrap();
        }
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!((bytes.len(), highest(&bytes)), (5 * RECORD, 5));
        assert_eq!(highest(&bytes[..2 * RECORD]), 2);
        assert_eq!(highest(&[]), 0);
    }
}
