//! Real nodes: they run pods, break as they are told, and leave nothing behind. Needs Linux and root; without them these
//! tests fail in CI, and elsewhere are left out by name.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test says what it expects by panicking"
)]

mod traces;
mod world;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use bulkhead_testbed::binaries::cache_folder;
use bulkhead_testbed::here;
use bulkhead_testbed::real_nodes::{self, Fault, NodeProgram};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::Api;
use libtest_mimic::{Arguments, Trial};

use self::traces::{Traces, lives, processes_of};
use self::world::{World, counts_on, eventually, pings, printed, stands_still};

/// Makes a block device of a file in a file system that only the node has.
const LOOP_DEVICE: &str = "mount -t tmpfs volume /mnt && truncate -s 1M /mnt/block && losetup --find --show /mnt/block";
/// Mounts a file system whose server answers nothing, and hangs in it.
const HUNG_MOUNT: &str = "exec 5<>/dev/fuse && mkdir -p /var/hung && \
    mount -i -t fuse -o fd=5,rootmode=40000,user_id=0,group_id=0 hung /var/hung && \
    { setsid sh -c 'ls /var/hung & sleep infinity' >/dev/null 2>&1 & } && \
    if timeout 1 ls /var/hung; then exit 1; else echo hangs; fi";

fn main() {
    let arguments = Arguments::from_args();
    let lacking = here::lacking(arguments.list, real_nodes::check);
    let trials = [
        trial("real_nodes_run_pods_and_break_as_they_are_told", real_nodes_run_pods_and_break_as_they_are_told),
        trial("nothing_of_real_nodes_outlives_a_killed_parent", nothing_of_real_nodes_outlives_a_killed_parent),
    ];
    let trials = trials.into_iter().map(|trial| here::unless(lacking.as_deref(), trial)).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    Trial::test(name, || {
        tokio::runtime::Runtime::new()?.block_on(test());
        Ok(())
    })
}

async fn real_nodes_run_pods_and_break_as_they_are_told() {
    let world = World::start().await;
    world.counting_pod(&world.one, "first").await;
    world.counting_pod(&world.two, "second").await;
    pods_have_an_identity_and_find_services(&world).await;
    a_cut_control_link_leaves_a_zombie(&world).await;
    links_are_cut_one_by_one(&world).await;
    a_link_loses_packets_until_it_is_healed(&world).await;
    a_frozen_kubelet_runs_no_pods(&world).await;
    a_killed_containerd_leaves_its_containers(&world).await;
    everything_is_frozen_and_goes_on(&world).await;
    a_reboot_leaves_only_the_disk(&world).await;
    several_faults_are_healed_one_by_one(&world).await;
    world.nodes.remove("node-2").await.unwrap();
    assert!(Api::<Node>::all(world.client.clone()).get_opt("node-2").await.unwrap().is_none());

    let loop_device = printed(world.one.exec(&["sh", "-c", LOOP_DEVICE]).await.unwrap());
    assert_eq!(printed(world.one.exec(&["sh", "-c", HUNG_MOUNT]).await.unwrap()), "hangs\n");
    world.one.fault(Fault::FreezeEverything).await.unwrap();
    let traces = Traces::of(world.nodes.network().host_control_address().octets()[1], loop_device.trim());
    assert_eq!(traces.left().len(), 4, "all are seen while the node runs: {:?}", traces.left());
    drop(world.nodes);
    traces.assert_gone().await;
}

async fn pods_have_an_identity_and_find_services(world: &World) {
    let logs = world.testbed.kubectl(&["logs", "first"]).await.unwrap();
    assert_eq!(logs.trim(), "here is first");
    let binding =
        ["create", "clusterrolebinding", "pods-look", "--clusterrole=view", "--serviceaccount=default:default"];
    world.testbed.kubectl(&binding).await.unwrap();
    for (node, pod) in [(&world.one, "asks-first"), (&world.two, "asks-second")] {
        world.asking_pod(node, pod).await;
        let seen = world.shell(pod, &format!("/kubectl get pod {pod} --output=json")).await;
        let seen: Pod = serde_json::from_str(&seen).unwrap();
        assert_eq!(seen.status.unwrap_or_default().host_ip, Some(node.control_address().to_string()));
        // The token says on which node its pod runs, and policies rely on it.
        let who = world.shell(pod, "/kubectl auth whoami --output=json").await;
        let who: serde_json::Value = serde_json::from_str(&who).unwrap();
        assert_eq!(who["status"]["userInfo"]["username"], "system:serviceaccount:default:default");
        assert_eq!(who["status"]["userInfo"]["extra"]["authentication.kubernetes.io/node-name"][0], node.name());
        world.testbed.kubectl(&["delete", "pod", pod, "--now", "--wait=false"]).await.unwrap();
    }

    world.testbed.kubectl(&["expose", "pod", "second", "--port=80", "--target-port=8080"]).await.unwrap();
    let address = ["get", "service", "second", "-o", "jsonpath={.spec.clusterIP}"];
    let address = world.testbed.kubectl(&address).await.unwrap();
    for from in ["first", "second"] {
        // A static busybox's wget needs files of a C library that are not there; nc does not.
        let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80");
        let answer = world.shell(from, &request).await;
        assert!(answer.ends_with("\nsecond\n"), "{answer}");
    }
}

/// The node is taken for dead, and its container goes on, and still reaches what is on the storage network.
async fn a_cut_control_link_leaves_a_zombie(world: &World) {
    let array = world.nodes.network().host_storage_address();
    world.one.fault(Fault::CutControl).await.unwrap();
    world.ready_is(&world.one, "Unknown").await;
    counts_on(&world.one, "first").await;
    assert!(pings(&world.one, array).await);
    assert!(!pings(&world.one, world.nodes.network().host_control_address()).await);
    assert!(!pings(&world.one, world.two.control_address()).await);
    assert!(pings(&world.one, world.two.storage_address()).await);
    world.one.heal(Fault::CutControl).await.unwrap();
    world.ready_is(&world.one, "True").await;
    let pod: Pod = Api::default_namespaced(world.client.clone()).get("first").await.unwrap();
    assert_eq!(pod.status.unwrap().container_statuses.unwrap()[0].restart_count, 0);
}

async fn links_are_cut_one_by_one(world: &World) {
    let array = world.nodes.network().host_storage_address();
    let from_pod = format!("busybox nc -w 1 {array} 1 </dev/null 2>&1; true");
    // Refused by the host: so it was reached.
    assert!(world.shell("first", &from_pod).await.contains("refused"));
    world.one.fault(Fault::CutStorage).await.unwrap();
    assert!(!pings(&world.one, array).await);
    assert!(pings(&world.one, world.nodes.network().host_control_address()).await);
    assert!(!world.shell("first", &from_pod).await.contains("refused"));
    world.one.heal(Fault::CutStorage).await.unwrap();
    eventually("the storage link is back", || async { pings(&world.one, array).await }).await;
}

async fn a_link_loses_packets_until_it_is_healed(world: &World) {
    let rules = async || printed(world.two.exec(&["iptables", "-w", "-t", "mangle", "-S"]).await.unwrap());
    world.two.fault(Fault::LossyStorage).await.unwrap();
    let lossy = rules().await;
    assert!(lossy.contains("-i eth1") && lossy.contains("-o eth1") && !lossy.contains("eth0"), "{lossy}");
    world.two.heal(Fault::LossyStorage).await.unwrap();
    let healed = rules().await;
    assert!(!healed.contains("statistic"), "{healed}");
}

async fn a_frozen_kubelet_runs_no_pods(world: &World) {
    let frozen = Fault::Freeze(NodeProgram::Kubelet);
    world.one.fault(frozen).await.unwrap();
    world.ready_is(&world.one, "Unknown").await;
    counts_on(&world.one, "first").await;
    world.one.heal(frozen).await.unwrap();
    world.ready_is(&world.one, "True").await;
}

async fn a_killed_containerd_leaves_its_containers(world: &World) {
    let killed = Fault::Kill(NodeProgram::Containerd);
    world.two.fault(killed).await.unwrap();
    world.ready_is(&world.two, "False").await;
    counts_on(&world.two, "second").await;
    world.two.heal(killed).await.unwrap();
    world.ready_is(&world.two, "True").await;
    assert_eq!(world.shell("second", "cat /www/index.html").await, "second\n");
}

async fn everything_is_frozen_and_goes_on(world: &World) {
    world.two.fault(Fault::FreezeEverything).await.unwrap();
    assert!(stands_still(&world.two, "second").await);
    world.ready_is(&world.two, "Unknown").await;
    assert!(stands_still(&world.two, "second").await);
    world.two.heal(Fault::FreezeEverything).await.unwrap();
    counts_on(&world.two, "second").await;
    world.ready_is(&world.two, "True").await;
}

async fn a_reboot_leaves_only_the_disk(world: &World) {
    let node = &world.one;
    let (boot_id, processes) = (node.boot_id().await, node.processes().await);
    assert_eq!(world.node(node).await.status.unwrap().node_info.unwrap().boot_id, boot_id);
    printed(node.exec(&["touch", "/run/gone", "/var/kept"]).await.unwrap());
    let loop_device = printed(node.exec(&["sh", "-c", LOOP_DEVICE]).await.unwrap());
    let backing = loop_device.trim().replace("/dev/", "/sys/block/") + "/loop/backing_file";
    assert!(Path::new(&backing).exists());

    node.reboot().await.unwrap();
    assert!(!processes.is_empty() && !processes.iter().any(lives));
    assert!(!Path::new(&backing).exists());
    node.wait_ready().await.unwrap();
    let new = node.boot_id().await;
    assert_ne!(new, boot_id);
    assert_eq!(world.node(node).await.status.unwrap().node_info.unwrap().boot_id, new);
    let root = node.root().await.unwrap();
    assert_eq!(fs::read_to_string(root.join("run/testbed/boot_id")).unwrap().trim(), new);
    assert_eq!(fs::read_to_string(root.join("proc/sys/kernel/random/boot_id")).unwrap().trim(), new);
    assert!(root.join("var/kept").exists() && !root.join("run/gone").exists());

    // The pod comes up again, from the image on the disk.
    eventually("the pod was started again", || async {
        let pod: Pod = Api::default_namespaced(world.client.clone()).get("first").await.unwrap();
        pod.status.unwrap().container_statuses.is_some_and(|all| all[0].restart_count == 1)
    })
    .await;
    counts_on(node, "first").await;
}

async fn several_faults_are_healed_one_by_one(world: &World) {
    let node = &world.one;
    let kubelet = Fault::Freeze(NodeProgram::Kubelet);
    for fault in [Fault::CutControl, Fault::CutStorage, kubelet, Fault::FreezeEverything] {
        node.fault(fault).await.unwrap();
    }
    node.heal(Fault::CutStorage).await.unwrap();
    node.heal(Fault::FreezeEverything).await.unwrap();
    counts_on(node, "first").await;
    assert!(pings(node, world.nodes.network().host_storage_address()).await);
    assert!(!pings(node, world.nodes.network().host_control_address()).await);
    world.ready_is(node, "Unknown").await;
    node.heal(Fault::CutControl).await.unwrap();
    // Its kubelet is still frozen.
    assert_eq!(node.faults().await, [kubelet].into());
    world.ready_is(node, "Unknown").await;
    node.fault(Fault::KillEverything).await.unwrap();
    assert!(node.processes().await.is_empty() && node.root().await.is_err());
    node.heal_all().await.unwrap();
    node.wait_ready().await.unwrap();
}

/// Is killed, as by SIGKILL, when it is dropped: at the end of the test or by its panic.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program for people, one node, which it breaks by a script; then the program is killed.
async fn nothing_of_real_nodes_outlives_a_killed_parent() {
    let program = env!("CARGO_BIN_EXE_testbed");
    let name = format!("real-{}", std::process::id());
    let child = Command::new(program)
        .args(["up", "--foreground", "--real-nodes=1", "--node-monitor-grace-period=8", &name])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut child = Killed(child);
    let mut line = String::new();
    BufReader::new(child.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let kubeconfig = line.trim().strip_prefix("export KUBECONFIG=").expect("the line to copy");
    let client = bulkhead_testbed::kubeconfig::client(Path::new(kubeconfig), None).await.unwrap();
    let nodes: Api<Node> = Api::all(client);

    let script = tempfile::NamedTempFile::new().unwrap();
    fs::write(script.path(), "node-1 kill containerd\n500ms node-1 freeze everything\n1s node-1 reboot\n").unwrap();
    let boot_id = |node: Node| node.status.unwrap().node_info.unwrap().boot_id;
    let before = boot_id(nodes.get("node-1").await.unwrap());
    let of = format!("--testbed={name}");
    let told = printed(Command::new(program).args(["play", &of]).arg(script.path()).output().unwrap());
    assert_eq!(told.lines().count(), 3, "{told}");
    assert!(told.contains("node-1 freeze everything"), "{told}");
    eventually("the boot id is new", || async { boot_id(nodes.get("node-1").await.unwrap()) != before }).await;
    let refused = Command::new(program).args(["node", &of, "node-2", "reboot"]).output().unwrap();
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && error.contains("no real node node-2"), "{error}");

    let addresses = nodes.get("node-1").await.unwrap().status.unwrap().addresses.unwrap();
    let address: std::net::Ipv4Addr =
        addresses.iter().find(|address| address.type_ == "InternalIP").unwrap().address.parse().unwrap();
    let init = node_init(address.octets()[1]);
    let inside = [&format!("--target={init}"), "--mount", "--pid", "sh", "-c", LOOP_DEVICE];
    let loop_device = printed(Command::new("nsenter").args(inside).output().unwrap());
    let traces = Traces::of(address.octets()[1], loop_device.trim());
    assert_eq!(traces.left().len(), 4, "all are seen while the node runs: {:?}", traces.left());
    drop(child);
    traces.assert_gone().await;
    let run = cache_folder().unwrap().join("run");
    for suffix in ["json", "socket"] {
        fs::remove_file(run.join(format!("{name}.{suffix}"))).unwrap();
    }
}

/// The host's number of the first process of this testbed's one node: it sees itself as the first.
fn node_init(second_byte: u8) -> i32 {
    let is_first = |process: &i32| {
        let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        // That of the boot before may still be a zombie.
        lives(process) && numbers.split_whitespace().skip(1).eq(["1"])
    };
    processes_of(second_byte).into_iter().find(is_first).expect("the node has a first process")
}
