//! What cannot be seen from outside; all else is tried against the testbed's control plane.

use super::*;

#[test]
fn an_id_leads_nowhere_else() {
    assert!(segment("get", "c5666b58-b805").is_ok());
    for id in ["", ".", "..", "a/b", "../nodes", "a?x", "a%2fb", "ä", "a b"] {
        let error = segment("get", id).unwrap_err();
        assert_eq!(PublishError::from(error), PublishError::VolumeGone, "{id}");
    }
}

#[test]
fn an_object_that_cannot_be_read_does_not_hide_the_others() {
    let objects = serde_json::json!([{ "id": "a", "name": "x" }, { "id": 7 }, { "id": "b", "name": "y" }]);
    let namespaces: Vec<Namespace> = readable(serde_json::from_value(objects).unwrap());
    assert_eq!(namespaces.len(), 2);
}
