//! A real NFS server: nfs-ganesha of the distribution (Debian's packages `nfs-ganesha` and `nfs-ganesha-vfs`), a server in user
//! space; the machine's kernel has none. Here is what it needs to fail over: its settings, and an image of it for pods, in
//! which clients are too: ours, and `nfs-cat` of libnfs (`libnfs-utils`), which is nobody's here.
//!
//! Its clients notice nothing of a move but the pause if the server in the other place is the same for them: the same
//! exported volume at the same path, with handles that do not depend on the device (`fsid_type`), the same name of the server
//! (`Server_Scope`, `Server_Owner`), and the list of its clients (`RecoveryRoot`) on the volume too, so that they get back
//! what they had open.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::image::{ImageError, ImageFile, ImageSpec};

/// The image of servers and clients. A container of it serves [`EXPORTED`], and remembers its clients in [`RECOVERY`].
pub const IMAGE: &str = "testbed-nfs:latest";
/// The port of the image's server.
pub const PORT: u16 = 2049;
/// What the image's server exports.
pub const EXPORTED: &str = "/export";
/// The folder of what the image's server must remember: it belongs on the volume too.
pub const RECOVERY: &str = "/var/lib/nfs/ganesha";
/// The settings in the image.
const SETTINGS: &str = "/etc/ganesha/ganesha.conf";
/// What clients call the export.
pub const EXPORT: &str = "/data";
const PROGRAM: &str = "/usr/bin/ganesha.nfsd";
/// Prints a file of a server, by libnfs.
pub const READER: &str = "/usr/bin/nfs-cat";
/// Our client in the image.
pub const CLIENT: &str = "/testbed-nfs-client";
/// The part that exports file systems.
const FILE_SYSTEMS: &str = "libfsalvfs.so";
/// The C library opens it by itself when a thread ends.
const UNWINDER: &str = "libgcc_s.so.1";
/// Which transports there are, for its library of remote procedure calls.
const TRANSPORTS: &str = "/etc/netconfig";
/// Where it looks for what is mounted.
const MOUNTS: (&str, &str) = ("/etc/mtab", "/proc/self/mounts");

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum GaneshaError {
    /// It is not installed.
    #[error("there is no {what} on this machine: install the packages nfs-ganesha, nfs-ganesha-vfs and libnfs-utils")]
    Missing {
        /// What was looked for.
        what: String,
    },
    /// Its libraries cannot be listed.
    #[error("cannot list the libraries of {path} with ldd: {source}")]
    Libraries {
        /// The program or library.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The archive of its image.
    #[error(transparent)]
    Image(#[from] ImageError),
}

/// An nfs-ganesha that is installed on this machine.
#[derive(Clone, Debug)]
pub struct Ganesha {
    /// The folder of its parts.
    parts: PathBuf,
}

/// What differs from one server to the next.
#[derive(Clone, Debug)]
pub struct Settings<'a> {
    /// Where it listens.
    pub port: u16,
    /// The folder that is exported.
    pub folder: &'a Path,
    /// The folder with the list of its clients, which moves with what is exported.
    pub recovery: &'a Path,
    /// Seconds that a client may be silent, and has to reclaim what it had open.
    /// Seconds that a client may be silent before what it has open is taken from it.
    pub lease: u32,
    /// Seconds that clients have at most to reclaim what they had open.
    pub grace: u32,
}

impl Ganesha {
    /// The one of this machine.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn find() -> Result<Self, GaneshaError> {
        if let Some(missing) = [PROGRAM, READER, TRANSPORTS].into_iter().find(|path| !Path::new(path).is_file()) {
            return Err(GaneshaError::Missing { what: missing.to_owned() });
        }
        let folders =
            ["/usr/lib", "/usr/lib64"].iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
        let inside = folders.flatten().map(|entry| entry.path()).chain([PathBuf::from("/usr/lib64")]);
        let parts = inside.map(|folder| folder.join("ganesha")).find(|folder| folder.join(FILE_SYSTEMS).is_file());
        parts.map(|parts| Self { parts }).ok_or_else(|| GaneshaError::Missing { what: FILE_SYSTEMS.to_owned() })
    }

    /// Its program.
    pub fn program(&self) -> &'static Path {
        Path::new(PROGRAM)
    }

    /// Its arguments: it stays in the foreground and tells what it does.
    pub fn arguments(&self, settings: &Path, process_id: &Path) -> Vec<String> {
        let text = |path: &Path| path.display().to_string();
        ["-F", "-f", &text(settings), "-L", "STDOUT", "-N", "EVENT", "-p", &text(process_id)]
            .map(str::to_owned)
            .to_vec()
    }

    /// The text of its settings.
    pub fn settings(&self, settings: &Settings<'_>) -> String {
        let Settings { port, folder, recovery, lease, grace } = settings;
        let (folder, recovery, parts) = (folder.display(), recovery.display(), self.parts.display());
        format!(
            r#"NFS_CORE_PARAM {{
    NFS_Port = {port};
    # Version 3 needs a portmapper beside it, and forgets locks without a status monitor.
    Protocols = 4;
    Enable_NLM = false;
    Enable_RQUOTA = false;
    Enable_UDP = false;
    Plugins_Dir = {parts};
}}
NFSv4 {{
    Lease_Lifetime = {lease};
    # It ends before that when every client of before has said that it has all it wants.
    Grace_Period = {grace};
    RecoveryBackend = fs;
    RecoveryRoot = {recovery};
    # Wherever it runs it is the same server: clients reclaim nothing from another one.
    Server_Scope = "bulkhead-testbed";
    Server_Owner = "bulkhead-testbed";
    Only_Numeric_Owners = true;
    UseGetpwnam = true;
}}
NFS_KRB5 {{
    Active_krb5 = false;
}}
EXPORT {{
    Export_Id = 1;
    Path = {folder};
    Pseudo = {EXPORT};
    Access_Type = RW;
    Squash = No_Root_Squash;
    SecType = sys;
    Filesystem_Id = 1.1;
    FSAL {{
        Name = VFS;
        # Handles name the file system by its device without that: another number on every node, of a FUSE file system.
        fsid_type = Major64;
    }}
}}
"#
        )
    }

    /// What the image's server goes by.
    pub fn settings_of_image(&self) -> String {
        let (folder, recovery) = (Path::new(EXPORTED), Path::new(RECOVERY));
        self.settings(&Settings { port: PORT, folder, recovery, lease: 10, grace: 15 })
    }

    /// The image: the server and libnfs' reader with their libraries, as they are on this machine, the server's settings in
    /// this file, and our client.
    ///
    /// # Errors
    /// When the libraries cannot be found.
    pub fn image(&self, settings: &Path, client: &Path) -> Result<ImageSpec, GaneshaError> {
        let mut files = BTreeSet::new();
        for program in [PathBuf::from(PROGRAM), self.parts.join(FILE_SYSTEMS), PathBuf::from(READER)] {
            files.extend(libraries(&program)?);
            files.insert(program);
        }
        let unwinder = files.iter().filter_map(|path| Some(path.parent()?.join(UNWINDER))).find(|path| path.is_file());
        files.extend(unwinder);
        files.insert(PathBuf::from(TRANSPORTS));
        let same = |path: &PathBuf| ImageFile { source: path.clone(), path: path.display().to_string(), mode: 0o755 };
        let client = ImageFile { source: client.to_owned(), path: CLIENT.to_owned(), mode: 0o755 };
        let settings = ImageFile { source: settings.to_owned(), path: SETTINGS.to_owned(), mode: 0o644 };
        let program = self.program().display().to_string();
        let arguments = self.arguments(Path::new(SETTINGS), Path::new("/ganesha.pid"));
        let (mounts, table) = MOUNTS;
        Ok(ImageSpec {
            name: IMAGE.to_owned(),
            files: files.iter().map(same).chain([client, settings]).collect(),
            links: vec![(mounts.to_owned(), table.to_owned())],
            entrypoint: [program].into_iter().chain(arguments).collect(),
            ..ImageSpec::default()
        })
    }
}

/// The libraries that a program or library needs, by the dynamic linker's own word, and the linker.
fn libraries(path: &Path) -> Result<Vec<PathBuf>, GaneshaError> {
    let failed = |source| GaneshaError::Libraries { path: path.to_owned(), source };
    let output = Command::new("ldd").arg(path).output().map_err(failed)?;
    if !output.status.success() {
        return Err(failed(io::Error::other(String::from_utf8_lossy(&output.stderr).trim().to_owned())));
    }
    parse(&String::from_utf8_lossy(&output.stdout)).map_err(|what| GaneshaError::Missing { what })
}

/// What `ldd` prints: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` of the linker itself; the kernel's own library has no path.
fn parse(text: &str) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for line in text.lines() {
        let place = line.split_once("=> ").map_or(line, |(_, place)| place).trim();
        if place == "not found" {
            return Err(line.trim().to_owned());
        }
        let path = place.split(' ').next().unwrap_or_default();
        if path.starts_with('/') {
            paths.push(PathBuf::from(path));
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_what_ldd_prints() {
        let printed = "\tlinux-vdso.so.1 (0x00007f71)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f71)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f71)\n";
        let paths = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(parse(printed), Ok(paths.to_vec()));
        assert_eq!(parse("\tlibx.so => not found\n"), Err("libx.so => not found".to_owned()));
    }
}
