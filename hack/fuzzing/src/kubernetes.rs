//! What comes out of Kubernetes' API and through the kubelet: written by whoever may write such objects.

use bulkhead::api::cidr::Cidr;
use bulkhead::api::endpoint::Endpoint;
use bulkhead::api::quantity;
use bulkhead::api::slim::protobuf as kinds;
use bulkhead::api::time::Duration;
use bulkhead::controllers::resiliency_policy::cron::Schedule;
use bulkhead::controllers::shared_volume_provider::flags::GoDuration;
use bulkhead::kubectl::WriterLog;
use bulkhead::runtime::protobuf;
use bulkhead::s3::mount_options::{Setting, mounting};
use bulkhead::s3::node_service::{publication, request};
use chrono::{Datelike, NaiveDate};

const KUBELET: &str = "/var/lib/kubelet";

/// Volume ids and target paths: what is accepted stays below the kubelet's root.
pub fn volume_request(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if request::volume_id(&text).is_ok() {
        assert!(!text.is_empty() && !text.contains('\0'));
    }
    if let Ok((pod, volume)) = request::target(&text, KUBELET) {
        assert_eq!(text, format!("{KUBELET}/{}", publication::target(pod, volume)));
        for name in [pod, volume] {
            assert!(publication::is_name(name) && !name.contains('/') && !matches!(name, "." | ".."), "{text:?}");
        }
    }
}

/// Mount options, one on each line: each argument is an option, and none says what a volume may not choose.
pub fn mount_options(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for setting in [Setting::default(), Setting { read_only: true, cache_max: Some(512), ..Setting::default() }] {
        let Ok(mounting) = mounting(text.split('\n'), &setting) else { continue };
        assert!(mounting.read_only || !setting.read_only);
        for argument in &mounting.args {
            let name = argument.split('=').next().unwrap_or_default();
            assert!(argument.starts_with('-') && !argument.contains('\0'), "{argument:?}");
            assert!(!["--profile", "--endpoint-url", "--foreground", "-f", "-o"].contains(&name), "{argument:?}");
        }
    }
}

/// Objects and lists in protobuf: what is read is JSON. A seed of each is what an API server wrote.
pub fn protobuf(data: &[u8]) {
    for kind in [&kinds::POD, &kinds::NODE, &kinds::LEASE, &kinds::PERSISTENT_VOLUME] {
        let mut json = Vec::new();
        if protobuf::enveloped(kind, data, &mut json).is_ok() {
            assert!(serde_json::from_slice::<serde_json::Value>(&json).is_ok(), "{}", String::from_utf8_lossy(&json));
        }
    }
}

/// Durations, amounts, endpoints, blocks of addresses and schedules of our definitions.
pub fn spec_strings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(duration) = text.parse::<Duration>() {
        assert_eq!(duration.to_string(), text);
        assert!(duration.get() < std::time::Duration::from_secs(3600 * 100_000 * 4));
    }
    let _ = text.parse::<GoDuration>();
    let _ = quantity::bytes(&text);
    if let Ok(endpoint) = text.parse::<Endpoint>() {
        assert!(endpoint.to_string().parse::<Endpoint>().is_ok_and(|again| again == endpoint), "{text:?}");
    }
    if let Ok(block) = text.parse::<Cidr>() {
        assert_eq!(block.to_string().parse(), Ok(block));
        assert!(block.overlaps(block), "{text:?}");
    }
    if let Ok(schedule) = text.parse::<Schedule>() {
        let times: Vec<_> = schedule.times().collect();
        assert!(!times.is_empty() && times.is_sorted() && times.len() <= 24 * 60, "{text:?}");
        let leap_year = NaiveDate::from_ymd_opt(2028, 1, 1).into_iter().flat_map(|day| day.iter_days()).take(366);
        assert!(leap_year.filter(|date| schedule.has_date(*date)).all(|date| date.year() == 2028));
    }
}

/// The log of the pod that writes while a driver is certified: nothing is told that no line said, and heard again it is no news.
pub fn writer_log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let hear = |log: &mut WriterLog, begin: u64| {
        for (milliseconds, line) in (begin..).zip(text.lines()) {
            log.hear(line, std::time::Duration::from_millis(milliseconds));
        }
    };
    let mut log = WriterLog::default();
    hear(&mut log, 0);
    assert!(log.tried().count() + log.written().count() + log.refused() <= text.lines().count());
    assert!(!log.hangs(std::time::Duration::ZERO) || log.alive().is_some());
    let mut again = log.clone();
    hear(&mut again, 60_000);
    assert_eq!(again, log);
}
