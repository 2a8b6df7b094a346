//! `vol_data.json`: what the kubelet writes beside a CSI mount about the volume. Whoever can write the kubelet's folder
//! can write anything here: it only ever narrows what the NodeFence names.

use serde::{Deserialize, Serialize};

/// Longest record that is read, in bytes; the kubelet writes a few hundred.
pub const LENGTH_MAX: usize = 64 * 1024;

/// Which volume a folder of the kubelet is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolData {
    /// CSI driver.
    #[serde(rename = "driverName")]
    pub driver: String,
    /// CSI volume handle.
    #[serde(rename = "volumeHandle")]
    pub handle: String,
}

/// What is known of such a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Record {
    /// There is none, as after the first half of a clean-up.
    Absent,
    /// It says which volume.
    Of(VolData),
    /// It cannot be read, with the reason.
    Unreadable(String),
}

/// Reads a record.
pub fn parse(text: &[u8]) -> Record {
    if text.len() > LENGTH_MAX {
        return Record::Unreadable(format!("longer than {LENGTH_MAX} bytes"));
    }
    match serde_json::from_slice::<VolData>(text) {
        Ok(data) if data.driver.is_empty() || data.handle.is_empty() => {
            Record::Unreadable("driverName or volumeHandle is empty".into())
        }
        Ok(data) => Record::Of(data),
        Err(error) => Record::Unreadable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_kubelets_records_are_read() {
        let of_a_mount = br#"{"attachmentID":"csi-1","driverName":"csi.example.com","nodeName":"n1",
            "specVolID":"pvc-1","volumeHandle":"share-41","volumeLifecycleMode":"Persistent"}"#;
        let of_staging = br#"{"driverName":"csi.example.com","volumeHandle":"share-41"}"#;
        let wanted = VolData { driver: "csi.example.com".into(), handle: "share-41".into() };
        assert_eq!(parse(of_a_mount), Record::Of(wanted.clone()));
        assert_eq!(parse(of_staging), Record::Of(wanted));
    }

    #[test]
    fn what_says_no_volume_is_unreadable() {
        for text in [
            "",
            "{",
            "[]",
            "null",
            "{}",
            r#"{"driverName":"","volumeHandle":"x"}"#,
            r#"{"driverName":"d","volumeHandle":7}"#,
            r#"{"driverName":"d"}"#,
        ] {
            assert!(matches!(parse(text.as_bytes()), Record::Unreadable(_)), "{text}");
        }
        assert!(matches!(parse(&vec![b' '; LENGTH_MAX + 1]), Record::Unreadable(_)));
    }

    proptest! {
        #[test]
        fn nothing_panics(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert_ne!(parse(&text), Record::Absent);
        }
    }
}
