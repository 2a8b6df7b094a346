//! What comes over a socket: from Mountpoint Pods' side of the protocol, from agents, from storage control planes, from NFS
//! servers, from S3, and from the kubelet.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use bulkhead::csi::authority;
use bulkhead::heartbeat::keys::{KeyId, KeyPair, PairKey, PublicKey};
use bulkhead::heartbeat::{replicas, wire};
use bulkhead::nfs::null_call;
use bulkhead::s3::controller_service::error_code;
use bulkhead::s3::socket_protocol;
use bulkhead::storageos::wire::{Namespace, Volume};

/// The message to a mounter: written and read again it is the same, and shown it holds no value of its environment.
pub fn socket_message(data: &[u8]) {
    let Ok(message) = socket_protocol::message(data) else { return };
    let written = serde_json::to_vec(&message).unwrap_or_default();
    assert!(socket_protocol::message(&written).is_ok_and(|read| read == message), "{message:?}");
    let shown = format!("{message:?}");
    let values = message.env.iter().filter_map(|entry| entry.split_once('=')).map(|(_, value)| value);
    for value in values.filter(|value| value.len() > 32 && !message.bucket_name.contains(value)) {
        let stands_elsewhere = message.args.iter().any(|arg| arg.contains(value))
            || message.env.iter().any(|entry| entry.split('=').next().is_some_and(|name| name.contains(value)));
        assert!(stands_elsewhere || !shown.contains(value), "a value is shown");
    }
}

/// A datagram: nobody without the key makes one that counts, and one that is sealed is read as it was.
pub fn heartbeat(data: &[u8]) {
    static KEY: LazyLock<Option<PairKey>> = LazyLock::new(|| {
        let [agent, replica] = [1, 2].map(|byte| KeyPair::from_secret([byte; 32]));
        agent.with_replica(replica.public())
    });
    let Some(key) = KEY.as_ref() else { return };
    let _ = wire::carried(data);
    let Some(read) = wire::parse(data) else { return };
    assert!(!read.is_of(key), "forged");
    let sealed = wire::seal(key, KeyId([7; 8]), read.counter, &read.message);
    let again = wire::parse(&sealed);
    assert!(again.is_some_and(|again| again.is_of(key) && again.message == read.message), "{:?}", read.message);
}

/// What the ConfigMap tells of the replicas: no more than there may be, and each is written as it was read.
pub fn heartbeat_replicas(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let entries: BTreeMap<_, _> =
        text.lines().enumerate().map(|(number, line)| (number.to_string(), line.to_owned())).collect();
    let read = replicas::read(&entries);
    assert!(read.len() <= replicas::REPLICAS_MAX);
    for replica in read {
        let one = BTreeMap::from([(String::new(), replicas::entry(replica))]);
        assert_eq!(replicas::read(&one), [replica]);
    }
    if let Some(key) = PublicKey::parse(&text) {
        assert_eq!(key.to_string(), text);
    }
}

/// Lists of a storage control plane: a volume that is reported has an id.
pub fn provider_json(data: &[u8]) {
    let namespaces = serde_json::from_slice::<Vec<Namespace>>(data).unwrap_or_default();
    let namespace = namespaces.into_iter().next().unwrap_or_default();
    for volume in serde_json::from_slice::<Vec<Volume>>(data).unwrap_or_default() {
        let _ = (volume.is_shared(), volume.mount_endpoint().len(), volume.version().len());
        if let Some(reported) = volume.report(&namespace) {
            assert!(!reported.id.is_empty());
            let _ = reported.endpoint.as_deref().map(str::parse::<bulkhead::api::endpoint::Endpoint>);
        }
    }
}

/// An NFS server's answer to NULL: one to another call is none.
pub fn nfs_reply(data: &[u8]) {
    if null_call::read(data, 7).is_ok() {
        assert_eq!(data.get(..4), Some(&7_u32.to_be_bytes()[..]));
        assert!(null_call::read(data, 8).is_err());
    }
}

/// An error of S3: a word of it is shown, where its code is one, and nothing else.
pub fn s3_error(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Some(code) = error_code(&text) {
        assert!(code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{code:?}");
        assert!(text.contains(&format!("<Code>{code}</Code>")), "{text:?}");
    }
}

/// The header of an HTTP/2 frame of the kubelet, and its block of headers: no more is waited for than may come, and a block whose
/// authority was replaced has nothing left to replace.
pub fn registration_frame(data: &[u8]) {
    let Some((header, block)) = data.split_first_chunk() else { return };
    assert!(authority::length(*header).unwrap_or_default() <= authority::FRAME_MAX);
    if let Some(replaced) = authority::with_localhost(block) {
        assert!(replaced.len() <= block.len() * 6, "{block:?}");
        assert_eq!(authority::with_localhost(&replaced).as_ref(), Some(&replaced), "{block:?}");
    }
}
