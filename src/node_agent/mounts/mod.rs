//! What is left of volumes on a node: from the kernel and the disk, never from memory. `read`, `reader` and `holders` read, in a
//! child process that can be killed; all else is pure.

pub mod holders;
pub mod inventory;
pub mod layout;
pub mod mountinfo;
pub mod process;
pub mod read;
mod reader;
pub mod vol_data;
