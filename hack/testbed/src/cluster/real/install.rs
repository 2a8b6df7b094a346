//! What is applied to a cluster of real nodes: the operator as it is shipped, and the array's driver with or without our sidecar.

use kube::ResourceExt;
use kube::api::DynamicObject;
use serde_json::json;

use super::RealCluster;
use crate::cluster::{ClusterError, root};
use crate::csi_driver::manifests;
use crate::{TestbedError, apply};

impl RealCluster {
    /// Applies `config/default`, or `config/with-s3`.
    pub(super) async fn install_operator(&self) -> Result<(), ClusterError> {
        let folder = root().join(if self.s3.is_some() { "config/with-s3" } else { "config/default" });
        let text = self.testbed.kubectl(&["kustomize", &folder.to_string_lossy()]).await?;
        let mut objects = apply::parse(&folder, &text).map_err(TestbedError::from)?;
        if let Some(s3) = &self.s3 {
            s3.complete(&mut objects)?;
        }
        for object in objects.iter_mut().filter(|object| object.name_any() == "bulkhead-controller") {
            add_args(object, &self.options.controller_args);
        }
        Ok(self.testbed.apply(objects).await?)
    }

    /// Applies the manifests of the array's driver, with our sidecar and its rights in them, or as if there were no Bulkhead. A
    /// sidecar that is there already goes then; its rights stay.
    ///
    /// # Errors
    /// When the API server refuses them.
    pub async fn apply_driver(&self, with_sidecar: bool) -> Result<(), ClusterError> {
        let folder = manifests::Deployment::folder();
        let text = self.testbed.kubectl(&["kustomize", &folder.to_string_lossy()]).await?;
        let mut objects = apply::parse(folder, &self.driver.render(&text)).map_err(TestbedError::from)?;
        if !with_sidecar {
            // Its rights.
            objects.retain(|object| !object.name_any().starts_with("bulkhead-"));
            objects.iter_mut().for_each(without_sidecar);
        }
        Ok(self.testbed.apply(objects).await?)
    }
}

/// Adds arguments to the first container of a Deployment; of another object nothing.
fn add_args(object: &mut DynamicObject, args: &[String]) {
    let Some(container) = object.data.pointer_mut("/spec/template/spec/containers/0") else { return };
    let present = container.get("args").and_then(|args| args.as_array()).cloned().unwrap_or_default();
    let all: Vec<_> = present.into_iter().chain(args.iter().map(|arg| json!(arg))).collect();
    if let Some(container) = container.as_object_mut() {
        container.insert("args".to_owned(), json!(all));
    }
}

/// Takes our sidecar, and the label that says that it is there, out of a Deployment; of another object nothing.
fn without_sidecar(object: &mut DynamicObject) {
    let containers = object.data.pointer_mut("/spec/template/spec/containers").and_then(|list| list.as_array_mut());
    if let Some(containers) = containers {
        containers.retain(|container| container.get("name") != Some(&json!("bulkhead-csi-sidecar")));
    }
    let labels = object.data.pointer_mut("/spec/template/metadata/labels").and_then(|labels| labels.as_object_mut());
    if let Some(labels) = labels {
        labels.remove("bulkhead.dev/sidecar");
    }
}
