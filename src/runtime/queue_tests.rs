use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::api::core::v1::ConfigMap;
use tokio::time::{advance, sleep};

use super::*;
use crate::runtime::{leader::tests::Switch, store::Store};

const CONFIG: QueueConfig = QueueConfig::test("test");

/// A queue that runs in a task, and when each key ran.
struct Bench {
    queue: Queue<String>,
    runs: Runs,
    telemetry: Telemetry,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

type Runs = Arc<Mutex<BTreeMap<String, Vec<Instant>>>>;

impl Bench {
    fn new<F, Fut>(leadership: Option<Leadership>, work: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Next>> + Send + 'static,
    {
        Self::of(queue(), leadership, work)
    }

    fn of<F, Fut>(
        (queue, receiver): (Queue<String>, QueueReceiver<String>),
        leadership: Option<Leadership>,
        work: F,
    ) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Next>> + Send + 'static,
    {
        let (runs, telemetry, cancel) = (Runs::default(), Telemetry::new(), CancellationToken::new());
        let task = tokio::spawn({
            let (runs, telemetry, cancel) = (runs.clone(), telemetry.clone(), cancel.clone());
            async move {
                let reconcile = move |key: String| {
                    runs.lock().unwrap().entry(key.clone()).or_default().push(Instant::now());
                    work(key)
                };
                run(CONFIG, receiver, &telemetry, cancel, leadership, reconcile).await;
            }
        });
        Self { queue, runs, telemetry, cancel, task }
    }

    fn add(&self, key: &str) {
        self.queue.add(key.to_owned());
    }

    fn times(&self, key: &str) -> Vec<Instant> {
        self.runs.lock().unwrap().get(key).cloned().unwrap_or_default()
    }

    fn runs(&self, key: &str) -> usize {
        self.times(key).len()
    }

    fn metric(&self, line: &str) -> bool {
        self.telemetry.encode().unwrap().lines().any(|it| it == line)
    }
}

/// Long enough for everything that is due, short enough for nothing else.
async fn settle() {
    sleep(Duration::from_millis(5)).await;
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_once_than_the_limit() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let bench = Bench::new(None, {
        let most = most.clone();
        move |_| {
            let (now, most) = (now.clone(), most.clone());
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(1)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(Next::Await)
            }
        }
    });
    for key in 0..40 {
        bench.add(&key.to_string());
    }
    settle().await;
    assert!(bench.metric("bulkhead_queue_depth{queue=\"test\"} 36"), "{}", bench.telemetry.encode().unwrap());
    sleep(Duration::from_secs(11)).await;
    assert_eq!(bench.runs.lock().unwrap().len(), 40);
    assert_eq!(most.load(Ordering::SeqCst), CONFIG.concurrency);
    assert!(bench.metric("bulkhead_queue_depth{queue=\"test\"} 0"));
}

#[tokio::test(start_paused = true)]
async fn a_key_runs_once_at_a_time_and_again_if_it_was_wanted_meanwhile() {
    let bench = Bench::new(None, |_| async {
        sleep(Duration::from_secs(1)).await;
        Ok(Next::Await)
    });
    bench.add("a");
    settle().await;
    bench.add("a");
    bench.add("a");
    sleep(Duration::from_secs(10)).await;
    let times = bench.times("a");
    assert_eq!(times.len(), 2);
    assert!(times[1] - times[0] >= Duration::from_secs(1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_costs_only_its_own_key_a_pause() {
    let bench = Bench::new(None, |key| async move {
        assert!(key != "bad", "poisoned key");
        Ok(Next::Await)
    });
    bench.add("bad");
    settle().await;
    bench.add("good");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.runs("good"), 1);
    assert!(bench.runs("bad") >= 3, "tried again");
    let panics = bench.runs("bad");
    assert!(bench.metric(&format!("bulkhead_reconcile_total{{queue=\"test\",outcome=\"Panic\"}} {panics}")));
}

#[tokio::test(start_paused = true)]
async fn the_text_of_a_panic_is_kept() {
    let mut tasks: JoinSet<()> = JoinSet::new();
    tasks.spawn(async { panic!("key {}", 7) });
    tasks.spawn(async { panic!("plain") });
    let mut texts = Vec::new();
    while let Some(done) = tasks.join_next().await {
        texts.push(panic_text(done.unwrap_err()));
    }
    texts.sort();
    assert_eq!(texts, ["key 7", "plain"]);
}

#[tokio::test(start_paused = true)]
async fn a_reconcile_that_hangs_is_given_up_at_the_deadline() {
    let bench = Bench::new(None, |_| std::future::pending());
    bench.add("a");
    sleep(CONFIG.deadline - Duration::from_secs(1)).await;
    assert!(!bench.telemetry.encode().unwrap().contains("Deadline"));
    sleep(Duration::from_secs(2)).await;
    assert!(bench.metric("bulkhead_reconcile_total{queue=\"test\",outcome=\"Deadline\"} 1"));
    assert_eq!(bench.runs("a"), 2, "tried again");
}

fn conflict() -> Error {
    kube::Error::Api(kube::core::Status::failure("moved", "Conflict").with_code(409).boxed()).into()
}

#[tokio::test(start_paused = true)]
async fn failures_are_repeated_at_growing_intervals_until_success() {
    // Five failures, a success, two failures, a success.
    let outcomes = Arc::new(Mutex::new(vec![true, false, false, true, false, false, false, false, false]));
    let bench = Bench::new(None, move |_| {
        let succeed = outcomes.lock().unwrap().pop().unwrap();
        async move { if succeed { Ok(Next::Await) } else { Err(conflict()) } }
    });
    bench.add("a");
    sleep(Duration::from_secs(600)).await;
    assert_eq!(bench.runs("a"), 6);
    bench.add("a");
    sleep(Duration::from_secs(600)).await;
    let times = bench.times("a");
    assert_eq!(times.len(), 9);
    // After a success the count starts again.
    for (pair, doublings) in times.windows(2).zip([0, 1, 2, 3, 4, 99, 0, 1]).filter(|(_, it)| *it < 99) {
        let base = Duration::from_millis(200 << doublings);
        let pause = pair[1] - pair[0];
        let longest = base.mul_f64(1.26) + Duration::from_millis(5);
        assert!(pause >= base && pause <= longest, "{doublings}: {pause:?}");
    }
}

#[test]
fn backoff_is_bounded_and_respects_what_the_error_asks_for() {
    let second = Duration::from_secs(1);
    assert_eq!(backoff(second, 1, 0.0), second);
    assert_eq!(backoff(second, 4, 0.0), second * 8);
    assert_eq!(backoff(second, 4, 1.0), second * 10);
    assert_eq!(backoff(second, u32::MAX, 0.0), BACKOFF_MAX);
    assert_eq!(backoff(second * 300, 9, 0.0), second * 300);
}

#[tokio::test(start_paused = true)]
async fn only_a_change_cuts_a_backoff_short_and_not_below_the_floor() {
    let bench = Bench::new(None, |_| async { Err(Error::Invalid("until it changes".into())) });
    bench.add("a");
    settle().await;
    bench.queue.add_after("a".into(), Duration::from_millis(1));
    sleep(Duration::from_secs(10)).await;
    assert_eq!(bench.runs("a"), 1, "a planned look is no change");

    bench.add("a");
    settle().await;
    assert_eq!(bench.runs("a"), 2, "a change is");

    bench.add("a");
    sleep(FLOOR.1 - Duration::from_millis(20)).await;
    assert_eq!(bench.runs("a"), 2, "but not at once after a failure");
    sleep(Duration::from_millis(40)).await;
    assert_eq!(bench.runs("a"), 3);
}

#[tokio::test(start_paused = true)]
async fn a_failing_key_that_triggers_itself_does_not_spin() {
    let (sender, mut adds) = mpsc::unbounded_channel();
    let bench = Bench::new(None, move |key| {
        let sender = sender.clone();
        async move {
            sender.send(key).unwrap();
            tokio::task::yield_now().await;
            sleep(Duration::from_millis(1)).await;
            Err(conflict())
        }
    });
    let queue = bench.queue.clone();
    tokio::spawn(async move {
        while let Some(key) = adds.recv().await {
            queue.add(key);
        }
    });
    bench.add("a");
    sleep(Duration::from_secs(10)).await;
    assert!(bench.runs("a") <= 10_000 / 200, "{} runs in 10 s", bench.runs("a"));
}

#[tokio::test(start_paused = true)]
async fn a_success_says_when_to_look_again() {
    let bench = Bench::new(None, |_| async { Ok(Next::After(Duration::from_secs(30))) });
    bench.add("a");
    sleep(Duration::from_secs(95)).await;
    assert_eq!(bench.runs("a"), 4);
    let absurd = Bench::new(None, |_| async { Ok(Next::After(Duration::MAX)) });
    absurd.add("a");
    settle().await;
    absurd.add("a");
    settle().await;
    assert_eq!(absurd.runs("a"), 2);
}

#[tokio::test(start_paused = true)]
async fn followers_keep_keys_and_call_nothing() {
    let (switch, leadership) = Switch::new();
    let bench = Bench::new(Some(leadership), |_| async { Ok(Next::Await) });
    bench.add("a");
    bench.add("b");
    sleep(Duration::from_secs(60)).await;
    assert!(bench.runs.lock().unwrap().is_empty());

    switch.lead_for(Duration::from_secs(10));
    settle().await;
    assert_eq!((bench.runs("a"), bench.runs("b")), (1, 1));

    advance(Duration::from_secs(11)).await;
    bench.add("c");
    sleep(Duration::from_secs(60)).await;
    assert_eq!(bench.runs("c"), 0, "leadership ran out");
    switch.lead_for(Duration::from_secs(10));
    settle().await;
    assert_eq!(bench.runs("c"), 1);
}

/// A queue that works when a store has its first list, and that store.
fn bench_of_a_store() -> (Bench, Store<ConfigMap>) {
    let store = Store::new_detached(Vec::new());
    let (queue, receiver) = queue();
    let listed = store.clone();
    let receiver = receiver.after(async move { listed.wait_synced().await });
    (Bench::of((queue, receiver), None, |_| async { Ok(Next::Await) }), store)
}

#[tokio::test(start_paused = true)]
async fn no_key_runs_before_the_first_lists_and_no_deadline_counts_meanwhile() {
    let (bench, store) = bench_of_a_store();
    bench.add("a");
    sleep(CONFIG.deadline * 9).await;
    assert_eq!((bench.runs("a"), bench.telemetry.stuck_queues()), (0, Vec::new()));
    assert!(bench.metric("bulkhead_queue_depth{queue=\"test\"} 1"));
    store.list_done();
    settle().await;
    assert_eq!((bench.runs("a"), bench.telemetry.stuck_queues()), (1, Vec::new()));
    assert!(bench.metric("bulkhead_reconcile_total{queue=\"test\",outcome=\"Ok\"} 1"));
    assert!(!bench.telemetry.encode().unwrap().contains("Deadline"));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_waits_for_the_first_lists_ends_at_once() {
    let (bench, store) = bench_of_a_store();
    bench.add("a");
    settle().await;
    bench.cancel.cancel();
    let stopping = Instant::now();
    bench.task.await.unwrap();
    assert!(stopping.elapsed() <= Duration::from_millis(10) && !store.synced());
    assert!(bench.runs.lock().unwrap().is_empty());
}

#[tokio::test]
async fn who_waits_already_is_not_asked_for_again() {
    let mut runner = Runner::new(CONFIG, &Telemetry::new());
    for after in [None, None, Some(Duration::from_secs(1)), None] {
        runner.requested(Request { key: "a", after });
    }
    assert_eq!(runner.schedule.len(), 1, "else a follower would gather them for weeks");
}

#[tokio::test(start_paused = true)]
async fn at_shutdown_running_work_may_finish_but_not_for_ever() {
    for (work, expected) in [(1, "finished"), (3600, "stopped")] {
        let finished = Arc::new(AtomicUsize::new(0));
        let bench = Bench::new(None, {
            let finished = finished.clone();
            move |_| {
                let finished = finished.clone();
                async move {
                    sleep(Duration::from_secs(work)).await;
                    finished.fetch_add(1, Ordering::SeqCst);
                    Ok(Next::Await)
                }
            }
        });
        bench.add("a");
        settle().await;
        bench.cancel.cancel();
        bench.add("b");
        let stopping = Instant::now();
        bench.task.await.unwrap();
        assert!(stopping.elapsed() <= DRAIN + Duration::from_millis(10));
        let outcome = if finished.load(Ordering::SeqCst) == 1 { "finished" } else { "stopped" };
        assert_eq!(outcome, expected);
        assert!(!bench.runs.lock().unwrap().contains_key("b"), "no new work");
    }
}

#[tokio::test(start_paused = true)]
async fn a_queue_whose_keys_wait_behind_such_as_hang_is_stuck() {
    let bench = Bench::new(None, |key| async move {
        if key.starts_with("hangs") { std::future::pending().await } else { Ok(Next::Await) }
    });
    let stuck = || bench.telemetry.stuck_queues().into_iter().map(|(queue, why)| format!("{queue}: {why}"));
    for number in 0..CONFIG.concurrency - 1 {
        bench.add(&format!("hangs-{number}"));
    }
    for _ in 0..60 {
        bench.add("works");
        sleep(CONFIG.deadline / 10).await;
    }
    assert_eq!(stuck().next(), None, "one place is free");
    for number in 0..40 {
        bench.add(&format!("hangs-too-{number}"));
    }
    sleep(CONFIG.deadline * 3).await;
    let said = stuck().next().unwrap();
    assert!(said.starts_with("test: ") && said.contains("keys wait"), "{said}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_a_follower_is_not_stuck() {
    let (switch, leadership) = Switch::new();
    let bench = Bench::new(Some(leadership), |_| async { Ok(Next::Await) });
    bench.add("a");
    sleep(CONFIG.deadline * 9).await;
    assert_eq!(bench.telemetry.stuck_queues(), []);
    switch.lead_for(Duration::from_secs(10));
    settle().await;
    assert_eq!((bench.runs("a"), bench.telemetry.stuck_queues()), (1, Vec::new()));
}
