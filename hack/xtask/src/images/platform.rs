//! The platforms that images are shipped for, and how programs for them are built: static, and with no path of this machine in
//! them.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::Result;
use crate::programs;
use crate::steps::{Steps, cargo};

/// A platform, as images name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub enum Platform {
    /// x86-64.
    #[value(name = "linux/amd64")]
    Amd64,
    /// 64-bit ARM.
    #[value(name = "linux/arm64")]
    Arm64,
}

impl Platform {
    /// The one that this program runs on.
    pub fn of_this_machine() -> Result<Self> {
        match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => Ok(Self::Amd64),
            ("linux", "aarch64") => Ok(Self::Arm64),
            (os, architecture) => {
                Err(format!("no images are shipped for {os} on {architecture}: say --platform").into())
            }
        }
    }

    /// As Rust names it.
    pub fn triple(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-unknown-linux-gnu",
            Self::Arm64 => "aarch64-unknown-linux-gnu",
        }
    }

    /// The compiler that links for it where it is another than this machine's.
    fn linker(self) -> &'static str {
        match self {
            Self::Amd64 => "x86_64-linux-gnu-gcc",
            Self::Arm64 => "aarch64-linux-gnu-gcc",
        }
    }

    /// The compiler that links for it.
    pub fn compiler(self) -> &'static str {
        if Self::of_this_machine().ok() == Some(self) { "cc" } else { self.linker() }
    }

    /// The architecture, as images and package URLs name it.
    pub fn architecture(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Builds our programs for it, and returns their folder.
    pub fn build(self, root: &Path) -> Result<PathBuf> {
        let triple = self.triple();
        let mut command =
            cargo(&["build", "--locked", "--package", "bulkhead", "--bins", "--release", "--target", triple]);
        // The allocator, in C, holds the time at which it was compiled. Cargo keeps what it compiled across commits, so it is no
        // commit's time.
        command.env("SOURCE_DATE_EPOCH", "0");
        if Self::of_this_machine().ok() != Some(self) {
            self.check_toolchain()?;
            command.args(["--config", &format!("target.{triple}.linker={:?}", self.linker())]);
        }
        let remapped: Vec<_> =
            paths(root)?.iter().map(|(path, to)| format!("\"--remap-path-prefix={path}={to}\"")).collect();
        command.args(["--config", &format!("target.{triple}.rustflags=[{}]", remapped.join(","))]);
        // A folder of its own: with other flags everything is compiled anew.
        let target = programs::target()?.join("shipped");
        command.arg("--target-dir").arg(&target);
        Steps::new(root).run(&mut command, "the programs do not compile: see above")?;
        let folder = target.join(triple).join("release");
        for name in bulkhead_testbed::images::shipped() {
            knows_no_path(&folder.join(name), root)?;
        }
        Ok(folder)
    }

    /// Says what is missing before a build fails over it after minutes.
    fn check_toolchain(self) -> Result<()> {
        let (triple, linker) = (self.triple(), self.linker());
        let printed = Command::new("rustc").args(["--print", "target-libdir", "--target", triple]).output()?;
        if !Path::new(String::from_utf8_lossy(&printed.stdout).trim()).is_dir() {
            return Err(format!("Rust has no library for {triple}: rustup target add {triple}").into());
        }
        if Command::new(linker).arg("--version").output().is_err() {
            let remedy =
                "install the packages gcc-aarch64-linux-gnu and libc6-dev-arm64-cross, or their like for amd64";
            return Err(format!("no {linker} to link for {triple} with: {remedy}").into());
        }
        Ok(())
    }
}

/// Folders of this machine that the compiler would name in messages of panics, and what it says in their place.
fn paths(root: &Path) -> Result<[(String, &'static str); 2]> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")));
    let home = home.ok_or("neither CARGO_HOME nor HOME is set: set one")?;
    Ok([(root.display().to_string(), "/bulkhead"), (home.display().to_string(), "/cargo")])
}

/// A path of this machine in a program would make it another one elsewhere.
fn knows_no_path(program: &Path, root: &Path) -> Result<()> {
    let content = std::fs::read(program)?;
    for (path, _) in paths(root)? {
        let needle = format!("{path}/");
        if content.windows(needle.len()).any(|window| window == needle.as_bytes()) {
            return Err(
                format!("{} holds the path {path}: it is another one wherever it is built", program.display()).into()
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_names_this_machine_is_refused() {
        let (folder, root) = (tempfile::tempdir().unwrap(), Path::new("/somewhere/bulkhead"));
        let program = folder.path().join("program");
        std::fs::write(&program, "panicked at /bulkhead/src/main.rs").unwrap();
        knows_no_path(&program, root).unwrap();
        std::fs::write(&program, "panicked at /somewhere/bulkhead/src/main.rs").unwrap();
        assert!(knows_no_path(&program, root).unwrap_err().to_string().contains("/somewhere/bulkhead"));
    }
}
