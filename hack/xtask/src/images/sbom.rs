//! What is in an image, as a CycloneDX document: the crates that cargo links into our programs, for any of the platforms, and what
//! is no crate (`foreign`). All programs are of one package without features, so each has the crates of all; none has what only
//! builds or tests.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use bulkhead_testbed::image::digest;
use bulkhead_testbed::images;
use serde_json::{Value, json};

use super::foreign;
use super::origin::Origin;
use super::platform::Platform;
use crate::Result;
use crate::steps::cargo;

/// The package whose programs are shipped.
const PACKAGE: &str = "bulkhead";

/// A crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Material {
    name: String,
    version: String,
    license: Option<String>,
    repository: Option<String>,
    checksum: Option<String>,
    /// The references of what it uses.
    uses: BTreeSet<String>,
}

/// What images are made of.
pub struct Materials {
    /// By their reference.
    crates: BTreeMap<String, Material>,
    /// One for each platform.
    c_libraries: Vec<Value>,
    root: String,
    /// The release of the standard library.
    std: String,
}

impl Materials {
    /// Those of the tree at `root`, linked with these C libraries.
    pub fn of(root: &Path, platforms: &[Platform], c_libraries: Vec<Value>) -> Result<Self> {
        let lock = checksums(&std::fs::read_to_string(root.join("Cargo.lock"))?);
        let mut crates = BTreeMap::new();
        for platform in platforms {
            let mut command =
                cargo(&["metadata", "--format-version=1", "--locked", "--filter-platform", platform.triple()]);
            let output = command.current_dir(root).output()?;
            if !output.status.success() {
                return Err(format!("cargo metadata failed: {}", String::from_utf8_lossy(&output.stderr)).into());
            }
            for (reference, found) in linked(&serde_json::from_slice(&output.stdout)?, &lock)? {
                crates
                    .entry(reference)
                    .or_insert_with(|| Material { uses: BTreeSet::new(), ..found.clone() })
                    .uses
                    .extend(found.uses);
            }
        }
        let rustc = std::process::Command::new("rustc").arg("--version").output()?;
        let rustc = String::from_utf8_lossy(&rustc.stdout).into_owned();
        let std = rustc.split_whitespace().nth(1).ok_or("rustc --version does not say its version")?.to_owned();
        let root = crates.keys().find(|it| it.starts_with(&format!("pkg:cargo/{PACKAGE}@"))).cloned();
        Ok(Self { crates, c_libraries, root: root.ok_or("the package bulkhead is not in the workspace")?, std })
    }

    /// The document of an image.
    pub fn document(&self, image: &str, origin: &Origin) -> Result<Value> {
        let reference = format!("pkg:oci/{image}@{}", origin.version);
        let std = format!("pkg:generic/rust-std@{}", self.std);
        let mut components: Vec<_> = self.crates.iter().map(|(reference, it)| component(reference, it)).collect();
        components
            .push(json!({"type": "library", "bom-ref": std, "purl": std, "name": "rust-std", "version": self.std,
            "licenses": [{"expression": "MIT OR Apache-2.0"}]}));
        components.extend(self.c_libraries.iter().cloned());
        let authorities = images::authorities_of(image).map(|file| foreign::authorities(&file)).transpose()?;
        components.extend(authorities.iter().cloned());
        let c_libraries: Vec<_> = self.c_libraries.iter().map(named).collect();
        let holds: Vec<_> = std::iter::once(self.root.clone()).chain(authorities.iter().map(named)).collect();
        let mut dependencies = vec![json!({"ref": reference, "dependsOn": holds})];
        let leaves = c_libraries.iter().cloned().chain(authorities.iter().map(named)).chain([std.clone()]);
        dependencies.extend(leaves.map(|leaf| json!({"ref": leaf, "dependsOn": []})));
        for (reference, it) in &self.crates {
            let linked = std::iter::once(&std).chain(&c_libraries).filter(|_| *reference == self.root);
            let uses: Vec<_> = it.uses.iter().chain(linked).collect();
            dependencies.push(json!({"ref": reference, "dependsOn": uses}));
        }
        let mut document = json!({
            "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
            "bomFormat": "CycloneDX",
            "specVersion": "1.6",
            "version": 1,
            "metadata": {
                "timestamp": origin.created,
                "component": {
                    "type": "container", "bom-ref": reference, "name": image, "version": origin.version,
                    "licenses": [{"expression": "Apache-2.0"}],
                    "properties": [{"name": "dev.bulkhead:revision", "value": origin.revision}],
                },
            },
            "components": components,
            "dependencies": dependencies,
        });
        let serial = serial(&document.to_string());
        if let Some(fields) = document.as_object_mut() {
            fields.insert("serialNumber".to_owned(), serial.into());
        }
        Ok(document)
    }
}

/// The reference of a component.
fn named(component: &Value) -> String {
    component.get("bom-ref").and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn component(reference: &str, it: &Material) -> Value {
    let mut component =
        json!({"type": "library", "bom-ref": reference, "purl": reference, "name": it.name, "version": it.version});
    let optional = [
        ("licenses", it.license.as_ref().map(|license| json!([{"expression": license}]))),
        ("hashes", it.checksum.as_ref().map(|checksum| json!([{"alg": "SHA-256", "content": checksum}]))),
        ("externalReferences", it.repository.as_ref().map(|url| json!([{"type": "vcs", "url": url}]))),
    ];
    if let Some(fields) = component.as_object_mut() {
        fields.extend(optional.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    }
    component
}

/// What the package's programs are linked from, by reference, out of what `cargo metadata` prints.
fn linked(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<BTreeMap<String, Material>> {
    let text = |value: &Value, field: &str| value.get(field).and_then(Value::as_str).map(str::to_owned);
    let list = |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
    let packages: BTreeMap<_, _> =
        list(metadata.get("packages")).into_iter().filter_map(|it| Some((text(&it, "id")?, it))).collect();
    let nodes: BTreeMap<_, _> =
        list(metadata.pointer("/resolve/nodes")).into_iter().filter_map(|it| Some((text(&it, "id")?, it))).collect();
    let is_ours =
        |package: &Value| text(package, "name").as_deref() == Some(PACKAGE) && text(package, "source").is_none();
    let root = packages.iter().find(|(_, package)| is_ours(package)).map(|(id, _)| id.clone());
    let mut open = vec![root.ok_or("the package bulkhead is not in the workspace")?];
    let (mut known, mut found) = (BTreeSet::new(), BTreeMap::new());
    while let Some(id) = open.pop() {
        if !known.insert(id.clone()) {
            continue;
        }
        let Some(package) = packages.get(&id) else { continue };
        let used: Vec<_> =
            list(nodes.get(&id).and_then(|node| node.get("deps"))).into_iter().filter(is_linked).collect();
        let used: Vec<_> =
            used.iter().filter_map(|it| text(it, "pkg")).filter(|id| !is_macro(packages.get(id))).collect();
        let name =
            |package: &Value| (text(package, "name").unwrap_or_default(), text(package, "version").unwrap_or_default());
        let material = Material {
            uses: used.iter().filter_map(|id| packages.get(id)).map(|it| reference(&name(it))).collect(),
            license: text(package, "license").map(|license| expression(&license)),
            repository: text(package, "repository"),
            checksum: checksums.get(&name(package)).cloned(),
            name: name(package).0,
            version: name(package).1,
        };
        found.insert(reference(&name(package)), material);
        open.extend(used);
    }
    Ok(found)
}

/// Crates of old have a slash for OR.
fn expression(license: &str) -> String {
    license.split('/').map(str::trim).collect::<Vec<_>>().join(" OR ")
}

fn reference((name, version): &(String, String)) -> String {
    format!("pkg:cargo/{name}@{version}")
}

/// Not for tests alone, nor for a build script.
fn is_linked(dependency: &Value) -> bool {
    let kinds = dependency.get("dep_kinds").and_then(Value::as_array);
    kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind.get("kind").is_some_and(Value::is_null)))
}

/// It runs in the compiler.
fn is_macro(package: Option<&Value>) -> bool {
    let targets = package.and_then(|package| package.get("targets")).and_then(Value::as_array);
    let is_macro = |target: &Value| {
        target.get("kind").and_then(Value::as_array).is_some_and(|it| it.contains(&json!("proc-macro")))
    };
    targets.is_some_and(|targets| targets.iter().any(is_macro))
}

/// What `Cargo.lock` says of each crate that a registry has, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |package: &str, key: &str| {
        let line = package.lines().find_map(|line| line.strip_prefix(&format!("{key} = \"")));
        line.and_then(|rest| rest.strip_suffix('"')).map(str::to_owned)
    };
    let package = |text: &str| Some(((value(text, "name")?, value(text, "version")?), value(text, "checksum")?));
    lock.split("[[package]]").filter_map(package).collect()
}

/// A UUID (version 8, RFC 9562) that is the same for the same content.
fn serial(content: &str) -> String {
    let mut hex = digest(content.as_bytes());
    hex.truncate(32);
    hex.replace_range(12..13, "8");
    hex.replace_range(16..17, "8");
    let parts: Vec<_> = [0..8, 8..12, 12..16, 16..20, 20..32].into_iter().filter_map(|range| hex.get(range)).collect();
    format!("urn:uuid:{}", parts.join("-"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn materials() -> Materials {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        // The compiler of another platform need not be here.
        let c_library = foreign::c_library(Platform::of_this_machine().unwrap()).unwrap();
        Materials::of(&root, &[Platform::Amd64, Platform::Arm64], vec![c_library]).unwrap()
    }

    fn origin() -> Origin {
        Origin { version: "1.2.3", revision: "0123abcd".into(), created: "2026-11-22T00:00:00Z".into() }
    }

    #[test]
    fn every_linked_crate_is_there_with_its_license_and_its_checksum() {
        let materials = materials();
        let names: BTreeSet<_> = materials.crates.values().map(|it| it.name.as_str()).collect();
        assert!(names.is_superset(&["bulkhead", "kube", "rustls", "tokio"].into()), "{names:?}");
        // A derive macro, and what only tests use.
        for not_linked in ["serde_derive", "proptest", "bulkhead-testbed", "stateright"] {
            assert!(!names.contains(not_linked), "{not_linked}");
        }
        for it in materials.crates.values().filter(|it| it.name != PACKAGE) {
            assert!(it.license.is_some() && it.checksum.is_some(), "{it:?}");
        }
        let references: BTreeSet<_> = materials.crates.keys().collect();
        assert!(materials.crates.values().flat_map(|it| &it.uses).all(|used| references.contains(used)));
    }

    #[test]
    fn licenses_are_expressions() {
        assert_eq!(expression("Apache-2.0 / MIT"), "Apache-2.0 OR MIT");
        assert_eq!(expression("(MIT OR Zlib) AND ISC"), "(MIT OR Zlib) AND ISC");
    }

    #[test]
    fn the_document_is_the_same_each_time_and_names_the_image() {
        let document = materials().document("bulkhead-controller", &origin()).unwrap();
        assert_eq!(document, materials().document("bulkhead-controller", &origin()).unwrap());
        let serial = document["serialNumber"].as_str().unwrap();
        assert_eq!((serial.len(), serial.split('-').count(), &serial[23..24]), (45, 5, "8"), "{serial}");
        assert_eq!(document["metadata"]["component"]["name"], "bulkhead-controller");
        let components = document["components"].as_array().unwrap();
        let references: BTreeSet<_> = components.iter().map(|it| it["bom-ref"].as_str().unwrap()).collect();
        assert_eq!(references.len(), components.len(), "references are unique");
        let named =
            document["dependencies"].as_array().unwrap().iter().flat_map(|it| it["dependsOn"].as_array().unwrap());
        assert!(named.map(|it| it.as_str().unwrap()).all(|it| references.contains(it)));
        let other = materials().document("bulkhead-node-agent", &origin()).unwrap();
        assert_ne!(document["serialNumber"], other["serialNumber"]);
    }

    /// What cargo does not know.
    #[test]
    fn the_c_library_and_the_authorities_are_listed_where_they_are_in_the_image() {
        let materials = materials();
        for image in images::shipped() {
            let document = materials.document(image, &origin()).unwrap();
            let components = document["components"].as_array().unwrap();
            let listed = |name: &str| components.iter().filter(|it| it["name"] == name).count();
            let trusts = usize::from(images::authorities_of(image).is_some());
            assert_eq!((listed("glibc"), listed("ca-certificates")), (1, trusts), "{image}");
            let linked = document["dependencies"].as_array().unwrap();
            let uses = |name: &str| linked.iter().filter(|it| it["dependsOn"].to_string().contains(name)).count();
            assert_eq!((uses("pkg:generic/glibc@"), uses("ca-certificates:")), (1, trusts), "{image}");
        }
    }
}
