//! The components of `config/sidecar/drivers` and their rights: beside the Deployments of their drivers, all in one
//! kustomization. And what no Role that we ship may say, those of samples too.

use bulkhead::api::names;
use bulkhead::kubectl::sidecar::find::{self, Asked, Workload};
use bulkhead::kubectl::sidecar::manifests::{self, Secrets};
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::render::kustomize;
use super::same::part;
use crate::api::objects::read;
use crate::api::world::root;

/// Where the components are.
const COMPONENTS: &str = "config/sidecar/drivers";
/// The Deployments, the components, and their rights.
const TOGETHER: &str = "tests/it/chart/drivers";

pub fn each_driver_has_its_own() -> Result<(), Failed> {
    let objects = kustomize(TOGETHER)?;
    let text = std::fs::read_to_string(root().join("config/sidecar/sidecar_patch.yaml"))?;
    let generic: Value = serde_saphyr::from_str(&text)?;
    let generic = container(&generic, "bulkhead-csi-sidecar").ok_or("config/sidecar adds no container")?;
    // What Pod Security's restricted asks for, but for the user: the driver's socket is of the driver's user.
    let restricted = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    assert_eq!(generic.get("securityContext"), Some(&restricted));
    let template = kustomize("config/rbac/fencer")?;
    let ranks: Vec<_> = of_kind(&template, "FlowSchema").collect();
    let deployments: Vec<_> = of_kind(&objects, "Deployment").collect();
    let components = std::fs::read_dir(root().join(COMPONENTS))?.count();
    if deployments.len() != components {
        return Err(format!("{TOGETHER} has {} Deployments for {components} components", deployments.len()).into());
    }
    for deployment in deployments {
        let driver = part(deployment, "/metadata/annotations/driver");
        let sidecar = container(deployment, "bulkhead-csi-sidecar").ok_or_else(|| format!("{driver}: no sidecar"))?;
        let beside = container(deployment, "driver").ok_or_else(|| format!("{driver}: no driver"))?;
        if without_its_own(sidecar) != without_its_own(generic) {
            return Err(format!("{driver}: {sidecar} is another sidecar than {generic}").into());
        }
        let address = part(beside, "/env/0/value").replace("unix://", "--csi-address=");
        let port = sidecar.pointer("/ports/0/containerPort").and_then(Value::as_i64).unwrap_or_default();
        let expected = json!([address, format!("--listen=0.0.0.0:{port}")]);
        if sidecar.get("args") != Some(&expected) {
            return Err(format!("{driver}: {:?} instead of {expected}", sidecar.get("args")).into());
        }
        has_its_rights(&objects, deployment, driver)?;
        is_ranked(&objects, &ranks, deployment, driver)?;
        is_what_the_command_prints(&objects, deployment, driver)?;
    }
    Ok(())
}

/// Who lists Secrets has all of them, those to come too. The table of rights is held to it by a test of its own; Roles that are
/// written by hand, as those of samples, are held to it here.
pub fn no_manifest_lists_secrets() -> Result<(), Failed> {
    let (mut folders, mut rules) = (vec![root().join("config")], 0);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "yaml") {
                for object in read(&path)? {
                    rules += lists_no_secrets(&object).map_err(|rule| format!("{}: {rule}", path.display()))?;
                }
            }
        }
    }
    assert!(rules >= 4, "only {rules} rules about Secrets were found");
    Ok(())
}

/// How many rules of a Role are about Secrets, or one that says too much.
fn lists_no_secrets(object: &Value) -> Result<usize, &Value> {
    let is_role = matches!(part(object, "/kind"), "Role" | "ClusterRole");
    let rules = object.get("rules").and_then(Value::as_array).filter(|_| is_role).into_iter().flatten();
    let about = rules.filter(|rule| {
        let resources = rule.get("resources").and_then(Value::as_array).into_iter().flatten();
        resources.into_iter().any(|resource| *resource == "secrets" || *resource == "*")
    });
    about.map(|rule| if rule.get("verbs") == Some(&json!(["get"])) { Ok(1) } else { Err(rule) }).sum()
}

/// A container without what differs from driver to driver: its socket and the port that is free there.
fn without_its_own(container: &Value) -> Value {
    let mut rest = container.clone();
    if let Some(fields) = rest.as_object_mut() {
        fields.remove("args");
        fields.remove("ports");
    }
    rest
}

/// It may attest for its driver and no other, and hold that driver's Lease.
fn has_its_rights(objects: &[Value], deployment: &Value, driver: &str) -> Result<(), Failed> {
    let account = json!({
        "kind": "ServiceAccount",
        "name": part(deployment, "/spec/template/spec/serviceAccountName"),
        "namespace": part(deployment, "/metadata/namespace"),
    });
    let attests = granted(objects, "ClusterRole", "", &account).map(|role| named(role, "fencers"));
    let leads = granted(objects, "Role", "bulkhead-system", &account).map(|role| named(role, "leases"));
    let expected = (Some(vec![json!(driver)]), Some(vec![json!(names::fencer_lease(driver))]));
    let found = (attests, leads);
    if found == expected {
        return Ok(());
    }
    Err(format!("{driver}: {account} has {found:?} instead of {expected:?}").into())
}

/// What the template has the API server rank is ranked for its account too.
fn is_ranked(objects: &[Value], template: &[&Value], deployment: &Value, driver: &str) -> Result<(), Failed> {
    let account = json!({
        "name": part(deployment, "/spec/template/spec/serviceAccountName"),
        "namespace": part(deployment, "/metadata/namespace"),
    });
    let schemas = of_kind(objects, "FlowSchema");
    let found = schemas.filter(|it| it.pointer("/spec/rules/0/subjects/0/serviceAccount") == Some(&account)).count();
    if found == template.len() {
        return Ok(());
    }
    Err(format!("{driver}: {found} FlowSchemas for {account} instead of {}", template.len()).into())
}

/// `kubectl bulkhead sidecar` makes of the driver's Deployment what its component and its rights are.
fn is_what_the_command_prints(objects: &[Value], deployment: &Value, driver: &str) -> Result<(), Failed> {
    let workload = Workload::of_deployment(&serde_json::from_value(deployment.clone())?).ok_or("no template")?;
    let asked = Asked { driver, namespace: None, workload: None };
    let controller = find::choose(asked, &[workload], &[])?;
    let patch = manifests::patch(&controller, manifests::IMAGE)?;
    let (made, shipped) = (container(&patch, "bulkhead-csi-sidecar"), container(deployment, "bulkhead-csi-sidecar"));
    if made != shipped {
        return Err(format!("{driver}: {made:?} is printed, and the component adds {shipped:?}").into());
    }
    let secrets =
        of_kind(objects, "Role").filter(|it| part(it, "/metadata/name") == format!("bulkhead-fencer-secrets-{driver}"));
    let secrets: Secrets = secrets.map(|it| (part(it, "/metadata/namespace").to_owned(), None)).collect();
    let made = manifests::rights(driver, &controller.service_account, &secrets)?;
    let ending = format!("-{driver}");
    let shipped: Vec<_> = objects.iter().filter(|it| part(it, "/metadata/name").ends_with(&ending)).collect();
    let missing = made.iter().find(|it| !shipped.contains(it));
    if made.len() == shipped.len() && missing.is_none() {
        return Ok(());
    }
    Err(format!("{driver}: of {} objects {missing:?} is printed, and not one of {shipped:?}", made.len()).into())
}

/// The role of that kind and namespace that a binding gives to the account.
fn granted<'a>(objects: &'a [Value], kind: &str, namespace: &str, account: &Value) -> Option<&'a Value> {
    let here = |object: &&Value| part(object, "/metadata/namespace") == namespace;
    let kind_of_binding = format!("{kind}Binding");
    let mut bindings = of_kind(objects, &kind_of_binding).filter(here);
    let binding = bindings.find(|binding| binding.pointer("/subjects/0") == Some(account))?;
    let name = part(binding, "/roleRef/name");
    of_kind(objects, kind).filter(here).find(|role| part(role, "/metadata/name") == name)
}

/// The names for which a role has rights on a resource.
fn named(role: &Value, resource: &str) -> Vec<Value> {
    let rules = role.get("rules").and_then(Value::as_array).into_iter().flatten();
    let about = rules.filter(|rule| rule.pointer("/resources/0") == Some(&json!(resource)));
    about.filter_map(|rule| rule.get("resourceNames")?.as_array().cloned()).flatten().collect()
}

/// The container of that name.
pub fn container<'a>(deployment: &'a Value, name: &str) -> Option<&'a Value> {
    let containers = deployment.pointer("/spec/template/spec/containers")?.as_array()?;
    containers.iter().find(|container| part(container, "/name") == name)
}

/// The objects of a kind.
pub fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| part(object, "/kind") == kind)
}
