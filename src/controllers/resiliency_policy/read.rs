//! Nodes that are to be acted on are read from the API, and the pass decides anew by what they are.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::future::join_all;

use crate::api::time::Now;
use crate::error::{Error, Result};

use super::decide::{self, Decision, Effect, LOOKS, Seen};
use super::evidence::Silence;
use super::plan::LiveNode;

/// How long one look may take. All four of a pass must fit in the minute that the queue gives it, or nothing is done at all; and an API
/// server that is busy with the failure of many nodes takes seconds for a look that succeeds.
const LOOK_WITHIN: Duration = Duration::from_secs(12);
/// How soon is looked again where a node could not be read, at the latest. What time alone decides of others is not kept waiting.
const SOON_AGAIN: Duration = Duration::from_secs(2);

/// What to do, by the nodes that are to be acted on as `look` has them; and why one of them could not be read. Each is read once:
/// one that is gone stays gone for this pass, and one that cannot be read holds up no other: what is to be done by the others is done
/// before more are read.
pub async fn decided<F, E>(seen: &mut Seen, now: Now, look: impl Fn(String, Silence) -> F) -> (Decision, Option<E>)
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
        if failed.is_some() && decision.effects.iter().any(rests_on_a_look) {
            break;
        }
    }
    decision.unread = unread;
    if failed.is_some() {
        decision.look_again = Some(decision.look_again.map_or(SOON_AGAIN, |wait| wait.min(SOON_AGAIN)));
    }
    (decision, failed)
}

/// Whether a pass in which nodes could not be read has failed as a whole. Where many could not, and none could, it is the API that does
/// not answer: it is left in peace for a while, if nothing else is to be done. A few say nothing of it, and others must not be declared
/// late for their sake.
pub fn is_blind(seen: &Seen, decision: &Decision) -> bool {
    let are_many = decision.unread.len() > LOOKS;
    are_many && seen.live.is_empty() && seen.gone.is_empty() && decision.effects.is_empty()
}

/// A look, or that it took too long.
pub(super) async fn in_time<T>(look: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::time::timeout(LOOK_WITHIN, look).await.unwrap_or(Err(Error::Deadline(LOOK_WITHIN)))
}

fn rests_on_a_look(effect: &Effect) -> bool {
    matches!(effect, Effect::Open(_) | Effect::Replan(_) | Effect::Reschedule { .. })
}
