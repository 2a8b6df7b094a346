//! Which keys sign a request: those of the Secret that came with it, or the driver's own. Pure.

use std::collections::HashMap;
use std::fmt;

/// Keys of a Secret, as the Scality driver calls them.
const ACCESS_KEY_ID: &str = "access_key_id";
const SECRET_ACCESS_KEY: &str = "secret_access_key";
const SESSION_TOKEN: &str = "session_token";

/// What signs a request. Its `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    pub(super) access_key_id: String,
    pub(super) secret_access_key: String,
    pub(super) session_token: Option<String>,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Credentials(redacted)")
    }
}

impl Credentials {
    /// A pair of keys, and the token of temporary ones.
    ///
    /// # Errors
    /// When one of them is empty or has characters that none has.
    pub fn new(access_key_id: &str, secret_access_key: &str, session_token: Option<&str>) -> Result<Self, String> {
        let session_token = session_token.filter(|token| !token.trim().is_empty());
        Ok(Self {
            access_key_id: word(ACCESS_KEY_ID, access_key_id)?,
            secret_access_key: word(SECRET_ACCESS_KEY, secret_access_key)?,
            session_token: session_token.map(|token| word(SESSION_TOKEN, token)).transpose()?,
        })
    }

    /// Those in a Secret. Keys of it that are none of ours do not matter.
    pub(super) fn of_secret(secret: &HashMap<String, String>) -> Result<Self, String> {
        let required = |key| secret.get(key).ok_or_else(|| format!("it has no key {key}"));
        let token = secret.get(SESSION_TOKEN).map(String::as_str);
        Self::new(required(ACCESS_KEY_ID)?, required(SECRET_ACCESS_KEY)?, token)
    }
}

/// Secrets that were made from a file often end with a newline.
fn word(key: &str, text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() {
        return Err(format!("its key {key} is empty"));
    }
    if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!("its key {key} has characters that no such key has, perhaps a line break in the middle"));
    }
    Ok(text.to_owned())
}

/// The driver's own credentials; none where none are set. They are in the environment only: the flags of a process are
/// open to everyone on its node.
pub(super) fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Credentials>, String> {
    let set = |name| variable(name).filter(|value| !value.trim().is_empty());
    match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
        (None, None) => Ok(None),
        (Some(id), Some(secret)) => Credentials::new(&id, &secret, set("AWS_SESSION_TOKEN").as_deref())
            .map(Some)
            .map_err(|wrong| format!("the Secret with the driver's own credentials: {wrong}")),
        _ => Err("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set both or not at all".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret<const N: usize>(entries: [(&str, &str); N]) -> HashMap<String, String> {
        entries.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
    }

    #[test]
    fn a_secret_holds_a_pair_and_perhaps_a_token() {
        let found = Credentials::of_secret(&secret([
            ("access_key_id", " AKID\n"),
            ("secret_access_key", "a/b+c="),
            ("session_token", ""),
            ("unrelated", "x"),
        ]));
        assert_eq!(found, Credentials::new("AKID", "a/b+c=", None));
        let entries = [("access_key_id", "AKID"), ("secret_access_key", "s"), ("session_token", "t")];
        assert_eq!(Credentials::of_secret(&secret(entries)), Credentials::new("AKID", "s", Some("t")));
    }

    #[test]
    fn what_is_wrong_with_a_secret_is_said_without_what_is_in_it() {
        let cases = [
            (secret([("secret_access_key", "hunter2")]), "no key access_key_id"),
            (secret([("access_key_id", "AKID"), ("secret_access_key", " ")]), "secret_access_key is empty"),
            (secret([("access_key_id", "AKID"), ("secret_access_key", "hun\nter2")]), "perhaps a line break"),
        ];
        for (secret, said) in cases {
            let wrong = Credentials::of_secret(&secret).expect_err(said);
            assert!(wrong.contains(said) && !wrong.contains("ter2") && !wrong.contains("AKID"), "{wrong}");
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        let credentials = Credentials::new("AKID", "hunter2", Some("token")).expect("valid");
        assert_eq!(format!("{credentials:?}"), "Credentials(redacted)");
    }

    #[test]
    fn the_environment_has_a_whole_pair_or_none() {
        let of = |variables: &'static [(&str, &str)]| {
            of_environment(|name| variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned()))
        };
        // What an optional key of a Secret that is missing looks like.
        assert_eq!(of(&[("AWS_ACCESS_KEY_ID", "")]), Ok(None));
        assert!(of(&[("AWS_ACCESS_KEY_ID", "AKID")]).is_err());
        let pair = of(&[("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s"), ("AWS_SESSION_TOKEN", "t")]);
        assert_eq!(pair, Credentials::new("AKID", "s", Some("t")).map(Some));
    }
}
