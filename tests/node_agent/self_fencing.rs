//! A node that is alone stops its protected pods, and nobody else's.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bulkhead::api::slim::Node as ApiNode;
use bulkhead::api::{conditions, names};
use bulkhead::node_agent::mounts::mountinfo;
use bulkhead::runtime::store::{ObjectKey, Store};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use super::cleaning::trial;
use super::objects::running;
use super::plugin::Behaviour;
use super::world::{NODE, Volume, World, staging, target, volume};

/// The policy's deadline; a real one has five seconds at least.
pub const AFTER: Duration = Duration::from_secs(3);

pub fn trials() -> Vec<Trial> {
    vec![
        trial("self_fencing::a_node_that_is_alone_stops_protected_pods", a_node_that_is_alone),
        trial("self_fencing::one_of_both_is_enough_to_go_on", one_of_both_is_enough),
        trial("self_fencing::neighbours_that_were_silent_before_are_no_witnesses", neighbours_that_were_silent_before),
        trial("self_fencing::an_agent_that_starts_alone_goes_on", an_agent_that_starts_alone),
        trial("self_fencing::children_of_ours_that_are_slow_do_not_put_it_off", slow_children),
        trial("self_fencing::a_pod_whose_storage_hangs_is_in_nobodys_way", a_pod_whose_storage_hangs),
        trial("self_fencing::a_node_that_is_paused_goes_on", a_node_that_is_paused),
    ]
}

/// A node with a protected pod, another, and a neighbour's word.
pub struct Node {
    pub world: World,
    pub protected: Container,
    pub other: Container,
}

/// A container that writes to its pod's volume, as fast as it can.
pub struct Container {
    pub child: Child,
}

impl Container {
    pub fn start(world: &World, number: usize) -> Self {
        let volume = volume(number);
        let pod = world.path(&format!("pods/{}", volume.pod));
        let (hosts, seen) = (pod.join("etc-hosts"), world.path(&format!("hosts-{number}")));
        fs::create_dir_all(&pod).unwrap();
        [&hosts, &seen].into_iter().for_each(|file| fs::write(file, "127.0.0.1 localhost").unwrap());
        let script = format!(
            "mount --bind {} {} && while :; do echo $$ >> {}; sleep 0.02; done",
            hosts.display(),
            seen.display(),
            journal(world, &volume).display()
        );
        // It may be ended at any moment.
        let unshare = ["--mount", "--propagation", "private", "sh", "-c", script.as_str()];
        let child = Command::new("unshare").args(unshare).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child }
    }

    /// Whether it has its pod's hosts file mounted, by which it is known.
    pub fn has_its_hosts(&self, number: usize) -> bool {
        let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", self.child.id())).unwrap_or_default();
        mounts.contains(&format!("/hosts-{number} "))
    }

    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn journal(world: &World, volume: &Volume) -> PathBuf {
    world.path(&target(volume)).join("mount/journal")
}

/// What is on the volume, whatever its pods see of it.
fn written(world: &World, volume: &Volume) -> usize {
    let journal = world.path(&staging(volume)).join("globalmount/journal");
    fs::read_to_string(journal).unwrap_or_default().lines().count()
}

fn labelled(volume: &Volume, app: &str) -> Value {
    let mut pod = running(&volume.pod);
    pod["metadata"]["labels"] = json!({ "app": app });
    pod["metadata"]["ownerReferences"] =
        json!([{ "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s", "uid": "s", "controller": true }]);
    pod
}

impl Node {
    pub async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    async fn start_with(prepare: impl FnOnce(&mut World)) -> Self {
        let mut world = World::new(Behaviour { stages: true, unmounts: true, ..Behaviour::default() });
        prepare(&mut world);
        world.plugin.register();
        world.stores.pods.list_done();
        for (number, app) in [(1, "db"), (2, "web")] {
            world.publish(&volume(number));
            world.stores.pods.insert(serde_json::from_value(labelled(&volume(number), app)).unwrap());
        }
        let policy = json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "ResiliencyPolicy", "metadata": { "name": "db" },
            "spec": { "mode": "Enforce", "selector": { "podSelector": { "matchLabels": { "app": "db" } } },
                      "selfFencing": { "mode": "Enabled", "after": format!("{}s", AFTER.as_secs()) } },
        });
        world.outside.policies.insert(serde_json::from_value(policy).unwrap());
        let (protected, other) = (Container::start(&world, 1), Container::start(&world, 2));
        world.start();
        let node = Self { world, protected, other };
        // It knows whom to stop, and by whose silence.
        node.world
            .until("the agent knows", |world| {
                let record = record(world);
                record["protected"].as_array().is_some_and(|pods| pods.len() == 1)
                    && record["neighbours"] == 3
                    && written(world, &volume(1)) > 3
            })
            .await;
        node
    }

    /// The Node as the API has it.
    fn clone_of(world: &World) -> ApiNode {
        ApiNode::clone(&world.stores.nodes.get(&ObjectKey::cluster(NODE)).unwrap())
    }

    pub async fn until_stopped(&mut self) {
        let protected = &mut self.protected.child;
        let end = Instant::now() + super::world::PATIENCE;
        while protected.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "{}", record(&self.world));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // Its processes end first.
        self.world.until("covered", |world| is_covered(world, &volume(1))).await;
        assert!(self.other.is_alive() && !is_covered(&self.world, &volume(2)), "nobody else is touched");
    }

    pub async fn until_given_back(&self) {
        let waits = |world: &World| record(world)["stopped"]["pods"].as_array().is_some_and(|pods| !pods.is_empty());
        self.world.until("given back", |world| !waits(world)).await;
        self.world.until("told", |world| self_fenced(world) == Some("False".to_owned())).await;
    }
}

/// What the agent wrote down.
pub fn record(world: &World) -> Value {
    let text = fs::read(world.path("plugins/bulkhead-node-agent/self-fencing.json")).unwrap_or_default();
    serde_json::from_slice::<Value>(&text).map(|mut stored| stored["record"].take()).unwrap_or_default()
}

pub fn is_covered(world: &World, volume: &Volume) -> bool {
    let path = world.path(&target(volume)).join("mount");
    let mounts = mountinfo::parse(&fs::read("/proc/self/mountinfo").unwrap()).unwrap();
    let mount = mounts.iter().rfind(|mount| mount.path == path.to_str().unwrap()).unwrap();
    mount.source == "bulkhead-self-fencing" && mount.options.iter().any(|option| option == "ro")
}

pub fn self_fenced(world: &World) -> Option<String> {
    conditions::find(&world.status().conditions, "SelfFenced").map(|found| found.status.clone())
}

async fn a_node_that_is_alone() {
    let mut node = Node::start().await;
    let began = Instant::now();
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    node.until_stopped().await;
    println!("stopped after {:?}, of which the policy's are {AFTER:?}", began.elapsed());
    // The neighbours' last word may be older than that, on a machine that is busy with other things.
    assert!(began.elapsed() >= AFTER - Duration::from_secs(1), "{:?}", began.elapsed());
    // What the kubelet starts anew cannot write, and ends.
    let before = written(&node.world, &volume(1));
    node.protected = Container::start(&node.world, 1);
    node.until_stopped().await;
    assert_eq!(written(&node.world, &volume(1)), before);
    // Neighbours that are back say nothing of what was done meanwhile.
    node.world.outside.neighbours(3);
    tokio::time::sleep(AFTER).await;
    assert!(is_covered(&node.world, &volume(1)));
    node.world.outside.api(true);
    node.until_given_back().await;
    assert!(!is_covered(&node.world, &volume(1)));
    node.protected = Container::start(&node.world, 1);
    node.world.until("it writes again", |world| written(world, &volume(1)) > before).await;
    node.world.until("Events", |world| world.events.lock().unwrap().len() >= 2).await;
    assert_eq!(*node.world.events.lock().unwrap(), ["SelfFenced", "SelfFencingOver"]);
    let condition = conditions::find(&node.world.status().conditions, "SelfFenced").cloned().unwrap();
    assert!(condition.message.contains(&format!("shop/{}", volume(1).pod)), "{}", condition.message);
}

async fn one_of_both_is_enough() {
    let mut node = Node::start().await;
    for (api, neighbours) in [(false, 3), (true, 3), (true, 0), (true, 3), (false, 1)] {
        node.world.outside.api(api);
        node.world.outside.neighbours(neighbours);
        // Longer than the deadline: that nothing happens is what this is about.
        tokio::time::sleep(AFTER + Duration::from_secs(1)).await;
        assert!(node.protected.is_alive(), "API {api}, neighbours {neighbours}");
    }
    // Of one neighbour the silence says nothing.
    node.world.outside.neighbours(0);
    tokio::time::sleep(AFTER + Duration::from_secs(1)).await;
    assert!(node.protected.is_alive());
    assert_eq!(self_fenced(&node.world), None);
}

async fn an_agent_that_starts_alone() {
    let mut node = Node::start().await;
    node.world.stop();
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    // Whatever the API has, this process has never heard of it.
    node.world.outside.forget();
    let pods = std::mem::replace(&mut node.world.stores.pods, Store::new_detached(Vec::new()));
    let began = Instant::now();
    node.world.start();
    node.until_stopped().await;
    assert!(began.elapsed() >= AFTER, "its own silence counts from its start: {:?}", began.elapsed());
    // And the next one knows what was done, and gives it back.
    node.world.stop();
    node.world.stores.pods = pods;
    node.world.start();
    node.world.outside.neighbours(3);
    node.world.outside.api(true);
    node.until_given_back().await;
    assert!(!is_covered(&node.world, &volume(1)));
}

async fn neighbours_that_were_silent_before() {
    let mut node = Node::start().await;
    node.world.outside.neighbours(0);
    // Longer than silence is forgiven, while the API answers: their port may be closed.
    tokio::time::sleep(Duration::from_secs(12)).await;
    node.world.outside.api(false);
    // Longer than the deadline: that nothing happens is what this is about.
    tokio::time::sleep(AFTER * 2).await;
    assert!(node.protected.is_alive());
    assert_eq!(self_fenced(&node.world), None);
}

/// A script that the agent starts for its children.
fn runs_instead(world: &mut World, program: &Path, script: &str) {
    fs::write(program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(program, fs::Permissions::from_mode(0o755)).unwrap();
    world.program = program.to_owned();
}

async fn a_pod_whose_storage_hangs() {
    let mut node = Node::start_with(|world| {
        let hangs = format!("case \"$order\" in *'\"Cover\"'*{}*) exec sleep 600;; esac", volume(1).pod);
        let agent = world.program.display().to_string();
        let script = format!("order=$(cat)\n{hangs}\nprintf %s \"$order\" | {agent} \"$@\"");
        let program = world.root.parent().unwrap().join("agent");
        runs_instead(world, &program, &script);
    })
    .await;
    node.world.stores.pods.insert(serde_json::from_value(labelled(&volume(2), "db")).unwrap());
    let knows = |world: &World| record(world)["protected"].as_array().is_some_and(|pods| pods.len() == 2);
    node.world.until("it knows", knows).await;
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    node.world.until("the other is covered", |world| is_covered(world, &volume(2))).await;
    assert!(!is_covered(&node.world, &volume(1)));
    assert!(!node.protected.is_alive() && !node.other.is_alive());
    // What is about to be covered is written down before.
    let covered = record(&node.world)["stopped"]["covered"].clone();
    let path = node.world.path(&target(&volume(1))).join("mount");
    assert!(covered.as_array().unwrap().contains(&json!(path)), "{covered}");
}

async fn slow_children() {
    let mut flag = PathBuf::new();
    let mut node = Node::start_with(|world| {
        let folder = world.root.parent().unwrap();
        flag = folder.join("slow");
        let program = folder.join("agent");
        // Longer than the agent takes for a pause of its whole process.
        let slow = format!("[ -e {} ] && [ \"$2\" = self-fence ] && sleep 2.5", flag.display());
        let script = format!("{slow}\nexec {} \"$@\"", world.program.display());
        runs_instead(world, &program, &script);
    })
    .await;
    fs::write(flag, "").unwrap();
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    // Pods that change have it look again and again.
    let (pods, number) = (node.world.stores.pods.clone(), AtomicUsize::new(0));
    node.world
        .until("stopped", |world| {
            let mut pod = labelled(&volume(2), "web");
            pod["metadata"]["labels"]["number"] = json!(number.fetch_add(1, Ordering::Relaxed).to_string());
            pods.insert(serde_json::from_value(pod).unwrap());
            !record(world)["stopped"].is_null()
        })
        .await;
    node.until_stopped().await;
}

async fn a_node_that_is_paused() {
    let mut node = Node::start().await;
    let mut paused = Node::clone_of(&node.world);
    paused.metadata.annotations = Some([(names::PAUSED_ANNOTATION.to_owned(), "array upgrade".to_owned())].into());
    node.world.stores.nodes.insert(paused);
    node.world.until("it knows", |world| record(world)["protected"] == json!([])).await;
    node.world.outside.api(false);
    node.world.outside.neighbours(0);
    // Longer than the deadline: that nothing happens is what this is about.
    tokio::time::sleep(AFTER + Duration::from_secs(2)).await;
    assert!(node.protected.is_alive());
    // The next agent has not heard of the pause, and finds it written down.
    node.world.stop();
    node.world.outside.forget();
    node.world.start();
    tokio::time::sleep(AFTER + Duration::from_secs(2)).await;
    assert!(node.protected.is_alive());
    assert_eq!(self_fenced(&node.world), None);
}
