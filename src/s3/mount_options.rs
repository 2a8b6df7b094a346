//! Mount options of a volume: how they are read, and which are passed on to mount-s3. Pure.

use std::collections::BTreeMap;

use crate::api::s3_cache;

/// Options that a volume may not choose: the driver's own settings, what reaches outside of the volume, and what mount-s3
/// no longer has. Upstream drops them too, with a warning.
const NOT_FOR_VOLUMES: [&str; 6] =
    ["--profile", "--endpoint-url", "--cache-xz", "--incremental-upload", "--storage-class", "-o"];
/// Options by which a program does something else than to mount.
const NOT_FOR_MOUNTS: [&str; 6] = ["--foreground", "-f", "--help", "-h", "--version", "-v"];

const ALLOW_OTHER: &str = "--allow-other";
const ALLOW_ROOT: &str = "--allow-root";
const ATTEMPTS: &str = "--aws-max-attempts";
const READ_ONLY: &str = "--read-only";
const CACHE_SIZE: &str = "--max-cache-size";

/// What a volume is mounted with, beside its own options.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Setting {
    /// Whether the volume itself is for reading only, whoever mounts it.
    pub read_only: bool,
    /// The group that is to own the files: fsGroup of the workload.
    pub group: Option<String>,
    /// The most that its cache may hold, in MiB, where that has a volume with a limit.
    pub cache_max: Option<u64>,
    /// What S3 servers see as the client.
    pub user_agent: String,
}

/// How a volume is mounted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mounting {
    /// Arguments of mount-s3 behind bucket and mount point, sorted.
    pub args: Vec<String>,
    /// Environment that options are turned into.
    pub env: BTreeMap<String, String>,
    /// Whether nothing of it can be written.
    pub read_only: bool,
    /// Options that were left out because a volume may not choose them.
    pub dropped: Vec<String>,
}

/// An option cannot be passed on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unusable {
    /// No program can be given it.
    #[error(
        "mount option {0:?} has characters that no program can be given: remove them from the PersistentVolume's mountOptions"
    )]
    Characters(String),
    /// The cache would fill its volume, and the kubelet end the Mountpoint Pod.
    #[error("{0}")]
    Cache(String),
}

/// Reads the options of a volume and decides how it is mounted.
///
/// # Errors
///
/// [`Unusable`] for an option with a NUL or line break, and for a cache larger than its volume.
pub fn mounting<'a>(options: impl IntoIterator<Item = &'a str>, setting: &Setting) -> Result<Mounting, Unusable> {
    let mut options = read(options)?;
    for option in NOT_FOR_MOUNTS {
        options.remove(option);
    }
    if let Some(group) = &setting.group {
        for (option, value) in [("--gid", group.as_str()), ("--dir-mode", "770"), ("--file-mode", "660")] {
            options.entry(option.to_owned()).or_insert_with(|| Some(value.to_owned()));
        }
        options.entry(ALLOW_OTHER.to_owned()).or_default();
    }
    // mount-s3 does not run as root, but the kubelet does.
    if !options.contains_key(ALLOW_OTHER) {
        options.entry(ALLOW_ROOT.to_owned()).or_default();
    }
    if let Some(most) = setting.cache_max {
        limit_cache(&mut options, most)?;
    }
    options.entry("--force-path-style".to_owned()).or_default();
    let dropped: Vec<_> = options.keys().filter(|option| !is_for_volumes(option)).cloned().collect();
    options.retain(|option, _| is_for_volumes(option));
    let attempts = options.remove(ATTEMPTS).flatten();
    let env = attempts.map(|attempts| ("AWS_MAX_ATTEMPTS".to_owned(), attempts)).into_iter().collect();
    // The kernel sees to it. mount-s3 does not take the option together with a descriptor.
    let read_only = options.remove(READ_ONLY).is_some() || setting.read_only;
    options.insert("--user-agent-prefix".to_owned(), Some(setting.user_agent.clone()));
    let args = options.into_iter().map(|(option, value)| match value {
        Some(value) => format!("{option}={value}"),
        None => option,
    });
    let mut args: Vec<_> = args.collect();
    args.sort();
    Ok(Mounting { args, env, read_only, dropped })
}

/// By itself mount-s3 leaves 5 % of the file system free that the cache is on: the node's, not the volume's.
fn limit_cache(options: &mut BTreeMap<String, Option<String>>, most: u64) -> Result<(), Unusable> {
    match options.get(CACHE_SIZE) {
        None => drop(options.insert(CACHE_SIZE.to_owned(), Some(most.to_string()))),
        Some(asked) => s3_cache::fits(most, asked.as_deref().unwrap_or_default()).map_err(Unusable::Cache)?,
    }
    Ok(())
}

/// Several short options in one, such as `-of`, could be any.
fn is_for_volumes(option: &str) -> bool {
    let several = !option.starts_with("--") && option.chars().count() > 2;
    !several && !NOT_FOR_VOLUMES.contains(&option)
}

/// Options with their values. Of one that is given twice the last counts.
fn read<'a>(options: impl IntoIterator<Item = &'a str>) -> Result<BTreeMap<String, Option<String>>, Unusable> {
    let mut read = BTreeMap::new();
    for option in options {
        if option.contains(['\0', '\n', '\r']) {
            return Err(Unusable::Characters(option.to_owned()));
        }
        let option = option.trim();
        let (name, value) = match option.split_once([' ', '=']) {
            Some((name, value)) => (name, Some(value.trim().to_owned())),
            None => (option, None),
        };
        if name.trim_matches('-').is_empty() {
            continue;
        }
        let name = if name.starts_with('-') { name.to_owned() } else { format!("--{name}") };
        read.insert(name, value);
    }
    Ok(read)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn setting() -> Setting {
        Setting { user_agent: "agent".into(), ..Setting::default() }
    }

    fn args(options: &[&str], setting: &Setting) -> Vec<String> {
        mounting(options.iter().copied(), setting).unwrap().args
    }

    #[test]
    fn every_way_to_write_an_option() {
        let base = ["--allow-root", "--force-path-style", "--user-agent-prefix=agent"];
        for (option, read) in [
            ("region us-east-1", Some("--region=us-east-1")),
            ("--region=us-east-1", Some("--region=us-east-1")),
            ("  region=a b ", Some("--region=a b")),
            ("prefix=a=b/", Some("--prefix=a=b/")),
            ("allow-delete", Some("--allow-delete")),
            ("-d", Some("-d")),
            ("", None),
            ("--", None),
            (" = ", None),
            ("--foreground", None),
            ("-f", None),
            ("help", None),
            ("--version", None),
            ("user-agent-prefix=mine", None),
            ("--read-only", None),
        ] {
            let mut expected: Vec<_> = base.iter().copied().chain(read).map(str::to_owned).collect();
            expected.sort();
            assert_eq!(args(&[option], &setting()), expected, "{option}");
        }
    }

    #[test]
    fn what_a_volume_may_not_choose_is_left_out_and_told() {
        let options =
            ["profile=x", "endpoint-url http://x", "-o ro", "-do", "storage-class=x", "cache-xz x", "allow-delete"];
        let mounting = mounting(options, &setting()).unwrap();
        let dropped = ["--cache-xz", "--endpoint-url", "--profile", "--storage-class", "-do", "-o"];
        assert_eq!(mounting.dropped, dropped.map(str::to_owned));
        assert_eq!(
            mounting.args,
            ["--allow-delete", "--allow-root", "--force-path-style", "--user-agent-prefix=agent"]
        );
    }

    #[test]
    fn the_group_of_a_workload_owns_the_files_unless_the_volume_says_otherwise() {
        let group = Setting { group: Some("1000".into()), ..setting() };
        let own = args(&[], &group);
        for expected in ["--allow-other", "--gid=1000", "--dir-mode=770", "--file-mode=660"] {
            assert!(own.contains(&expected.to_owned()), "{expected}: {own:?}");
        }
        assert!(!own.contains(&"--allow-root".to_owned()), "{own:?}");
        let chosen = args(&["gid=7", "file-mode=640"], &group);
        for expected in ["--gid=7", "--dir-mode=770", "--file-mode=640"] {
            assert!(chosen.contains(&expected.to_owned()), "{expected}: {chosen:?}");
        }
    }

    #[test]
    fn reading_only_is_a_matter_of_the_mount() {
        assert!(mounting(["read-only"], &setting()).unwrap().read_only);
        assert!(mounting([], &Setting { read_only: true, ..setting() }).unwrap().read_only);
        assert!(!mounting(["allow-delete"], &setting()).unwrap().read_only);
    }

    #[test]
    fn a_cache_is_smaller_than_its_volume() {
        let limited = Setting { cache_max: Some(95), ..setting() };
        let size = |options: &[&str]| {
            let found = mounting(options.iter().copied(), &limited);
            found.map(|found| found.args.into_iter().find(|arg| arg.starts_with(CACHE_SIZE)).unwrap())
        };
        assert_eq!(size(&[]), Ok("--max-cache-size=95".to_owned()));
        assert_eq!(size(&["max-cache-size 95"]), Ok("--max-cache-size=95".to_owned()));
        for asked in ["96", "much", ""] {
            let wrong = size(&[&format!("max-cache-size={asked}")]).unwrap_err();
            assert!(wrong.to_string().contains("at most 95 (MiB)"), "{asked}: {wrong}");
        }
        assert!(args(&["max-cache-size=96"], &setting()).contains(&"--max-cache-size=96".to_owned()));
    }

    #[test]
    fn attempts_are_environment() {
        let mounting = mounting(["aws-max-attempts=5"], &setting()).unwrap();
        assert_eq!(mounting.env, [("AWS_MAX_ATTEMPTS".to_owned(), "5".to_owned())].into());
        assert!(!mounting.args.iter().any(|arg| arg.starts_with(ATTEMPTS)));
    }

    proptest! {
        #[test]
        fn no_option_becomes_something_else(options in proptest::collection::vec("[ a-z=\\-\\x00-\\x1fä]{0,12}|-o .*|-[a-z]*|profile=.*", 0..8)) {
            let Ok(mounting) = mounting(options.iter().map(String::as_str), &setting()) else {
                prop_assert!(options.iter().any(|option| option.contains(['\0', '\n', '\r'])));
                return Ok(());
            };
            let mut sorted = mounting.args.clone();
            sorted.sort();
            prop_assert_eq!(&sorted, &mounting.args);
            for arg in &mounting.args {
                // Neither a bucket nor a mount point.
                prop_assert!(arg.starts_with('-') && !arg.contains('\0'), "{}", arg);
                let name = arg.split('=').next().unwrap();
                prop_assert!(is_for_volumes(name) && !NOT_FOR_MOUNTS.contains(&name), "{}", arg);
            }
            let has = |name: &str| mounting.args.iter().any(|arg| arg.split('=').next() == Some(name));
            prop_assert!(has(ALLOW_OTHER) || has(ALLOW_ROOT));
            // Whoever reads them again reads the same.
            let again = self::mounting(mounting.args.iter().map(String::as_str), &setting()).unwrap();
            prop_assert_eq!(again.args, mounting.args);
        }
    }
}
