//! One text for all worlds that will go on alike: times relative to now, and versions and numbers by their order only.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use chrono::DateTime;

use crate::time::{mono, wall};
use crate::world::World;

impl World {
    /// A digest of [`World::canonical`].
    pub fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.canonical().hash(&mut hasher);
        hasher.finish()
    }

    /// The state of the world as text, without what has no bearing on what comes next: counts, trace, absolute times.
    pub fn canonical(&self) -> String {
        let relative = |at: u64| i128::from(at) - i128::from(self.now);
        let agenda: Vec<_> = self.agenda().map(|(at, _, task)| (relative(at), format!("{task:?}"))).collect();
        let writes: BTreeMap<_, _> = self
            .writes
            .iter()
            .map(|(id, it)| (id, (it.pid, it.life, &it.key, &it.op, &it.purpose, relative(it.deadline), &it.outcome)))
            .collect();
        let others = &self.others;
        let others = (&others.attach_detach, &others.attachers, &others.lifecycle, &others.power, &others.csi_addons);
        let programs = (&self.processes, &self.controllers, &self.sidecars);
        let calls = (&self.calls, &self.lists, &self.network_calls);
        let text = format!(
            "{:?} {:?} {:?} {programs:?} {others:?} {agenda:?} {writes:?} {calls:?} {:?}",
            self.api.objects(),
            self.machines,
            self.arrays,
            self.oracle
        );
        ranked(&relative_times(&text, self.now))
    }
}

/// Every moment in the text becomes its distance from now in milliseconds.
fn relative_times(text: &str, now: u64) -> String {
    const INSTANT: &str = "Instant { tv_sec: ";
    let origin = format!("{:?}", mono(now));
    let (seconds, nanos) = instant(&origin).unwrap_or_default();
    let here = seconds * 1000 + nanos / 1_000_000;
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(place) = rest.find(|c: char| c == 'I' || c.is_ascii_digit()) {
        let (before, after) = rest.split_at(place);
        out.push_str(before);
        if let Some((seconds, nanos)) = after.strip_prefix(INSTANT).and_then(|_| instant(after)) {
            out.push_str(&format!("@{}", seconds * 1000 + nanos / 1_000_000 - here));
            rest = after.find('}').map_or("", |end| &after[end + 1..]);
        } else if let Some((at, length)) = stamp_at(after) {
            out.push_str(&format!("@{}", (at - wall(now)).num_milliseconds()));
            rest = &after[length..];
        } else {
            let end = after.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(after.len()).max(1);
            out.push_str(&after[..end]);
            rest = &after[end..];
        }
    }
    out.push_str(rest);
    out
}

fn instant(text: &str) -> Option<(i64, i64)> {
    let number = |name: &str| {
        let rest = text.split_once(name)?.1;
        rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse().ok()
    };
    Some((number("tv_sec: ")?, number("tv_nsec: ")?))
}

fn stamp_at(text: &str) -> Option<(DateTime<chrono::Utc>, usize)> {
    let length = text.get(..40).unwrap_or(text).find('Z')? + 1;
    (text.as_bytes().get(4) == Some(&b'-')).then_some(())?;
    Some((DateTime::parse_from_rfc3339(&text[..length]).ok()?.to_utc(), length))
}

/// Versions count by their order only.
fn ranked(text: &str) -> String {
    const VERSION: &str = "resource_version: Some(\"";
    let versions: BTreeSet<u64> =
        text.split(VERSION).skip(1).filter_map(|it| it.split('"').next()?.parse().ok()).collect();
    let rank: BTreeMap<u64, usize> = versions.into_iter().enumerate().map(|(rank, version)| (version, rank)).collect();
    let mut parts = text.split(VERSION);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (version, rest) = part.split_once('"').unwrap_or((part, ""));
        let known = version.parse().ok().and_then(|version: u64| rank.get(&version));
        out.push_str(&format!("{VERSION}#{}\"{rest}", known.copied().unwrap_or(usize::MAX)));
    }
    out
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::chance::Prompt;
    use crate::shape::Shape;
    use crate::time::MINUTE;
    use crate::world::World;

    use super::relative_times;

    #[test]
    fn times_are_told_by_their_distance() {
        let text = |now: u64| format!("{:?} {:?} 12 Ix", crate::time::mono(now + 500), crate::time::wall(now + 1500));
        assert_eq!(relative_times(&text(7000), 7000), "@500 @1500 12 Ix");
        assert_eq!(relative_times(&text(9000), 9000), relative_times(&text(7000), 7000));
    }

    #[test]
    fn the_same_steps_lead_to_the_same_world() {
        let run = || {
            let mut world = World::new(Arc::new(Shape::plain()));
            world.run_until(MINUTE, &mut Prompt);
            world
        };
        let mut world = run();
        assert_eq!(world.canonical(), run().canonical());
        let before = world.digest();
        world.api.down = true;
        world.run_until(2 * MINUTE, &mut Prompt);
        assert_ne!(world.digest(), before);
    }
}
