//! What a node asks of the files of a volume, and what the array answers. The bytes themselves travel beside these
//! messages: see [`io_protocol`](super::io_protocol).

use serde::{Deserialize, Serialize};

/// The inode of a volume's root folder.
pub const ROOT: u64 = 1;

/// One operation on the files of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "operation", rename_all = "camelCase")]
pub enum FileOperation {
    /// Finds a name in a folder.
    Lookup {
        /// The folder.
        parent: u64,
        /// The name; `.` for the file or folder itself, `..` for the folder that a folder is in.
        name: String,
    },
    /// Reads the attributes.
    GetAttributes {
        /// Of this file or folder.
        inode: u64,
    },
    /// Changes those attributes that are given.
    SetAttributes {
        /// Of this file or folder.
        inode: u64,
        /// What to change.
        change: AttributeChange,
    },
    /// Creates a file or a folder. A file that exists is opened unless `exclusive`.
    Create {
        /// The folder it is created in.
        parent: u64,
        /// Its name.
        name: String,
        /// A folder, not a file.
        folder: bool,
        /// The permission bits.
        mode: u32,
        /// The owner.
        uid: u32,
        /// The group.
        gid: u32,
        /// An error if the name exists.
        exclusive: bool,
    },
    /// Removes a file, at once: who has it open gets errors from then on.
    Unlink {
        /// The folder it is in.
        parent: u64,
        /// Its name.
        name: String,
    },
    /// Removes an empty folder.
    RemoveFolder {
        /// The folder it is in.
        parent: u64,
        /// Its name.
        name: String,
    },
    /// Gives a file or folder another name, replacing what has that name.
    Rename {
        /// The folder it is in.
        parent: u64,
        /// Its name.
        name: String,
        /// The folder it shall be in.
        new_parent: u64,
        /// The name it shall have.
        new_name: String,
        /// An error if the new name exists.
        no_replace: bool,
    },
    /// Lists a folder.
    List {
        /// The folder.
        inode: u64,
    },
    /// Reads bytes; fewer at the end of the file.
    Read {
        /// The file.
        inode: u64,
        /// From here.
        offset: u64,
        /// At most so many.
        length: u32,
    },
    /// Writes the bytes that come with it.
    Write {
        /// The file.
        inode: u64,
        /// From here.
        offset: u64,
    },
    /// Answers when everything written is safe, which it always is.
    Sync,
    /// Asks how much room there is.
    Space,
}

impl FileOperation {
    /// It changes the volume: it needs write access and is in the ledger.
    pub fn changes(&self) -> bool {
        match self {
            Self::Lookup { .. }
            | Self::GetAttributes { .. }
            | Self::List { .. }
            | Self::Read { .. }
            | Self::Sync
            | Self::Space => false,
            Self::SetAttributes { .. }
            | Self::Create { .. }
            | Self::Unlink { .. }
            | Self::RemoveFolder { .. }
            | Self::Rename { .. }
            | Self::Write { .. } => true,
        }
    }
}

/// The attributes that shall change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in setattr")]
pub struct AttributeChange {
    pub size: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Nanoseconds since 1970.
    pub modified: Option<u64>,
}

/// The attributes of a file or folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in stat")]
pub struct Attributes {
    pub inode: u64,
    pub folder: bool,
    pub size: u64,
    /// Bytes that take up room on the array.
    pub allocated: u64,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Nanoseconds since 1970.
    pub modified: u64,
}

/// One name in a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "named as in readdir")]
pub struct Name {
    pub name: String,
    pub inode: u64,
    pub folder: bool,
}

/// What an operation gave. Bytes that were read come beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "camelCase")]
pub enum FileAnswer {
    /// To `Unlink`, `RemoveFolder`, `Rename`, `Read`, `Write`, `Sync`.
    Done,
    /// To `Lookup`, `GetAttributes`, `SetAttributes`, `Create`.
    Attributes {
        /// The attributes as they are now.
        attributes: Attributes,
    },
    /// To `List`.
    Names {
        /// In the order of the names.
        names: Vec<Name>,
    },
    /// To `Space`.
    Space {
        /// The size of the volume in bytes.
        total: u64,
        /// How many of them are in use.
        used: u64,
    },
}

/// Why an operation on files that was admitted was not carried out. Each is the errno of its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "camelCase")]
#[expect(missing_docs, reason = "the error texts say it")]
pub enum FileError {
    #[error("no such file or folder")]
    NotFound,
    #[error("the name exists")]
    Exists,
    #[error("not a folder")]
    NotAFolder,
    #[error("a folder")]
    IsAFolder,
    #[error("the folder is not empty")]
    NotEmpty,
    #[error("the volume is full")]
    NoSpace,
    #[error("not a valid name, offset or length")]
    Invalid,
}
