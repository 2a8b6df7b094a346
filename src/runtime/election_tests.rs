use super::*;
use proptest::prelude::*;

/// Real time of the simulated world, in milliseconds.
type Millis = u64;

const CALL: Millis = 5_000;
const END: Millis = 300_000;

fn ms(millis: Millis) -> Duration {
    Duration::from_millis(millis)
}

fn record(holder: &str, version: u32) -> Option<Record> {
    Some(Record { holder: Some(holder.to_owned()), version: version.to_string() })
}

fn candidate(me: &str) -> Candidate {
    Candidate::new(me.to_owned(), LeaseTimes::default())
}

#[test]
fn a_missing_or_released_lease_is_claimed_at_once() {
    let now = Instant::now();
    let mut me = candidate("me");
    assert_eq!(me.step(now), Step::Read);
    me.saw(None, now);
    assert_eq!(me.step(now), Step::Claim);
    me.saw(Some(Record { holder: None, version: "2".into() }), now);
    assert_eq!(me.step(now), Step::Claim);
}

#[test]
fn a_lease_is_taken_over_only_after_it_stood_still_before_our_eyes() {
    let start = Instant::now();
    let mut me = candidate("me");
    me.saw(record("other", 1), start);
    assert_eq!(me.step(start + ms(14_999)), Step::Read, "look again first");
    // It moved, unseen, just before: the time starts anew.
    me.saw(record("other", 2), start + ms(14_999));
    me.saw(record("other", 2), start + ms(29_998));
    assert!(matches!(me.step(start + ms(29_998)), Step::Wait(_)));
    assert_eq!(me.step(start + ms(29_999)), Step::Claim);
}

#[test]
fn leadership_counts_from_before_the_claim_was_sent() {
    let sent = Instant::now();
    let mut me = candidate("me");
    me.claimed(record("me", 1).unwrap(), sent, sent + ms(4_000));
    assert_eq!(me.leads_until(), Some(sent + ms(10_000)));
    assert_eq!(me.step(sent + ms(4_000)), Step::Wait(ms(1_000)));
    assert_eq!(me.step(sent + ms(5_000)), Step::Claim);
}

#[test]
fn a_failed_renewal_is_repeated_only_after_reading() {
    let sent = Instant::now();
    let mut me = candidate("me");
    me.claimed(record("me", 1).unwrap(), sent, sent);
    me.failed(sent + ms(6_000));
    assert_eq!(me.step(sent + ms(6_000)), Step::Wait(ms(2_000)));
    assert_eq!(me.step(sent + ms(8_000)), Step::Read);
    me.saw(record("me", 2), sent + ms(8_001));
    assert_eq!(me.step(sent + ms(8_001)), Step::Claim);
}

#[test]
fn another_holder_ends_our_term() {
    let now = Instant::now();
    let mut me = candidate("me");
    me.claimed(record("me", 1).unwrap(), now, now);
    me.saw(record("other", 2), now + ms(100));
    assert_eq!(me.leads_until(), None);
}

/// What chance does to one action of a candidate.
#[derive(Clone, Copy, Debug)]
struct Luck {
    /// Until the request reaches the server; it may arrive after the caller gave up on it.
    there: Millis,
    back: Millis,
    request_lost: bool,
    answer_lost: bool,
    /// The candidate stands still before it notices the answer, or that its wait is over.
    pause: Millis,
}

fn luck() -> impl Strategy<Value = Luck> {
    let delay = || prop_oneof![6 => 0..200u64, 2 => 0..3_000u64, 1 => 0..12_000u64];
    let pause = prop_oneof![8 => Just(0u64), 1 => 0..3_000u64, 1 => 0..20_000u64];
    let rarely = || prop::bool::weighted(0.08);
    (delay(), delay(), rarely(), rarely(), pause).prop_map(|(there, back, request_lost, answer_lost, pause)| Luck {
        there,
        back,
        request_lost,
        answer_lost,
        pause,
    })
}

/// One candidate with a clock of its own: any offset, up to 10 % fast or slow.
struct Player {
    candidate: Candidate,
    start: Instant,
    rate: f64,
}

impl Player {
    fn clock(&self, at: Millis) -> Instant {
        self.start + ms(at).mul_f64(self.rate)
    }

    fn leads(&self, at: Millis) -> bool {
        self.candidate.leads_until().is_some_and(|until| until > self.clock(at))
    }
}

/// What happens at some moment.
#[derive(Clone, Debug)]
enum Happening {
    Wake,
    ArrivesRead { sent: Millis, luck: Luck },
    ArrivesClaim { sent: Millis, expected: Option<String>, luck: Luck },
    Answer { sent: Millis, answer: Answer },
}

#[derive(Clone, Debug)]
enum Answer {
    Read(Option<Record>),
    Claimed(Record),
    Failed,
}

struct World {
    lease: Option<Record>,
    version: u64,
    players: Vec<Player>,
    /// (time, order, who, what), the earliest last.
    agenda: Vec<(Millis, u64, usize, Happening)>,
    order: u64,
    luck: Vec<Luck>,
    terms: u32,
}

impl World {
    fn new(clocks: &[(u64, f64)], luck: Vec<Luck>) -> Self {
        let base = Instant::now();
        let players: Vec<_> = clocks
            .iter()
            .enumerate()
            .map(|(me, &(offset, rate))| Player {
                candidate: candidate(&format!("candidate-{me}")),
                start: base + ms(offset),
                rate,
            })
            .collect();
        let mut world = Self { lease: None, version: 0, players, agenda: Vec::new(), order: 0, luck, terms: 0 };
        for who in 0..world.players.len() {
            world.plan(0, who, Happening::Wake);
        }
        world
    }

    fn plan(&mut self, at: Millis, who: usize, what: Happening) {
        self.order += 1;
        self.agenda.push((at, self.order, who, what));
        self.agenda.sort_by_key(|(at, order, ..)| std::cmp::Reverse((*at, *order)));
    }

    /// Runs to the end; panics when two lead at once.
    fn run(&mut self) {
        while let Some((at, _, who, what)) = self.agenda.pop().filter(|(at, ..)| *at < END) {
            self.happen(at, who, what);
            let leaders: Vec<_> = (0..self.players.len()).filter(|&it| self.players[it].leads(at)).collect();
            assert!(leaders.len() <= 1, "at {at} ms these lead: {leaders:?}");
        }
    }

    fn happen(&mut self, at: Millis, who: usize, what: Happening) {
        match what {
            Happening::Wake => self.step(at, who),
            Happening::ArrivesRead { sent, luck } => {
                let answer = Answer::Read(self.lease.clone());
                self.answer(at, who, sent, luck, answer);
            }
            Happening::ArrivesClaim { sent, expected, luck } => {
                let unchanged = self.lease.as_ref().map(|lease| lease.version.clone()) == expected;
                let answer = if unchanged {
                    self.version += 1;
                    let record = Record { holder: Some(format!("candidate-{who}")), version: self.version.to_string() };
                    self.lease = Some(record.clone());
                    Answer::Claimed(record)
                } else {
                    Answer::Failed
                };
                self.answer(at, who, sent, luck, answer);
            }
            Happening::Answer { sent, answer } => {
                let player = &mut self.players[who];
                let (led, sent, now) = (player.leads(at), player.clock(sent), player.clock(at));
                match answer {
                    Answer::Read(record) => player.candidate.saw(record, now),
                    Answer::Claimed(record) => player.candidate.claimed(record, sent, now),
                    Answer::Failed => player.candidate.failed(now),
                }
                self.terms += u32::from(!led && player.leads(at));
                self.step(at, who);
            }
        }
    }

    fn answer(&mut self, at: Millis, who: usize, sent: Millis, luck: Luck, answer: Answer) {
        let back = at + luck.back;
        if !luck.answer_lost && back <= sent + CALL {
            self.plan(back + luck.pause, who, Happening::Answer { sent, answer });
        } else {
            self.plan((sent + CALL).max(at) + luck.pause, who, Happening::Answer { sent, answer: Answer::Failed });
        }
    }

    fn step(&mut self, at: Millis, who: usize) {
        let player = &self.players[who];
        let luck = self.luck[usize::try_from(self.order).unwrap() % self.luck.len()];
        let request = match player.candidate.step(player.clock(at)) {
            Step::Wait(wait) => {
                let real = wait.div_f64(player.rate).as_millis() as Millis + 1;
                return self.plan(at + real + luck.pause, who, Happening::Wake);
            }
            Step::Read => Happening::ArrivesRead { sent: at, luck },
            Step::Claim => {
                let seen = player.candidate.seen.as_ref().and_then(|seen| seen.record.clone());
                Happening::ArrivesClaim { sent: at, expected: seen.map(|record| record.version), luck }
            }
        };
        if luck.request_lost {
            self.plan(at + CALL, who, Happening::Answer { sent: at, answer: Answer::Failed });
        } else {
            self.plan(at + luck.there, who, request);
        }
    }
}

const LUCKY: Luck = Luck { there: 20, back: 20, request_lost: false, answer_lost: false, pause: 0 };

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Never two leaders, whatever is lost, late or asleep, and with clocks that differ.
    #[test]
    fn never_two_leaders(
        clocks in prop::collection::vec((0..100_000u64, 0.9..1.1f64), 2..4),
        luck in prop::collection::vec(luck(), 30..300),
    ) {
        World::new(&clocks, luck).run();
    }
}

#[test]
fn on_a_good_day_one_leads_and_stays() {
    let mut world = World::new(&[(0, 1.0), (50_000, 1.05), (3, 0.95)], vec![LUCKY]);
    world.run();
    assert_eq!(world.terms, 1);
    assert_eq!((0..3).filter(|&it| world.players[it].leads(END - 1)).count(), 1);
}

#[test]
fn when_the_leader_falls_silent_another_takes_over() {
    let mut world = World::new(&[(0, 1.0), (0, 1.0)], vec![LUCKY]);
    world.agenda.retain(|(_, _, who, _)| *who == 0);
    world.happen(0, 0, Happening::Wake);
    while let Some((at, _, who, what)) = world.agenda.pop().filter(|(at, ..)| *at < 20_000) {
        world.happen(at, who, what);
    }
    world.agenda.clear();
    world.plan(20_000, 1, Happening::Wake);
    world.run();
    assert_eq!(world.terms, 2);
    assert!(world.players[1].leads(END - 1));
}
