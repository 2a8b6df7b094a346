//! Applies YAML files to a testbed: CustomResourceDefinitions, RBAC, admission policies, samples.
//! Server-side apply with discovery, so that any kind the apiserver knows can be in them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::runtime::conditions::is_crd_established;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, ResourceExt, discovery};

use crate::control_plane::Testbed;
use crate::error::TestbedError;
use crate::pki::Identity;

const FIELD_MANAGER: &str = "bulkhead-testbed";
const ESTABLISHED_DEADLINE: Duration = Duration::from_secs(30);

/// Why files could not be applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// A file or folder could not be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// A document is not YAML of a Kubernetes object.
    #[error("{path} is not a list of Kubernetes objects in YAML: {message}")]
    Parse {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
    /// The apiserver refused an object.
    #[error("cannot apply {kind} {name}: {source}")]
    Apply {
        /// The object's kind.
        kind: String,
        /// The object's name.
        name: String,
        /// The answer.
        source: kube::Error,
    },
    /// A definition was accepted but is not served.
    #[error("the CustomResourceDefinition {name} is not Established: see kubectl describe crd {name}")]
    NotEstablished {
        /// The definition's name.
        name: String,
    },
}

impl Testbed {
    /// Applies a folder as [`Identity::Admin`]: what kustomize makes of it where it has a
    /// `kustomization.yaml`, else its `.yaml` files. Returns when all definitions are served.
    ///
    /// # Errors
    /// When a file cannot be read or an object is refused.
    pub async fn apply_dir(&self, folder: &Path) -> Result<(), TestbedError> {
        let mut objects = Vec::new();
        if folder.join("kustomization.yaml").is_file() {
            let rendered = self.kubectl(&["kustomize", &folder.to_string_lossy()]).await?;
            objects = parse(folder, &rendered)?;
        } else {
            for file in yaml_files(folder).map_err(read_error(folder))? {
                objects.extend(read(&file)?);
            }
        }
        self.apply(objects).await
    }

    /// Applies the documents of one file as [`Identity::Admin`]. Returns when all definitions
    /// are served.
    ///
    /// # Errors
    /// When it cannot be read or an object is refused.
    pub async fn apply_file(&self, path: &Path) -> Result<(), TestbedError> {
        self.apply(read(path)?).await
    }

    /// Applies objects as [`Identity::Admin`]: namespaces and definitions first, then, when these
    /// are served, the others in the order given.
    ///
    /// # Errors
    /// When an object is refused or a definition is not served in time.
    pub async fn apply(&self, objects: Vec<DynamicObject>) -> Result<(), TestbedError> {
        let client = self.client(&Identity::Admin).await?;
        let (definitions, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|object| kind(object) == "CustomResourceDefinition");
        let (namespaces, others): (Vec<_>, Vec<_>) = others.into_iter().partition(|object| kind(object) == "Namespace");
        for object in namespaces.iter().chain(&definitions) {
            apply_one(&client, object).await?;
        }
        for definition in &definitions {
            wait_established(&client, &definition.name_any()).await?;
        }
        for object in &others {
            apply_one(&client, object).await?;
        }
        Ok(())
    }
}

fn kind(object: &DynamicObject) -> &str {
    object.types.as_ref().map_or("", |types| types.kind.as_str())
}

async fn apply_one(client: &Client, object: &DynamicObject) -> Result<(), ApplyError> {
    let failed = |source| ApplyError::Apply { kind: kind(object).to_owned(), name: object.name_any(), source };
    let types = object.types.clone().unwrap_or_default();
    let gvk = GroupVersionKind::try_from(types)
        .map_err(|error| failed(kube::Error::Discovery(kube::error::DiscoveryError::MissingKind(error.to_string()))))?;
    let (resource, capabilities) = discovery::pinned_kind(client, &gvk).await.map_err(failed)?;
    let api: Api<DynamicObject> = match object.namespace() {
        _ if capabilities.scope == discovery::Scope::Cluster => Api::all_with(client.clone(), &resource),
        Some(namespace) => Api::namespaced_with(client.clone(), &namespace, &resource),
        None => Api::default_namespaced_with(client.clone(), &resource),
    };
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch(&object.name_any(), &params, &Patch::Apply(object)).await.map_err(failed)?;
    Ok(())
}

async fn wait_established(client: &Client, name: &str) -> Result<(), ApplyError> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let established = await_condition(api, name, is_crd_established());
    match tokio::time::timeout(ESTABLISHED_DEADLINE, established).await {
        Ok(Ok(_)) => Ok(()),
        _ => Err(ApplyError::NotEstablished { name: name.to_owned() }),
    }
}

fn yaml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<DynamicObject>, ApplyError> {
    parse(path, &fs::read_to_string(path).map_err(read_error(path))?)
}

pub(crate) fn parse(path: &Path, text: &str) -> Result<Vec<DynamicObject>, ApplyError> {
    serde_saphyr::from_multiple(text)
        .map_err(|error| ApplyError::Parse { path: path.to_owned(), message: error.to_string() })
}

fn read_error(path: &Path) -> impl FnOnce(io::Error) -> ApplyError {
    let path = path.to_owned();
    move |source| ApplyError::Read { path, source }
}
