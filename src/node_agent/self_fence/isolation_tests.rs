use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A node that was heard by so many neighbours until `heard`, and by the API until `api`, in ticks of a quarter of a second;
/// what it says at the end. From `back` on a neighbour answers again.
struct Played {
    isolation: Isolation,
    start: Instant,
    now: Instant,
    heard: Option<(Instant, usize)>,
}

impl Played {
    fn new(neighbours: usize) -> Self {
        let start = Instant::now();
        Self { isolation: Isolation::new(neighbours, start), start, now: start, heard: None }
    }

    /// For so many quarters of a second, so many neighbours and the API answer or do not.
    fn play(&mut self, quarters: u32, neighbours: usize, api: bool) -> &mut Self {
        for _ in 0..quarters {
            self.now += SECOND / 4;
            self.isolation.tick(self.now);
            // They are asked once a second.
            let is_asked = (self.now - self.start).subsec_millis() == 0;
            if neighbours > 0 && is_asked {
                self.heard = Some((self.now, neighbours));
            }
            // It is told in each turn, however old it is.
            if let Some((at, count)) = self.heard {
                self.isolation.neighbours(Some(at), count);
            }
            if self.isolation.asks_api(self.now) && is_asked {
                self.isolation.api(self.now, api, self.now);
            }
        }
        self
    }

    fn pause(&mut self, seconds: u32) -> &mut Self {
        self.now += SECOND * seconds;
        self
    }

    fn alone(&self) -> Option<u64> {
        self.isolation.alone_for(self.now).map(|alone| alone.as_secs())
    }
}

/// What is played, and after how many seconds the node is alone.
type Case<'a> = (&'a str, fn(&mut Played), Option<u64>);

#[test]
fn who_is_alone() {
    let played = |play: fn(&mut Played)| {
        let mut played = Played::new(0);
        play(&mut played);
        played.alone()
    };
    let cases: [Case; 13] = [
        ("both are lost at once", |p| _ = p.play(40, 6, true).play(80, 0, false), Some(20)),
        ("the API first", |p| _ = p.play(40, 6, false).play(80, 0, false), Some(20)),
        ("only the API", |p| _ = p.play(40, 6, true).play(8_000, 6, false), None),
        ("only the neighbours", |p| _ = p.play(40, 6, true).play(8_000, 0, true), None),
        (
            "the neighbours, and the API a minute later",
            |p| _ = p.play(40, 6, true).play(240, 0, true).play(80, 0, false),
            None,
        ),
        (
            "the neighbours, and the API seconds later",
            |p| _ = p.play(40, 6, true).play(20, 0, true).play(80, 0, false),
            Some(20),
        ),
        ("one neighbour is none", |p| _ = p.play(40, 1, true).play(80, 0, false), None),
        ("two are", |p| _ = p.play(40, 2, true).play(80, 0, false), Some(20)),
        ("none was ever heard", |p| _ = p.play(400, 0, false), None),
        ("a neighbour is back", |p| _ = p.play(40, 6, true).play(80, 0, false).play(4, 1, false), None),
        ("the API is back", |p| _ = p.play(40, 6, true).play(80, 0, false).play(4, 0, true), None),
        ("a pause of ours is nobody's silence", |p| _ = p.play(40, 6, true).pause(60).play(1, 0, false), None),
        (
            "and what is before it does not count",
            |p| _ = p.play(40, 6, true).play(20, 0, false).pause(60).play(81, 0, false),
            Some(20),
        ),
    ];
    for (name, play, expected) in cases {
        assert_eq!(played(play), expected, "{name}");
    }
}

#[test]
fn a_process_that_starts_alone_counts_from_its_start() {
    let mut played = Played::new(3);
    assert_eq!(played.play(80, 0, false).alone(), Some(20));
    assert_eq!(played.play(8, 3, false).alone(), None, "its neighbours know its predecessor's key");
    let mut played = Played::new(0);
    assert_eq!(played.play(80, 0, false).alone(), None, "without a predecessor it knows nobody");
}

#[test]
fn neighbours_that_say_good_bye_are_none() {
    let mut played = Played::new(0);
    played.play(40, 3, true);
    played.isolation.neighbours(None, 0);
    assert_eq!(played.play(80, 0, false).alone(), None);
}

#[test]
fn at_rest_the_api_is_not_asked() {
    let mut played = Played::new(0);
    for neighbours in [0, 3] {
        played.play(40, neighbours, true);
        assert!(!played.isolation.asks_api(played.now), "{neighbours}");
    }
}

#[test]
fn an_answer_to_an_earlier_question_is_none_of_now() {
    let mut played = Played::new(0);
    played.play(40, 3, true);
    let (before, now) = (played.now - SECOND, played.now);
    for _ in 0..5 {
        played.isolation.api(before, false, now);
    }
    assert_eq!(played.alone(), None, "they were asked before a neighbour answered");
}
