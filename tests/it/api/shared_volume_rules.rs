//! What the definitions of SharedVolume and SharedVolumeProvider refuse, what they let pass, and their defaults.

use bulkhead::api::shared_volume::{
    DeletionPolicy, Failover, Probe, Publish, ServiceSpec, SharedVolume, SharedVolumeMode,
};
use bulkhead::api::shared_volume_provider::{Discovery, ProviderType, SharedVolumeProvider, Transport};
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Failed;
use serde_json::{Value, json};

use super::Outcome;
use super::objects::{Changes, api_of, changed, dynamic};
use super::rule_cases::{Case, LABELS, Refused};
use super::rules::{dry_run, sample};
use super::world::World;

const CANDIDATES: &str = "/spec/backend/static/candidates";
const ADDRESSES: &str = "/spec/backend/static/candidates/0/addresses";

pub fn cases() -> Vec<Case> {
    [shared_volume(), service(), backend(), addresses(), provider()].into_iter().flatten().collect()
}

fn create(kind: &'static str, field: &'static str, message: &'static str, changes: Changes) -> Case {
    Case { kind, field, message, refused: Refused::Create(changes) }
}

fn volume(field: &'static str, message: &'static str, changes: Changes) -> Case {
    create("SharedVolume", field, message, changes)
}

fn update(field: &'static str, message: &'static str, before: Changes, after: Changes) -> Case {
    Case { kind: "SharedVolume", field, message, refused: Refused::Update { before, after } }
}

/// Another kind of backend than the sample's, and what goes with it.
fn instead(backend: Value) -> Changes {
    vec![("/spec/backend", backend), ("/spec/failover", Value::Null)]
}

fn of_provider() -> Changes {
    instead(json!({"provider": {"name": "stos-prod", "volumeID": "vol-1"}}))
}

fn of_pods() -> Changes {
    instead(json!({"pods": {"matchLabels": {"app": "nfs"}}}))
}

fn with(mut changes: Changes, pointer: &'static str, value: Value) -> Changes {
    changes.push((pointer, value));
    changes
}

fn shared_volume() -> Vec<Case> {
    let one = |field, message, pointer, value| volume(field, message, vec![(pointer, value)]);
    vec![
        one("spec.mountPort", "mountPort must name one of service.ports", "/spec/mountPort", json!("mountd")),
        update("spec.claimName", "claimName is immutable", vec![], vec![("/spec/claimName", json!("other"))]),
        one(
            "spec.backend.static.candidates",
            "every candidate must have a port for every service port",
            "/spec/backend/static/candidates/1/ports/1",
            Value::Null,
        ),
        one(
            "spec.failover",
            "activeCandidate is required with mode Manual and backend.static",
            "/spec/failover/activeCandidate",
            Value::Null,
        ),
        one(
            "spec.failover.activeCandidate",
            "activeCandidate must name a candidate of backend.static",
            "/spec/failover/activeCandidate",
            json!("c"),
        ),
        volume(
            "spec.failover.activeCandidate",
            "activeCandidate must name a candidate of backend.static",
            with(of_pods(), "/spec/failover", json!({"activeCandidate": "a"})),
        ),
        one(
            "spec.publish.targets",
            "target Provider needs backend.provider",
            "/spec/publish",
            json!({"targets": ["ClaimAnnotation", "Provider"]}),
        ),
        one("spec.failover.holdDown", "must be between 0s and 1h", "/spec/failover/holdDown", json!("1h1ms")),
        one(
            "spec.probe.period",
            "must be between 1s and 5m",
            "/spec/probe",
            json!({"period": "999ms", "timeout": "500ms"}),
        ),
        one("spec.probe.timeout", "must be between 100ms and 1m", "/spec/probe", json!({"timeout": "99ms"})),
        one("spec.probe.timeout", "timeout must not exceed period", "/spec/probe", json!({"period": "1s"})),
    ]
}

fn service() -> Vec<Case> {
    let one = |field, message, pointer, value| volume(field, message, vec![(pointer, value)]);
    let families = "/spec/service/ipFamilies";
    let ports = "/spec/service/ports";
    vec![
        update(
            "spec.service.name",
            "service.name is immutable once set",
            vec![("/spec/service/name", json!("media"))],
            vec![("/spec/service/name", json!("other"))],
        ),
        update(
            "spec.service.name",
            "service.name is immutable once set",
            vec![("/spec/service/name", json!("media"))],
            vec![("/spec/service/name", Value::Null)],
        ),
        update(
            "spec.service.type",
            "service.type is immutable",
            vec![],
            vec![("/spec/service/type", json!("LoadBalancer"))],
        ),
        volume(
            "spec.service.ipFamilies",
            "SingleStack takes one family",
            vec![("/spec/service/ipFamilyPolicy", json!("SingleStack")), (families, json!(["IPv4", "IPv6"]))],
        ),
        update(
            "spec.service.ipFamilies",
            "the primary family is immutable",
            vec![(families, json!(["IPv4"]))],
            vec![(families, json!(["IPv6", "IPv4"]))],
        ),
        one("spec.service.ipFamilies", "families must differ", families, json!(["IPv6", "IPv6"])),
        one(
            "spec.service.ports",
            "port names must be unique",
            ports,
            json!([{"name": "nfs", "port": 2049}, {"name": "rpcbind", "port": 111}, {"name": "rpcbind", "port": 112}]),
        ),
        // Absent is TCP.
        one(
            "spec.service.ports",
            "port and protocol must be unique",
            ports,
            json!([{"name": "nfs", "port": 2049}, {"name": "rpcbind", "port": 2049, "protocol": "TCP"}]),
        ),
    ]
}

fn backend() -> Vec<Case> {
    let pods = json!({"matchLabels": {"app": "nfs"}});
    let port = |target: Value| {
        let pods = json!({"pods": {"matchLabels": {"app": "nfs"}, "ports": [{"name": "nfs", "targetPort": target}]}});
        let message = "must be a port number or a port name";
        volume("spec.backend.pods.ports[0].targetPort", message, instead(pods))
    };
    vec![
        volume("spec.backend", "set exactly one of static, provider and pods", vec![("/spec/backend/pods", pods)]),
        volume("spec.backend", "set exactly one of static, provider and pods", instead(json!({}))),
        update("spec.backend", "the kind of backend is immutable", vec![], of_pods()),
        update(
            "spec.backend",
            "the kind of backend is immutable",
            of_pods(),
            vec![("/spec/backend", json!({"provider": {"name": "stos-prod", "volumeID": "vol-1"}}))],
        ),
        update(
            "spec.backend.provider",
            "backend.provider is immutable",
            of_provider(),
            vec![("/spec/backend/provider/volumeID", json!("vol-2"))],
        ),
        port(json!(0)),
        port(json!(65536)),
        port(json!("Nfs")),
        port(json!("")),
    ]
}

fn addresses() -> Vec<Case> {
    let one = |message, address: &str| {
        volume("spec.backend.static.candidates[0].addresses[0]", message, vec![(ADDRESSES, json!([address]))])
    };
    let nowhere = "must not be loopback, unspecified or link-local";
    let canonical = "must be in canonical form";
    vec![
        // One that is no address must be told as such, not as an error of the next rule.
        one("must be an IP address", "nfs.example.com"),
        one("must be an IP address", "10.0.0.11:20490"),
        one("must be an IP address", "fe80::1%eth0"),
        one("must be an IP address", "[fd00::b]"),
        one("must be an IP address", "10.0.0.011"),
        one(canonical, "FD00::B"),
        one(canonical, "fd00:0:0:0:0:0:0:b"),
        one(nowhere, "127.0.0.1"),
        one(nowhere, "127.255.0.9"),
        one(nowhere, "::1"),
        one(nowhere, "0.0.0.0"),
        one(nowhere, "::"),
        one(nowhere, "169.254.169.254"),
        one(nowhere, "fe80::1"),
        one(nowhere, "224.0.0.251"),
        volume(
            "spec.backend.static.candidates[0].addresses",
            "at most one address per IP family",
            vec![(ADDRESSES, json!(["10.0.0.11", "10.0.0.12"]))],
        ),
    ]
}

fn provider() -> Vec<Case> {
    let one = |field, message, changes| create("SharedVolumeProvider", field, message, changes);
    let interval = |field, message, pointer, value: &str| one(field, message, vec![(pointer, json!(value))]);
    let url = |message, url: &str| {
        one("spec.endpoints[0]", message, vec![("/spec/endpoints", json!([url])), ("/spec/caBundle", Value::Null)])
    };
    let plain = "transport TLS needs https URLs; http URLs need transport: Plaintext";
    vec![
        one("spec.endpoints", plain, vec![("/spec/endpoints", json!(["https://a:5705", "http://b:5705"]))]),
        one("spec.endpoints", plain, vec![("/spec/transport", json!("Plaintext")), ("/spec/caBundle", Value::Null)]),
        one(
            "spec.caBundle",
            "caBundle is used only with transport: TLS",
            vec![("/spec/transport", json!("TLSWithoutVerification"))],
        ),
        url("must be an http or https URL with a host", "storageos:5705"),
        url("must be an http or https URL with a host", "https://:5705"),
        url("must not have a path", "https://storageos:5705/v2"),
        interval("spec.pollInterval", "must be between 1s and 5m", "/spec/pollInterval", "999ms"),
        interval("spec.cacheExpiryInterval", "must be between 1s and 24h", "/spec/cacheExpiryInterval", "24h1s"),
        interval("spec.createPollInterval", "must be between 100ms and 1m", "/spec/createPollInterval", "99ms"),
        interval("spec.createWaitDuration", "must be between 1s and 10m", "/spec/createWaitDuration", "11m"),
        interval("spec.requestTimeout", "must be between 1s and 2m", "/spec/requestTimeout", "0s"),
        interval(
            "spec.discovery.template.failover.holdDown",
            "must be between 0s and 1h",
            "/spec/discovery/template/failover/holdDown",
            "61m",
        ),
        one(
            "spec.namespaceSelector.matchExpressions[0]",
            LABELS,
            vec![("/spec/namespaceSelector/matchExpressions/0/values", Value::Null)],
        ),
    ]
}

/// Limits and enums of both kinds.
pub fn limits() -> Vec<(&'static str, Changes, &'static str)> {
    let volume = |pointer, value, text| ("SharedVolume", vec![(pointer, value)], text);
    let provider = |pointer, value, text| ("SharedVolumeProvider", vec![(pointer, value)], text);
    vec![
        volume("/spec/claimName", json!("My_Claim"), "spec.claimName: Invalid value"),
        volume("/spec/claimName", Value::Null, "spec.claimName: Required value"),
        volume("/spec/backend", Value::Null, "spec.backend: Required value"),
        // As Services before 1.36 have it: no digit in front, no dot.
        volume("/spec/service/name", json!("1st"), "spec.service.name: Invalid value"),
        volume("/spec/service/name", json!("logs.v2"), "spec.service.name: Invalid value"),
        volume("/spec/service/ports/0/port", json!(65536), "should be less than or equal to 65535"),
        volume("/spec/service/ports/0/protocol", json!("SCTP"), "Unsupported value"),
        volume("/spec/service/type", json!("ExternalName"), "Unsupported value"),
        volume("/spec/mode", json!("Off"), "Unsupported value"),
        volume("/spec/backend/static/candidates/0/addresses", json!([]), "should have at least 1 items"),
        volume("/spec/backend/static/candidates/1/name", json!("a"), "Duplicate value"),
        volume(CANDIDATES, json!([]), "should have at least 1 items"),
        volume("/spec/probe", json!({"failureThreshold": 0}), "failureThreshold: Invalid value"),
        volume("/spec/probe", json!({"period": "1.5s"}), "period: Invalid value"),
        volume("/spec/probe", json!({"type": "HTTP"}), "Unsupported value"),
        volume("/spec/publish", json!({"targets": ["ClaimAnnotation", "ClaimAnnotation"]}), "Duplicate value"),
        ("SharedVolume", instead(json!({"pods": {"matchLabels": {}}})), "should have at least 1 properties"),
        provider("/spec/endpoints", json!([]), "should have at least 1 items"),
        provider("/spec/credentialsRef", Value::Null, "spec.credentialsRef: Required value"),
        provider("/spec/maxConcurrentRequests", json!(65), "should be less than or equal to 64"),
        provider("/spec/type", json!("Trident"), "Unsupported value"),
        provider("/spec/discovery/mode", json!("Off"), "Unsupported value"),
        provider("/spec/caBundle", json!("not base64!"), "must be of type byte"),
    ]
}

/// Each rule has another side.
pub async fn what_the_rules_let_pass(world: &World) -> Outcome {
    let plaintext = vec![
        ("/spec/transport", json!("Plaintext")),
        ("/spec/caBundle", Value::Null),
        ("/spec/endpoints", json!(["http://[fd00::5]:5705/", "http://storageos"])),
    ];
    let unverified = vec![("/spec/transport", json!("TLSWithoutVerification")), ("/spec/caBundle", Value::Null)];
    let pod_ports = json!({"pods": {"matchLabels": {"app": "nfs"}, "ports": [
        {"name": "nfs", "targetPort": 20490}, {"name": "rpcbind", "targetPort": "rpc-bind"},
    ]}});
    for (kind, changes) in [
        ("SharedVolumeProvider", plaintext),
        ("SharedVolumeProvider", unverified),
        (
            "SharedVolumeProvider",
            vec![("/spec/createPollInterval", json!("100ms")), ("/spec/pollInterval", json!("1s"))],
        ),
        ("SharedVolume", of_provider()),
        ("SharedVolume", with(of_provider(), "/spec/publish", json!({"targets": []}))),
        ("SharedVolume", with(of_provider(), "/spec/publish", json!({"targets": ["ClaimAnnotation", "Provider"]}))),
        ("SharedVolume", instead(pod_ports)),
        // Whoever switches a server that is not in a list does not name it.
        ("SharedVolume", with(of_pods(), "/spec/failover", json!({"mode": "Manual"}))),
        ("SharedVolume", vec![("/spec/failover", json!({"activeCandidate": "b"}))]),
        ("SharedVolume", vec![("/spec/failover", json!({"mode": "Manual", "activeCandidate": "b", "holdDown": "0s"}))]),
        ("SharedVolume", vec![("/spec/mountPort", json!("rpcbind"))]),
        ("SharedVolume", vec![("/spec/probe", json!({"period": "1s", "timeout": "1s"}))]),
        ("SharedVolume", vec![(ADDRESSES, json!(["fd00::b", "10.0.0.11"]))]),
        ("SharedVolume", vec![(ADDRESSES, json!(["2001:db8::1"]))]),
        (
            "SharedVolume",
            vec![(
                "/spec/service/ports",
                json!([{"name": "nfs", "port": 2049}, {"name": "rpcbind", "port": 2049, "protocol": "UDP"}]),
            )],
        ),
        (
            "SharedVolume",
            vec![("/spec/service/ipFamilyPolicy", json!("SingleStack")), ("/spec/service/ipFamilies", json!(["IPv6"]))],
        ),
    ] {
        let object = changed(&sample(kind)?, "lets-pass", &changes)?;
        let answer = api_of(&world.admin, &object)?.create(&dry_run(), &dynamic(&object)?).await;
        answer.map_err(|error| format!("{changes:?}: {error}"))?;
    }
    // What may change later.
    for (number, (before, after)) in [
        (vec![], vec![("/spec/service/name", json!("media"))]),
        (vec![], vec![("/spec/service/ipFamilies", json!(["IPv4"]))]),
        (
            vec![("/spec/service/ipFamilies", json!(["IPv4"]))],
            vec![("/spec/service/ipFamilies", json!(["IPv4", "IPv6"]))],
        ),
        (vec![], vec![("/spec/failover/activeCandidate", json!("b"))]),
        (vec![], vec![(ADDRESSES, json!(["10.0.0.99"]))]),
        (of_pods(), vec![("/spec/backend/pods/matchLabels/app", json!("other"))]),
        (of_provider(), vec![("/spec/mode", json!("Suspended")), ("/spec/deletionPolicy", json!("Retain"))]),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("changes-{number}");
        let object = changed(&sample("SharedVolume")?, &name, &before)?;
        let api = api_of(&world.admin, &object)?;
        let stored = serde_json::to_value(api.create(&PostParams::default(), &dynamic(&object)?).await?)?;
        let answer = api.replace(&name, &dry_run(), &dynamic(&changed(&stored, &name, &after)?)?).await;
        answer.map_err(|error| format!("{after:?}: {error}"))?;
    }
    Ok(())
}

/// The minimum goes over the wire, not what the Rust types fill in.
pub async fn the_shortest_ones_get_every_default(world: &World) -> Outcome {
    let volume = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolume",
        "metadata": {"name": "all-defaults", "namespace": "default"},
        "spec": {"claimName": "data", "backend": {"pods": {"matchLabels": {"app": "nfs"}}}},
    });
    let spec = create_only(world, &volume).await?;
    let typed = Api::<SharedVolume>::namespaced(world.admin.clone(), "default").get("all-defaults").await?.spec;
    assert_eq!(typed.mode, SharedVolumeMode::Active);
    assert_eq!(typed.deletion_policy, DeletionPolicy::Delete);
    assert_eq!(typed.mount_port, "nfs");
    assert_eq!(typed.service, ServiceSpec::default());
    assert_eq!(typed.failover, Failover::default());
    assert_eq!(typed.probe, Probe::default());
    assert_eq!(typed.publish, Publish::default());
    assert_eq!(serde_json::to_value(&typed)?, spec, "the Rust defaults are those of the schema");
    assert_eq!(spec["service"]["ports"], json!([{"name": "nfs", "port": 2049}]));
    assert_eq!(spec["probe"]["period"], json!("5s"));

    let provider = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "SharedVolumeProvider", "metadata": {"name": "all-defaults"},
        "spec": {"endpoints": ["https://storageos"], "credentialsRef": {"namespace": "bulkhead-system", "name": "stos"}},
    });
    let spec = create_only(world, &provider).await?;
    let typed = Api::<SharedVolumeProvider>::all(world.admin.clone()).get("all-defaults").await?.spec;
    assert_eq!((typed.type_, typed.transport), (ProviderType::StorageOS, Transport::TLS));
    assert_eq!(typed.discovery, Discovery::default());
    // These follow the flags, so nothing is filled in.
    assert!(typed.poll_interval.is_none() && typed.cache_expiry_interval.is_none());
    assert_eq!(serde_json::to_value(&typed)?, spec, "the Rust defaults are those of the schema");
    assert_eq!((&spec["requestTimeout"], &spec["maxConcurrentRequests"]), (&json!("10s"), &json!(4)));
    Ok(())
}

/// Its spec as it is stored.
async fn create_only(world: &World, object: &Value) -> Result<Value, Failed> {
    let stored = api_of(&world.admin, object)?.create(&PostParams::default(), &dynamic(object)?).await?;
    Ok(stored.data["spec"].clone())
}
