//! The call against small servers that answer well, oddly, or not at all.

use std::net::Ipv4Addr;

use tokio::net::TcpListener;

use super::*;

/// Long enough for everything that answers.
const PATIENCE: Duration = Duration::from_secs(20);

/// A server that answers the calls of one connection, in order, with these bytes, and then keeps it open.
async fn server(answers: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        for answer in answers {
            let mut call = [0; 44];
            connection.read_exact(&mut call).await.unwrap();
            connection.write_all(&answer).await.unwrap();
        }
        // Until the caller closes.
        let _ = tokio::io::copy(&mut connection, &mut tokio::io::sink()).await;
    });
    address
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().copied().flat_map(u32::to_be_bytes).collect()
}

fn framed(body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    [bytes(&[LAST | length]), body.to_vec()].concat()
}

/// An accepted reply without verifier, and what follows.
fn reply(id: u32, rest: &[u32]) -> Vec<u8> {
    framed(&[bytes(&[id, 1, 0, 0, 0]), bytes(rest)].concat())
}

async fn asked(answers: Vec<Vec<u8>>) -> Result<(), NullCallError> {
    null_call(server(answers).await, PATIENCE).await
}

async fn words_of(answers: Vec<Vec<u8>>) -> String {
    match asked(answers).await {
        Err(NullCallError::NotNfs(words)) => words,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_answers_serves() {
    assert_eq!(asked(vec![reply(4, &[0])]).await, Ok(()));
}

#[test]
fn the_call_is_the_one_of_the_rfc() {
    let expected = bytes(&[LAST | 40, 4, 0, 2, 100_003, 4, 0, 0, 0, 0, 0]);
    assert_eq!(call(4, 4), expected);
}

#[tokio::test]
async fn a_record_of_many_fragments_is_put_together() {
    let body = bytes(&[4, 1, 0, 0, 0, 0]);
    let (first, last) = body.split_at(5);
    let pieces = [bytes(&[5]), first.to_vec(), bytes(&[0]), bytes(&[LAST | 19]), last.to_vec()].concat();
    assert_eq!(asked(vec![pieces]).await, Ok(()));
}

#[tokio::test]
async fn a_verifier_is_skipped_with_its_padding() {
    let body = [bytes(&[4, 1, 0, 1, 5]), b"nonce\0\0\0".to_vec(), bytes(&[0])].concat();
    assert_eq!(asked(vec![framed(&body)]).await, Ok(()));
}

#[tokio::test]
async fn a_server_of_version_3_is_asked_again() {
    assert_eq!(asked(vec![reply(4, &[2, 2, 3]), reply(3, &[0])]).await, Ok(()));
}

#[tokio::test]
async fn other_versions_are_no_answer() {
    assert_eq!(words_of(vec![reply(4, &[2, 2, 2])]).await, "it serves versions 2 to 2, not 4 or 3");
    let twice = vec![reply(4, &[2, 2, 3]), reply(3, &[2, 2, 2])];
    assert_eq!(words_of(twice).await, "it serves versions 2 to 2, not 4 or 3");
}

#[tokio::test]
async fn what_is_no_nfs_is_told_by_its_answer() {
    for (answer, words) in [
        (reply(4, &[1]), "NFS is not among its programs"),
        (reply(4, &[5]), "it answers NULL with error 5"),
        (reply(9, &[0]), "it answers another call"),
        (framed(&bytes(&[4, 1, 1, 1, 1])), "it refuses the call"),
        (framed(&bytes(&[4, 0, 0])), "it answers with something that is no RPC reply"),
        (framed(&bytes(&[4, 1])), "its answer ends too early"),
        (framed(&bytes(&[4, 1, 0, 0, 400, 0])), "its answer ends too early"),
        (b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(), "it answers with something that is no RPC"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), "it answers with something that is no RPC"),
    ] {
        assert_eq!(words_of(vec![answer]).await, words);
    }
}

#[tokio::test]
async fn a_server_that_hangs_up_is_none() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut connection, _) = listener.accept().await.unwrap();
        // All of it: or the end would be a reset.
        connection.read_exact(&mut [0; 44]).await.unwrap();
    });
    let error = null_call(address, PATIENCE).await.unwrap_err();
    assert_eq!(error, NullCallError::NotNfs("it closes the connection without an answer".to_owned()));
}

#[tokio::test]
async fn a_silent_server_costs_the_timeout_and_no_more() {
    let address = server(Vec::new()).await;
    assert_eq!(null_call(address, Duration::from_millis(50)).await, Err(NullCallError::TimedOut));
}

#[tokio::test]
async fn a_port_without_a_server_refuses() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    assert_eq!(null_call(address, PATIENCE).await, Err(NullCallError::Refused));
}
