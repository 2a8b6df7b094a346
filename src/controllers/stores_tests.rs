use super::*;
use crate::api::slim::protobuf::{Kind, Message};
use crate::runtime::protobuf::enveloped;

/// A message of these fields, each of bytes.
fn message(fields: &[(u32, &[u8])]) -> Vec<u8> {
    let mut written = Vec::new();
    for (number, bytes) in fields {
        prost::encoding::bytes::encode(*number, &bytes.to_vec(), &mut written);
    }
    written
}

/// A pod with volumes of these sources, in protobuf.
fn pod(sources: &[u32]) -> Vec<u8> {
    let volume = |source: &u32| message(&[(1, b"v"), (2, &message(&[(*source, b"")]))]);
    let volumes: Vec<_> = sources.iter().map(volume).collect();
    let volumes: Vec<(u32, &[u8])> = volumes.iter().map(|volume| (1, volume.as_slice())).collect();
    message(&[(1, &message(&[(1, b"p")])), (2, &message(&volumes))])
}

/// The same as it is read where nothing is sifted.
fn read(pod: &[u8]) -> Pod {
    let envelope = message(&[(1, &message(&[(1, b"v1"), (2, b"Pod")])), (2, pod)]);
    let mut json = Vec::new();
    enveloped(&protobuf::POD, &[&b"k8s\0"[..], &envelope].concat(), &mut json).unwrap();
    serde_json::from_slice(&json).unwrap()
}

/// The message behind a field.
fn inner(message: &Message, name: &str) -> &'static Message {
    match message.fields.iter().find(|field| field.name == name).map(|field| field.kind) {
        Some(Kind::Object(inner) | Kind::Objects(inner) | Kind::Inline(inner)) => inner,
        other => panic!("{name}: {other:?}"),
    }
}

/// A pod that is sifted out does not exist for anybody: it would stay on a dead node without a word.
#[test]
fn a_pod_is_sifted_out_where_it_would_not_be_kept_and_nowhere_else() {
    let table = ["spec", "volumes", "volumeSource"].iter().fold(&protobuf::POD, |message, name| inner(message, name));
    let number = |name: &str| table.fields.iter().find(|field| field.name == name).unwrap().number;
    let unknown = 900;
    let mut cases: Vec<Vec<u32>> = table.fields.iter().map(|field| vec![field.number]).collect();
    cases.extend([vec![], vec![unknown], vec![number("emptyDir"), number("secret")]]);
    cases.extend([vec![number("emptyDir"), number("persistentVolumeClaim")], vec![number("image"), unknown]]);
    let mut passed = 0;
    for sources in cases {
        let pod = pod(&sources);
        let passes = VOLUMES.passes(&protobuf::POD, &pod).unwrap();
        assert_eq!(passes, uses_volumes(&read(&pod)), "{sources:?}");
        passed += usize::from(passes);
    }
    let local = table.fields.iter().filter(|field| is_pod_local(field.name)).count();
    assert_eq!(passed, table.fields.len() - local + 3);
}
