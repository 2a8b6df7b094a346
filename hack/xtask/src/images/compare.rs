//! `xtask images --compare`: whether two builds are the same, and where they are not, what differs. A program that differs
//! changes the digest of all that holds it, so the innermost is told.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;

use bulkhead_testbed::image::digest;
use bulkhead_testbed::images;
use serde_json::Value;

use crate::Result;

/// A part of an archive, as people call it, and its digest.
type Part = (String, String);

/// Compares the archives of all shipped images in two folders, and fails if any differs.
pub fn run(ours: &Path, others: &Path) -> Result<()> {
    let mut differing = Vec::new();
    for name in images::shipped() {
        let file = format!("{name}.tar");
        let archive = read(&ours.join(&file))?;
        match difference(&archive, &read(&others.join(&file))?) {
            None => println!("{file}: same, sha256:{}", archive.last().map_or("", |(_, digest)| digest.as_str())),
            Some(what) => {
                println!("{file}: different, {what}");
                differing.push(name);
            }
        }
    }
    if differing.is_empty() {
        return Ok(());
    }
    let remedy = "build both of the same commit, with the same Rust, C library and authorities (docs/images.md)";
    Err(format!("not the same: {}; {remedy}", differing.join(", ")).into())
}

fn read(archive: &Path) -> Result<Vec<Part>> {
    let remedy = "make it with `cargo xtask images --release`";
    let content =
        std::fs::read(archive).map_err(|error| format!("cannot read {} ({error}): {remedy}", archive.display()))?;
    let parts = parts(&content);
    Ok(parts.ok_or_else(|| format!("{} is no archive of a release: {remedy}", archive.display()))?)
}

/// What differs first. Both lists end with the whole archive, so none can be the beginning of another.
fn difference(ours: &[Part], others: &[Part]) -> Option<String> {
    let ((our, _), (other, _)) = ours.iter().zip(others).find(|(our, other)| our != other)?;
    Some(if our == other { format!("first in {our}") } else { format!("here is {our} where the other has {other}") })
}

/// What an archive consists of, each part before what holds it. None: it is no archive of ours.
fn parts(archive: &[u8]) -> Option<Vec<Part>> {
    let layout = Layout(entries(archive).ok()?.into_iter().collect());
    let top: Value = serde_json::from_slice(layout.0.get("index.json")?).ok()?;
    let index = layout.blob(top.pointer("/manifests/0")?)?;
    let variants: Value = serde_json::from_slice(index).ok()?;
    let mut parts = Vec::new();
    for variant in variants.get("manifests")?.as_array()? {
        parts.extend(layout.variant(variant)?);
    }
    parts.extend([part("the index", index), part("index.json or manifest.json", archive)]);
    Some(parts)
}

fn part(name: impl Into<String>, content: &[u8]) -> Part {
    (name.into(), digest(content))
}

/// An OCI image layout: the content of its files by their paths.
struct Layout(BTreeMap<String, Vec<u8>>);

impl Layout {
    fn blob(&self, descriptor: &Value) -> Option<&[u8]> {
        let digest = descriptor.get("digest")?.as_str()?;
        self.0.get(&format!("blobs/{}", digest.replace(':', "/"))).map(Vec::as_slice)
    }

    /// The parts of one platform.
    fn variant(&self, descriptor: &Value) -> Option<Vec<Part>> {
        let platform = format!("linux/{}", descriptor.pointer("/platform/architecture")?.as_str()?);
        let manifest = self.blob(descriptor)?;
        let described: Value = serde_json::from_slice(manifest).ok()?;
        let layer = self.blob(described.pointer("/layers/0")?)?;
        let config = self.blob(described.get("config")?)?;
        let files = entries(layer).ok()?.into_iter();
        let files = files.map(|(path, content)| part(format!("the file /{path} of {platform}"), &content));
        let outer = [("layer", layer), ("configuration", config), ("manifest", manifest)];
        let outer = outer.into_iter().map(|(name, content)| part(format!("the {name} of {platform}"), content));
        Some(files.chain(outer).collect())
    }
}

/// The files of an archive, in its order.
fn entries(archive: &[u8]) -> io::Result<Vec<(String, Vec<u8>)>> {
    let mut archive = tar::Archive::new(archive);
    let mut found = Vec::new();
    for entry in archive.entries()? {
        let mut entry = entry?;
        let mut content = Vec::new();
        entry.read_to_end(&mut content)?;
        found.push((entry.path()?.display().to_string(), content));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use bulkhead_testbed::image::{ImageSpec, architecture, oci};

    use super::*;

    /// The parts of an image of one program, with a change.
    fn archive(content: &str, change: impl FnOnce(&mut ImageSpec)) -> Vec<Part> {
        let folder = tempfile::tempdir().unwrap();
        let [program, archive] = ["program", "program.tar"].map(|name| folder.path().join(name));
        std::fs::write(&program, content).unwrap();
        let mut spec = ImageSpec::of_program("program:1.2.3", &program);
        change(&mut spec);
        oci::write(&[spec], &archive).unwrap();
        read(&archive).unwrap()
    }

    #[test]
    fn the_innermost_difference_is_told() {
        let ours = archive("static", |_| {});
        assert_eq!(difference(&ours, &archive("static", |_| {})), None);
        let differs = |other: Vec<Part>, what: &str| {
            assert_eq!(difference(&ours, &other).unwrap(), what.replace("ARCH", architecture()));
        };
        differs(archive("other", |_| {}), "first in the file /program of linux/ARCH");
        differs(archive("static", |spec| spec.files[0].mode = 0o700), "first in the layer of linux/ARCH");
        let label = ("org.opencontainers.image.revision".to_owned(), "0123".to_owned());
        differs(archive("static", |spec| spec.labels.push(label)), "first in the configuration of linux/ARCH");
        differs(archive("static", |spec| spec.name = "program:2".into()), "first in index.json or manifest.json");
        let moved = "here is the file /program of linux/ARCH where the other has the file /other of linux/ARCH";
        differs(archive("static", |spec| spec.files[0].path = "/other".into()), moved);
    }

    #[test]
    fn what_is_no_archive_of_a_release_is_told_with_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("program.tar");
        assert!(read(&archive).unwrap_err().to_string().contains("images --release"));
        std::fs::write(&archive, "something else").unwrap();
        assert!(read(&archive).unwrap_err().to_string().contains("is no archive of a release"));
    }
}
