//! The archive and its index: what is in it, and what could not be read.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;
use tar::{Builder, Header};

/// What is in a bundle. Printed, and its last file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Index {
    /// The archive.
    pub file: PathBuf,
    /// Version of this program.
    pub version: &'static str,
    /// When it was begun.
    pub at: DateTime<Utc>,
    /// What was read.
    pub files: Vec<Entry>,
    /// What was not, and why.
    pub not_read: Vec<NotRead>,
}

/// A file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Entry {
    /// Its path in the archive.
    pub path: String,
    /// Its size.
    pub bytes: usize,
}

/// Something that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NotRead {
    /// What it is.
    pub what: String,
    /// Why it is not there.
    pub why: String,
}

/// An archive that is being written.
pub struct Archive {
    builder: Builder<GzEncoder<File>>,
    folder: String,
    /// Bytes that may still come.
    room: usize,
    /// What is in it so far.
    pub index: Index,
}

impl Archive {
    /// Begins an archive of at most this size, before it is compressed, that only its owner may read. A file that is there
    /// already stays.
    pub fn create(path: &Path, room: usize, at: DateTime<Utc>) -> io::Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let folder = name.split('.').next().unwrap_or_default().to_owned();
        let index = Index {
            file: path.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            at,
            files: Vec::new(),
            not_read: Vec::new(),
        };
        Ok(Self { builder: Builder::new(GzEncoder::new(file, Compression::default())), folder, room, index })
    }

    /// Adds a file, or notes that there is no room for it.
    pub fn add(&mut self, path: &str, text: &str) -> io::Result<()> {
        if text.len() > self.room {
            self.lacks(path, "the bundle is full: --max-size");
            return Ok(());
        }
        self.room -= text.len();
        self.index.files.push(Entry { path: path.to_owned(), bytes: text.len() });
        self.append(path, text)
    }

    /// Notes that something is not there.
    pub fn lacks(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.index.not_read.push(NotRead { what: what.into(), why: why.into() });
    }

    fn append(&mut self, path: &str, text: &str) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(u64::try_from(self.index.at.timestamp()).unwrap_or(0));
        let path = format!("{}/{path}", self.folder);
        self.builder.append_data(&mut header, path, text.as_bytes())
    }

    /// Adds the index and ends the archive.
    pub fn finish(mut self) -> io::Result<Index> {
        let text = serde_json::to_string_pretty(&self.index).map_err(io::Error::other)?;
        self.append("index.json", &text)?;
        self.builder.into_inner()?.finish()?.sync_all()?;
        Ok(self.index)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;

    use super::*;

    #[test]
    fn what_has_no_room_is_named_and_the_index_is_always_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bundle.tar.gz");
        let mut archive = Archive::create(&path, 10, DateTime::UNIX_EPOCH).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600, "it is nobody else's");
        archive.add("a.txt", "12345678").unwrap();
        archive.add("b.txt", "123").unwrap();
        archive.lacks("c", "you may not");
        let index = archive.finish().unwrap();
        assert_eq!(index.files, [Entry { path: "a.txt".into(), bytes: 8 }]);
        assert_eq!(index.not_read.iter().map(|it| it.what.as_str()).collect::<Vec<_>>(), ["b.txt", "c"]);
        let mut read = tar::Archive::new(GzDecoder::new(File::open(&path).unwrap()));
        let mut texts = std::collections::BTreeMap::new();
        for entry in read.entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            texts.insert(entry.path().unwrap().display().to_string(), text);
        }
        assert_eq!(texts["bundle/a.txt"], "12345678");
        assert!(texts["bundle/index.json"].contains("you may not"));
        assert!(Archive::create(&path, 10, DateTime::UNIX_EPOCH).is_err(), "nothing is written over");
    }
}
