//! What the store says of a volume, and whom it tells, poll by poll.

use futures::FutureExt as _;

use super::*;

fn volume(id: &str, namespace: &str, endpoint: Option<&str>) -> ProviderVolume {
    ProviderVolume {
        id: id.into(),
        namespace_id: namespace.into(),
        version: "1".into(),
        endpoint: endpoint.map(str::to_owned),
        ..ProviderVolume::default()
    }
}

fn poll(providers: &Providers, lists: &[(&str, Option<Vec<ProviderVolume>>)]) {
    let began = monotonic();
    providers.begin("p", began);
    providers.namespaces("p", &lists.iter().map(|(id, _)| (*id).to_owned()).collect::<Vec<_>>());
    for (id, volumes) in lists {
        providers.listed("p", id, volumes.clone(), began);
    }
    providers.end("p");
}

fn told(receiver: &mut mpsc::UnboundedReceiver<Changed>) -> Vec<String> {
    let mut ids: Vec<_> = std::iter::from_fn(|| receiver.try_recv().ok()).map(|changed| changed.volume_id).collect();
    ids.sort_unstable();
    ids
}

#[test]
fn a_volume_is_reported_lost_and_found_again() {
    let providers = Providers::default();
    let mut changes = providers.subscribe();
    assert_eq!(providers.observe("p", "v"), Observation::NotPolled);
    let first = volume("v", "a", Some("10.0.0.1:2049"));
    poll(&providers, &[("a", Some(vec![first.clone()]))]);
    assert_eq!(told(&mut changes), ["v"]);
    assert_eq!(providers.observe("p", "v"), Observation::Reported(Arc::new(first.clone())));
    poll(&providers, &[("a", Some(vec![first.clone()]))]);
    assert!(told(&mut changes).is_empty(), "nothing changed");
    let moved = volume("v", "a", Some("10.0.0.2:2049"));
    poll(&providers, &[("a", Some(vec![moved.clone()]))]);
    assert_eq!(told(&mut changes), ["v"]);
    poll(&providers, &[("a", Some(vec![]))]);
    assert_eq!((told(&mut changes), providers.observe("p", "v")), (vec!["v".to_owned()], Observation::Gone));
    poll(&providers, &[("a", Some(vec![moved.clone()]))]);
    assert_eq!(providers.observe("p", "v"), Observation::Reported(Arc::new(moved)));
}

#[test]
fn a_provider_that_is_silent_keeps_what_it_reported() {
    let providers = Providers::default();
    let first = volume("v", "a", None);
    poll(&providers, &[("a", Some(vec![first.clone()]))]);
    let mut changes = providers.subscribe();
    providers.silent("p");
    providers.silent("p");
    assert_eq!(told(&mut changes), ["v"], "told once");
    assert_eq!(providers.observe("p", "v"), Observation::Unreachable(Some(Arc::new(first.clone()))));
    poll(&providers, &[("a", Some(vec![first.clone()]))]);
    assert_eq!(told(&mut changes), ["v"]);
    assert_eq!(providers.observe("p", "v"), Observation::Reported(Arc::new(first)));
}

#[test]
fn a_namespace_that_fails_is_no_news_of_another() {
    let providers = Providers::default();
    let (a, b) = (volume("va", "a", None), volume("vb", "b", None));
    poll(&providers, &[("a", Some(vec![a.clone()])), ("b", Some(vec![b.clone()]))]);
    let mut changes = providers.subscribe();
    poll(&providers, &[("a", None), ("b", Some(vec![b.clone()]))]);
    assert_eq!(told(&mut changes), ["va"]);
    assert_eq!(providers.observe("p", "va"), Observation::Unreachable(Some(Arc::new(a))));
    assert_eq!(providers.observe("p", "vb"), Observation::Reported(Arc::new(b)));
    // What is nowhere may be in the namespace that fails; what went from the other may not.
    assert_eq!(providers.observe("p", "vx"), Observation::Unreachable(None));
    poll(&providers, &[("a", None), ("b", Some(vec![]))]);
    assert_eq!(providers.observe("p", "vb"), Observation::Gone);
    poll(&providers, &[("a", Some(vec![])), ("b", Some(vec![]))]);
    assert_eq!(providers.observe("p", "vx"), Observation::Gone);
    assert!(told(&mut changes).contains(&"vx".to_owned()), "who asked is told");
}

#[test]
fn a_namespace_that_is_gone_takes_its_volumes_along() {
    let providers = Providers::default();
    poll(&providers, &[("a", Some(vec![volume("va", "a", None)])), ("b", Some(vec![]))]);
    providers.observe("p", "va");
    poll(&providers, &[("b", Some(vec![]))]);
    assert_eq!(providers.observe("p", "va"), Observation::Gone);
    assert!(providers.volumes("p").is_empty());
}

#[test]
fn nothing_is_gone_before_all_namespaces_were_listed() {
    let providers = Providers::default();
    providers.begin("p", monotonic());
    providers.namespaces("p", &["a".into(), "b".into()]);
    providers.listed("p", "a", Some(vec![]), monotonic());
    assert_eq!(providers.observe("p", "v"), Observation::NotPolled);
    providers.listed("p", "b", Some(vec![]), monotonic());
    assert_eq!(providers.observe("p", "v"), Observation::Gone);
}

#[test]
fn a_provider_that_is_forgotten_was_never_asked() {
    let providers = Providers::default();
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    let mut changes = providers.subscribe();
    providers.forget("p");
    assert_eq!((told(&mut changes), providers.observe("p", "v")), (vec!["v".to_owned()], Observation::NotPolled));
    assert_eq!(providers.intervals("p"), None);
}

/// Takes everything, and notes it.
#[derive(Default)]
struct Obliging(Mutex<Vec<String>>);

impl ControlPlane for Obliging {
    fn publish<'a>(
        &'a self,
        namespace_id: &'a str,
        volume_id: &'a str,
        endpoint: &'a str,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        self.0.lock().unwrap().push(format!("{namespace_id}/{volume_id}={endpoint}"));
        std::future::ready(Ok(())).boxed()
    }
}

#[tokio::test]
async fn what_was_published_is_not_undone_by_a_list_that_began_before() {
    let providers = Providers::default();
    assert_eq!(providers.publish("p", "a", "v", "x").await, Err(PublishError::NotConnected));
    let obliging = Arc::new(Obliging::default());
    providers.connect("p", Some(obliging.clone()));
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    let before = monotonic();
    providers.publish("p", "", "v", "10.96.0.9:2049").await.unwrap();
    assert_eq!(*obliging.0.lock().unwrap(), ["a/v=10.96.0.9:2049"], "the namespace is known");
    let mount_endpoint = || providers.volumes("p")[0].mount_endpoint.clone();
    assert_eq!(mount_endpoint(), "10.96.0.9:2049");
    providers.listed("p", "a", Some(vec![volume("v", "a", None)]), before);
    assert_eq!(mount_endpoint(), "10.96.0.9:2049");
    let mut changes = providers.subscribe();
    providers.listed("p", "a", Some(vec![volume("v", "a", None)]), monotonic() + Duration::from_millis(1));
    assert_eq!((mount_endpoint().as_str(), told(&mut changes)), ("", vec!["v".to_owned()]), "lost there since");
    assert_eq!(providers.publish("p", "", "unknown", "x").await, Err(PublishError::VolumeGone));
}

#[test]
fn a_poll_lasts_until_its_volumes_are_settled() {
    let telemetry = crate::runtime::telemetry::Telemetry::new();
    let durations = telemetry.register("polls", "Polls", Histogram::new([1.0]));
    let count = || {
        let text = telemetry.encode().unwrap();
        let line = text.lines().find(|line| line.contains("polls_count")).unwrap_or(" 0").to_owned();
        line.rsplit(' ').next().unwrap().parse::<u32>().unwrap()
    };
    let providers = Providers::measured(durations);
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    assert_eq!(count(), 1, "nobody cares for the volume");
    providers.observe("p", "v");
    poll(&providers, &[("a", Some(vec![volume("v", "a", Some("10.0.0.1:2049"))]))]);
    assert_eq!(count(), 1, "it changed, and is to be switched");
    providers.settled("p", "v");
    assert_eq!(count(), 2);
    providers.settled("p", "v");
    assert_eq!(count(), 2, "one for each poll");
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    assert_eq!(count(), 3, "what is left to do is left to the next poll");
    providers.expect("p", "w");
    providers.settled("p", "v");
    assert_eq!(count(), 3);
    providers.settled("p", "w");
    assert_eq!(count(), 4);
    poll(&providers, &[("a", Some(vec![volume("v", "a", Some("10.0.0.2:2049"))]))]);
    assert_eq!(count(), 4);
    providers.unasked("p", "v");
    assert_eq!(count(), 5, "its SharedVolume is gone");
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    assert_eq!(count(), 6, "nobody cares for it any more");
}

#[test]
fn a_volume_that_nobody_asks_for_is_not_remembered_as_gone() {
    let providers = Providers::default();
    poll(&providers, &[("a", Some(vec![volume("v", "a", None)]))]);
    providers.observe("p", "v");
    poll(&providers, &[("a", Some(vec![]))]);
    poll(&providers, &[("a", None)]);
    assert_eq!(providers.observe("p", "v"), Observation::Gone);
    providers.unasked("p", "v");
    assert_eq!(providers.observe("p", "v"), Observation::Unreachable(None));
}
