//! Where samples come from: the host's mounts and sysfs, child processes, and the node plugins of CSI drivers.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

use super::super::mounts::mountinfo::{self, Mount};
use super::super::probes::blocking::Prober;
use super::super::probes::gather::Gatherer;
use super::super::probes::watch::{KernelLog, MountWatch};
use super::super::probes::{Expected, ExpectedKind, HostView};
use super::super::reads::Reads;
use super::super::{Context, Settings, Stores};
use super::driver::{self, Question};
use super::settle::{Look, Origin};
use super::subjects::{self, Found, Here};
use super::{Watched, baselines::Baselines};
use crate::api::affinity::Host;
use crate::api::hysteresis::Sample;
use crate::api::node_volume_report::MountKind;
use crate::api::volume::{Check, CheckMode};
use crate::runtime::store::ObjectKey;

/// Calls to one driver at once.
const CALLS: usize = 8;
/// Deadline of a question to a driver: what takes longer is no answer.
const ASKING: Duration = Duration::from_secs(10);
/// Pause after a watch of the kernel failed.
const RETRY: Duration = Duration::from_secs(5);

/// Answers to what may keep us waiting.
pub struct Answer {
    /// Who was asked.
    pub origin: Origin,
    /// Key of the question: the volume, or the driver.
    pub key: String,
    /// How often it is asked.
    pub interval: Duration,
    /// Volumes by name and uid, and what was told of them.
    pub looks: Vec<(String, String, Vec<Look>)>,
    /// Whether anybody did not answer.
    pub silent: bool,
}

/// Who makes a check. What an earlier process settled stays until each of them has seen enough good.
pub fn makers(check: Check) -> &'static [Origin] {
    match check {
        Check::Capacity | Check::ReadProbe | Check::WriteProbe | Check::Scrub => &[Origin::Child],
        Check::NFS | Check::FUSE => &[Origin::Passive, Origin::Child],
        Check::ControllerHealth => &[Origin::Plugin],
        _ => &[Origin::Passive],
    }
}

/// The kubelet's root folder as the kernel shows it in the host's mounts.
pub async fn kubelet_root(settings: &Settings) -> String {
    let (host, root) = (settings.host.clone(), settings.kubelet_root.clone());
    let resolved = tokio::task::spawn_blocking(move || {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let host = rustix::fs::openat(CWD, format!("{host}/root"), flags, Mode::empty())?;
        let root = rustix::fs::openat2(host, root, flags | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::IN_ROOT)?;
        let shown = std::fs::read_link(format!("/proc/self/fd/{}", root.as_raw_fd()))?;
        shown.into_os_string().into_string().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    });
    resolved.await.unwrap_or_else(|panic| Err(io::Error::other(panic))).unwrap_or_else(|error| {
        tracing::warn!(%error, root = settings.kubelet_root, "the kubelet's folder cannot be opened");
        settings.kubelet_root.clone()
    })
}

/// Wakes at everything that the kernel announces: mounts that change, and what it logs of devices.
pub fn wake_on_signs(cx: &Context, gatherer: &Gatherer, signs: &Arc<Notify>, cancel: &CancellationToken) {
    let (host, wake) = (cx.settings.host.clone(), signs.clone());
    let mounts = async move {
        loop {
            let error = tell_mounts(&host, &wake).await.err();
            tracing::warn!(?error, "changes of the mounts are not told; they are looked at less often");
            tokio::time::sleep(RETRY).await;
        }
    };
    let (gatherer, wake) = (gatherer.clone(), signs.clone());
    let log = async move {
        let error = tell_log(&gatherer, &wake).await.err();
        tracing::warn!(?error, "the kernel log cannot be read: I/O errors are not told from there");
    };
    let (ends, end) = (cancel.clone(), cancel.clone());
    tokio::spawn(async move { ends.run_until_cancelled(mounts).await });
    tokio::spawn(async move { end.run_until_cancelled(log).await });
}

async fn tell_mounts(host: &str, signs: &Notify) -> io::Result<()> {
    let watch = MountWatch::new(host)?;
    loop {
        watch.changed().await?;
        signs.notify_one();
    }
}

async fn tell_log(gatherer: &Gatherer, signs: &Notify) -> io::Result<()> {
    let log = KernelLog::open()?;
    loop {
        gatherer.note(log.next().await?);
        signs.notify_one();
    }
}

fn mounts(host: &str) -> io::Result<Vec<Mount>> {
    mountinfo::parse(&std::fs::read(format!("{host}/mountinfo"))?).map_err(io::Error::other)
}

/// The volumes of this node; nothing while that cannot be told.
pub async fn find(cx: &Context, stores: &Stores, reads: &Reads, kubelet_root: &str) -> Option<Vec<Found>> {
    let node = stores.nodes.get(&ObjectKey::cluster(&cx.settings.node_name))?;
    let (volumes, pods) = (stores.volumes.list(), stores.pods.list());
    let (host, root, now) = (cx.settings.host.clone(), kubelet_root.to_owned(), cx.clock.now().wall);
    let found = reads.run(move || {
        let mounts = mounts(&host)?;
        let node = Host::of(&node);
        let here = Here { node, volumes: &volumes, pods: &pods, mounts: &mounts, kubelet_root: &root, now };
        Ok::<_, io::Error>(subjects::find(&here))
    });
    match found.await? {
        Ok(found) => Some(found),
        Err(error) => {
            tracing::warn!(%error, "the host's mounts cannot be read: what was said of volumes stays");
            None
        }
    }
}

/// Gathers what all passive checks need; nothing while the mounts cannot be told.
pub async fn gather<'a>(
    gatherer: &Gatherer,
    watched: impl Iterator<Item = &'a mut Watched>,
    baselines: &mut Baselines,
    staged: &mut BTreeMap<String, String>,
) -> Option<HostView> {
    let mut watched: Vec<_> = watched.collect();
    for one in &mut watched {
        let uid = one.uid().to_owned();
        let Found { subject, staged: path, is_used, .. } = &mut one.found;
        if let Some(path) = path {
            staged.insert(uid.clone(), path.clone());
        } else if !*is_used {
            staged.remove(&uid);
        }
        // Not every driver mounts something where it stages: only what was there is missed.
        let missed = staged.get(&uid).filter(|path| *is_used && subject.expected.iter().all(|one| one.path != **path));
        if let Some(path) = missed {
            subject.expected.push(Expected { path: path.clone(), kind: ExpectedKind::Staging });
        }
        subject.baseline = baselines.get(&uid).cloned();
    }
    let subjects: Vec<_> = watched.iter().map(|one| one.found.subject.clone()).collect();
    let view = gatherer.gather(&subjects).await;
    view.mounts.as_ref()?;
    for one in watched.iter_mut().filter(|one| !view.is_covered(&one.found.subject)) {
        let uid = one.uid().to_owned();
        baselines.note(&uid, &one.found, &view);
        one.found.subject.baseline = baselines.get(&uid).cloned();
    }
    Some(view)
}

/// Volumes that children ask, and how often.
pub fn asked_by_children(watched: &BTreeMap<String, Watched>) -> BTreeMap<String, Duration> {
    let is_asked = |one: &Watched| {
        if one.is_covered {
            return false;
        }
        let mut made = Check::ALL.into_iter().filter(|check| makers(*check).contains(&Origin::Child));
        made.any(|check| one.mode(check) != CheckMode::Disabled)
    };
    let asked = watched.iter().filter(|(_, one)| is_asked(one));
    asked.map(|(name, one)| (name.clone(), one.interval())).collect()
}

/// Has a child ask a volume.
pub fn ask_child(prober: &Prober, view: &Arc<HostView>, watched: &Watched, answers: mpsc::UnboundedSender<Answer>) {
    let (prober, view, policy) = (prober.clone(), view.clone(), watched.policy.clone());
    let (subject, uid, interval) = (watched.found.subject.clone(), watched.uid().to_owned(), watched.interval());
    let name = subject.name.clone();
    let asked = async move {
        let seen = prober.probe(&view, &subject, |check| policy.spec.mode(check)).await;
        vec![(subject.name, uid, seen.into_iter().map(Look::from).collect())]
    };
    answer(asked, Origin::Child, name, interval, answers);
}

/// Hands over what comes of a question. One that ends without an answer (a panic) must not be waited for for ever.
fn answer(
    asked: impl Future<Output = Vec<(String, String, Vec<Look>)>> + Send + 'static,
    origin: Origin,
    key: String,
    interval: Duration,
    answers: mpsc::UnboundedSender<Answer>,
) {
    tokio::spawn(async move {
        let looks = tokio::spawn(asked).await.unwrap_or_else(|panic| {
            tracing::error!(key, %panic, "a look at volumes ended without an answer");
            Vec::new()
        });
        let is_silent = |look: &Look| matches!(look.sample, Sample::NoAnswer(_));
        let silent = looks.iter().any(|(_, _, looks)| looks.iter().any(is_silent));
        // Nobody takes it when the agent ends.
        let _ = answers.send(Answer { origin, key, interval, looks, silent });
    });
}

/// CSI drivers whose node plugins are asked, and how often.
pub fn asked_of_plugins(watched: &BTreeMap<String, Watched>) -> BTreeMap<String, Duration> {
    let mut drivers = BTreeMap::new();
    for one in watched.values().filter(|one| question(one).is_some()) {
        let Some(csi) = &one.found.volume.spec.csi else { continue };
        let interval = drivers.entry(csi.driver.clone()).or_insert(one.interval());
        *interval = one.interval().min(*interval);
    }
    drivers
}

/// Whether a check has anything to look at: what a driver said of a volume that it has not mounted here any more is over.
pub fn applies(check: Check, found: &Found) -> bool {
    check != Check::ControllerHealth || asked_at(found).is_some()
}

/// Where a driver is asked about a volume of its own.
fn asked_at(found: &Found) -> Option<String> {
    found.volume.spec.csi.as_ref()?;
    let target = found.mounts.iter().find(|mount| mount.kind == MountKind::Target);
    target.map(|mount| mount.path.clone()).or_else(|| found.staged.clone())
}

/// What a driver is asked about a volume: only of one that it has mounted can it say anything.
fn question(watched: &Watched) -> Option<Question> {
    if watched.is_covered || watched.mode(Check::ControllerHealth) == CheckMode::Disabled {
        return None;
    }
    Some(Question {
        name: watched.found.subject.name.clone(),
        uid: watched.uid().to_owned(),
        handle: watched.found.volume.spec.csi.as_ref()?.volume_handle.clone(),
        path: asked_at(&watched.found)?,
        staging: watched.found.staged.clone().unwrap_or_default(),
        pods: watched.found.subject.pods(),
    })
}

/// Asks a driver's node plugin about its volumes.
pub fn ask_plugin(
    cx: &Context,
    driver: &str,
    interval: Duration,
    watched: &BTreeMap<String, Watched>,
    answers: mpsc::UnboundedSender<Answer>,
) {
    let of_driver = |one: &&Watched| one.found.volume.spec.csi.as_ref().is_some_and(|csi| csi.driver == driver);
    let questions: Vec<_> = watched.values().filter(of_driver).filter_map(question).collect();
    let (cx, key, driver) = (cx.clone(), driver.to_owned(), driver.to_owned());
    let asked = async move { ask_all(&cx, &driver, questions).await };
    answer(asked, Origin::Plugin, key, interval, answers);
}

async fn ask_all(cx: &Context, driver: &str, questions: Vec<Question>) -> Vec<(String, String, Vec<Look>)> {
    let unknown = |questions: Vec<Question>| {
        let look = || Look { check: Check::ControllerHealth, sample: Sample::Unknown, pods: Vec::new() };
        questions.into_iter().map(|one| (one.name, one.uid, vec![look()])).collect()
    };
    // A plugin that is not there just now (it is updated) says nothing of volumes that are mounted.
    let Some(plugin) = cx.plugin(driver).await else { return unknown(questions) };
    let by = match plugin.tells_health().await {
        Ok(Some(by)) => by,
        // Who cannot say anything (any more) does not say that all is well.
        Ok(None) => return unknown(questions),
        Err(failure) => {
            tracing::debug!(driver, code = failure.code, message = failure.message, "no capabilities are told");
            return unknown(questions);
        }
    };
    let deadline = cx.settings.call_timeout.min(ASKING);
    let asked = futures::stream::iter(questions).map(|question| {
        let plugin = &plugin;
        async move {
            let look = driver::ask(plugin, by, &question, deadline).await;
            (question.name, question.uid, vec![look])
        }
    });
    asked.buffer_unordered(CALLS).collect().await
}
