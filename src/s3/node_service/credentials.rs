//! Credentials of mount-s3: files in the Mountpoint Pod's own memory, which are rewritten when the keys change. They are
//! named by the Mountpoint Pod's uid, so that all who share it write the same files.

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::api::names;
use crate::api::s3::{COMMUNICATION_FOLDER, CREDENTIALS_FOLDER};

const KEY_MAX: usize = 128;
const TOKEN_MAX: usize = 16 << 10;
/// Longest part of a file's name that a volume's id may give.
const ID_MAX: usize = 150;

/// Keys of S3.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    id: String,
    secret: String,
    token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keys(redacted)")
    }
}

impl Keys {
    /// Keys of the driver's own environment; none where it has none.
    pub fn of_driver(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
            (Some(id), Some(secret)) => Self::new(
                ("AWS_ACCESS_KEY_ID", &id),
                ("AWS_SECRET_ACCESS_KEY", &secret),
                set("AWS_SESSION_TOKEN").as_deref().map(|token| ("AWS_SESSION_TOKEN", token)),
            )
            .map(Some),
            _ => Ok(None),
        }
    }

    /// Keys of a volume's nodePublishSecretRef.
    pub fn of_secret(secret: &HashMap<String, String>) -> Result<Self, String> {
        let field = |name: &str| secret.get(name).map(String::as_str).unwrap_or_default();
        Self::new(
            ("access_key_id", field("access_key_id")),
            ("secret_access_key", field("secret_access_key")),
            secret.get("session_token").map(|token| ("session_token", token.as_str())),
        )
        .map_err(|error| {
            format!("secrets: {error} (nodePublishSecretRef of a volume with authenticationSource: secret)")
        })
    }

    fn new(id: (&str, &str), secret: (&str, &str), token: Option<(&str, &str)>) -> Result<Self, String> {
        let key = |(name, value): (&str, &str), more: &str| {
            let value = value.trim();
            let fits = |c: char| c.is_ascii_alphanumeric() || more.contains(c);
            match value {
                "" => Err(format!("{name} is missing")),
                value if value.len() > KEY_MAX => Err(format!("{name} is longer than {KEY_MAX} characters")),
                value if !value.chars().all(fits) => Err(format!("{name} has characters that no key has")),
                value => Ok(value.to_owned()),
            }
        };
        let token = token.map(|(name, value)| (name, value.trim())).filter(|(_, value)| !value.is_empty());
        let fits = |value: &str| value.len() <= TOKEN_MAX && value.chars().all(|c| c.is_ascii_graphic());
        match token {
            Some((name, value)) if !fits(value) => Err(format!("{name} has characters that no token has, or too many")),
            token => Ok(Self {
                id: key(id, "_")?,
                secret: key(secret, "/+-=_")?,
                token: token.map(|(_, value)| value.to_owned()),
            }),
        }
    }

    /// Keys of a file that we wrote.
    pub fn of_file(text: &str) -> Option<Self> {
        let fields =
            text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.trim(), value.trim()));
        let fields: BTreeMap<_, _> = fields.collect();
        let token = fields.get(TOKEN).map(|token| (TOKEN, *token));
        Self::new((ID, fields.get(ID)?), (SECRET, fields.get(SECRET)?), token).ok()
    }

    fn file(&self, profile: &str) -> String {
        let token = self.token.as_ref().map(|token| format!("{TOKEN} = {token}\n")).unwrap_or_default();
        format!("[{profile}]\n{ID} = {}\n{SECRET} = {}\n{token}", self.id, self.secret)
    }
}

const ID: &str = "aws_access_key_id";
const SECRET: &str = "aws_secret_access_key";
const TOKEN: &str = "aws_session_token";

/// The files of one volume for one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// Profile in both.
    pub profile: String,
    /// Name of the configuration file.
    pub config: String,
    /// Name of the file with the keys.
    pub credentials: String,
}

impl Files {
    /// `owner` is the uid of the Mountpoint Pod.
    pub fn of(owner: &str, volume_id: &str) -> Self {
        let profile = format!("{owner}-{}-s3-csi", file_part(volume_id));
        Self { config: format!("{profile}-config"), credentials: format!("{profile}-credentials"), profile }
    }

    /// Names and contents.
    pub fn contents(&self, keys: &Keys) -> [(&str, String); 2] {
        [(&self.config, format!("[profile {}]\n", self.profile)), (&self.credentials, keys.file(&self.profile))]
    }

    /// What tells mount-s3 of them.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let path = |name: &str| format!("{COMMUNICATION_FOLDER}/{CREDENTIALS_FOLDER}/{name}");
        BTreeMap::from([
            ("AWS_PROFILE".to_owned(), self.profile.clone()),
            ("AWS_CONFIG_FILE".to_owned(), path(&self.config)),
            ("AWS_SHARED_CREDENTIALS_FILE".to_owned(), path(&self.credentials)),
        ])
    }
}

/// A volume's id as part of a name of a file and a profile: as upstream, unless that could be misread.
fn file_part(volume_id: &str) -> String {
    let part = volume_id.replace('/', "~");
    let kept = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | ':');
    if part.len() <= ID_MAX && part.chars().all(kept) {
        return part;
    }
    names::hex(&Sha256::digest(volume_id), 32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn secret(id: &str, key: &str, token: Option<&str>) -> Result<Keys, String> {
        let fields = [("access_key_id", Some(id)), ("secret_access_key", Some(key)), ("session_token", token)];
        let fields = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())));
        Keys::of_secret(&fields.collect())
    }

    #[test]
    fn keys_are_checked_and_never_shown() {
        let keys = secret(" AKIA1 ", "s3/cr+t=", Some("to/ken==")).unwrap();
        assert!(!format!("{keys:?}").contains("AKIA1"));
        for (id, key, token, named) in [
            ("", "s", None, "access_key_id"),
            ("A", "", None, "secret_access_key"),
            ("A\n[x]", "s", None, "access_key_id"),
            ("A", "s e", None, "secret_access_key"),
            ("A", "s", Some("a\nb"), "session_token"),
        ] {
            let error = secret(id, key, token).unwrap_err();
            assert!(error.contains(named), "{error}");
        }
        let long = "a".repeat(129);
        let error = secret("A", &long, None).unwrap_err();
        assert!(error.contains("secret_access_key") && !error.contains(&long), "{error}");
    }

    #[test]
    fn the_drivers_keys_come_from_its_environment() {
        let of = |list: &[(&str, &str)]| {
            Keys::of_driver(|name| list.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned()))
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "s")]), Ok(None));
        assert!(of(&[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "s")]).unwrap().is_some());
        assert!(of(&[("AWS_ACCESS_KEY_ID", "A"), ("AWS_SECRET_ACCESS_KEY", "s\n")]).unwrap().is_some());
        assert!(of(&[("AWS_ACCESS_KEY_ID", "A b"), ("AWS_SECRET_ACCESS_KEY", "s")]).is_err());
    }

    #[test]
    fn files_are_named_by_mountpoint_pod_and_volume() {
        let files = Files::of("uid", "a/b");
        assert_eq!(files.credentials, "uid-a~b-s3-csi-credentials");
        assert_eq!(files.environment()["AWS_CONFIG_FILE"], "/comm/credentials/uid-a~b-s3-csi-config");
    }

    proptest! {
        #[test]
        fn no_id_leaves_its_file_or_its_profile(id in "\\PC{1,300}|[a-z/.\\[\\]\n]{1,20}") {
            let files = Files::of("uid", &id);
            prop_assert!(files.credentials.len() < 255);
            prop_assert!(!files.credentials.contains(['/', '\n', ']', '[', '\0']));
        }

        #[test]
        fn what_is_written_is_read_again(id in "[A-Z0-9]{1,40}", key in "[a-zA-Z0-9/+=-]{1,60}", token in proptest::option::of("[!-~]{1,80}")) {
            let keys = secret(&id, &key, token.as_deref()).unwrap();
            let files = Files::of("uid", "volume");
            let [_, (_, text)] = files.contents(&keys);
            prop_assert_eq!(Keys::of_file(&text), Some(keys));
        }
    }
}
