//! Whatever happens in whatever order, and wherever the process dies: clients never reach two servers (the world checks that
//! at every write), the address stays, and in the end whoever can serve does, and nothing more is written.

use proptest::prelude::*;
use serde_json::json;

use super::world::{World, of_provider, pod};

#[derive(Clone, Debug)]
enum Event {
    /// A pass that dies after so many writes.
    Pass(usize),
    Restart,
    Probe,
    Wait(u16),
    Dies(u8),
    Lives(u8),
    Fenced(u8),
    Unfenced,
    Wish(Option<bool>),
    Endpoint(Option<u8>),
    Reachable(bool),
    Forgets,
    PodGone,
    PodNew(u8),
    Intrudes,
    Expelled,
    SliceEdited,
    SlicesDeleted,
    ServiceDeleted,
    EndpointsDeleted,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        10 => (0..4usize).prop_map(Event::Pass),
        1 => Just(Event::Restart),
        5 => Just(Event::Probe),
        3 => prop_oneof![Just(60), Just(150), Just(3000), Just(12_000)].prop_map(Event::Wait),
        2 => (0..2u8).prop_map(Event::Dies),
        2 => (0..2u8).prop_map(Event::Lives),
        1 => (0..2u8).prop_map(Event::Fenced),
        1 => Just(Event::Unfenced),
        2 => any::<Option<bool>>().prop_map(Event::Wish),
        2 => proptest::option::of(0..2u8).prop_map(Event::Endpoint),
        1 => any::<bool>().prop_map(Event::Reachable),
        1 => Just(Event::Forgets),
        1 => Just(Event::PodGone),
        1 => (0..2u8).prop_map(Event::PodNew),
        1 => Just(Event::Intrudes),
        1 => Just(Event::Expelled),
        1 => Just(Event::SliceEdited),
        1 => Just(Event::SlicesDeleted),
        1 => Just(Event::ServiceDeleted),
        1 => Just(Event::EndpointsDeleted),
    ]
}

const NAMES: [&str; 2] = ["a", "b"];
const ADDRESSES: [&str; 2] = ["10.0.0.1", "10.0.0.2"];

fn happens(world: &mut World, event: &Event) {
    let both = |which: u8| [ADDRESSES[usize::from(which)].to_owned(), format!("fd00::{}", which + 1)];
    match event {
        Event::Pass(writes) => drop(world.pass(*writes)),
        Event::Restart => world.restart(),
        Event::Probe => world.probe(),
        Event::Wait(millis) => world.wait(f64::from(*millis) / 1000.0),
        Event::Dies(which) => both(*which).iter().for_each(|address| world.dies(address)),
        Event::Lives(which) => both(*which).iter().for_each(|address| world.lives(address)),
        Event::Fenced(which) => world.fence(&format!("node-{}", NAMES[usize::from(*which)])),
        Event::Unfenced => world.fenced.clear(),
        Event::Wish(wish) => {
            let spec = world.spec();
            if spec.backend.static_.is_some() {
                spec.failover.active_candidate = wish.map(|b| NAMES[usize::from(b)].to_owned());
            }
        }
        Event::Endpoint(which) => {
            if let Some(volume) = &mut world.volume {
                volume.endpoint = which.map(|which| format!("{}:20490", ADDRESSES[usize::from(which)]));
            }
        }
        Event::Reachable(is) => world.is_reachable = *is,
        Event::Forgets => {
            if let Some(volume) = &mut world.volume {
                volume.mount_endpoint.clear();
                volume.version.push('x');
            }
        }
        Event::PodGone => drop(world.pods.pop()),
        Event::PodNew(which) => {
            let name = NAMES[usize::from(*which)];
            if world.pods.iter().all(|pod| pod.metadata.name.as_deref() != Some(name)) {
                world.pods.insert(0, pod(name, ADDRESSES[usize::from(*which)], "05"));
            }
        }
        Event::Intrudes => world.intrudes("media-foreign"),
        Event::Expelled => drop(world.slices.remove("media-foreign")),
        Event::SliceEdited => {
            if let Some(slice) = world.slices.get_mut("media-ipv4") {
                slice.endpoints.clear();
                slice.metadata.resource_version = Some("edited".into());
            }
        }
        Event::SlicesDeleted => world.slices.clear(),
        Event::ServiceDeleted => world.service = None,
        Event::EndpointsDeleted => world.endpoints = None,
    }
}

fn world(backend: u8, endpoints: bool, keeps: bool, families: bool) -> World {
    let families = if families { json!(["IPv4", "IPv6"]) } else { json!(["IPv4"]) };
    let spec = json!({ "spec": {
        "service": {
            "endpoints": if endpoints { "EndpointSliceAndEndpoints" } else { "EndpointSlice" }, "ipFamilies": families,
        },
        "failover": { "onBackendLost": if keeps { "Keep" } else { "Withdraw" } },
    } });
    match backend {
        0 => {
            let mut world = World::of(&spec);
            for (which, candidate) in world.spec().backend.static_.as_mut().unwrap().candidates.iter_mut().enumerate() {
                candidate.addresses.push(format!("fd00::{}", which + 1).parse().unwrap());
            }
            world
        }
        1 => of_provider(&spec),
        _ => {
            let mut spec = spec;
            let pods =
                json!({ "spec": { "backend": { "static": null, "pods": { "matchLabels": { "app": "nfs" } } } } });
            json_patch::merge(&mut spec, &pods);
            let mut world = World::of(&spec);
            world.pods = vec![pod("a", "10.0.0.1", "02")];
            world
        }
    }
}

/// Nothing is in the way any more.
fn heal(world: &mut World) {
    world.slices.remove("media-foreign");
    world.fenced.clear();
    world.is_reachable = true;
    for which in 0..2 {
        happens(world, &Event::Lives(which));
    }
    if let Some(volume) = &mut world.volume {
        volume.endpoint = Some("10.0.0.2:20490".into());
    }
    happens(world, &Event::PodNew(1));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_converges_and_comes_to_rest(
        (backend, endpoints, keeps, families) in (0..3u8, any::<bool>(), any::<bool>(), any::<bool>()),
        events in proptest::collection::vec(event(), 1..60),
    ) {
        let mut world = world(backend, endpoints, keeps, families);
        let mut address: Option<String> = None;
        for event in &events {
            happens(&mut world, event);
            let recorded = world.status().service.and_then(|service| service.cluster_ips.first().cloned());
            address = address.or(recorded);
            let is = world.service.as_ref().map(|service| service.spec.cluster_ips[0].clone());
            if let (Some(pinned), Some(is)) = (&address, is) {
                prop_assert_eq!(pinned, &is);
            }
        }
        heal(&mut world);
        for _ in 0..3 {
            world.converge();
        }
        prop_assert_eq!(world.condition("Ready").unwrap().0, "True", "{:#?}", world.status());
        prop_assert!(!world.leads_to().is_empty());
        if let Some(volume) = &world.volume {
            let told: std::net::SocketAddr = volume.mount_endpoint.parse().unwrap();
            prop_assert_eq!((told.ip().to_string(), told.port()), (world.ip(), 2049));
        }
        if endpoints {
            let legacy = world.endpoints.as_ref().unwrap().subsets[0].addresses[0].ip.clone();
            prop_assert!(world.leads_to().contains(&legacy));
        }
        let writes = world.writes.len();
        world.wait(30.0);
        world.converge();
        world.restart();
        world.converge();
        prop_assert_eq!(world.writes.len(), writes, "at rest: {:?}", &world.writes[writes..]);
    }

    /// Nothing of ours is left, wherever the process dies.
    #[test]
    fn its_end_is_complete(
        (backend, endpoints) in (0..3u8, any::<bool>()),
        deaths in proptest::collection::vec(0..3usize, 0..12),
    ) {
        let mut world = world(backend, endpoints, false, true);
        world.converge();
        world.deleted();
        for writes in deaths {
            world.pass(writes);
            world.restart();
        }
        world.settle();
        prop_assert!(world.shared_volume.is_none() && world.service.is_none() && world.slices.is_empty());
        prop_assert!(world.endpoints.is_none());
        prop_assert!(world.volume.is_none_or(|volume| volume.mount_endpoint.is_empty()));
    }
}
