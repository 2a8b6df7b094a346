//! The manifests of one driver's sidecar: its rights and its container, from the templates that `config/` has for everybody.
//! Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use crate::api::names;
use crate::kubectl::error::{Error, Result};

use super::find::{Account, Controller};

/// The rights, as they are generated from the table, and how the API server ranks what they are used for.
const RIGHTS: [&str; 3] = [
    include_str!("../../../config/rbac/fencer/cluster_role.yaml"),
    include_str!("../../../config/rbac/fencer/lease_role.yaml"),
    include_str!("../../../config/rbac/fencer/flow_schemas.yaml"),
];
/// The right to read Secrets, once for each namespace that has such.
const SECRETS: &str = include_str!("../../../config/rbac/fencer/secret_role.yaml");
/// The sidecar, as a strategic merge patch.
const SIDECAR: &str = include_str!("../../../config/sidecar/sidecar_patch.yaml");
/// The image of that patch, which kustomize knows by this name.
pub const IMAGE: &str = "bulkhead-csi-sidecar:latest";

/// What the templates call the driver, and the ServiceAccount of its controller.
const DRIVER: &str = "csi.example.com";
const ACCOUNT: &str = "csi-controller";
/// Where the sidecar has the driver's socket.
const MOUNT: &str = "/csi";

/// Secrets that a sidecar may read, by namespace: those of these names, or all.
pub type Secrets = BTreeMap<String, Option<BTreeSet<String>>>;

/// The rights of a driver's sidecar, for the ServiceAccount that it runs under; to read these Secrets alone.
pub fn rights(driver: &str, account: &Account, secrets: &Secrets) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for text in RIGHTS {
        objects.extend(of_driver(text, driver, account)?);
    }
    for (namespace, names) in secrets {
        for mut object in of_driver(SECRETS, driver, account)? {
            set(&mut object, "/metadata/namespace", json!(namespace));
            if let (Some(names), Some(Value::Object(rule))) = (names, object.pointer_mut("/rules/0")) {
                rule.insert("resourceNames".to_owned(), json!(names));
            }
            objects.push(object);
        }
    }
    Ok(objects)
}

/// The objects of a template, for a driver and the ServiceAccount of its controller.
fn of_driver(text: &str, driver: &str, account: &Account) -> Result<Vec<Value>> {
    let mut objects = documents(text)?;
    let (leases, lease) = (names::fencer_lease(DRIVER), names::fencer_lease(driver));
    let filling = [(DRIVER, driver), (ACCOUNT, account.name.as_str()), (leases.as_str(), lease.as_str())];
    for object in &mut objects {
        fill(object, &filling);
        for pointer in ["/subjects/0/namespace", "/spec/rules/0/subjects/0/serviceAccount/namespace"] {
            set(object, pointer, json!(account.namespace));
        }
        // Or those of a second driver would overwrite them.
        for pointer in ["/metadata/name", "/roleRef/name"] {
            if let Some(Value::String(name)) = object.pointer_mut(pointer) {
                *name = format!("{name}-{driver}");
            }
        }
    }
    Ok(objects)
}

/// The strategic merge patch that adds the sidecar to the controller of a driver.
pub fn patch(controller: &Controller, image: &str) -> Result<Value> {
    let mut patch = documents(SIDECAR)?.into_iter().next().unwrap_or_default();
    let mut mount = json!({ "name": controller.socket.volume, "mountPath": MOUNT });
    if let (Some(path), Some(fields)) = (&controller.socket.sub_path, mount.as_object_mut()) {
        fields.insert("subPath".to_owned(), json!(path));
    }
    let args =
        [format!("--csi-address={MOUNT}/{}", controller.socket.file), format!("--listen=0.0.0.0:{}", controller.port)];
    set(&mut patch, "/kind", json!(controller.kind));
    set(&mut patch, "/metadata/name", json!(controller.name));
    let container = "/spec/template/spec/containers/0";
    set(&mut patch, &format!("{container}/image"), json!(image));
    set(&mut patch, &format!("{container}/args"), json!(args));
    set(&mut patch, &format!("{container}/ports/0/containerPort"), json!(controller.port));
    set(&mut patch, &format!("{container}/volumeMounts"), json!([mount]));
    Ok(patch)
}

/// The objects of a template.
fn documents(text: &str) -> Result<Vec<Value>> {
    let found: Vec<Value> = serde_saphyr::from_multiple(text).map_err(|error| Error::Unwritable(error.to_string()))?;
    Ok(found.into_iter().filter(|object| !object.is_null()).collect())
}

/// Puts a value where the template has another; nothing where it has none.
fn set(object: &mut Value, pointer: &str, to: Value) {
    if let Some(place) = object.pointer_mut(pointer) {
        *place = to;
    }
}

/// Puts the driver's names for those of the template, wherever they are the whole of a text.
fn fill(value: &mut Value, filling: &[(&str, &str)]) {
    match value {
        Value::String(text) => {
            if let Some((_, to)) = filling.iter().find(|(from, _)| *from == text.as_str()) {
                *text = (*to).to_owned();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| fill(item, filling)),
        Value::Object(fields) => fields.values_mut().for_each(|field| fill(field, filling)),
        _ => {}
    }
}
