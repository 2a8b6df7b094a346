//! Container images without a container engine: static programs of this machine in one layer, as an archive that
//! `ctr images import` and `docker load` read. Where an image goes is not known here.

pub mod oci;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use bulkhead::api::names::hex;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

/// A file of the image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageFile {
    /// The file on this machine that it is a copy of.
    pub source: PathBuf,
    /// Its absolute path in the image.
    pub path: String,
    /// Its permissions, such as `0o755`. It belongs to root.
    pub mode: u32,
}

/// What an image is made of. Two images of the same files are the same, byte for byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// Name and tag, as in `bulkhead-controller:latest`.
    pub name: String,
    /// The files, all in one layer. Programs must be static: there is nothing else in the image.
    pub files: Vec<ImageFile>,
    /// Symbolic links: their absolute path, and what they point to.
    pub links: Vec<(String, String)>,
    /// What a container runs.
    pub entrypoint: Vec<String>,
    /// The environment of a container: names and values.
    pub environment: Vec<(String, String)>,
    /// As whom, if the pod does not say otherwise; absent: as root.
    pub user: Option<u32>,
    /// Names and values that tell where it comes from, as `org.opencontainers.image.version`.
    pub labels: Vec<(String, String)>,
    /// When, as RFC 3339; absent: it does not say.
    pub created: Option<String>,
}

/// Why an image could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// A file that goes into the image.
    #[error("cannot put {path} into the image {image}: {source}")]
    Source {
        /// The image.
        image: String,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The archive.
    #[error("cannot write the image {image} to {path}: {source}")]
    Write {
        /// The image.
        image: String,
        /// The archive.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A path in the image is not absolute.
    #[error("{path} in the image {image} is not an absolute path: begin it with /")]
    Relative {
        /// The image.
        image: String,
        /// The path.
        path: String,
    },
}

impl ImageSpec {
    /// An image of one program, `/NAME`, which a container runs.
    pub fn of_program(name: &str, program: &Path) -> Self {
        let file_name = program.file_name().unwrap_or_default().to_string_lossy();
        let path = format!("/{file_name}");
        Self {
            name: name.to_owned(),
            files: vec![ImageFile { source: program.to_owned(), path: path.clone(), mode: 0o755 }],
            entrypoint: vec![path],
            ..Self::default()
        }
    }

    /// Writes the image as an archive.
    ///
    /// # Errors
    /// When a file cannot be read, or the archive cannot be written.
    pub fn write(&self, archive: &Path) -> Result<(), ImageError> {
        let write_error = |source| ImageError::Write { image: self.name.clone(), path: archive.to_owned(), source };
        let layer = self.layer()?;
        let diff_id = digest(&layer);
        let config = self.config(&diff_id);
        let config = config.to_string().into_bytes();
        let config_name = format!("{}.json", digest(&config));
        let layer_name = format!("{diff_id}.tar");
        let manifest = json!([{"Config": config_name, "RepoTags": [self.name], "Layers": [layer_name]}]);
        let file = File::create(archive).map_err(write_error)?;
        let mut builder = Builder::new(BufWriter::new(file));
        let manifest = manifest.to_string().into_bytes();
        [(config_name.as_str(), &config), (&layer_name, &layer), ("manifest.json", &manifest)]
            .into_iter()
            .try_for_each(|(name, content)| append(&mut builder, name, EntryType::Regular, 0o644, content))
            .and_then(|()| builder.into_inner())
            .and_then(|mut file| file.flush())
            .map_err(write_error)
    }

    /// What a container runtime is told, with the digest of the layer.
    fn config(&self, diff_id: &str) -> Value {
        let user = self.user.map(|user| user.to_string()).unwrap_or_default();
        let environment: Vec<_> = self.environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let labels: BTreeMap<_, _> = self.labels.iter().cloned().collect();
        let labels = (!labels.is_empty()).then_some(labels);
        let mut settings = json!({"Entrypoint": self.entrypoint, "Env": environment, "User": user, "WorkingDir": "/"});
        add(&mut settings, "Labels", labels.map(|labels| json!(labels)));
        let mut config = json!({
            "architecture": self.architecture(),
            "os": "linux",
            "config": settings,
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{diff_id}")]},
        });
        add(&mut config, "created", self.created.as_ref().map(|created| json!(created)));
        config
    }

    /// That of what it runs; where this is no program, that of this machine.
    fn architecture(&self) -> &'static str {
        let program = self.files.first().and_then(|file| architecture_of(&file.source));
        program.unwrap_or_else(architecture)
    }

    fn layer(&self) -> Result<Vec<u8>, ImageError> {
        let mut builder = Builder::new(Vec::new());
        let mut folders = BTreeSet::new();
        for file in &self.files {
            let failed = |source| ImageError::Source { image: self.name.clone(), path: file.source.clone(), source };
            let path = self.relative(&file.path)?;
            append_parents(&mut builder, path, &mut folders).map_err(failed)?;
            let content = std::fs::read(&file.source).map_err(failed)?;
            append(&mut builder, path, EntryType::Regular, file.mode, &content).map_err(failed)?;
        }
        let in_memory = |source| ImageError::Source { image: self.name.clone(), path: PathBuf::new(), source };
        for (path, target) in &self.links {
            let path = self.relative(path)?;
            append_parents(&mut builder, path, &mut folders).map_err(in_memory)?;
            let mut header = header(EntryType::Symlink, 0o777, 0);
            builder.append_link(&mut header, path, target).map_err(in_memory)?;
        }
        builder.into_inner().map_err(in_memory)
    }

    /// Archives have no leading slash.
    fn relative<'a>(&self, path: &'a str) -> Result<&'a str, ImageError> {
        path.strip_prefix('/')
            .filter(|rest| !rest.is_empty())
            .ok_or_else(|| ImageError::Relative { image: self.name.clone(), path: path.to_owned() })
    }
}

/// One more field of an object, where there is something to say.
fn add(object: &mut Value, field: &str, value: Option<Value>) {
    if let (Some(fields), Some(value)) = (object.as_object_mut(), value) {
        fields.insert(field.to_owned(), value);
    }
}

fn append_parents<W: Write>(builder: &mut Builder<W>, path: &str, known: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    let parents: Vec<&Path> = Path::new(path).ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect();
    for parent in parents.into_iter().rev() {
        if known.insert(parent.to_owned()) {
            append(builder, &format!("{}/", parent.display()), EntryType::Directory, 0o755, &[])?;
        }
    }
    Ok(())
}

fn append<W: Write>(
    builder: &mut Builder<W>,
    path: &str,
    kind: EntryType,
    mode: u32,
    content: &[u8],
) -> io::Result<()> {
    builder.append_data(&mut header(kind, mode, content.len()), path, content)
}

/// Neither times nor owners of this machine, so that images can be compared.
fn header(kind: EntryType, mode: u32, size: usize) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(u64::try_from(size).unwrap_or(u64::MAX));
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// SHA-256 in hexadecimal.
pub fn digest(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    hex(&digest, digest.len())
}

/// The architecture that a program was built for, as container images name it.
pub fn architecture_of(program: &Path) -> Option<&'static str> {
    let mut header = [0; 20];
    File::open(program).and_then(|mut file| file.read_exact(&mut header)).ok()?;
    // Of the Executable and Linkable Format: the magic number, and e_machine.
    match header {
        [0x7f, b'E', b'L', b'F', .., 62, 0] => Some("amd64"),
        [0x7f, b'E', b'L', b'F', .., 183, 0] => Some("arm64"),
        _ => None,
    }
}

/// As container images name it.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn entries(archive: impl Read) -> BTreeMap<String, (u32, Vec<u8>)> {
        let mut archive = tar::Archive::new(archive);
        let entry = |entry: io::Result<tar::Entry<'_, _>>| {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            let path = entry.path().unwrap().display().to_string();
            (path, (entry.header().mode().unwrap(), content))
        };
        archive.entries().unwrap().map(entry).collect()
    }

    #[test]
    fn the_manifest_names_what_is_in_the_archive() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        std::fs::write(&program, "static").unwrap();
        let mut spec = ImageSpec::of_program("program:latest", &program);
        spec.files.push(ImageFile { source: program, path: "/etc/a/settings".into(), mode: 0o600 });
        spec.links.push(("/bin/sh".into(), "/program".into()));
        spec.environment.push(("FOLDER".into(), "/etc/a".into()));
        spec.user = Some(65532);
        let archive = folder.path().join("image.tar");
        spec.write(&archive).unwrap();

        let outer = entries(File::open(&archive).unwrap());
        let manifest: Value = serde_json::from_slice(&outer["manifest.json"].1).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], "program:latest");
        let layer = &outer[manifest[0]["Layers"][0].as_str().unwrap()].1;
        let config: Value = serde_json::from_slice(&outer[manifest[0]["Config"].as_str().unwrap()].1).unwrap();
        assert_eq!(config["config"]["Entrypoint"][0], "/program");
        assert_eq!(config["config"]["Env"][0], "FOLDER=/etc/a");
        assert_eq!(config["config"]["User"], "65532");
        assert_eq!(config["rootfs"]["diff_ids"][0], format!("sha256:{}", digest(layer)));
        let inner = entries(layer.as_slice());
        assert_eq!(inner.keys().collect::<Vec<_>>(), ["bin/", "bin/sh", "etc/", "etc/a/", "etc/a/settings", "program"]);
        assert_eq!(inner["program"], (0o755, b"static".to_vec()));
        assert_eq!(inner["etc/a/settings"].0, 0o600);

        let again = folder.path().join("again.tar");
        spec.write(&again).unwrap();
        assert_eq!(std::fs::read(archive).unwrap(), std::fs::read(again).unwrap());
    }

    #[test]
    fn a_path_in_the_image_is_absolute() {
        let mut spec = ImageSpec::of_program("program:latest", Path::new("/bin/sh"));
        spec.links.push(("bin/sh".into(), "x".into()));
        let error = spec.write(&std::env::temp_dir().join("never-written.tar")).unwrap_err();
        assert!(matches!(error, ImageError::Relative { .. }), "{error}");
    }
}
