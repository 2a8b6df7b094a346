//! `ListVolumes` and `ControllerGetVolume`: pages, and lists that lie.

use std::collections::BTreeMap;

use bulkhead_testbed::array::{Effect, Fault, Method};
use bulkhead_testbed::ledger::Stamp;

use super::*;

type Listed = BTreeMap<String, Vec<String>>;

/// Reads pages until there is no token or `limit` pages were read; tells how many there were.
async fn list(bed: &Bed, max_entries: i32, limit: usize) -> (Listed, usize) {
    let mut controller = bed.controller();
    let mut request = ListVolumesRequest { max_entries, ..Default::default() };
    let (mut listed, mut pages) = (Listed::new(), 0);
    loop {
        let page = controller.list_volumes(request.clone()).await.unwrap().into_inner();
        pages += 1;
        for entry in page.entries {
            let nodes = entry.status.map(|status| status.published_node_ids);
            let volume = entry.volume.expect("volume").volume_id;
            assert!(listed.insert(volume, nodes.unwrap_or_default()).is_none() || limit < 100);
        }
        if page.next_token.is_empty() || pages == limit {
            return (listed, pages);
        }
        request.starting_token = page.next_token;
    }
}

async fn five_volumes(options: ArrayOptions) -> (Bed, Vec<String>) {
    let bed = Bed::with(options);
    let volumes: Vec<String> = (0..5).map(|n| bed.volume(&format!("{n}"))).collect();
    bed.publish(&volumes[4], "a").await.unwrap();
    (bed, volumes)
}

#[tokio::test]
async fn pages_hold_what_was_asked_for_and_no_more_than_the_array_gives() {
    let (bed, volumes) = five_volumes(ArrayOptions::default()).await;
    for (max_entries, pages) in [(0, 1), (2, 3), (5, 1), (9, 1)] {
        let (listed, read) = list(&bed, max_entries, 100).await;
        assert_eq!(read, pages, "{max_entries}");
        assert_eq!(listed.keys().collect::<Vec<_>>(), volumes.iter().collect::<Vec<_>>());
        assert_eq!(listed[&volumes[4]], ["a"]);
        assert!(listed[&volumes[0]].is_empty());
    }
    let (bed, _) = five_volumes(ArrayOptions { page_size: 1, ..Default::default() }).await;
    assert_eq!(list(&bed, 0, 100).await.1, 5);
    let wrong = ListVolumesRequest { starting_token: "mine".to_owned(), ..Default::default() };
    assert_eq!(code(bed.controller().list_volumes(wrong).await), Code::Aborted);
    let negative = ListVolumesRequest { max_entries: -1, ..Default::default() };
    assert_eq!(code(bed.controller().list_volumes(negative).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_driver_may_lack_lists() {
    let (bed, _) = five_volumes(ArrayOptions { lists_published_nodes: false, ..Default::default() }).await;
    let page = bed.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert!(page.entries.iter().all(|entry| entry.status.is_none()));
    let none = Bed::with(ArrayOptions { lists_volumes: false, gets_volume: false, ..Default::default() });
    let volume = none.volume("data");
    let answer = none.controller().list_volumes(ListVolumesRequest::default()).await;
    assert_eq!(code(answer), Code::Unimplemented);
    let answer = none.controller().controller_get_volume(ControllerGetVolumeRequest { volume_id: volume }).await;
    assert_eq!(code(answer), Code::Unimplemented);
}

#[tokio::test]
async fn one_volume_is_shown_with_its_nodes() {
    let (bed, volumes) = five_volumes(ArrayOptions::default()).await;
    let get = |volume: &str| ControllerGetVolumeRequest { volume_id: volume.to_owned() };
    let one = bed.controller().controller_get_volume(get(&volumes[4])).await.unwrap().into_inner();
    assert_eq!(one.status.expect("status").published_node_ids, ["a"]);
    assert_eq!(code(bed.controller().controller_get_volume(get("none")).await), Code::NotFound);
    assert_eq!(code(bed.controller().controller_get_volume(get("")).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_stale_list_shows_the_past() {
    let (bed, volumes) = five_volumes(ArrayOptions::default()).await;
    let before = bed.ledger().now();
    bed.unpublish(&volumes[4], "a").await.unwrap();
    bed.publish(&volumes[0], "b").await.unwrap();
    let frozen = bed.faults().add(Fault::on(Method::ListVolumes, Effect::StaleSince(before)));
    let (listed, _) = list(&bed, 2, 100).await;
    assert_eq!((listed[&volumes[4]].len(), listed[&volumes[0]].len()), (1, 0));
    bed.faults().remove(frozen);
    let (listed, _) = list(&bed, 2, 100).await;
    assert_eq!((listed[&volumes[4]].len(), listed[&volumes[0]].len()), (0, 1));

    let hour = Duration::from_secs(3600);
    bed.faults().add(Fault::on(Method::ListVolumes, Effect::StaleBy(hour)));
    assert!(list(&bed, 0, 100).await.0.is_empty());
    bed.faults().add(Fault::on(Method::ControllerGetVolume, Effect::StaleSince(Stamp::START)));
    let get = ControllerGetVolumeRequest { volume_id: volumes[4].clone() };
    assert_eq!(code(bed.controller().controller_get_volume(get).await), Code::NotFound);
}

#[tokio::test]
async fn a_partial_list_lacks_volumes_nodes_or_a_page() {
    let (bed, volumes) = five_volumes(ArrayOptions::default()).await;
    let lying = async |effect| {
        let fault = bed.faults().add(Fault::on(Method::ListVolumes, effect));
        let answer = list(&bed, 2, 100).await;
        bed.faults().remove(fault);
        answer
    };
    let (listed, _) = lying(Effect::OmitVolumes([volumes[4].clone()].into())).await;
    assert!(listed.len() == 4 && !listed.contains_key(&volumes[4]));
    let (listed, _) = lying(Effect::OmitNodes).await;
    assert!(listed.len() == 5 && listed[&volumes[4]].is_empty());
    let (listed, pages) = lying(Effect::OmitPage(1)).await;
    assert_eq!((listed.keys().collect::<Vec<_>>(), pages), (vec![&volumes[0], &volumes[1], &volumes[4]], 3));
}

#[tokio::test]
async fn a_repeated_token_never_ends_the_list() {
    let (bed, volumes) = five_volumes(ArrayOptions::default()).await;
    bed.faults().add(Fault::on(Method::ListVolumes, Effect::RepeatToken));
    let (listed, pages) = list(&bed, 2, 20).await;
    assert_eq!(pages, 20);
    assert_eq!(listed.keys().collect::<Vec<_>>(), volumes[..2].iter().collect::<Vec<_>>());
}
