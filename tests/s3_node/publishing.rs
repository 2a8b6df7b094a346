//! From a call to a mount, shared by those who may share it.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bulkhead::csi::v1::volume_capability::access_mode::Mode;
use bulkhead::csi::v1::*;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSINode;
use kube::Api;
use kube::api::PostParams;
use libtest_mimic::Trial;
use serde_json::json;
use tonic::Code;

use super::engine::{ARGUMENTS, ENVIRONMENT, KEYS};
use super::plugin::{Plugin, capability};
use super::world::{HANDLE, PATIENCE, Shared, World, trial, uid};

pub fn trials(shared: &Arc<Shared>) -> Vec<Trial> {
    vec![
        trial(shared, "publishing::a_volume_comes_and_goes", a_volume_comes_and_goes),
        trial(shared, "publishing::two_workloads_share_one_source", two_workloads_share_one_source),
        trial(shared, "publishing::again_writes_credentials_and_mounts_nothing", again_writes_credentials),
        trial(shared, "publishing::secrets_stay_with_their_mountpoint_pod", secrets_stay_apart),
        trial(shared, "publishing::reading_only_is_of_the_pod_or_of_the_volume", reading_only),
        trial(shared, "publishing::the_longest_name_of_a_volume", the_longest_name_of_a_volume),
        trial(shared, "publishing::another_bucket_is_refused", another_bucket_is_refused),
        trial(shared, "publishing::options_are_checked_and_sorted", options_are_checked),
        trial(shared, "publishing::the_group_of_the_s3pa_owns_the_files", the_group_owns_the_files),
        trial(shared, "publishing::what_cannot_be_used_is_named", what_cannot_be_used_is_named),
        trial(shared, "publishing::what_the_plugin_can_do", what_the_plugin_can_do),
        trial(shared, "publishing::the_taint_goes_when_the_driver_is_registered", the_taint_goes),
    ]
}

pub fn read(folder: &Path, name: &str) -> String {
    fs::read_to_string(folder.join(name)).unwrap()
}

async fn a_volume_comes_and_goes(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    plugin.publish(&workload).call().await.unwrap();
    let target = world.target(&workload);
    fs::write(target.join("model"), "weights").unwrap();
    assert_eq!(read(&world.source(&pod), "model"), "weights");
    let stats = plugin.stats(&target).await.unwrap();
    let bytes = stats.usage.iter().find(|usage| usage.unit() == volume_usage::Unit::Bytes).unwrap();
    assert_eq!((bytes.total, bytes.available, bytes.used), (4_096_000, 2_457_600, 1_638_400));
    assert!(!stats.volume_condition.unwrap().abnormal);

    plugin.unpublish(&workload).await.unwrap();
    assert!(!target.exists());
    assert_eq!(plugin.stats(&target).await.unwrap_err().code(), Code::NotFound);
    assert!(world.is_mounted(&world.source(&pod)), "the source stays for others");
    plugin.unpublish(&workload).await.unwrap();
}

async fn two_workloads_share_one_source(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let (one, two) = (uid(), uid());
    for workload in [&one, &two] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[&one, &two])]).await;
    // Together: it is mounted once all the same.
    let (first, second) = tokio::join!(plugin.publish(&one).call(), plugin.publish(&two).call());
    first.unwrap();
    second.unwrap();
    fs::write(world.target(&one).join("a"), "by one").unwrap();
    assert_eq!(read(&world.target(&two), "a"), "by one");
    let mounts = world.mounts();
    assert_eq!(mounts.len(), 3, "{mounts:#?}");
    assert!(mounts.iter().all(|mount| mount.device == mounts[0].device && mount.source == "mountpoint-s3"));
    plugin.unpublish(&one).await.unwrap();
    assert_eq!(read(&world.target(&two), "a"), "by one");
}

async fn again_writes_credentials(world: World) {
    let pod = world.running_pod().await;
    let workload = world.workload(&pod).await;
    let plugin = world.plugin().await;
    plugin.publish(&workload).call().await.unwrap();
    let (target, before) = (world.target(&workload), world.mounts());
    assert!(read(&target, KEYS).contains("DRIVERKEY"));
    drop(plugin);
    let plugin = Plugin::start(&world, &[("AWS_ACCESS_KEY_ID", "ROTATED"), ("AWS_SESSION_TOKEN", "token")]).await;
    plugin.publish(&workload).call().await.unwrap();
    let keys = read(&target, KEYS);
    assert!(
        keys.contains("ROTATED") && keys.contains("aws_session_token = token") && !keys.contains("DRIVERKEY"),
        "{keys}"
    );
    assert_eq!(world.mounts(), before);
}

/// In the most verbose log, too.
async fn secrets_stay_apart(world: World) {
    let plugin = Plugin::start(&world, &[("BULKHEAD_LOG", "trace")]).await;
    let (ours, theirs) = (world.running_pod().await, world.running_pod().await);
    let (one, two) = (uid(), uid());
    for workload in [&one, &two] {
        world.make_folder(workload);
    }
    world.attach("", &[(&ours, &[&one])]).await;
    world.attach("1000", &[(&theirs, &[&two])]).await;
    plugin.publish(&one).secret("KEYONE", "secret/one").call().await.unwrap();
    plugin.publish(&two).secret("KEYTWO", "secret/two").call().await.unwrap();
    let keys = [read(&world.target(&one), KEYS), read(&world.target(&two), KEYS)];
    assert!(keys[0].contains("KEYONE") && !keys[0].contains("KEYTWO") && !keys[0].contains("DRIVERKEY"), "{keys:?}");
    assert!(keys[1].contains("KEYTWO") && !keys[1].contains("KEYONE") && !keys[1].contains("DRIVERKEY"), "{keys:?}");
    let files: Vec<_> =
        fs::read_dir(ours.communication.join("credentials")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(
        files.iter().all(|file| file.to_str().unwrap().starts_with(&format!("{}-models~2026-", ours.uid))),
        "{files:?}"
    );
    let environment = read(&world.target(&one), ENVIRONMENT);
    assert!(
        environment.contains("AWS_EC2_METADATA_DISABLED=true") && !environment.contains("secret/one"),
        "{environment}"
    );

    // A secret that changes reaches the mount that is there.
    plugin.publish(&one).secret("KEYNEW", "secret/new").call().await.unwrap();
    assert!(read(&world.target(&one), KEYS).contains("KEYNEW"));
    let wrong = plugin.publish(&one).secret("KEY ONE", "secret/one").call().await.unwrap_err();
    assert!(wrong.code() == Code::InvalidArgument && wrong.message().contains("access_key_id"), "{wrong}");
    let log = plugin.log();
    assert!(log.contains("TRACE"), "{log}");
    for secret in ["KEYONE", "KEYTWO", "KEYNEW", "secret/", "DRIVERKEY", "driversecret"] {
        assert!(!log.contains(secret) && !wrong.message().contains(secret), "{secret} is in the log or the error");
    }
}

fn is_read_only(result: io::Result<()>) -> bool {
    result.is_err_and(|error| error.kind() == io::ErrorKind::ReadOnlyFilesystem)
}

async fn reading_only(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let (reader, writer) = (uid(), uid());
    for workload in [&reader, &writer] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[&reader, &writer])]).await;
    // The one that only reads comes first, and takes nothing from the other.
    plugin.publish(&reader).with(|request| request.readonly = true).call().await.unwrap();
    plugin.publish(&writer).call().await.unwrap();
    fs::write(world.target(&writer).join("a"), "text").unwrap();
    assert_eq!(read(&world.target(&reader), "a"), "text");
    assert!(is_read_only(fs::write(world.target(&reader).join("b"), "text")));
    let leftovers = fs::read_dir(world.kubelet.join("plugins/s3.csi.scality.com/read-only")).unwrap();
    assert_eq!(leftovers.count(), 0);

    // By its access mode, and by its mount options.
    for (group, mode, options) in
        [("7", Mode::MultiNodeReaderOnly, &[][..]), ("8", Mode::MultiNodeMultiWriter, &["read-only"])]
    {
        let of_volume = world.running_pod().await;
        let workload = uid();
        world.make_folder(&workload);
        world.attach(group, &[(&of_volume, &[&workload])]).await;
        let reads = Some(capability(mode, options));
        plugin.publish(&workload).with(|request| request.volume_capability = reads).call().await.unwrap();
        assert!(is_read_only(fs::write(world.target(&workload).join("b"), "text")), "{mode:?} {options:?}");
        assert!(is_read_only(fs::write(world.source(&of_volume).join("b"), "text")), "{mode:?} {options:?}");
    }
}

async fn the_longest_name_of_a_volume(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let (workload, volume) = (uid(), "v".repeat(253));
    let target = world.target_of(&workload, &volume);
    fs::create_dir_all(target.parent().unwrap()).unwrap();
    world.attach_volume(&volume, "", &[(&pod, &[&workload])]).await;
    let path = target.to_str().unwrap().to_owned();
    plugin.publish(&workload).with(|request| request.target_path = path.clone()).call().await.unwrap();
    read(&target, ARGUMENTS);
    let kept = world.kubelet.join("plugins/s3.csi.scality.com/publications");
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 1);
    let request = NodeUnpublishVolumeRequest { volume_id: HANDLE.into(), target_path: path };
    plugin.calls.clone().node_unpublish_volume(request).await.unwrap();
    assert!(!target.exists());
    assert_eq!(fs::read_dir(&kept).unwrap().count(), 0);
}

/// The volume was made anew under its name while a workload still has the one before.
async fn another_bucket_is_refused(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let (before, after) = (uid(), uid());
    for workload in [&before, &after] {
        world.make_folder(workload);
    }
    world.attach("", &[(&pod, &[&before, &after])]).await;
    plugin.publish(&before).call().await.unwrap();
    fs::write(world.target(&before).join("a"), "text").unwrap();
    let refuses = async |plugin: &Plugin| {
        for call in [plugin.publish(&after).bucket("another"), plugin.publish(&after).secret("KEYONE", "secret/one")] {
            let refused = call.call().await.unwrap_err();
            assert!(refused.code() == Code::FailedPrecondition && refused.message().contains("made anew"), "{refused}");
            assert!(!world.target(&after).exists());
        }
    };
    refuses(&plugin).await;
    drop(plugin);
    let plugin = world.plugin().await;
    refuses(&plugin).await;
    assert!(!read(&world.target(&before), KEYS).contains("KEYONE"));
    assert_eq!(read(&world.target(&before), "a"), "text");
    plugin.publish(&after).call().await.unwrap();
    assert_eq!(read(&world.target(&after), "a"), "text");
}

async fn options_are_checked(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workload = world.workload(&pod).await;
    let options = [
        "region eu-west-1",
        "allow-delete",
        "endpoint-url=http://evil",
        "profile=x",
        "-o dev",
        "aws-max-attempts=7",
        "foreground",
    ];
    let capability = Some(capability(Mode::MultiNodeMultiWriter, &options));
    plugin.publish(&workload).with(|request| request.volume_capability = capability).call().await.unwrap();
    let arguments = read(&world.target(&workload), ARGUMENTS);
    let arguments: Vec<_> = arguments.lines().collect();
    assert_eq!(arguments[0], "bucket");
    let ours: Vec<_> = arguments[2..].iter().filter(|arg| **arg != "--foreground").copied().collect();
    assert_eq!(ours[..4], ["--allow-delete", "--allow-root", "--force-path-style", "--region=eu-west-1"]);
    assert!(ours[4].starts_with("--user-agent-prefix=s3-csi-driver/") && ours[4].contains(" k8s/v1."), "{ours:?}");
    assert_eq!(ours.len(), 5, "{ours:?}");
    let environment = read(&world.target(&workload), ENVIRONMENT);
    for expected in
        ["AWS_MAX_ATTEMPTS=7", "AWS_REGION=us-east-1", "AWS_ENDPOINT_URL=http://s3.example.com:9000", "AWS_PROFILE="]
    {
        assert!(environment.lines().any(|line| line.starts_with(expected)), "{expected}: {environment}");
    }
    let device = world.mounts().into_iter().find(|mount| Path::new(&mount.path) == world.source(&pod)).unwrap();
    for option in ["nosuid", "nodev", "noatime"] {
        assert!(device.options.iter().any(|one| one == option), "{option}: {device:?}");
    }
    for option in ["allow_other", "default_permissions"] {
        assert!(device.super_options.iter().any(|one| one == option), "{option}: {device:?}");
    }
}

async fn the_group_owns_the_files(world: World) {
    let (plugin, pod) = (world.plugin().await, world.running_pod().await);
    let workload = uid();
    world.make_folder(&workload);
    world.attach("2000", &[(&pod, &[&workload])]).await;
    plugin.publish(&workload).call().await.unwrap();
    let arguments = read(&world.target(&workload), ARGUMENTS);
    for expected in ["--gid=2000", "--allow-other", "--dir-mode=770", "--file-mode=660"] {
        assert!(arguments.lines().any(|line| line == expected), "{expected}: {arguments}");
    }
}

async fn what_cannot_be_used_is_named(world: World) {
    let plugin = world.plugin().await;
    let workload = uid();
    for (request, field) in [
        (plugin.publish(&workload).with(|r| r.volume_id.clear()), "volume_id"),
        (plugin.publish(&workload).with(|r| r.target_path.clear()), "target_path"),
        (plugin.publish(&workload).with(|r| r.volume_capability = None), "volume_capability"),
        (
            plugin.publish(&workload).with(|r| r.volume_capability = Some(capability(Mode::SingleNodeWriter, &[]))),
            "access_mode",
        ),
        (plugin.publish(&workload).with(|r| r.volume_context.clear()), "bucketName"),
        (plugin.publish(&workload).context("authenticationSource", "pod"), "authenticationSource"),
        (plugin.publish(&workload).context("authenticationSource", "secret"), "access_key_id"),
        (plugin.publish(&workload).context("csi.storage.k8s.io/ephemeral", "true"), "ephemeral"),
    ] {
        let status = request.call().await.unwrap_err();
        assert!(status.code() == Code::InvalidArgument && status.message().contains(field), "{field}: {status}");
    }
    let call = NodeUnpublishVolumeRequest { volume_id: HANDLE.into(), target_path: String::new() };
    assert_eq!(plugin.calls.clone().node_unpublish_volume(call).await.unwrap_err().code(), Code::InvalidArgument);
    let huge = plugin.publish(&workload).context("x", &"x".repeat(3 << 20)).call().await.unwrap_err();
    assert_eq!(huge.code(), Code::OutOfRange, "{huge}");
}

async fn what_the_plugin_can_do(world: World) {
    use bulkhead::csi::plugin_registration::InfoRequest;
    use bulkhead::csi::plugin_registration::registration_client::RegistrationClient;
    use std::os::unix::fs::PermissionsExt as _;

    let mut plugin = Plugin::start(&world, &[("BULKHEAD_S3_MAX_VOLUMES_PER_NODE", "40")]).await;
    let info = plugin.calls.clone().node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!((info.node_id, info.max_volumes_per_node), (world.node.clone(), 40));
    let answer = plugin.calls.clone().node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
    let has = answer.capabilities.into_iter().filter_map(|capability| match capability.r#type? {
        node_service_capability::Type::Rpc(rpc) => Some(rpc.r#type()),
    });
    use node_service_capability::rpc::Type;
    assert_eq!(has.collect::<Vec<_>>(), [Type::VolumeMountGroup, Type::GetVolumeStats, Type::VolumeCondition]);
    assert_eq!(fs::metadata(&plugin.socket).unwrap().permissions().mode() & 0o777, 0o700);

    let registry = world.kubelet.join("plugins_registry/s3.csi.scality.com-reg.sock");
    world.until("the registration socket", || registry.exists()).await;
    let channel = bulkhead::csi::client::connect(registry.to_str().unwrap()).unwrap();
    let told = RegistrationClient::new(channel).get_info(InfoRequest {}).await.unwrap().into_inner();
    assert_eq!((told.name.as_str(), told.endpoint.as_str()), ("s3.csi.scality.com", plugin.socket.to_str().unwrap()));
    // With it the kubelet forgets the driver.
    plugin.stop();
    assert!(!registry.exists());
}

async fn the_taint_goes(world: World) {
    let taint = |key: &str, effect: &str| json!({ "key": key, "effect": effect });
    let ours = "s3.csi.scality.com/agent-not-ready";
    let taints = [taint(ours, "NoExecute"), taint("other", "NoSchedule"), taint(ours, "NoSchedule")];
    let node = json!({ "metadata": { "name": world.node }, "spec": { "taints": taints } });
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let drivers: Api<CSINode> = Api::all(world.admin.clone());
    let made = nodes.create(&PostParams::default(), &serde_json::from_value(node).unwrap()).await.unwrap();
    let _plugin = world.plugin().await;
    let left = async || {
        let taints = nodes.get(&world.node).await.unwrap().spec.unwrap().taints.unwrap_or_default();
        taints.into_iter().map(|taint| taint.key).collect::<Vec<_>>()
    };
    assert_eq!(left().await.iter().filter(|key| *key == ours).count(), 2, "the kubelet does not know the driver yet");
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": world.node, "uid": made.metadata.uid });
    let driver = json!({ "name": "s3.csi.scality.com", "nodeID": world.node, "topologyKeys": null });
    let registered =
        json!({ "metadata": { "name": world.node, "ownerReferences": [owner] }, "spec": { "drivers": [driver] } });
    drivers.create(&PostParams::default(), &serde_json::from_value(registered).unwrap()).await.unwrap();
    let end = Instant::now() + PATIENCE;
    loop {
        let left = left().await;
        // The API server adds one of its own to a new node.
        if !left.iter().any(|key| key == ours) {
            assert!(left.iter().any(|key| key == "other"), "{left:?}");
            return;
        }
        assert!(Instant::now() < end, "{left:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
