//! Decoding that survives one bad object. kube fails the whole list or watch when a single object does
//! not fit its type, and then tries again for ever. (kube's own `DeserializeGuard` copies each object and has
//! the scope of its kind, so that a generic caller could not name a namespace.)

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::{Resource, core::DynamicResourceScope};
use serde::{Deserialize, Deserializer, de::DeserializeOwned, de::Error as _};
use serde_json::value::RawValue;

use super::store::ObjectKey;

/// An object, or at least which one it is.
#[derive(Clone, Debug)]
pub(crate) enum Guarded<K> {
    /// It fits its type.
    Readable(Box<K>),
    /// It does not; `error` says why.
    Unreadable { meta: Box<ObjectMeta>, error: String },
}

impl<K: Resource> Guarded<K> {
    pub(crate) fn key(&self) -> ObjectKey {
        let meta = self.meta();
        ObjectKey { namespace: meta.namespace.clone(), name: meta.name.clone().unwrap_or_default() }
    }
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Named {
            metadata: ObjectMeta,
        }
        // The text, which is kube's own, is gone through a second time, but nothing is made of what the type does not have: of a
        // pod that is ten times less. (An event has its type before its object, as every API server writes it: from behind, kube
        // would keep the object as a tree, which has no text.)
        let text = <&RawValue>::deserialize(deserializer)?;
        match serde_json::from_str(text.get()) {
            Ok(object) => Ok(Self::Readable(Box::new(object))),
            Err(error) => {
                let Named { metadata } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
                Ok(Self::Unreadable { meta: Box::new(metadata), error: error.to_string() })
            }
        }
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = DynamicResourceScope;

    fn kind(kind: &K::DynamicType) -> Cow<'_, str> {
        K::kind(kind)
    }

    fn group(kind: &K::DynamicType) -> Cow<'_, str> {
        K::group(kind)
    }

    fn version(kind: &K::DynamicType) -> Cow<'_, str> {
        K::version(kind)
    }

    fn plural(kind: &K::DynamicType) -> Cow<'_, str> {
        K::plural(kind)
    }

    fn meta(&self) -> &ObjectMeta {
        match self {
            Self::Readable(object) => object.meta(),
            Self::Unreadable { meta, .. } => meta,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match self {
            Self::Readable(object) => object.meta_mut(),
            Self::Unreadable { meta, .. } => meta,
        }
    }
}
