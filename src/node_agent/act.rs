//! Carries out what a pass decided: reports first, so that a restart knows of it, then cleans volumes side by side, each
//! in a task of its own.

use std::time::Duration;

use kube::Resource as _;

use crate::api::conditions;
use crate::api::node_volume_report::{CleanupState, NodeVolumeReport, RemnantKind};
use crate::error::Result;
use crate::runtime::events::EventType;
use crate::runtime::lock::lock;
use crate::runtime::store::ObjectKey;

use super::child::{Answer, Removal, Stuck, Task};
use super::children::NoAnswer;
use super::decide::{Decision, Failure, Seen, Stand, Work};
use super::driver::{self, Plugin};
use super::mounts::inventory::{Elsewhere, Place};
use super::{Context, Shared, Stores, live, status};

/// How long a child that hung may take to end, once what it waited for was cut off.
const ENDS: Duration = Duration::from_secs(1);
/// Children of one volume that may hang: one that unmounts, and one that was to free it.
const HUNG_MAX: usize = 2;
/// How long one place may take to be unmounted and deleted.
const UNMOUNT: Duration = Duration::from_secs(10);

/// Carries out a decision. `wake` is called when work has ended.
pub async fn act(
    cx: &Context,
    stores: &Stores,
    seen: Seen,
    memory: &Shared,
    decision: Decision,
    wake: impl Fn() + Clone + Send + 'static,
) -> Result<()> {
    cx.metrics.remaining(decision.cleanup.as_ref().map(|stand| stand.remaining.as_slice()).unwrap_or_default());
    report(cx, stores, seen, decision.cleanup.as_ref()).await?;
    for work in decision.work {
        lock(memory).begins(&work.volume.name);
        let (cx, memory, wake) = (cx.clone(), memory.clone(), wake.clone());
        tokio::spawn(async move {
            let name = work.volume.name.clone();
            // The task that ends without an answer (a panic) must not leave the volume at work for ever.
            let outcome = tokio::spawn(clean(cx.clone(), work)).await;
            let outcome = outcome.unwrap_or_else(|panic| Err(failure(&name, "InternalError", panic.to_string())));
            match &outcome {
                Ok(()) => tracing::info!(volume = name, "cleanup: removed what was left of the volume"),
                Err(failure) => {
                    let Failure { id, reason, message, .. } = failure;
                    tracing::warn!(volume = name, id, reason, message, "cleanup: not removed; it is tried again");
                }
            }
            lock(&memory).ended(&name, outcome, cx.clock.now().mono);
            wake();
        });
    }
    Ok(())
}

/// Writes the report, if it says anything new. `stand` is where the clean-up stands, if this pass knows: else what was
/// said of it stays. Two passes that write at once do not overwrite each other: one of them conflicts, and is made again.
pub async fn report(cx: &Context, stores: &Stores, seen: Seen, stand: Option<&Stand>) -> Result<()> {
    let now = cx.clock.now();
    // A look takes time, and others write meanwhile.
    let Some(report) = stores.reports.get(&ObjectKey::cluster(&cx.settings.node_name)) else { return Ok(()) };
    let seen = Seen { report, health: cx.health.borrow().clone(), ..seen };
    let wanted = status::compute(&seen, stand, now);
    if !status::is_news(seen.report.status.as_ref(), &wanted, now) {
        return Ok(());
    }
    let written = cx.writer.record(seen.report.as_ref(), wanted).await?;
    tell(cx, &seen, &written);
    Ok(())
}

fn tell(cx: &Context, seen: &Seen, written: &NodeVolumeReport) {
    tell_of_probes(cx, &seen.report, written);
    tell_of_self_fencing(cx, &seen.report, written);
    let cleanup = |report: &NodeVolumeReport| report.status.as_ref().and_then(|status| status.cleanup.clone());
    let (before_it, Some(now)) = (cleanup(&seen.report), cleanup(written)) else { return };
    let same = |before: &&crate::api::node_volume_report::Cleanup| {
        before.fence_uid == now.fence_uid && before.episode == now.episode && before.boot_id == now.boot_id
    };
    let stood = before_it.as_ref().filter(same).map(|before| before.state);
    let started = |state| matches!(state, Some(CleanupState::Inventory | CleanupState::Cleaning));
    if stood == Some(now.state) || started(stood) && started(Some(now.state)) {
        return;
    }
    cx.metrics.changed(now.state, cx.clock.now().mono);
    let node = &cx.settings.node_name;
    let (kind, reason, note) = match now.state {
        CleanupState::Inventory | CleanupState::Cleaning => {
            let volumes = seen.left().count();
            (EventType::Normal, "CleanupStarted", format!("node {node}: {volumes} volumes of the incident are left"))
        }
        CleanupState::Clean => {
            (EventType::Normal, "NodeClean", format!("node {node}: nothing is left of the incident, seen twice"))
        }
        CleanupState::Blocked => {
            let first = now.remaining.first();
            let what = first.map(|left| format!("{:?} {} {}", left.kind, left.id, left.reason)).unwrap_or_default();
            let note =
                format!("{what}; {} in all, see status.cleanup.remaining. A reboot clears it", now.remaining.len());
            (EventType::Warning, "CleanupBlocked", note)
        }
    };
    tracing::info!(node, state = ?now.state, note, "cleanup");
    cx.events.publish(written.object_ref(&()), kind, reason, "Cleanup", note);
}

fn tell_of_probes(cx: &Context, before: &NodeVolumeReport, written: &NodeVolumeReport) {
    let hung = |report: &NodeVolumeReport| {
        let ready = report.status.as_ref().and_then(|status| conditions::find(&status.conditions, "Ready"));
        ready.is_some_and(|ready| ready.reason == "ProbesHung")
    };
    if hung(written) && !hung(before) {
        let note = format!("node {}: {}", cx.settings.node_name, status::PROBES_HUNG);
        cx.events.publish(written.object_ref(&()), EventType::Warning, "ProbesHung", "Probe", note);
    }
}

fn tell_of_self_fencing(cx: &Context, before: &NodeVolumeReport, written: &NodeVolumeReport) {
    let of = |report: &NodeVolumeReport| {
        let conditions = report.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        conditions::find(conditions, status::SELF_FENCED).map(|found| (found.status.clone(), found.message.clone()))
    };
    let Some((state, message)) = of(written) else { return };
    if of(before).is_some_and(|(before, _)| before == state) {
        return;
    }
    let note = format!("node {}: {}", cx.settings.node_name, message);
    let (kind, reason) = match state.as_str() {
        "True" => (EventType::Warning, "SelfFenced"),
        _ => (EventType::Normal, "SelfFencingOver"),
    };
    cx.events.publish(written.object_ref(&()), kind, reason, "SelfFence", note);
}

fn failure(id: &str, reason: &str, message: impl Into<String>) -> Failure {
    Failure { kind: RemnantKind::Mount, id: id.to_owned(), reason: reason.to_owned(), message: message.into() }
}

/// Frees what hangs, where that may be. Another child for a volume of which one still hangs would hang beside it, and in
/// the end they would have all places.
async fn free(cx: &Context, work: &Work) -> Result<(), Failure> {
    let name = &work.volume.name;
    if work.force && cx.children.hung_of(name) < HUNG_MAX {
        let mounts = work.targets.iter().chain(work.rest.iter().flat_map(|rest| &rest.staging));
        let mounts = mounts.flat_map(|place| place.mounts.clone()).collect();
        done(name, cx.children.run(name, Task::Abort(mounts), UNMOUNT).await)?;
    }
    match cx.children.all_ended(name, ENDS).await {
        true => Ok(()),
        false => Err(failure(name, "UnmountHangs", "a child process of an earlier attempt has not ended")),
    }
}

/// Removes what is left of a volume, in CSI order.
async fn clean(cx: Context, work: Work) -> Result<(), Failure> {
    let _turn =
        cx.turns.acquire().await.map_err(|closed| failure(&work.volume.name, "InternalError", closed.to_string()))?;
    let no_rest = live::ask(&cx, &work).await?;
    free(&cx, &work).await?;
    let driver = &work.volume.driver;
    let plugin = cx.plugin(driver).await.ok_or_else(|| {
        let places = work.targets.iter().chain(work.rest.iter().flat_map(|rest| &rest.staging));
        let id = places.map(|place| cx.absolute(&place.path)).next().unwrap_or_else(|| driver.clone());
        failure(&id, "DriverMissing", format!("no node plugin of {driver} is registered with the kubelet"))
    })?;
    if !work.elsewhere.is_empty() {
        removed(&cx, &work, elsewhere(&work.elsewhere)).await?;
    }
    for place in &work.targets {
        let path = cx.absolute(&place.path);
        let called = plugin.unpublish(&work.volume.handle, &path, cx.settings.call_timeout).await;
        called.map_err(|error| refused(&path, "NodeUnpublish", &error))?;
        removed(&cx, &work, of_place(place)).await?;
    }
    match (&work.rest, no_rest) {
        (None, _) => Ok(()),
        (Some(_), Some(forbidden)) => Err(forbidden),
        (Some(rest), None) => finish(&cx, &work, &plugin, rest).await,
    }
}

/// Nothing of the volume is in a pod any more: unstages it and removes all the rest.
async fn finish(
    cx: &Context,
    work: &Work,
    plugin: &Plugin,
    rest: &super::mounts::inventory::Remains,
) -> Result<(), Failure> {
    if !rest.staging.is_empty() {
        let stages =
            plugin.stages().await.map_err(|error| refused(&work.volume.driver, "NodeGetCapabilities", &error))?;
        for place in rest.staging.iter().filter(|_| stages) {
            let path = cx.absolute(&place.path);
            let called = plugin.unstage(&work.volume.handle, &path, cx.settings.call_timeout).await;
            called.map_err(|error| refused(&path, "NodeUnstage", &error))?;
        }
    }
    // What is on the volume before what it is.
    let loops = rest.loops.clone();
    removed(cx, work, Removal { loops, ..elsewhere(&rest.elsewhere) }).await?;
    for place in &rest.staging {
        removed(cx, work, of_place(place)).await?;
    }
    Ok(())
}

fn of_place(place: &Place) -> Removal {
    let Place { loops, mounts, leftovers, shared, .. } = place.clone();
    Removal { loops, mounts, leftovers, shared, ..Removal::default() }
}

/// Mounts elsewhere, and their folders where these are the kubelet's.
fn elsewhere(found: &[Elsewhere]) -> Removal {
    let mounts = found.iter().map(|elsewhere| elsewhere.mount.clone()).collect();
    let shared = found.iter().filter_map(|elsewhere| elsewhere.below_root.clone()).collect();
    Removal { mounts, shared, ..Removal::default() }
}

async fn removed(cx: &Context, work: &Work, removal: Removal) -> Result<(), Failure> {
    let at = removal.mounts.first().map(|mount| mount.path.clone());
    let id = at.or_else(|| removal.leftovers.first().cloned()).unwrap_or_else(|| work.volume.name.clone());
    let removal = Removal { kubelet_root: cx.settings.kubelet_root.clone(), ..removal };
    done(&id, cx.children.run(&work.volume.name, Task::Unmount(removal), UNMOUNT).await)
}

fn done(id: &str, answer: Result<Answer, NoAnswer>) -> Result<(), Failure> {
    match answer {
        Ok(Answer::Removed) => Ok(()),
        Ok(Answer::Stuck(Stuck { id, reason, message })) => Err(failure(&id, &reason, message)),
        Ok(Answer::Failed(message)) => Err(failure(id, "NotPermitted", message)),
        Ok(Answer::Inventory(_) | Answer::Probed(_) | Answer::SelfFenced(_)) => {
            Err(failure(id, "InternalError", "a child answered something else"))
        }
        Err(error) => {
            let reason = match error {
                NoAnswer::TimedOut(_) => "UnmountHangs",
                NoAnswer::AtTheCap => "ProbesHung",
                NoAnswer::Failed(_) => "InternalError",
            };
            Err(failure(id, reason, error.to_string()))
        }
    }
}

fn refused(path: &str, call: &str, error: &driver::Failure) -> Failure {
    failure(path, &format!("{call}{}", error.code), error.message.clone())
}
