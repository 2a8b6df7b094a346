//! How long a node takes to be cleaned; for `hack/bench cleanup`, which asks for it and reads the answer.

use std::time::Instant;

use libtest_mimic::Trial;
use serde_json::json;

use super::cleaning::{able, trial};
use super::world::{World, volume};

/// How many volumes, and the file for the answer.
const ASKED: [&str; 2] = ["BULKHEAD_CLEANUP_VOLUMES", "BULKHEAD_CLEANUP_RESULT"];

/// One trial, where it is asked for.
pub fn trials() -> Vec<Trial> {
    let is_asked = ASKED.iter().all(|name| std::env::var_os(name).is_some());
    is_asked.then(|| trial("timed::a_node_is_cleaned", a_node_is_cleaned)).into_iter().collect()
}

async fn a_node_is_cleaned() {
    let [count, result] = ASKED.map(|name| std::env::var(name).unwrap());
    let mut world = World::new(able());
    world.plugin.register();
    let volumes: Vec<_> = (0..count.parse().unwrap()).map(volume).collect();
    volumes.iter().for_each(|volume| world.publish(volume));
    world.fence(1, &volumes);
    let mounts = world.mounts().len();
    let began = Instant::now();
    world.start();
    world.until("nothing is mounted", |world| world.mounts().is_empty()).await;
    let unmounted = began.elapsed().as_secs_f64();
    world.until_clean().await;
    let clean = began.elapsed().as_secs_f64();
    let told = json!({ "mounts": mounts, "unmounted": unmounted, "clean": clean });
    std::fs::write(result, told.to_string()).unwrap();
}
