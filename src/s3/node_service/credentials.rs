//! Credentials of mount-s3: files in the Mountpoint Pod's own memory, which are rewritten when the keys change. They are
//! named by the Mountpoint Pod's uid, so that all who share it write the same files.

use std::collections::BTreeMap;

use sha2::{Digest as _, Sha256};

use crate::api::names;
use crate::api::s3::{COMMUNICATION_FOLDER, CREDENTIALS_FOLDER};
use crate::s3::keys::Keys;

/// Longest part of a file's name that a volume's id may give.
const ID_MAX: usize = 150;

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
        let token = keys.token().map(|token| format!("{TOKEN} = {token}\n")).unwrap_or_default();
        let pair = format!("{ID} = {}\n{SECRET} = {}\n", keys.id(), keys.secret());
        [
            (&self.config, format!("[profile {}]\n", self.profile)),
            (&self.credentials, format!("[{}]\n{pair}{token}", self.profile)),
        ]
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

/// The keys in a file that we wrote.
pub fn read(text: &str) -> Option<Keys> {
    let fields = text.lines().filter_map(|line| line.split_once('=')).map(|(name, value)| (name.trim(), value.trim()));
    let fields: BTreeMap<_, _> = fields.collect();
    Keys::new(fields.get(ID)?, fields.get(SECRET)?, fields.get(TOKEN).copied()).ok()
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
        fn what_is_written_is_read_again(
            id in "[!-~]{1,40}",
            secret in "[!-~]{1,60}",
            token in proptest::option::of("[!-~]{1,80}"),
        ) {
            let of = |text: &str| text.replace(['#', ';'], "=");
            let keys = Keys::new(&of(&id), &of(&secret), token.as_deref().map(of).as_deref()).unwrap();
            let files = Files::of("uid", "volume");
            let [_, (_, text)] = files.contents(&keys);
            prop_assert_eq!(read(&text), Some(keys));
        }
    }
}
