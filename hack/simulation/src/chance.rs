//! Where every choice of the world comes from. Nothing else in this crate is random.

/// What is being chosen. Each has its own stream, so that a schedule with one event fewer goes mostly as before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The shape of the world.
    Shape,
    /// Which faults come, and when.
    Fault,
    /// How long a write is on its way, and whether it arrives.
    Flight,
    /// How long an answer is on its way, and whether it arrives.
    Answer,
    /// How late a watch delivers.
    Watch,
    /// How long a call to a driver takes, and how it ends.
    Call,
    /// How long a list of the driver takes, and what it shows.
    List,
    /// How late a pass begins.
    Pass,
    /// How late Kubernetes' own parts act.
    Others,
    /// How long a process takes to start again.
    Restart,
    /// Whether a fencer reports what it sees of the power, and how late.
    Report,
    /// Whether storages give access by their network only, and how a node is then cut off.
    Network,
    /// Whether drivers attach nothing, of which clusters their volumes are, and who cuts nodes off there.
    Unattached,
    /// Whether the scheduler has heard of the taints when it binds a pod.
    Scheduler,
    /// Whether who cuts nodes off as a whole does so by the fabric of their storages, and what else keeps them out there.
    Fabric,
    /// Whether the node lifecycle controller lags behind, and when kubelets that it calls silent say that they are not.
    Lifecycle,
    /// Whether another machine takes the name of one that runs on, and what becomes of both.
    Replacement,
}

/// The number of streams.
const STREAMS: usize = 17;

/// A source of choices. The first option (0) is always the ordinary one: nothing late, nothing lost.
pub trait Chance {
    /// One of `0..options`.
    fn pick(&mut self, choice: Choice, options: u64) -> u64;

    /// Between both, inclusive.
    fn between(&mut self, choice: Choice, low: u64, high: u64) -> u64 {
        low + self.pick(choice, high.saturating_sub(low) + 1)
    }

    /// Whether one in so many happens. 0: never.
    fn one_in(&mut self, choice: Choice, many: u64) -> bool {
        match many {
            0 => false,
            1 => true,
            _ => self.pick(choice, many) == 1,
        }
    }
}

/// Always the first option: a quick world in which nothing is late or lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Prompt;

impl Chance for Prompt {
    fn pick(&mut self, _: Choice, _: u64) -> u64 {
        0
    }
}

/// Choices that follow from a seed.
#[derive(Clone, Debug)]
pub struct Seeded {
    seed: u64,
    drawn: [u64; STREAMS],
}

impl Seeded {
    /// The choices of that seed.
    pub fn new(seed: u64) -> Self {
        Self { seed: mix(seed ^ 0x5bd1_e995_7b5a_c1f3), drawn: [0; STREAMS] }
    }
}

impl Chance for Seeded {
    fn pick(&mut self, choice: Choice, options: u64) -> u64 {
        let stream = choice as usize;
        self.drawn[stream] += 1;
        let bits = mix(self.seed ^ mix((stream as u64) << 56 ^ self.drawn[stream]));
        // The upper half of a product is as even as the bits are.
        u64::try_from((u128::from(bits) * u128::from(options.max(1))) >> 64).unwrap_or(0)
    }
}

/// splitmix64's finalizer.
fn mix(mut z: u64) -> u64 {
    z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence_and_streams_do_not_disturb_each_other() {
        let (mut one, mut two) = (Seeded::new(7), Seeded::new(7));
        let first: Vec<_> = (0..20).map(|_| one.pick(Choice::Flight, 1000)).collect();
        let second: Vec<_> = (0..20)
            .map(|_| {
                two.pick(Choice::Watch, 10);
                two.pick(Choice::Flight, 1000)
            })
            .collect();
        assert_eq!(first, second);
        assert!(first.iter().any(|it| *it != first[0]));
        assert!(first.iter().all(|it| *it < 1000));
        let other: Vec<_> = (0..20).map(|_| Seeded::new(8).pick(Choice::Flight, 1000)).collect();
        assert_ne!(first, other);
    }
}
