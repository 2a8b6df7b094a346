//! The functions of libfuse that the library refers to. It calls them to mount at a folder; a Mountpoint Pod gets a descriptor
//! of a FUSE file system that is mounted already. So the program needs no shared library and no setuid program.

use std::ffi::{c_char, c_int, c_void};

#[unsafe(no_mangle)]
extern "C" fn fuse_mount_compat25(_mount_point: *const c_char, _arguments: *const c_void) -> c_int {
    -1
}

#[unsafe(no_mangle)]
extern "C" fn fuse_unmount_compat22(_mount_point: *const c_char) {}
