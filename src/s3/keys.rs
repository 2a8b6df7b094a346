//! Keys of S3, of a Secret or of the driver itself. Pure; its `Debug` shows nothing of them.
//!
//! One rule for all: 1 to 128 visible characters of ASCII (16384 for a token), without `#` and `;`, which begin a comment in
//! the file that mount-s3 reads. That is more than upstream takes (letters and digits; in a secret also `/+-=`), because other
//! servers than Amazon's give out more, and little enough that nothing can be written into that file but a key. What surrounds
//! a key is cut off: Secrets that were made from a file often end with a newline.

use std::collections::HashMap;
use std::fmt;

/// Keys of a Secret, as the Scality driver calls them.
const ID: &str = "access_key_id";
const SECRET: &str = "secret_access_key";
const TOKEN: &str = "session_token";

const KEY_MAX: usize = 128;
const TOKEN_MAX: usize = 16 << 10;

/// What signs requests to S3.
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
    /// A pair of keys, and the token of temporary ones; an empty token is none.
    ///
    /// # Errors
    /// When one cannot be a key; the text names it as a Secret does, and shows nothing of it.
    pub fn new(id: &str, secret: &str, token: Option<&str>) -> Result<Self, String> {
        let token = token.filter(|token| !token.trim().is_empty());
        Ok(Self {
            id: word(ID, id, KEY_MAX)?,
            secret: word(SECRET, secret, KEY_MAX)?,
            token: token.map(|token| word(TOKEN, token, TOKEN_MAX)).transpose()?,
        })
    }

    /// Those in a Secret. Keys of it that are none of ours do not matter.
    ///
    /// # Errors
    /// As [`Keys::new`].
    pub fn of_secret(secret: &HashMap<String, String>) -> Result<Self, String> {
        let field = |name: &str| secret.get(name).map(String::as_str);
        Self::new(field(ID).unwrap_or_default(), field(SECRET).unwrap_or_default(), field(TOKEN))
    }

    /// The driver's own; none where none are set. They are in the environment only: the flags of a process are open to
    /// everyone on its node.
    ///
    /// # Errors
    /// As [`Keys::new`], and when only one of a pair is set.
    pub fn of_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, String> {
        let set = |name| variable(name).filter(|value| !value.trim().is_empty());
        match (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) {
            (None, None) => Ok(None),
            (Some(id), Some(secret)) => {
                Self::new(&id, &secret, set("AWS_SESSION_TOKEN").as_deref()).map(Some).map_err(|wrong| {
                    format!("the Secret with the driver's own keys (AWS_ACCESS_KEY_ID and so on): {wrong}")
                })
            }
            _ => {
                Err("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set both or not at all: see the Secret with the \
                      driver's own keys"
                    .to_owned())
            }
        }
    }

    /// Which pair it is.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The half that signs.
    pub fn secret(&self) -> &str {
        &self.secret
    }

    /// The token of temporary ones.
    pub fn token(&self) -> Option<&str> {
        self.token.as_deref()
    }
}

fn word(name: &str, text: &str, longest: usize) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'#' | b';');
    match text.trim() {
        "" => Err(format!("{name} is missing")),
        text if text.len() > longest => Err(format!("{name} is longer than {longest} characters")),
        text if !text.bytes().all(fits) => {
            Err(format!("{name} has characters that no key has, perhaps a line break in the middle"))
        }
        text => Ok(text.to_owned()),
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
        let found = Keys::of_secret(&secret([
            ("access_key_id", " AKID\n"),
            ("secret_access_key", "a/b+c="),
            ("session_token", ""),
            ("unrelated", "x"),
        ]));
        assert_eq!(found, Keys::new("AKID", "a/b+c=", None));
        let entries =
            [("access_key_id", "user@team.example"), ("secret_access_key", "s"), ("session_token", "t/ken==")];
        assert_eq!(Keys::of_secret(&secret(entries)), Keys::new("user@team.example", "s", Some("t/ken==")));
    }

    #[test]
    fn what_is_wrong_is_said_without_what_is_in_it() {
        let long = "hunter2".repeat(19);
        let cases = [
            (secret([("secret_access_key", "hunter2")]), "access_key_id is missing"),
            (secret([("access_key_id", "AKID"), ("secret_access_key", " ")]), "secret_access_key is missing"),
            (secret([("access_key_id", "AKID"), ("secret_access_key", "hun\nter2")]), "perhaps a line break"),
            (
                secret([("access_key_id", "AKID\n[x]"), ("secret_access_key", "hunter2")]),
                "access_key_id has characters",
            ),
            (
                secret([("access_key_id", "AKID"), ("secret_access_key", "#hunter2")]),
                "secret_access_key has characters",
            ),
            (secret([("access_key_id", "AKID"), ("secret_access_key", &long)]), "secret_access_key is longer than 128"),
            (
                secret([("access_key_id", "AKID"), ("secret_access_key", "s"), ("session_token", "hun ter2")]),
                "session_token has characters",
            ),
        ];
        for (secret, said) in cases {
            let wrong = Keys::of_secret(&secret).unwrap_err();
            assert!(wrong.contains(said) && !wrong.contains("ter2") && !wrong.contains("AKID"), "{wrong}");
        }
    }

    #[test]
    fn debug_output_shows_no_key() {
        assert_eq!(format!("{:?}", Keys::new("AKID", "hunter2", Some("token"))), "Ok(Keys(redacted))");
    }

    #[test]
    fn the_environment_has_a_whole_pair_or_none() {
        let of = |variables: &'static [(&str, &str)]| {
            Keys::of_environment(|name| {
                variables.iter().find(|(set, _)| *set == name).map(|(_, value)| (*value).to_owned())
            })
        };
        // What an optional key of a Secret that is missing looks like.
        assert_eq!(of(&[("AWS_ACCESS_KEY_ID", ""), ("AWS_SECRET_ACCESS_KEY", "\n")]), Ok(None));
        for half in [&[("AWS_ACCESS_KEY_ID", "AKID")], &[("AWS_SECRET_ACCESS_KEY", "s")]] {
            assert!(of(half).unwrap_err().contains("both or not at all"));
        }
        let pair = of(&[("AWS_ACCESS_KEY_ID", "AKID"), ("AWS_SECRET_ACCESS_KEY", "s\n"), ("AWS_SESSION_TOKEN", "t")]);
        assert_eq!(pair, Keys::new("AKID", "s", Some("t")).map(Some));
        let wrong = of(&[("AWS_ACCESS_KEY_ID", "A b"), ("AWS_SECRET_ACCESS_KEY", "s")]).unwrap_err();
        assert!(wrong.contains("driver's own") && wrong.contains("access_key_id"), "{wrong}");
    }
}
