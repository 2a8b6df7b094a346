//! `xtask generate`: everything in the tree that is made from something else in the tree.

use std::path::Path;

use crate::Result;

/// Compiles the vendored `.proto` files to `src/csi/generated`, without protoc.
pub fn protos(root: &Path) -> Result<()> {
    let include = root.join("src/csi/proto");
    let out = root.join("src/csi/generated");
    let descriptors = protox::compile(["csi.proto", "podmon.proto"], [&include])?;
    tonic_prost_build::configure()
        .out_dir(&out)
        // A service implements the calls it has; the others answer Unimplemented.
        .generate_default_stubs(true)
        // Debug output of a request must never print its secrets.
        .skip_debug(["csi.v1.ControllerPublishVolumeRequest", "csi.v1.ControllerUnpublishVolumeRequest"])
        .compile_fds(descriptors)?;
    Ok(())
}
