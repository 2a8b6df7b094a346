//! Controllers that end at any write, or of which there are two: the address stays, nobody is ever sent to two servers, and
//! at rest nothing is written.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bulkhead::api::names;
use bulkhead::api::shared_volume::SharedVolume;
use bulkhead_testbed::Identity;
use bulkhead_testbed::fault_proxy::Site;
use bulkhead_testbed::nfs_server::Mode;
use bulkhead_testbed::process::{Process, Signal};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Service;
use kube::{Api, ResourceExt};
use libtest_mimic::Failed;
use serde_json::json;

use crate::deaths::Mortals;
use crate::rest::at_rest;

use super::lane::{Lane, cluster_ips};
use super::world::{SOON, World};

/// Three renewals of the Lease, and what comes before.
const REST: Duration = Duration::from_secs(120);

/// One kind of write after the other, each before and after.
pub async fn killed_at_its_writes_it_converges() -> Result<(), Failed> {
    let world = World::start(&[]).await?;
    let calls = mortals(&world).undisturbed(story(&world, "lives")).await?;
    let kinds: BTreeSet<_> = calls.iter().map(|call| call.what.as_str()).collect();
    for kind in ["create services", "create endpointslices", "update endpointslices", "update sharedvolumes/status"] {
        assert!(kinds.contains(kind), "no {kind} in {calls:?}");
    }
    let often = |kind: &str| calls.iter().filter(|call| call.what == kind).count();
    let sites = |kind: &&str| {
        // What was not sent is sent again, as the second of its kind.
        let later = Site::after(kind, 2);
        [Some(Site::before(kind, 1)), (often(kind) > 1).then_some(later)].into_iter().flatten().collect::<Vec<_>>()
    };
    let sites = kinds.iter().flat_map(sites).collect();
    let (left, died) = mortals(&world).disturbed(sites, story(&world, "dies")).await?;
    println!("killed at {died} writes of {} kinds", kinds.len());
    assert_eq!(left, [], "these were not come to");
    Ok(())
}

/// Each write of the story, alone.
pub async fn killed_at_every_write_it_converges() -> Result<(), Failed> {
    let world = World::start(&[]).await?;
    let calls = mortals(&world).undisturbed(story(&world, "lives")).await?;
    mortals(&world).disturbed_at_each(&calls, async |name| story(&world, name).await).await
}

fn mortals(world: &World) -> Mortals<'_> {
    Mortals { cluster: &world.cluster, admin: &world.admin }
}

/// A volume is published, fails over, is switched, loses its Service, and goes.
async fn story(world: &World, name: &str) -> Result<(), Failed> {
    let lane = Lane::new(world, name).await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    let spec = json!({
        "service": { "endpoints": "EndpointSliceAndEndpoints" }, "publish": { "targets": ["ClaimAnnotation"] },
    });
    lane.served_by("data", &[&a, &b], spec).await?;
    lane.active("data", &a).await?;
    let service = lane.service("data").await?;
    a.set(Mode::Refuses);
    lane.active("data", &b).await?;
    a.set(Mode::Serves);
    lane.patch::<SharedVolume>("data", json!({ "spec": { "failover": { "activeCandidate": "a" } } })).await?;
    let volume = lane.active("data", &a).await?;
    // A switch is counted once, whoever completed it.
    assert_eq!(volume.status.and_then(|status| status.failovers), Some(2));
    lane.delete::<Service>("data").await?;
    let after: Service = lane.wait_for("data", "made anew", SOON, |it: &Service| it.uid() != service.uid()).await?;
    assert_eq!(cluster_ips(&after), cluster_ips(&service));
    lane.active("data", &a).await?;
    lane.delete::<SharedVolume>("data").await?;
    lane.gone::<SharedVolume>("data").await?;
    lane.gone::<Service>("data").await?;
    lane.eventually("no slice is left", async || {
        let left = lane.slices("data").await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) })
    })
    .await?;
    lane.judge()
}

/// Row 20: whoever leads goes on where the other stopped; one that wakes up late does no harm.
pub async fn replicas_that_take_turns_serve_on() -> Result<(), Failed> {
    let world = World::start(&[]).await?;
    let lane = Lane::new(&world, "replicas").await?;
    let mut replicas = BTreeMap::new();
    for name in ["bulkhead-controller-a", "bulkhead-controller-b"] {
        replicas.insert(name.to_owned(), world.cluster.controller(name)?);
    }
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Serves).await?);
    lane.serving("data", &[&a, &b], json!({})).await?;
    let service = lane.service("data").await?;

    let first = leader(&world, &replicas, "").await?;
    if let Some(process) = replicas.remove(&first) {
        process.stop().await;
    }
    a.set(Mode::Refuses);
    lane.active("data", &b).await?;
    a.set(Mode::Serves);
    replicas.insert(first.clone(), world.cluster.controller(&first)?);

    let second = leader(&world, &replicas, "").await?;
    stopped(&mut replicas, &second)?.signal(Signal::Stop)?;
    leader(&world, &replicas, &second).await?;
    b.set(Mode::Refuses);
    lane.active("data", &a).await?;
    // It wakes up as a leader of yesterday, in the middle of what it saw then.
    let asleep = stopped(&mut replicas, &second)?;
    asleep.signal(Signal::Continue)?;
    asleep.ended_by_itself().await;
    b.set(Mode::Serves);
    lane.barrier("after").await?;
    let volume = lane.active("data", &a).await?;
    assert_eq!(volume.status.and_then(|status| status.failovers), Some(2));
    let after = lane.service("data").await?;
    assert_eq!((after.uid(), cluster_ips(&after)), (service.uid(), cluster_ips(&service)));
    // Nobody is told twice.
    let told = lane.events("SharedVolume", "data").await?;
    assert_eq!(told.iter().filter(|(reason, _)| reason == "ServiceCreated").count(), 1, "{told:?}");
    lane.judge()
}

fn stopped<'a>(replicas: &'a mut BTreeMap<String, Process>, name: &str) -> Result<&'a mut Process, Failed> {
    replicas.get_mut(name).ok_or_else(|| format!("no replica {name}").into())
}

/// Waits for a leader other than this.
async fn leader(world: &World, replicas: &BTreeMap<String, Process>, other_than: &str) -> Result<String, Failed> {
    let leases: Api<Lease> = Api::namespaced(world.admin.clone(), names::OPERATOR_NAMESPACE);
    let look = async || {
        let lease = leases.get_opt("bulkhead-controller").await?;
        let holder = lease.and_then(|lease| lease.spec).and_then(|spec| spec.holder_identity).unwrap_or_default();
        // Each process adds something of its own to its name.
        let holder = holder.rsplit_once('_').map(|(name, _)| name.to_owned()).unwrap_or_default();
        let known = replicas.contains_key(&holder) && holder != other_than;
        Ok(if known { Ok(holder) } else { Err(format!("{holder:?} leads")) })
    };
    Ok(world.cluster.wait("a replica leads", SOON, look).await?)
}

/// Row 22: for three renewals of the Lease nothing but them; after a restart neither.
pub async fn at_rest_nothing_is_written() -> Result<(), Failed> {
    let mut world = World::start(&[]).await?;
    world.cluster.start_controller().await?;
    let lane = Lane::new(&world, "idle").await?;
    let (a, b) = (lane.server(Mode::Serves).await?, lane.server(Mode::Refuses).await?);
    let both = json!({
        "service": { "endpoints": "EndpointSliceAndEndpoints" }, "publish": { "targets": ["ClaimAnnotation"] },
    });
    lane.serving("serves", &[&a], both).await?;
    lane.served_by("waits", &[&b], json!({})).await?;
    lane.volume("claimless", super::lane::candidates(&[&a])).await?;
    lane.condition("claimless", "ClaimBound", "False", "ClaimNotFound").await?;
    lane.condition("waits", "Serving", "False", "ProbeFailed").await?;
    at_rest(&world.cluster, &[Identity::OperatorController], REST).await?;
    drop(lane);
    world.cluster.controllers.remove(0).stop().await;
    let end = world.cluster.testbed.audit().end()?;
    world.cluster.start_controller().await?;
    at_rest(&world.cluster, &[Identity::OperatorController], REST).await?;
    let us = Identity::OperatorController.user();
    let written: Vec<_> = world.cluster.testbed.audit().records_since(end)?.collect();
    let written = written.iter().filter(|it| it.user == us && it.is_write() && it.resource != "leases");
    let written: Vec<_> =
        written.map(|it| format!("{} {}/{} {}", it.verb, it.resource, it.subresource, it.name)).collect();
    assert_eq!(written, Vec::<String>::new(), "a restart is no reason to write");
    Ok(())
}
