use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::net::UnixStream as Peer;

use tempfile::TempDir;

use super::*;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(60);
/// For what is to run out.
const SHORT: Duration = Duration::from_millis(200);

fn message() -> MountMessage {
    MountMessage {
        bucket_name: "bucket".into(),
        args: vec!["--allow-delete".into(), "--uid=1000".into()],
        env: vec!["AWS_SECRET_ACCESS_KEY=hush".into(), "AWS_REGION=eu".into()],
    }
}

/// A folder, and a socket's place in it whose path is too long for an address.
fn far_away() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let deep = folder.path().join("a-folder-with-a-long-name".repeat(5));
    std::fs::create_dir(&deep).unwrap();
    let socket = deep.join("mount.sock");
    assert!(socket.as_os_str().len() >= 108);
    (folder, socket)
}

fn near() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("mount.sock");
    (folder, socket)
}

fn file_with(text: &str) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file.rewind().unwrap();
    file
}

async fn send(
    socket: &Path,
    message: &MountMessage,
    descriptor: BorrowedFd<'_>,
    deadline: Duration,
) -> Result<(), ProtocolError> {
    Connection::open(socket, deadline).await?.send(message, descriptor).await
}

/// As upstream's node service writes, byte by byte: descriptors with the first piece, the end is the end of the connection.
fn write_as_upstream(socket: &Path, pieces: &[&[u8]], descriptors: &[&File]) {
    let mut peer = Peer::connect(socket).unwrap();
    let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(|file| file.as_fd()).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !borrowed.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&borrowed)));
    }
    let (first, rest) = pieces.split_first().unwrap();
    rustix::net::sendmsg(&peer, &[IoSlice::new(first)], &mut control, SendFlags::NOSIGNAL).unwrap();
    for piece in rest {
        // The reader may already have refused what it saw.
        let _ = peer.write_all(piece);
    }
}

/// What `receive` makes of what upstream's way of writing delivers.
async fn received(pieces: Vec<Vec<u8>>, files: Vec<File>) -> Result<(MountMessage, OwnedFd), ProtocolError> {
    let (_folder, socket) = near();
    let listener = Listener::bind(&socket).unwrap();
    let writer = tokio::task::spawn_blocking(move || {
        let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        write_as_upstream(&socket, &pieces, &files.iter().collect::<Vec<_>>());
    });
    let result = listener.receive(LONG).await;
    writer.await.unwrap();
    result
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test]
async fn a_message_and_its_descriptor_arrive() {
    let (_folder, socket) = far_away();
    let listener = Listener::bind(&socket).unwrap();
    let file = file_with("through the socket");
    let sent = message();
    let (sending, receiving) =
        tokio::join!(send(&socket, &sent, file.as_fd(), LONG), async { listener.receive(LONG).await });
    sending.unwrap();
    let (came, descriptor) = receiving.unwrap();
    assert_eq!(came, sent);
    let mut text = String::new();
    File::from(descriptor).read_to_string(&mut text).unwrap();
    assert_eq!(text, "through the socket");
    assert!(!socket.exists(), "nobody can connect any more");
}

#[tokio::test]
async fn upstreams_document_is_understood() {
    // Go's encoder: unknown fields of the future, escaped characters, a newline at the end, null for a list never filled.
    let document = "{\"bucketName\":\"b\",\"args\":[\"--prefix=a\\u0026b/\"],\"env\":null,\"volumeId\":\"v\"}\n";
    let (came, _descriptor) = received(vec![document.into()], vec![file_with("")]).await.unwrap();
    assert_eq!(came, MountMessage { bucket_name: "b".into(), args: vec!["--prefix=a&b/".into()], env: vec![] });
}

#[tokio::test]
async fn upstream_understands_our_document() {
    let (_folder, socket) = near();
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let reader = tokio::task::spawn_blocking(move || {
        let (peer, _) = listener.accept().unwrap();
        let mut chunk = [0; CHUNK];
        let mut descriptors = Vec::new();
        let (length, _) = receive_chunk(peer.as_fd(), &mut chunk, &mut descriptors).unwrap();
        let (end, _) = receive_chunk(peer.as_fd(), &mut [0; CHUNK], &mut Vec::new()).unwrap();
        (String::from_utf8(chunk[..length].to_vec()).unwrap(), descriptors.len(), end)
    });
    send(&socket, &message(), file_with("").as_fd(), LONG).await.unwrap();
    let document = concat!(
        r#"{"bucketName":"bucket","args":["--allow-delete","--uid=1000"],"#,
        r#""env":["AWS_SECRET_ACCESS_KEY=hush","AWS_REGION=eu"]}"#
    );
    assert_eq!(reader.await.unwrap(), (document.to_owned(), 1, 0));
}

#[tokio::test]
async fn a_long_message_arrives_in_pieces() {
    let (_folder, socket) = near();
    let listener = Listener::bind(&socket).unwrap();
    let sent = MountMessage { args: (0..40_000).map(|number| format!("--a={number}")).collect(), ..message() };
    let file = file_with("");
    let (sending, receiving) = tokio::join!(send(&socket, &sent, file.as_fd(), LONG), listener.receive(LONG));
    sending.unwrap();
    assert_eq!(receiving.unwrap().0, sent);
}

#[tokio::test]
async fn a_slow_writer_is_waited_for() {
    let (_folder, socket) = near();
    let listener = Listener::bind(&socket).unwrap();
    let (first_half, rest) = br#"{"bucketName":"b","args":[],"env":[]}"#.split_at(9);
    let receiving = tokio::spawn(listener.receive(LONG));
    let mut peer = UnixStream::connect(&socket).await.unwrap();
    let file = file_with("");
    send_first(peer.as_fd(), first_half, file.as_fd()).unwrap();
    // The listener goes once it has the connection, so by now it reads.
    while socket.exists() {
        sleep(CALL_AGAIN).await;
    }
    for byte in rest {
        peer.write_all(&[*byte]).await.unwrap();
        sleep(Duration::from_millis(1)).await;
    }
    assert!(!receiving.is_finished());
    drop(peer);
    assert_eq!(receiving.await.unwrap().unwrap().0.bucket_name, "b");
}

#[tokio::test]
async fn a_mounter_that_comes_later_is_waited_for() {
    let (_folder, socket) = near();
    // A socket on which nobody listens any more, as a killed mounter leaves it.
    drop(std::os::unix::net::UnixListener::bind(&socket).unwrap());
    let (sent, file) = (message(), file_with(""));
    let later = async {
        sleep(SHORT).await;
        Listener::bind(&socket).unwrap().receive(LONG).await
    };
    let (sending, receiving) = tokio::join!(send(&socket, &sent, file.as_fd(), LONG), later);
    sending.unwrap();
    assert_eq!(receiving.unwrap().0, sent);
}

#[tokio::test]
async fn nobody_is_waited_for_for_ever() {
    let (_folder, socket) = near();
    let error = send(&socket, &message(), file_with("").as_fd(), SHORT).await.unwrap_err();
    assert!(error.to_string().starts_with("no mounter listened within 0.2 s at /"), "{error}");
    let error = Listener::bind(&socket).unwrap().receive(SHORT).await.unwrap_err();
    assert!(error.to_string().starts_with("no options came within 0.2 s at /"), "{error}");
    assert!(!socket.exists());

    let listener = Listener::bind(&socket).unwrap();
    let silent = Peer::connect(&socket).unwrap();
    let error = listener.receive(SHORT).await.unwrap_err();
    assert!(error.to_string().starts_with("the options did not come to their end"), "{error}");
    drop(silent);
    assert!(matches!(
        Listener::bind(&socket).unwrap().receive(Duration::ZERO).await,
        Err(ProtocolError::Deadline { .. })
    ));
}

#[tokio::test]
async fn one_that_takes_nothing_is_not_waited_for_for_ever() {
    let (_folder, socket) = near();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let long = MountMessage { args: vec!["a".repeat(LONGEST_MESSAGE / 2)], ..message() };
    let error = send(&socket, &long, file_with("").as_fd(), SHORT).await.unwrap_err();
    assert!(error.to_string().starts_with("the mounter did not take the message"), "{error}");
}

#[tokio::test]
async fn a_link_is_not_followed() {
    let (folder, socket) = near();
    let elsewhere = folder.path().join("of-somebody-else");
    let _listener = std::os::unix::net::UnixListener::bind(&elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &socket).unwrap();
    let error = send(&socket, &message(), file_with("").as_fd(), LONG).await.unwrap_err();
    assert!(matches!(error, ProtocolError::NotASocket(_)), "{error}");
}

#[tokio::test]
async fn messages_without_exactly_one_descriptor_are_refused() {
    let document = br#"{"bucketName":"b"}"#.to_vec();
    let with = |count: usize| received(vec![document.clone()], (0..count).map(|_| file_with("")).collect());
    assert!(matches!(with(0).await, Err(ProtocolError::Descriptors(0))));
    assert!(with(1).await.is_ok());
    assert!(matches!(with(2).await, Err(ProtocolError::Descriptors(2))));
    // More than there is room for.
    assert!(matches!(with(16).await, Err(ProtocolError::Descriptors(4..))));
}

#[tokio::test]
async fn a_message_without_end_is_refused() {
    let chunk = vec![b' '; 64 * 1024];
    let result = received(vec![chunk; 20], vec![file_with("")]).await;
    assert!(matches!(result, Err(ProtocolError::TooLong)));
    let (_folder, socket) = near();
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let long = MountMessage { args: vec!["a".repeat(LONGEST_MESSAGE)], ..message() };
    assert!(matches!(send(&socket, &long, file_with("").as_fd(), LONG).await, Err(ProtocolError::TooLong)));
}

#[tokio::test]
async fn what_is_refused_does_not_tell_keys() {
    let document = br#"{"bucketName":"b","env":"AWS_SECRET_ACCESS_KEY=hush"}"#.to_vec();
    let error = received(vec![document], vec![file_with("")]).await.unwrap_err();
    assert_eq!(error.to_string(), "the message is not what was agreed, at line 1, column 52 of its JSON");
    assert!(!format!("{error:?}").contains("hush"));
    let shown = format!("{:?}", message());
    assert!(shown.contains("AWS_SECRET_ACCESS_KEY") && !shown.contains("hush"), "{shown}");
}

/// L43. In one thread with nothing beside it: what is open belongs to the process, and tests run side by side.
#[test]
fn bad_messages_leave_no_descriptor_open() {
    if std::env::var_os("BULKHEAD_TEST_ALONE").is_none() {
        let name = "s3::socket_protocol::tests::bad_messages_leave_no_descriptor_open";
        let status = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--test-threads", "1"])
            .env("BULKHEAD_TEST_ALONE", "1")
            .status()
            .unwrap();
        assert!(status.success());
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut before = None;
    for round in 0..1000 {
        let (document, count) = match round % 4 {
            0 => (r#"{"bucketName":1}"#, 1),
            1 => (r#"{"bucketName":"b"}"#, 2),
            2 => (r#"{"bucketName":"b"}"#, 16),
            _ => ("not JSON", 3),
        };
        let files = (0..count).map(|_| file_with("")).collect();
        assert!(runtime.block_on(received(vec![document.into()], files)).is_err());
        if round == 99 {
            before = Some(open_descriptors());
        }
    }
    assert_eq!(Some(open_descriptors()), before);
}
