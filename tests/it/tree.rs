//! The tree itself: layers, the crates that the project promises to use, and the page that shows it. No control plane.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("tree::layers_import_only_what_lies_below", layers_import_only_what_lies_below),
        Trial::test("tree::what_decides_asks_nobody_and_no_clock", what_decides_asks_nobody_and_no_clock),
        Trial::test("tree::the_promised_crates_are_used_in_shipped_code", the_promised_crates_are_used),
        Trial::test("tree::controllers_have_the_same_steps", controllers_have_the_same_steps),
        Trial::test("tree::architecture_names_every_file_and_folder", architecture_names_every_file_and_folder),
        Trial::test("tree::no_comment_refers_to_pages_that_are_not_here", no_comment_refers_to_pages_that_are_not_here),
    ]
}

/// Files of a controller that do something; all others there are pure.
const IMPURE: [&str; 26] = [
    "/mod.rs",
    "/feed.rs",
    "/observe.rs",
    "/poll.rs",
    "/act.rs",
    "/tell.rs",
    "/metrics.rs",
    "/report.rs",
    "/driver.rs",
    "/child.rs",
    "/children.rs",
    "/node_lock.rs",
    "/gather.rs",
    "/blocking.rs",
    "/read.rs",
    "/holders.rs",
    "/release.rs",
    "/strays.rs",
    "/uninstall.rs",
    "/memories.rs",
    "/prober.rs",
    "/publisher.rs",
    "/server_pods.rs",
    "/verify.rs",
    "/stores.rs",
    "/listed.rs",
];

/// What a pure file of a controller or of the sidecar has no use for. In the node agent reads of the kernel and the disk are
/// apart from what acts, and not named here.
const REACHES_OUT: [&str; 7] =
    ["async ", "tokio::", "kube::Client", "Api::", "Instant::now", "Utc::now", "SystemTime::now"];

/// What `kubectl bulkhead` uses of a controller: its eyes and what is pure.
const KUBECTL_SEES: [&str; 14] = [
    "brakes",
    "decide",
    "evidence",
    "heartbeat",
    "memory",
    "observe",
    "plan",
    "read",
    "rows",
    "select",
    "status",
    "storage",
    "unattached",
    "volumes",
];
/// What it uses of others that tell of failed nodes: how long they take.
const KUBECTL_COUNTS: [&str; 2] = ["csi_sidecar::connectivity::decide", "heartbeat::verdict"];

/// Files of the S3 driver that decide.
const S3_PURE: [&str; 4] = ["/mount_options.rs", "/decide.rs", "/publication.rs", "/credentials.rs"];

/// Files of the heartbeat that do something.
const HEARTBEAT_IMPURE: [&str; 4] = ["/announce.rs", "/listener.rs", "/metrics.rs", "/sender.rs"];

/// Who rests on heartbeats: the controller that decides, by its observe, feed and mod; and the agent that may be alone.
const HEARTBEAT_USERS: [&str; 5] = [
    "src/controllers/resiliency_policy/mod.rs",
    "src/controllers/resiliency_policy/feed.rs",
    "src/controllers/resiliency_policy/observe.rs",
    "src/node_agent/mod.rs",
    "src/node_agent/self_fence/mod.rs",
];

fn layers_import_only_what_lies_below() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for file in sources() {
        let path = file.strip_prefix(root())?.to_string_lossy().into_owned();
        let Some(allowed) = allowed(&path).filter(|_| !is_test(&path)) else { continue };
        for import in imports(&fs::read_to_string(&file)?) {
            if !allowed.iter().any(|prefix| import == *prefix || import.starts_with(&format!("{prefix}::"))) {
                wrong.push(format!("{path}: crate::{import}"));
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("imports against the layers:\n{}", wrong.join("\n")).into()) }
}

fn is_test(path: &str) -> bool {
    path.ends_with("_tests.rs") || path.contains("/tests/") || path.ends_with("/tests.rs")
}

fn what_decides_asks_nobody_and_no_clock() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for file in sources() {
        let path = file.strip_prefix(root())?.to_string_lossy().into_owned();
        let is_shown = path.starts_with("src/controllers/") || path.starts_with("src/csi_sidecar/");
        let is_free = is_test(&path) || path.ends_with("/testing.rs") || IMPURE.iter().any(|it| path.ends_with(it));
        if !is_shown || is_free {
            continue;
        }
        let text = fs::read_to_string(&file)?;
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        wrong.extend(REACHES_OUT.iter().filter(|word| code.contains(**word)).map(|word| format!("{path}: {word}")));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("pure files that reach out:\n{}", wrong.join("\n")).into()) }
}

/// Every path behind `crate::` in a text, with `{a, b}` written out.
fn imports(text: &str) -> Vec<String> {
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut found = Vec::new();
    for rest in text.split("crate::").skip(1) {
        let end = rest.find(|c| !is_path(c)).unwrap_or(rest.len());
        let (path, rest) = rest.split_at(end);
        match rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) {
            Some(list) => found.extend(
                list.split([',', '{'])
                    .map(str::trim)
                    .filter(|item| !item.is_empty())
                    .map(|item| format!("{path}{item}")),
            ),
            None => found.push(path.trim_end_matches(':').to_owned()),
        }
    }
    found
}

/// What a file may import of ours; `None` where anything goes (programs, the library's root).
fn allowed(path: &str) -> Option<Vec<String>> {
    let words = |list: &[&str]| Some(list.iter().map(|word| (*word).to_owned()).collect());
    if path.starts_with("src/api/") {
        return words(&["api"]);
    }
    if path.starts_with("src/csi/") {
        return words(&["csi"]);
    }
    if path.starts_with("src/runtime/") || path == "src/error.rs" {
        return words(&["api", "error", "runtime"]);
    }
    if path.starts_with("src/kubectl/") {
        // What a controller sees and decides, but nothing of what it does.
        let eyes = ["controllers::Stores", "controllers::Unread", "controllers::BY_NODE", "controllers::NODE_LEASES"];
        let mut allowed: Vec<_> = ["api", "error", "kubectl", "runtime"]
            .into_iter()
            .chain(eyes)
            .chain(KUBECTL_COUNTS)
            .map(str::to_owned)
            .collect();
        for controller in ["node_fence", "resiliency_policy"] {
            allowed.extend(KUBECTL_SEES.map(|part| format!("controllers::{controller}::{part}")));
        }
        return Some(allowed);
    }
    if path.starts_with("src/heartbeat/") {
        // The protocol is pure, for either side; sockets, clocks and the API are in these.
        let is_pure = !HEARTBEAT_IMPURE.iter().any(|impure| path.ends_with(impure));
        return words(if is_pure { &["api", "heartbeat"] } else { &["api", "error", "heartbeat", "runtime"] });
    }
    if path.starts_with("src/nfs/") {
        return words(&["nfs"]);
    }
    if path == "src/scratch_volume.rs" {
        return words(&[]);
    }
    if path.starts_with("src/storageos/") {
        return words(&["api", "runtime", "storageos"]);
    }
    if path.starts_with("src/s3/") {
        // A service acts on the node; what it decides is apart.
        let pure = S3_PURE.iter().any(|pure| path.ends_with(pure));
        return words(if pure { &["api", "s3"] } else { &["api", "csi", "error", "node_agent", "runtime", "s3"] });
    }
    let folder = Path::new(path).parent()?.to_string_lossy().into_owned();
    let module = folder.strip_prefix("src/")?.replace('/', "::");
    if module.is_empty() || module == "bin" {
        return None;
    }
    if !IMPURE.iter().any(|impure| path.ends_with(impure)) {
        return Some(vec!["api".to_owned(), "mutants".to_owned(), module]);
    }
    let mut allowed: Vec<String> = ["api", "csi", "error", "nfs", "runtime", "storageos"].map(str::to_owned).into();
    // The context of all controllers, but not another controller.
    let context = [
        "Context",
        "ProviderStores",
        "S3Stores",
        "SharedVolumeStores",
        "Stores",
        "reference",
        "indexes",
        "ANY_HOST",
        "BY_CLAIM",
        "BY_DRIVER",
        "BY_HANDLE",
        "BY_HOST",
        "BY_MOUNT",
        "BY_MOUNTPOINT_POD",
        "BY_NODE",
        "BY_PLACE",
        "BY_PROVIDER_VOLUME",
        "BY_SERVICE",
        "BY_SHARED_VOLUME",
        "BY_TROUBLE",
        "BY_UID",
        "BY_VOLUME",
        "BY_WORKLOAD",
        "CRASH_LOOP",
        "NODE_LEASES",
    ];
    let context = context.map(|item| format!("controllers::{item}"));
    allowed.extend(context);
    allowed.push(module);
    if HEARTBEAT_USERS.contains(&path) {
        allowed.push("heartbeat".to_owned());
    }
    Some(allowed)
}

fn the_promised_crates_are_used() -> Result<(), Failed> {
    let manifest = fs::read_to_string(root().join("Cargo.toml"))?;
    let dependencies =
        manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split("\n[").next()).ok_or("no [dependencies]")?;
    let code: String = sources().into_iter().map(fs::read_to_string).collect::<Result<_, _>>()?;
    for name in [
        "kube",
        "kube-runtime",
        "k8s-openapi",
        "schemars",
        "tokio",
        "serde",
        "serde_json",
        "tracing",
        "opentelemetry",
        "chrono",
        "thiserror",
    ] {
        let listed = dependencies
            .lines()
            .any(|line| line.starts_with(&format!("{name}.")) || line.starts_with(&format!("{name} ")));
        let used = code.contains(&format!("{}::", name.replace('-', "_")));
        if !(listed && used) {
            return Err(format!("crate {name}: direct dependency: {listed}, used: {used}").into());
        }
    }
    Ok(())
}

fn controllers_have_the_same_steps() -> Result<(), Failed> {
    let is_code = |name: &String| root().join("src/controllers").join(name).is_dir() && name != "snapshots";
    let controllers =
        names("src/controllers")?.into_iter().filter(is_code).map(|name| format!("src/controllers/{name}"));
    for folder in controllers.chain(["src/csi_sidecar", "src/node_agent"].map(str::to_owned)) {
        for step in ["mod.rs", "observe.rs", "decide.rs", "act.rs", "status.rs"] {
            if !root().join(&folder).join(step).is_file() {
                return Err(format!("{folder} has no {step}").into());
            }
        }
    }
    Ok(())
}

/// The last section of `docs/architecture.md` names what is in the folders of our code and tests; and of folders whose parts it
/// names, each. A part may be named above where the section says so, and a custom resource is called by its kind elsewhere.
fn architecture_names_every_file_and_folder() -> Result<(), Failed> {
    let page = fs::read_to_string(root().join("docs/architecture.md"))?;
    let (above, tree) = page.split_once("## The tree").ok_or("no section \"The tree\"")?;
    let kinds: BTreeSet<_> = bulkhead::api::definitions().iter().map(|it| snake_case(&it.spec.names.kind)).collect();
    let mut unnamed = Vec::new();
    for folder in ["src", "tests", "hack"] {
        for name in names(folder)?.into_iter().filter(|name| name != "lib.rs") {
            let path = format!("{folder}/{name}");
            if !words(tree).contains(stem(&name)) {
                unnamed.push(path.clone());
            }
            let Some(shown) = entry(tree, &format!("{path}/")).filter(|_| root().join(&path).is_dir()) else {
                continue;
            };
            let mut known = words(&shown);
            if shown.contains("see above") {
                known.extend(words(above));
            }
            let parts = names(&path)?.into_iter().filter(|part| is_part(part) && !kinds.contains(stem(part)));
            let (named, missing): (Vec<_>, Vec<_>) = parts.partition(|part| known.contains(stem(part)));
            if !named.is_empty() && folder != "hack" {
                unnamed.extend(missing.into_iter().map(|part| format!("{path}/{part}")));
            }
        }
    }
    if unnamed.is_empty() { Ok(()) } else { Err(format!("docs/architecture.md does not name {unnamed:?}").into()) }
}

/// A page that only its writer has tells the reader nothing.
fn no_comment_refers_to_pages_that_are_not_here() -> Result<(), Failed> {
    let mut wrong = Vec::new();
    for file in ["src", "tests", "hack", "docs"].into_iter().flat_map(files) {
        // What is no text is no comment either; and this file has the words.
        if file.ends_with("tests/it/tree.rs") {
            continue;
        }
        let text = fs::read_to_string(&file).unwrap_or_default();
        let path = file.strip_prefix(root())?.display();
        let lines = (1..).zip(text.lines()).filter(|(_, line)| refers_elsewhere(line));
        wrong.extend(lines.map(|(number, line)| format!("{path}:{number}: {}", line.trim())));
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("pages that are not here:\n{}", wrong.join("\n")).into()) }
}

/// By its name, or by a number of its sections.
fn refers_elsewhere(line: &str) -> bool {
    let is_numbered = line.split("eference ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_numbered || line.contains("Seed line") || line.contains("design.md")
}

/// What the tree says of a folder: its line, and those that go on with it.
fn entry(tree: &str, folder: &str) -> Option<String> {
    let (_, rest) = tree.split_once(&format!("\n{folder}"))?;
    let (first, more) = rest.split_once('\n')?;
    let more = more.lines().take_while(|line| line.starts_with(' '));
    Some(std::iter::once(first).chain(more).collect::<Vec<_>>().join("\n"))
}

fn words(text: &str) -> BTreeSet<&str> {
    text.split(|c: char| !c.is_alphanumeric() && c != '_' && c != '-').collect()
}

/// Not the module itself, nor what only its tests need.
fn is_part(name: &str) -> bool {
    let stem = stem(name);
    !matches!(stem, "mod" | "main" | "tests" | "testing" | "snapshots") && !stem.ends_with("_tests")
}

fn stem(name: &str) -> &str {
    name.trim_end_matches(".rs")
}

fn snake_case(kind: &str) -> String {
    let lower = kind.char_indices().flat_map(|(at, c)| {
        let gap = (at > 0 && c.is_uppercase()).then_some('_');
        gap.into_iter().chain(c.to_lowercase())
    });
    lower.collect()
}

fn names(folder: &str) -> Result<BTreeSet<String>, Failed> {
    let entries = fs::read_dir(root().join(folder))?;
    Ok(entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect::<std::io::Result<_>>()?)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All Rust files of the library, but for generated ones.
fn sources() -> Vec<PathBuf> {
    let is_generated = |path: &Path| path.parent().is_some_and(|folder| folder.ends_with("generated"));
    let is_ours = |path: &PathBuf| path.extension().is_some_and(|it| it == "rs") && !is_generated(path);
    files("src").into_iter().filter(is_ours).collect()
}

/// All files in a folder and below it.
fn files(folder: &str) -> Vec<PathBuf> {
    let (mut folders, mut files) = (vec![root().join(folder)], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() { folders.push(path) } else { files.push(path) }
        }
    }
    files
}
