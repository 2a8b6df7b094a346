//! Lists: whole, or not at all.

use std::cell::RefCell;

use super::super::super::decide::FailureClass;
use super::super::driver::whole;
use super::*;

type Page = Result<(Vec<(String, Said)>, String), Failure>;

/// Entries with these handles, and the token of the next page.
fn page(handles: std::ops::Range<usize>, token: &str) -> Page {
    Ok((handles.map(|number| (format!("v{number}"), well())).collect(), token.into()))
}

/// Reads a list whose pages these are, in the order in which they are asked for. Returns how many entries it has, or the
/// code of its failure, and what was asked.
async fn read(pages: Vec<Page>) -> (Result<usize, &'static str>, Vec<(i32, String)>) {
    let (pages, asked) = (RefCell::new(pages.into_iter()), RefCell::new(Vec::new()));
    let list = whole(|max, token| {
        asked.borrow_mut().push((max, token));
        let page = pages.borrow_mut().next().expect("a page too many");
        async move { page }
    });
    let read = list.await.map(|list| list.len()).map_err(|failure| failure.code);
    (read, asked.into_inner())
}

fn tokens(asked: &[(i32, String)]) -> Vec<&str> {
    asked.iter().map(|(_, token)| token.as_str()).collect()
}

#[tokio::test]
async fn pages_follow_each_other_and_a_volume_on_two_is_one() {
    let (read, asked) = read(vec![page(0..3, "a"), page(2..5, "b"), page(5..6, "")]).await;
    assert_eq!((read, tokens(&asked)), (Ok(6), vec!["", "a", "b"]));
}

#[tokio::test]
async fn a_list_that_ends_with_a_full_page_is_read_again_in_one_piece() {
    let (list, asked) = read(vec![page(0..500, ""), page(0..1200, "")]).await;
    assert_eq!(list, Ok(1200), "cut off without a token");
    assert_eq!(asked.iter().map(|(max, _)| *max).collect::<Vec<_>>(), [500, 0]);
    let (list, asked) = read(vec![page(0..499, "")]).await;
    assert_eq!((list, asked.len()), (Ok(499), 1));
}

#[tokio::test]
async fn a_page_is_tried_again_and_a_token_that_expired_begins_anew() {
    let fails = |code| Err(failure(code));
    let (list, asked) = read(vec![page(0..2, "a"), fails("Unavailable"), fails("Unavailable"), page(2..3, "")]).await;
    assert_eq!((list, tokens(&asked)), (Ok(3), vec!["", "a", "a", "a"]));
    let (list, asked) = read(vec![page(0..2, "a"), fails("Aborted"), page(0..1, "b"), page(1..2, "")]).await;
    assert_eq!((list, tokens(&asked)), (Ok(2), vec!["", "a", "", "b"]), "nothing of the first attempt is kept");
    let (list, _) = read((0..3).map(|_| fails("Unavailable")).collect()).await;
    assert_eq!(list, Err("Unavailable"));
    let stop = Failure { class: FailureClass::Stop, ..failure("PermissionDenied") };
    assert_eq!(read(vec![Err(stop)]).await.0, Err("PermissionDenied"));
    let (list, _) = read(vec![page(0..1, "a"), page(1..2, "a")]).await;
    assert_eq!(list, Err("IncompleteList"), "a repeated token would never end");
}
