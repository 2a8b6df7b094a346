//! Which containers of a pod are ours, and where they answer a scrape. Pure.

use k8s_openapi::api::core::v1::{Container, Pod};

/// What our programs call the port of `/metrics`: in pods of ours, and beside a driver, whose own port may be `http`.
const PORTS: [&str; 2] = ["http", "bulkhead-http"];

/// The containers of a pod that are ours: all of a pod in the operator's namespace, elsewhere by name or image.
pub fn containers<'a>(pod: &'a Pod, operator: &str) -> impl Iterator<Item = &'a Container> {
    let at_home = pod.metadata.namespace.as_deref() == Some(operator);
    let is_ours = move |it: &&Container| {
        let image = it.image.as_deref().unwrap_or_default();
        at_home || it.name.starts_with("bulkhead-") || image.contains("bulkhead-")
    };
    pod.spec.iter().flat_map(|spec| &spec.containers).filter(is_ours)
}

/// Those that can be scraped, each with its port.
pub fn scraped<'a>(pod: &'a Pod, operator: &str) -> impl Iterator<Item = (&'a str, i32)> {
    containers(pod, operator).filter_map(|container| {
        let mut ports = container.ports.iter().flatten();
        let port = ports.find(|port| port.name.as_deref().is_some_and(|name| PORTS.contains(&name)))?;
        Some((container.name.as_str(), port.container_port))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const OPERATOR: &str = "bulkhead-system";

    fn pod(namespace: &str, containers: &Value) -> Pod {
        let metadata = json!({"namespace": namespace, "name": "it"});
        serde_json::from_value(json!({"metadata": metadata, "spec": {"containers": containers}})).unwrap()
    }

    fn container(name: &str, image: &str, port: &str, number: i32) -> Value {
        json!({"name": name, "image": image, "ports": [{"name": port, "containerPort": number}]})
    }

    fn found(pod: &Pod) -> (Vec<&str>, Vec<(&str, i32)>) {
        let names = containers(pod, OPERATOR).map(|container| container.name.as_str());
        (names.collect(), scraped(pod, OPERATOR).collect())
    }

    #[test]
    fn beside_a_driver_only_what_is_ours() {
        let driver = [container("driver", "csi-array:1", "metrics", 9000), container("proxy", "proxy:1", "http", 80)];
        let sidecar = container("bulkhead-csi-sidecar", "registry.example.com/fencer:1", "bulkhead-http", 8081);
        let [array, proxy] = driver.clone();
        let beside = pod("csi-array", &json!([array, proxy, sidecar]));
        assert_eq!(found(&beside), (vec!["bulkhead-csi-sidecar"], vec![("bulkhead-csi-sidecar", 8081)]));
        assert_eq!(found(&pod("csi-array", &json!(driver))), (vec![], vec![]));
    }

    #[test]
    fn at_home_every_log_and_the_ports_of_our_names() {
        let manager = container("manager", "bulkhead-controller:1", "http", 8080);
        let webhook = container("webhook", "webhook:1", "metrics", 9000);
        let home = pod(OPERATOR, &json!([manager, webhook, {"name": "shell", "image": "shell:1"}]));
        assert_eq!(found(&home), (vec!["manager", "webhook", "shell"], vec![("manager", 8080)]));
    }

    #[test]
    fn elsewhere_by_image_too() {
        let node = container("s3-plugin", "registry.example.com/bulkhead-s3-csi:1", "http", 8080);
        let registrar = container("registrar", "registrar:1", "http", 9809);
        let pod = pod("kube-system", &json!([node, registrar]));
        assert_eq!(found(&pod), (vec!["s3-plugin"], vec![("s3-plugin", 8080)]));
    }
}
