//! Nodes that are to be acted on are read from the API, and the pass decides anew by what they are.

use std::collections::BTreeSet;

use futures::future::join_all;

use crate::api::time::Now;

use super::decide::{self, Decision, LOOKS, Seen};
use super::evidence::Silence;
use super::plan::LiveNode;

/// What to do, by the nodes that are to be acted on as `look` has them; and why one of them could not be read. Each is read once:
/// one that is gone stays gone for this pass, and one that cannot be read holds up no other.
pub(super) async fn decided<F, E>(
    seen: &mut Seen,
    now: Now,
    look: impl Fn(String, Silence) -> F,
) -> (Decision, Option<E>)
where
    F: Future<Output = Result<Option<LiveNode>, E>>,
{
    let mut asked: BTreeSet<String> = BTreeSet::new();
    let mut unread = BTreeSet::new();
    let mut failed = None;
    let mut decision = decide::decide(seen, now);
    for _ in 0..LOOKS {
        let wanted: Vec<String> = decision.look_at.iter().filter(|name| !asked.contains(*name)).cloned().collect();
        if wanted.is_empty() {
            break;
        }
        let looks = wanted.iter().map(|name| look(name.clone(), seen.silence(name)));
        let found = join_all(looks).await;
        for (name, live) in wanted.into_iter().zip(found) {
            asked.insert(name.clone());
            match live {
                Ok(Some(live)) => {
                    seen.live.insert(name, live);
                }
                Ok(None) => {
                    seen.gone.insert(name);
                }
                Err(error) => {
                    unread.insert(name);
                    failed = failed.or(Some(error));
                }
            }
        }
        decision = decide::decide(seen, now);
    }
    decision.unread = unread;
    (decision, failed)
}
