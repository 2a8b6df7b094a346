//! Why a command did not do what it was asked, and what to do about it.

use std::fmt;

use crate::controllers::Unread;
use crate::error::ErrorClass;

/// Result with our [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that ends a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The cluster could not be read.
    #[error("{}", Unreadable(.0))]
    Unread(Vec<Unread>),
    /// There is no such object.
    #[error("{kind} {name} is not there; {remedy}")]
    NotFound {
        /// Its kind, in small letters.
        kind: &'static str,
        /// Its name.
        name: String,
        /// What to do.
        remedy: String,
    },
    /// A write that is not permitted.
    #[error("{source}\nyou may not {verb} {resource}; {}", remedy_of(resource))]
    Forbidden {
        /// The verb.
        verb: &'static str,
        /// The resource.
        resource: &'static str,
        /// The server's words.
        source: Box<crate::error::Error>,
    },
    /// The command would do something else than the person means.
    #[error("{0}")]
    Refused(String),
    /// The report cannot be written as YAML or JSON.
    #[error("the report cannot be written: {0}")]
    Unwritable(String),
    /// Anything else.
    #[error(transparent)]
    Other(#[from] crate::error::Error),
}

/// What someone who may not read is told.
pub const REMEDY_VIEWER: &str = "ask for the ClusterRole bulkhead-viewer: kubectl create clusterrolebinding NAME --clusterrole=bulkhead-viewer --user=YOU";
/// What someone who may not write is told.
pub const REMEDY_OPERATOR: &str = "ask for the ClusterRole bulkhead-operator: kubectl create clusterrolebinding NAME --clusterrole=bulkhead-operator --user=YOU";

/// What someone is told who approves or holds incidents, and does nothing else.
const REMEDY_APPROVER: &str = "ask for the ClusterRole bulkhead-approver: kubectl create clusterrolebinding NAME --clusterrole=bulkhead-approver --user=YOU";

fn remedy_of(resource: &str) -> &'static str {
    if resource == "nodefences.bulkhead.dev" { REMEDY_APPROVER } else { REMEDY_OPERATOR }
}

impl Error {
    /// The error of a write: a missing right is named, with the remedy.
    pub fn of_write(verb: &'static str, resource: &'static str) -> impl FnOnce(kube::Error) -> Self {
        move |error| {
            let error = crate::error::Error::from(error);
            match error.class() {
                ErrorClass::Forbidden => Self::Forbidden { verb, resource, source: Box::new(error) },
                _ => Self::Other(error),
            }
        }
    }
}

impl From<kube::Error> for Error {
    fn from(error: kube::Error) -> Self {
        Self::Other(error.into())
    }
}

/// Lists that could not be read: the missing rights together, everything else in the server's words.
struct Unreadable<'a>(&'a [Unread]);

impl fmt::Display for Unreadable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let class = |unread: &&Unread| unread.error.class();
        let place = |unread: &Unread| match &unread.namespace {
            Some(namespace) => format!("{} in namespace {namespace}", unread.resource),
            None => unread.resource.clone(),
        };
        let named = |wanted: ErrorClass| {
            let named: Vec<_> = self.0.iter().filter(|it| class(it) == wanted).map(place).collect();
            (!named.is_empty()).then(|| named.join(", "))
        };
        let mut lines = Vec::new();
        if let Some(named) = named(ErrorClass::Forbidden) {
            lines.push(format!("you may not list {named}; {REMEDY_VIEWER}"));
        }
        if let Some(named) = named(ErrorClass::NotFound) {
            lines.push(format!("the cluster does not know {named}; is Bulkhead installed there? See --context"));
        }
        let known = [ErrorClass::Forbidden, ErrorClass::NotFound];
        // One that cannot be reached says so once, not for every list.
        let other = self.0.iter().find(|it| !known.contains(&class(it)));
        lines.extend(other.map(|it| format!("{} cannot be listed: {}", place(it), it.error)));
        f.write_str(&lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn unread(resource: &str, namespace: Option<&str>, code: u16) -> Unread {
        let error = kube::Error::Api(Status::failure("words", "Reason").with_code(code).boxed());
        Unread { resource: resource.into(), namespace: namespace.map(str::to_owned), error: error.into() }
    }

    #[test]
    fn missing_rights_are_named_together_with_the_remedy() {
        let lists = [
            unread("nodes", None, 403),
            unread("leases.coordination.k8s.io", Some("kube-node-lease"), 403),
            unread("nodefences.bulkhead.dev", None, 404),
            unread("pods", None, 503),
            unread("persistentvolumes", None, 503),
        ];
        insta::assert_snapshot!(Error::Unread(lists.into()));
    }

    #[test]
    fn a_write_that_is_forbidden_names_the_role() {
        let error = kube::Error::Api(Status::failure("words", "Forbidden").with_code(403).boxed());
        let text = Error::of_write("patch", "nodefences.bulkhead.dev")(error).to_string();
        assert!(
            text.contains("you may not patch nodefences.bulkhead.dev") && text.contains("bulkhead-approver"),
            "{text}"
        );
        let error = kube::Error::Api(Status::failure("words", "Forbidden").with_code(403).boxed());
        let text = Error::of_write("patch", "resiliencypolicies.bulkhead.dev")(error).to_string();
        assert!(text.contains("bulkhead-operator"), "{text}");
        let error = kube::Error::Api(Status::failure("words", "Conflict").with_code(409).boxed());
        assert!(!Error::of_write("patch", "nodes")(error).to_string().contains("may not"));
    }
}
