//! The other side, byte by byte as upstream's node service is: it dials, and writes one document with one descriptor.

use std::io::{IoSlice, Read as _};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;

use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::world::{Pod, until};

/// A document such as Go's encoder writes, with the newline at its end.
pub fn document(bucket: &str, args: &[&str], env: &[&str]) -> String {
    let list = |items: &[&str]| match items {
        [] => "null".to_owned(),
        items => format!("[{}]", items.iter().map(|item| format!("{item:?}")).collect::<Vec<_>>().join(",")),
    };
    format!("{{\"bucketName\":{bucket:?},\"args\":{},\"env\":{}}}\n", list(args), list(env))
}

/// Sends a document and descriptors to a mounter, as soon as it listens.
pub fn send(pod: &Pod, document: &str, descriptors: &[BorrowedFd<'_>]) {
    let peer = until("a listening mounter", || UnixStream::connect(pod.socket()).ok());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    }
    let bytes = [IoSlice::new(document.as_bytes())];
    let written = rustix::net::sendmsg(peer.as_fd(), &bytes, &mut control, SendFlags::NOSIGNAL).unwrap();
    assert_eq!(written, document.len());
    // What comes next must not meet the listener that this one used up. There is no answer, only the end.
    peer.shutdown(Shutdown::Write).unwrap();
    let _ = (&peer).read_to_end(&mut Vec::new());
}

/// Sends a document with a descriptor that is nothing in particular.
pub fn send_document(pod: &Pod, document: &str) {
    send(pod, document, &[tempfile::tempfile().unwrap().as_fd()]);
}
