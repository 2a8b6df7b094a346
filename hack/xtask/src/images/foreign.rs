//! What is in an image and is no crate, so that cargo does not know it: the C library that the programs are linked with, and the
//! authorities that some of them trust. As components of a bill of materials.

use std::path::Path;
use std::process::Command;

use bulkhead_testbed::image::digest;
use serde_json::{Value, json};

use super::platform::Platform;
use crate::Result;

/// The C library that programs for this platform are linked with: that of the compiler that links them.
pub fn c_library(platform: Platform) -> Result<Value> {
    let macros = said(platform, &["-dM", "-E", "-include", "features.h", "-x", "c", "/dev/null"])?;
    let version = glibc(&macros).ok_or_else(|| format!("{} does not say its glibc", platform.compiler()))?;
    let archive = said(platform, &["-print-file-name=libc.a"])?;
    let archive = Path::new(archive.trim());
    let content = std::fs::read(archive).map_err(|error| {
        format!("{}: {error}; it is what programs are linked with: install libc6-dev, or its like", archive.display())
    })?;
    let reference = format!("pkg:generic/glibc@{version}?arch={}", platform.architecture());
    Ok(json!({
        "type": "library", "bom-ref": reference, "purl": reference, "name": "glibc", "version": version,
        "description": format!("libc.a, linked statically for linux/{}", platform.architecture()),
        "licenses": [{"expression": "LGPL-2.1-or-later"}],
        "hashes": [{"alg": "SHA-256", "content": digest(&content)}],
    }))
}

/// The file of authorities. It has no version: who has the same file has the same digest.
pub fn authorities(file: &Path) -> Result<Value> {
    let content = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
    let content = digest(&content);
    Ok(json!({
        "type": "file", "bom-ref": format!("ca-certificates:{content}"), "name": "ca-certificates",
        "description": "certificate authorities that the machine trusts which built the image",
        "hashes": [{"alg": "SHA-256", "content": content}],
    }))
}

fn said(platform: Platform, arguments: &[&str]) -> Result<String> {
    let compiler = platform.compiler();
    let output = Command::new(compiler).args(arguments).output();
    let output = output.map_err(|error| format!("{compiler}: {error}; it links the programs: install it"))?;
    if !output.status.success() {
        return Err(format!("{compiler} failed: {}", String::from_utf8_lossy(&output.stderr).trim()).into());
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The release, out of the macros that a compiler defines.
fn glibc(macros: &str) -> Option<String> {
    let value = |name: &str| macros.lines().find_map(|line| line.strip_prefix(&format!("#define {name} ")));
    Some(format!("{}.{}", value("__GLIBC__")?.trim(), value("__GLIBC_MINOR__")?.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_read_from_macros() {
        let macros = "#define __GLIBC_PREREQ(maj,min) 1\n#define __GLIBC__ 2\n#define __GLIBC_MINOR__ 36\n";
        assert_eq!(glibc(macros).as_deref(), Some("2.36"));
        assert_eq!(glibc("#define __linux__ 1\n"), None);
    }

    #[test]
    fn the_c_library_is_the_one_that_is_linked() {
        let component = c_library(Platform::of_this_machine().unwrap()).unwrap();
        assert_eq!(
            (&component["name"], &component["licenses"][0]["expression"]),
            (&json!("glibc"), &json!("LGPL-2.1-or-later"))
        );
        assert!(component["version"].as_str().unwrap().starts_with("2."), "{component}");
        assert_eq!(component["hashes"][0]["content"].as_str().unwrap().len(), 64);
    }

    #[test]
    fn authorities_are_known_by_their_digest() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.crt");
        std::fs::write(&file, "one").unwrap();
        let one = authorities(&file).unwrap();
        std::fs::write(&file, "other").unwrap();
        assert_ne!(one["hashes"], authorities(&file).unwrap()["hashes"]);
        assert!(authorities(&folder.path().join("none")).unwrap_err().to_string().contains("none"));
    }
}
