//! Which names are those of credentials.

/// Parts of the names of fields, flags, variables and keys whose values are nobody's business, without what is between words.
const PARTS: [&str; 33] = [
    "password",
    "passwd",
    "passphrase",
    "passcode",
    "secret",
    "token",
    "credential",
    "signature",
    "apikey",
    "accesskey",
    "privatekey",
    "encryptionkey",
    "signingkey",
    "sharedkey",
    "accountkey",
    "masterkey",
    "sshkey",
    "clientkey",
    "serverkey",
    "hostkey",
    "userkey",
    "adminkey",
    "authkey",
    "sessionkey",
    "keydata",
    "keytab",
    "connectionstring",
    "dockercfg",
    "dockerconfigjson",
    "authorization",
    "bearer",
    "cookie",
    "kubeconfig",
];
/// Words of such names that are too short to be looked for anywhere.
const WORDS: [&str; 7] = ["pass", "psk", "pwd", "pw", "dsn", "sig", "auth"];
/// Ends of such names: `PGPASS`.
const ENDS: [&str; 3] = ["pass", "pwd", "dsn"];
/// Options that are followed by a user, and a colon and the password: those of curl.
const LOGINS: [&str; 4] = ["-u", "--user", "-U", "--proxy-user"];
/// What a password or a token follows after nothing but a blank: schemes of HTTP, and directives of Redis.
const BEFORE_BLANK: [&str; 4] = ["bearer", "basic", "requirepass", "masterauth"];
/// Ends of names that say where a credential is, or for how long, and not what it is.
const REFERENCES: [&str; 8] = ["name", "namespace", "ref", "path", "file", "dir", "seconds", "version"];

/// Whether a value of that name is a credential.
pub fn is_credential(name: &str) -> bool {
    let plain = plain(name);
    let is_named = PARTS.iter().any(|part| plain.contains(part))
        || ENDS.iter().any(|end| plain.ends_with(end))
        || words(name).iter().any(|word| WORDS.contains(&word.as_str()));
    is_named && !is_reference(name)
}

/// Whether what follows such an option may be a user with a password.
pub fn is_login(option: &str) -> bool {
    LOGINS.contains(&option)
}

/// Whether a credential follows this word after a blank.
pub fn is_before_blank(word: &str) -> bool {
    BEFORE_BLANK.iter().any(|before| word.eq_ignore_ascii_case(before))
}

/// Whether it says where something is.
pub fn is_reference(name: &str) -> bool {
    let plain = plain(name);
    REFERENCES.iter().any(|end| plain.ends_with(end))
}

fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

/// `db-pass`, `DB_PASS` and `dbPass` are two words each.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if !c.is_ascii_alphanumeric() || was_lower && c.is_ascii_uppercase() {
            words.push(String::new());
        }
        was_lower = c.is_ascii_lowercase();
        if let Some(word) = words.last_mut().filter(|_| c.is_ascii_alphanumeric()) {
            word.push(c.to_ascii_lowercase());
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_credentials_are_told_from_others() {
        for name in [
            "pass",
            "DB_PASS",
            "dbPass",
            "PGPASS",
            "pwd",
            "--pwd",
            "dsn",
            "DATABASE_DSN",
            "signature",
            "X-Amz-Signature",
            "sig",
            "api_key",
            "apiKey",
            "passphrase",
            "spring.datasource.password",
            "aws_secret_access_key",
            "Set-Cookie",
            "AccountKey",
            ".dockerconfigjson",
            "client-key-data",
            "userKey",
            "adminKey",
            "restuserkey",
            "requirepass",
        ] {
            assert!(is_credential(name), "{name}");
        }
        for name in [
            "compassion",
            "bypassed",
            "passthrough",
            "secretName",
            "tokenExpirationSeconds",
            "passwordFile",
            "secretKeyRef",
            "author",
            "design",
            "key",
            "client-certificate-data",
            "restuser",
            "adminId",
            "monkey",
            "node",
            "signal",
            "volumeHandle",
        ] {
            assert!(!is_credential(name), "{name}");
        }
    }
}
