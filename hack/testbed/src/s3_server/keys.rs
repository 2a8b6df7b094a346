//! Who may sign requests, and which buckets a key may use. Changed at any time; it holds from the next request on.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use s3s::access::{S3Access, S3AccessContext};
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::DeleteBucketInput;
use s3s::path::S3Path;
use s3s::{S3Request, S3Result, s3_error};

use crate::lock::lock;

/// What a client signs with.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyPair {
    /// Name of the key.
    pub access_key: String,
    /// The secret.
    pub secret_key: String,
}

impl KeyPair {
    /// A pair of these two.
    pub fn new(access_key: &str, secret_key: &str) -> Self {
        Self { access_key: access_key.to_owned(), secret_key: secret_key.to_owned() }
    }
}

impl std::fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPair").field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

/// The buckets that a key may use, besides those that it made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Usable {
    /// Every one.
    All,
    /// These.
    Only(BTreeSet<String>),
}

impl Usable {
    /// These buckets.
    pub fn only<const N: usize>(buckets: [&str; N]) -> Self {
        Self::Only(buckets.map(str::to_owned).into())
    }

    fn contains(&self, bucket: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(buckets) => buckets.contains(bucket),
        }
    }
}

/// All keys of one server. Cheap to clone; all clones are the same.
#[derive(Clone, Debug, Default)]
pub struct Keys(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    keys: BTreeMap<String, (KeyPair, Usable)>,
    /// Bucket and the key that made it.
    made_by: BTreeMap<String, String>,
}

impl Keys {
    /// Lets a key in, or changes its secret and its buckets.
    pub fn set(&self, pair: KeyPair, usable: Usable) {
        lock(&self.0).keys.insert(pair.access_key.clone(), (pair, usable));
    }

    /// Takes a key back: what it signs is refused from now on.
    pub fn revoke(&self, access_key: &str) {
        lock(&self.0).keys.remove(access_key);
    }

    fn secret(&self, access_key: &str) -> Option<String> {
        lock(&self.0).keys.get(access_key).map(|(pair, _)| pair.secret_key.clone())
    }

    fn may_use(&self, access_key: &str, bucket: &str) -> bool {
        let table = lock(&self.0);
        let made = table.made_by.get(bucket).is_some_and(|maker| maker == access_key);
        made || table.keys.get(access_key).is_some_and(|(_, usable)| usable.contains(bucket))
    }

    /// The key makes this bucket, or the one who made it already.
    fn claim(&self, access_key: &str, bucket: &str) -> String {
        lock(&self.0).made_by.entry(bucket.to_owned()).or_insert_with(|| access_key.to_owned()).clone()
    }

    fn forget(&self, bucket: &str) {
        lock(&self.0).made_by.remove(bucket);
    }
}

#[async_trait::async_trait]
impl S3Auth for Keys {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        self.secret(access_key).map(SecretKey::from).ok_or_else(|| s3_error!(InvalidAccessKeyId))
    }
}

/// What a key may do; and what the file system behind it does not look after.
pub(super) struct Access {
    pub keys: Keys,
    pub folder: PathBuf,
}

impl Access {
    /// A bucket belongs to the key that makes it.
    fn create(&self, access_key: &str, bucket: &str) -> S3Result<()> {
        let there = self.folder.join(bucket).exists();
        match self.keys.claim(access_key, bucket) {
            maker if !there && maker == access_key => Ok(()),
            maker if maker == access_key => Err(s3_error!(BucketAlreadyOwnedByYou)),
            _ => Err(s3_error!(BucketAlreadyExists)),
        }
    }

    /// That there is no such bucket, S3 tells every key.
    fn enter(&self, access_key: &str, bucket: &str) -> S3Result<()> {
        let there = self.folder.join(bucket).exists();
        if there && !self.keys.may_use(access_key, bucket) {
            return Err(s3_error!(AccessDenied));
        }
        Ok(())
    }
}

#[async_trait::async_trait]
impl S3Access for Access {
    async fn check(&self, context: &mut S3AccessContext<'_>) -> S3Result<()> {
        let Some(credentials) = context.credentials() else {
            return Err(s3_error!(AccessDenied));
        };
        let key = &credentials.access_key;
        match context.s3_path() {
            S3Path::Bucket { bucket } if context.s3_op().name() == "CreateBucket" => self.create(key, bucket),
            S3Path::Bucket { bucket } | S3Path::Object { bucket, .. } => self.enter(key, bucket),
            S3Path::Root => Ok(()),
        }
    }

    /// The file system would remove a bucket with all that is in it.
    async fn delete_bucket(&self, request: &mut S3Request<DeleteBucketInput>) -> S3Result<()> {
        let bucket = &request.input.bucket;
        if has_objects(&self.folder.join(bucket)) {
            return Err(s3_error!(BucketNotEmpty));
        }
        self.keys.forget(bucket);
        Ok(())
    }
}

/// Folders are left behind when the last object in them is deleted.
fn has_objects(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).any(|path| !path.is_dir() || has_objects(&path))
}
