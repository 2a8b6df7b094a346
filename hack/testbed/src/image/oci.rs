//! One archive for several platforms: an OCI image layout whose index has a manifest for each. `ctr images import` and
//! `skopeo copy --all oci-archive:…` read it; `docker load`, which may know no layouts, finds its own list for one platform.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use serde_json::{Value, json};
use tar::{Builder, EntryType};

use super::{ImageError, ImageSpec, add, append, architecture, digest};

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// What is known by its digest.
#[derive(Default)]
struct Blobs(BTreeMap<String, Vec<u8>>);

impl Blobs {
    /// Keeps a blob and describes it.
    fn add(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = digest(&content);
        let descriptor = json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len()});
        self.0.insert(digest, content);
        descriptor
    }

    fn add_json(&mut self, media_type: &str, content: &Value) -> Value {
        self.add(media_type, content.to_string().into_bytes())
    }
}

/// Writes one image, a variant for each platform, as an archive. Their names, labels and times are those of the first; what
/// says the same is the same, byte for byte.
///
/// # Errors
/// When a file cannot be read, or the archive cannot be written.
pub fn write(variants: &[ImageSpec], archive: &Path) -> Result<(), ImageError> {
    let Some(first) = variants.first() else { return Ok(()) };
    let mut blobs = Blobs::default();
    let mut legacy = Value::Null;
    let mut manifests = Vec::new();
    for variant in variants {
        let manifest = manifest(variant, &mut blobs)?;
        if legacy.is_null() || variant.architecture() == architecture() {
            legacy = for_docker(variant, &manifest);
        }
        manifests.push(described(variant, &manifest, &mut blobs));
    }
    let annotations = annotations(first);
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": annotations});
    let (_, tag) = first.name.rsplit_once(':').unwrap_or((&first.name, "latest"));
    // By the first containerd knows the image, by the second everybody else.
    let names = json!({
        "io.containerd.image.name": format!("docker.io/library/{}", first.name),
        "org.opencontainers.image.ref.name": tag,
    });
    let mut top = blobs.add_json(INDEX, &index);
    add(&mut top, "annotations", Some(names));
    let files = [
        ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        ("index.json", json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [top]})),
        ("manifest.json", json!([legacy])),
    ];
    let failed = |source| ImageError::Write { image: first.name.clone(), path: archive.to_owned(), source };
    let mut builder = Builder::new(BufWriter::new(File::create(archive).map_err(failed)?));
    let blobs = blobs.0.into_iter().map(|(digest, content)| (format!("blobs/sha256/{digest}"), content));
    files
        .into_iter()
        .map(|(path, content)| (path.to_owned(), content.to_string().into_bytes()))
        .chain(blobs)
        .try_for_each(|(path, content)| append(&mut builder, &path, EntryType::Regular, 0o644, &content))
        .and_then(|()| builder.into_inner())
        .and_then(|mut file| file.flush())
        .map_err(failed)
}

fn manifest(image: &ImageSpec, blobs: &mut Blobs) -> Result<Value, ImageError> {
    let layer = image.layer()?;
    let config = image.config(&digest(&layer));
    Ok(json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": blobs.add_json(CONFIG, &config),
        "layers": [blobs.add(LAYER, layer)],
        "annotations": annotations(image),
    }))
}

fn described(image: &ImageSpec, manifest: &Value, blobs: &mut Blobs) -> Value {
    let platform = json!({"os": "linux", "architecture": image.architecture()});
    let mut descriptor = blobs.add_json(MANIFEST, manifest);
    add(&mut descriptor, "platform", Some(platform));
    descriptor
}

fn for_docker(image: &ImageSpec, manifest: &Value) -> Value {
    let file = |descriptor: &Value| {
        let digest = descriptor.get("digest").and_then(Value::as_str).unwrap_or_default();
        digest.replace("sha256:", "blobs/sha256/")
    };
    let layers: Vec<_> = manifest.get("layers").and_then(Value::as_array).into_iter().flatten().map(file).collect();
    json!({"Config": manifest.get("config").map(file), "RepoTags": [image.name], "Layers": layers})
}

/// The labels, for who looks at an image in a registry.
fn annotations(image: &ImageSpec) -> Value {
    json!(image.labels.iter().cloned().collect::<BTreeMap<_, _>>())
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::tests::entries;
    use super::*;

    /// The beginning of a program for a machine, by its number in the format.
    fn program(folder: &Path, name: &str, machine: u8) -> PathBuf {
        let mut content = b"\x7fELF\x02\x01\x01".to_vec();
        content.resize(64, 0);
        content[18] = machine;
        let path = folder.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    fn parse(blobs: &BTreeMap<String, (u32, Vec<u8>)>, descriptor: &Value) -> Value {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        let content = &blobs[&format!("blobs/sha256/{digest}")].1;
        assert_eq!(super::digest(content), digest);
        assert_eq!(descriptor["size"], content.len());
        serde_json::from_slice(content).unwrap()
    }

    #[test]
    fn the_index_leads_to_a_variant_for_each_platform() {
        let folder = tempfile::tempdir().unwrap();
        let variant = |name: &str, machine| {
            let mut spec = ImageSpec::of_program("program:1.2.3", &program(folder.path(), name, machine));
            spec.labels.push(("org.opencontainers.image.version".into(), "1.2.3".into()));
            spec.created = Some("2026-11-22T00:00:00Z".into());
            spec
        };
        let variants = [variant("a", 62), variant("b", 183)];
        let [first, second] = ["first.tar", "second.tar"].map(|name| folder.path().join(name));
        write(&variants, &first).unwrap();
        write(&variants, &second).unwrap();
        assert_eq!(std::fs::read(&first).unwrap(), std::fs::read(&second).unwrap(), "packed twice it is the same");

        let files = entries(File::open(&first).unwrap());
        let layout: Value = serde_json::from_slice(&files["index.json"].1).unwrap();
        assert_eq!(layout["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "1.2.3");
        let legacy: Value = serde_json::from_slice(&files["manifest.json"].1).unwrap();
        assert_eq!(legacy[0]["RepoTags"], json!(["program:1.2.3"]));
        assert!(files.contains_key(legacy[0]["Config"].as_str().unwrap()), "{legacy}");
        let index = parse(&files, &layout["manifests"][0]);
        assert_eq!(index["annotations"]["org.opencontainers.image.version"], "1.2.3");
        let described = index["manifests"].as_array().unwrap();
        assert_eq!(described.len(), 2);
        for (descriptor, architecture) in described.iter().zip(["amd64", "arm64"]) {
            assert_eq!(descriptor["platform"], json!({"os": "linux", "architecture": architecture}));
            let manifest = parse(&files, descriptor);
            let config = parse(&files, &manifest["config"]);
            assert_eq!(config["architecture"], architecture);
            assert_eq!(config["created"], "2026-11-22T00:00:00Z");
            assert_eq!(config["config"]["Labels"]["org.opencontainers.image.version"], "1.2.3");
            assert_eq!(config["rootfs"]["diff_ids"][0], manifest["layers"][0]["digest"]);
        }
    }
}
