//! The files of one volume: folders, names and bytes, in memory and bounded. Who may touch them is not decided here.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use super::file_protocol::{AttributeChange, Attributes, FileAnswer, FileError, FileOperation, Name, ROOT};

/// Bytes are kept in pieces of this size, so that a file with holes takes little room.
const BLOCK: usize = 4096;
/// The size in bytes of a volume that was created without one.
const DEFAULT_CAPACITY: u64 = 1 << 30;
/// However large a volume is, it takes no more memory than this, in bytes.
const MEMORY_MAX: u64 = 256 << 20;
/// The most files and folders of one volume.
const INODES_MAX: usize = 4096;
/// The most bytes of one name, as everywhere on Linux.
const NAME_MAX: usize = 255;
/// The most bytes that one read gives.
const READ_MAX: u32 = 1 << 20;

type Result<T> = std::result::Result<T, FileError>;

/// All files of a volume.
#[derive(Debug)]
pub(super) struct Files {
    inodes: BTreeMap<u64, Inode>,
    next: u64,
    capacity: u64,
}

#[derive(Debug)]
struct Inode {
    content: Content,
    mode: u32,
    uid: u32,
    gid: u32,
    modified: u64,
}

#[derive(Debug)]
enum Content {
    Folder(BTreeMap<String, u64>),
    File(Bytes),
}

impl Files {
    /// An empty root folder. `capacity` is in bytes; 0 or less for the default.
    pub fn new(capacity: i64) -> Self {
        let capacity = u64::try_from(capacity).ok().filter(|capacity| *capacity > 0).unwrap_or(DEFAULT_CAPACITY);
        // Everybody may write to a fresh volume: a container need not be root.
        let root = Inode { content: Content::Folder(BTreeMap::new()), mode: 0o777, uid: 0, gid: 0, modified: now() };
        Files { inodes: BTreeMap::from([(ROOT, root)]), next: ROOT + 1, capacity }
    }

    /// Carries out one operation. Bytes go in with a write and come out of a read.
    pub fn carry_out(&mut self, operation: &FileOperation, data: &[u8]) -> Result<(FileAnswer, Vec<u8>)> {
        let answer = match operation {
            FileOperation::Lookup { parent, name } => self.answer(self.find(*parent, name)?)?,
            FileOperation::GetAttributes { inode } => self.answer(*inode)?,
            FileOperation::SetAttributes { inode, change } => {
                self.set_attributes(*inode, change)?;
                self.answer(*inode)?
            }
            FileOperation::Create { parent, name, folder, mode, uid, gid, exclusive } => {
                let made = Inode::new(*folder, *mode, *uid, *gid);
                let inode = self.create(*parent, name, made, *exclusive)?;
                self.answer(inode)?
            }
            FileOperation::Unlink { parent, name } => self.remove(*parent, name, false)?,
            FileOperation::RemoveFolder { parent, name } => self.remove(*parent, name, true)?,
            FileOperation::Rename { parent, name, new_parent, new_name, no_replace } => {
                self.rename((*parent, name), (*new_parent, new_name), *no_replace)?
            }
            FileOperation::List { inode } => self.list(*inode)?,
            FileOperation::Read { inode, offset, length } => {
                let bytes = self.file(*inode)?.read(*offset, (*length).min(READ_MAX));
                return Ok((FileAnswer::Done, bytes));
            }
            FileOperation::Write { inode, offset } => self.write(*inode, *offset, data)?,
            FileOperation::Sync => FileAnswer::Done,
            FileOperation::Space => FileAnswer::Space { total: self.capacity, used: self.used() },
        };
        Ok((answer, Vec::new()))
    }

    fn inode(&self, inode: u64) -> Result<&Inode> {
        self.inodes.get(&inode).ok_or(FileError::NotFound)
    }

    fn inode_mut(&mut self, inode: u64) -> Result<&mut Inode> {
        self.inodes.get_mut(&inode).ok_or(FileError::NotFound)
    }

    fn folder(&self, inode: u64) -> Result<&BTreeMap<String, u64>> {
        match &self.inode(inode)?.content {
            Content::Folder(names) => Ok(names),
            Content::File(_) => Err(FileError::NotAFolder),
        }
    }

    fn folder_mut(&mut self, inode: u64) -> Result<&mut BTreeMap<String, u64>> {
        let folder = self.inode_mut(inode)?;
        folder.modified = now();
        match &mut folder.content {
            Content::Folder(names) => Ok(names),
            Content::File(_) => Err(FileError::NotAFolder),
        }
    }

    fn file(&self, inode: u64) -> Result<&Bytes> {
        match &self.inode(inode)?.content {
            Content::File(bytes) => Ok(bytes),
            Content::Folder(_) => Err(FileError::IsAFolder),
        }
    }

    fn lookup(&self, parent: u64, name: &str) -> Result<u64> {
        self.folder(parent)?.get(name).copied().ok_or(FileError::NotFound)
    }

    /// As [`Files::lookup`]; `.` is the file itself, also one that is no folder, and `..` the folder that a folder is in.
    fn find(&self, parent: u64, name: &str) -> Result<u64> {
        match name {
            "." => self.inode(parent).map(|_| parent),
            ".." if parent == ROOT => Ok(ROOT),
            ".." => self.folder_of(parent),
            name => self.lookup(parent, name),
        }
    }

    fn folder_of(&self, inode: u64) -> Result<u64> {
        let holds = |content: &Content| match content {
            Content::Folder(names) => names.values().any(|there| *there == inode),
            Content::File(_) => false,
        };
        let found = self.inodes.iter().find(|(_, folder)| holds(&folder.content));
        found.map(|(folder, _)| *folder).ok_or(FileError::NotFound)
    }

    fn answer(&self, inode: u64) -> Result<FileAnswer> {
        let there = self.inode(inode)?;
        let (folder, size, allocated) = match &there.content {
            Content::Folder(_) => (true, 0, 0),
            Content::File(bytes) => (false, bytes.size, bytes.allocated()),
        };
        let Inode { mode, uid, gid, modified, .. } = *there;
        Ok(FileAnswer::Attributes {
            attributes: Attributes { inode, folder, size, allocated, mode, uid, gid, modified },
        })
    }

    fn set_attributes(&mut self, inode: u64, change: &AttributeChange) -> Result<()> {
        let capacity = self.capacity;
        let there = self.inode_mut(inode)?;
        if let Some(size) = change.size {
            if size > capacity {
                return Err(FileError::NoSpace);
            }
            match &mut there.content {
                Content::File(bytes) => bytes.truncate(size),
                Content::Folder(_) => return Err(FileError::IsAFolder),
            }
            there.modified = now();
        }
        there.mode = change.mode.map_or(there.mode, |mode| mode & 0o7777);
        there.uid = change.uid.unwrap_or(there.uid);
        there.gid = change.gid.unwrap_or(there.gid);
        there.modified = change.modified.unwrap_or(there.modified);
        Ok(())
    }

    fn create(&mut self, parent: u64, name: &str, made: Inode, exclusive: bool) -> Result<u64> {
        valid(name)?;
        match self.lookup(parent, name) {
            Ok(there) if !exclusive && made.is_file() && self.inode(there)?.is_file() => return Ok(there),
            Ok(_) => return Err(FileError::Exists),
            Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
        if self.inodes.len() >= INODES_MAX {
            return Err(FileError::NoSpace);
        }
        let inode = self.next;
        self.folder_mut(parent)?.insert(name.to_owned(), inode);
        self.next += 1;
        self.inodes.insert(inode, made);
        Ok(inode)
    }

    fn remove(&mut self, parent: u64, name: &str, folder: bool) -> Result<FileAnswer> {
        let inode = self.lookup(parent, name)?;
        match (&self.inode(inode)?.content, folder) {
            (Content::Folder(_), false) => return Err(FileError::IsAFolder),
            (Content::File(_), true) => return Err(FileError::NotAFolder),
            (Content::Folder(names), true) if !names.is_empty() => return Err(FileError::NotEmpty),
            _ => {}
        }
        self.folder_mut(parent)?.remove(name);
        self.inodes.remove(&inode);
        Ok(FileAnswer::Done)
    }

    fn rename(&mut self, from: (u64, &str), to: (u64, &str), no_replace: bool) -> Result<FileAnswer> {
        valid(to.1)?;
        let inode = self.lookup(from.0, from.1)?;
        match self.lookup(to.0, to.1) {
            Ok(_) if no_replace => return Err(FileError::Exists),
            Ok(there) if there == inode => return Ok(FileAnswer::Done),
            Ok(_) => {
                let folder = !self.inode(inode)?.is_file();
                self.remove(to.0, to.1, folder)?;
            }
            Err(FileError::NotFound) => {}
            Err(error) => return Err(error),
        }
        self.folder_mut(to.0)?.insert(to.1.to_owned(), inode);
        self.folder_mut(from.0)?.remove(from.1);
        Ok(FileAnswer::Done)
    }

    fn list(&self, inode: u64) -> Result<FileAnswer> {
        let names = self.folder(inode)?.iter().map(|(name, inode)| Name {
            name: name.clone(),
            inode: *inode,
            folder: self.inodes.get(inode).is_some_and(|there| !there.is_file()),
        });
        Ok(FileAnswer::Names { names: names.collect() })
    }

    fn write(&mut self, inode: u64, offset: u64, data: &[u8]) -> Result<FileAnswer> {
        let length = u64::try_from(data.len()).map_err(|_| FileError::Invalid)?;
        let end = offset.checked_add(length).ok_or(FileError::Invalid)?;
        let room = self.capacity.min(MEMORY_MAX).saturating_sub(self.used());
        // At most so much of it is new: the blocks that are there already count, too.
        let needed = self.file(inode)?.missing(offset, end);
        if end > self.capacity || needed > room {
            return Err(FileError::NoSpace);
        }
        let there = self.inode_mut(inode)?;
        there.modified = now();
        if let Content::File(bytes) = &mut there.content {
            bytes.write(offset, data);
        }
        Ok(FileAnswer::Done)
    }

    fn used(&self) -> u64 {
        let files = self.inodes.values().map(|inode| match &inode.content {
            Content::File(bytes) => bytes.allocated(),
            Content::Folder(_) => 0,
        });
        files.sum()
    }
}

impl Inode {
    fn new(folder: bool, mode: u32, uid: u32, gid: u32) -> Self {
        let content = if folder { Content::Folder(BTreeMap::new()) } else { Content::File(Bytes::default()) };
        Inode { content, mode: mode & 0o7777, uid, gid, modified: now() }
    }

    fn is_file(&self) -> bool {
        matches!(self.content, Content::File(_))
    }
}

/// The bytes of a file; what was never written is zero and takes no room.
#[derive(Debug, Default)]
struct Bytes {
    size: u64,
    blocks: BTreeMap<u64, Box<[u8]>>,
}

impl Bytes {
    fn allocated(&self) -> u64 {
        (self.blocks.len() as u64).saturating_mul(BLOCK as u64)
    }

    /// How many bytes a write of this range would take up anew.
    fn missing(&self, start: u64, end: u64) -> u64 {
        let (first, past) = (start / BLOCK as u64, end.div_ceil(BLOCK as u64));
        let there = if first < past { self.blocks.range(first..past).count() as u64 } else { 0 };
        past.saturating_sub(first).saturating_sub(there).saturating_mul(BLOCK as u64)
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        let (mut at, mut rest) = (offset, data);
        while !rest.is_empty() {
            let start = within(at);
            let (now, later) = rest.split_at(rest.len().min(BLOCK - start));
            let block = self.blocks.entry(at / BLOCK as u64).or_insert_with(|| vec![0; BLOCK].into());
            if let Some(place) = block.get_mut(start..start + now.len()) {
                place.copy_from_slice(now);
            }
            at += now.len() as u64;
            rest = later;
        }
        self.size = self.size.max(at);
    }

    fn read(&self, offset: u64, length: u32) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(length.into()));
        let mut data = Vec::new();
        let mut at = offset;
        while at < end {
            let start = within(at);
            let take = usize::try_from(end - at).unwrap_or(BLOCK).min(BLOCK - start);
            match self.blocks.get(&(at / BLOCK as u64)).and_then(|block| block.get(start..start + take)) {
                Some(bytes) => data.extend_from_slice(bytes),
                None => data.resize(data.len() + take, 0),
            }
            at += take as u64;
        }
        data
    }

    fn truncate(&mut self, size: u64) {
        if size < self.size {
            self.blocks.split_off(&size.div_ceil(BLOCK as u64));
            let tail = self.blocks.get_mut(&(size / BLOCK as u64)).and_then(|block| block.get_mut(within(size)..));
            if let Some(tail) = tail {
                tail.fill(0);
            }
        }
        self.size = size;
    }
}

/// Where in its block a byte is.
fn within(offset: u64) -> usize {
    usize::try_from(offset % BLOCK as u64).unwrap_or(0)
}

fn valid(name: &str) -> Result<()> {
    let valid = !name.is_empty() && name.len() <= NAME_MAX && name != "." && name != ".." && !name.contains('/');
    valid.then_some(()).ok_or(FileError::Invalid)
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
