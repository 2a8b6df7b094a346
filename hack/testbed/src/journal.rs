//! What a database does with its volume: a journal of numbered records, each safe on the disk before the next is written.
//!
//! A record has a fixed length, so it is found by its number, and one that was written half is written again. A file and a
//! raw block device look the same.

use std::fs::{File, OpenOptions};
use std::io::{self, BufReader, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// The length of a record in bytes, with the line feed at its end.
pub const RECORD: usize = 128;
/// What every record begins with; a fresh disk does not.
const MAGIC: &str = "bulkhead-journal";

/// A journal, open for writing.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Records are numbered from 1; this is the last that is safe, 0 for none.
    last: u64,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A record is missing: data was lost, or somebody else wrote.
    #[error("after record {last} comes record {found}: the journal has a gap")]
    Gap {
        /// The last record without a gap.
        last: u64,
        /// The one behind it.
        found: u64,
    },
}

impl Journal {
    /// Opens the journal and reads it back. `path` is a file, which is made if it is missing, or a block device.
    ///
    /// # Errors
    ///
    /// [`JournalError::Gap`] if it was tampered with, else whatever the disk says.
    pub fn open(path: &Path, is_device: bool) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(!is_device).truncate(false);
        let dsync = rustix::fs::OFlags::DSYNC.bits();
        let file = options.custom_flags(i32::try_from(dsync).unwrap_or(0)).open(path)?;
        let last = read_back(&file)?;
        Ok(Journal { file, last })
    }

    /// The number of the last record that is safe.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Writes the next record and returns its number when it is safe.
    ///
    /// # Errors
    ///
    /// Whatever the disk says. The same record is tried again by the next call.
    pub fn append(&mut self, writer: &str) -> io::Result<u64> {
        let next = self.last + 1;
        let offset = self.last.saturating_mul(RECORD as u64);
        self.file.write_all_at(&record(next, writer), offset)?;
        // A disk that only reports it here must not be believed before.
        self.file.sync_data()?;
        self.last = next;
        Ok(next)
    }
}

fn read_back(file: &File) -> Result<u64, JournalError> {
    let mut reader = BufReader::new(file);
    let mut last = 0;
    let mut bytes = [0; RECORD];
    loop {
        match reader.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(last),
            read => read?,
        }
        match number(&bytes) {
            Some(found) if found == last + 1 => last = found,
            Some(found) => return Err(JournalError::Gap { last, found }),
            None => return Ok(last),
        }
    }
}

/// The bytes of a record.
pub fn record(number: u64, writer: &str) -> Vec<u8> {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let mut line = format!("{MAGIC} {number:020} {time} {writer}").into_bytes();
    line.resize(RECORD - 1, b' ');
    line.push(b'\n');
    line
}

/// The number of a record; `None` if the bytes are none.
pub fn number(record: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(record.strip_suffix(b"\n")?).ok()?;
    let mut words = text.split(' ');
    (words.next()? == MAGIC).then_some(())?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_journal_goes_on_where_it_ended_and_writes_a_torn_record_again() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path, false).expect("a new one");
        assert_eq!(journal.append("a").expect("disk"), 1);
        assert_eq!(journal.append(&"long".repeat(100)).expect("disk"), 2);
        let torn = File::options().append(true).open(&path).expect("file");
        io::Write::write_all(&mut &torn, b"bulkhead-journal 0000").expect("disk");

        let mut journal = Journal::open(&path, false).expect("the same");
        assert_eq!(journal.last(), 2);
        assert_eq!(journal.append("b").expect("disk"), 3);
        assert_eq!(Journal::open(&path, false).expect("the same").last(), 3);
    }

    #[test]
    fn a_gap_is_found() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("journal");
        std::fs::write(&path, [record(1, "a"), record(3, "a")].concat()).expect("disk");
        assert!(matches!(Journal::open(&path, false), Err(JournalError::Gap { last: 1, found: 3 })));
    }

    #[test]
    fn zeros_are_the_end() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("disk");
        std::fs::write(&path, [record(1, "a"), vec![0; 4096]].concat()).expect("disk");
        let mut journal = Journal::open(&path, true).expect("a device");
        assert_eq!(journal.last(), 1);
        assert_eq!(journal.append("a").expect("disk"), 2);
        assert!(Journal::open(&folder.path().join("missing"), true).is_err(), "a device is not made");
    }
}
