//! What an application sees of an error of the array.

use fuser::Errno;

use crate::array::file_protocol::FileError;
use crate::array::io_protocol::IoError;

/// Refused and unreachable are the same for an application: an I/O error, as on a disk.
pub(super) fn of(error: &IoError) -> Errno {
    match error {
        IoError::Refused(_) | IoError::Connection(_) => Errno::EIO,
        IoError::Failed(error) => match error {
            FileError::NotFound => Errno::ENOENT,
            FileError::Exists => Errno::EEXIST,
            FileError::NotAFolder => Errno::ENOTDIR,
            FileError::IsAFolder => Errno::EISDIR,
            FileError::NotEmpty => Errno::ENOTEMPTY,
            FileError::NoSpace => Errno::ENOSPC,
            FileError::Invalid => Errno::EINVAL,
        },
    }
}
