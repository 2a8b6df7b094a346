//! What helm says after an installation and an upgrade is so.

use std::fs;
use std::path::Path;

use libtest_mimic::Failed;
use serde_json::Value;

use super::render::{chart, template_of};

/// Values, what is said with them, and what is not.
type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [&'a str]);

pub fn says_what_it_does() -> Result<(), Failed> {
    let enforce = ["--set", "volumeHealth.enforcement=Enforce"];
    let own =
        "volumeHealth.defaultPolicySpec.enforcement=Enforce,volumeHealth.defaultPolicySpec.selector.matchLabels.a=b";
    let (every, kept_off) = ("every PersistentVolume is watched", "are kept off one that is tainted");
    let cases: [Case; 5] = [
        (&[], &["It moves no pod before", "CrashLoopBackOff", every, "nothing is kept off one"], &[kept_off]),
        (&["--is-upgrade"], &["docs/upgrade.md", every], &["It moves no pod", "is installed"]),
        (&enforce, &[every, kept_off], &["nothing is kept off"]),
        (&["--set", own], &["that VolumeHealthPolicy default selects", kept_off], &[every, "nothing is kept off"]),
        (&["--set", "volumeHealth.defaultPolicy=false"], &["FENCEREADY"], &["is watched"]),
    ];
    let folder = tempfile::tempdir()?;
    copy(&chart(), folder.path())?;
    in_an_object(folder.path())?;
    for (values, there, not_there) in cases {
        let said = notes(folder.path(), values)?;
        for words in there {
            assert!(said.contains(words), "{values:?}: {words:?} is not in\n{said}");
        }
        for words in not_there {
            assert!(!said.contains(words), "{values:?}: {words:?} is in\n{said}");
        }
    }
    Ok(())
}

/// helm prints notes when it installs, and of an upgrade only with a cluster. So they become an object of the chart.
fn in_an_object(chart: &Path) -> Result<(), Failed> {
    let notes = fs::read_to_string(chart.join("templates/NOTES.txt"))?;
    let object = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: notes\ndata:\n  said: |\n";
    let text =
        format!("{{{{- define \"notes\" }}}}{notes}{{{{ end }}}}{object}{{{{ include \"notes\" . | indent 4 }}}}\n");
    Ok(fs::write(chart.join("templates/notes.yaml"), text)?)
}

fn notes(chart: &Path, values: &[&str]) -> Result<String, Failed> {
    let objects = template_of(chart, &[&["--show-only", "templates/notes.yaml"][..], values].concat())?;
    let said = objects.first().and_then(|notes| notes.pointer("/data/said")).and_then(Value::as_str);
    Ok(said.ok_or("no notes")?.to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), Failed> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            fs::create_dir_all(&target)?;
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
