//! Buckets as volumes: who shares a Mountpoint Pod, what is written and read, and that nothing is left afterwards.

use std::time::{Duration, Instant};

use bulkhead::api::s3::MOUNTPOINT_NAMESPACE;
use bulkhead_testbed::cluster::real::{PodPlace, RealCluster, S3Volume, Shell};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use libtest_mimic::Failed;

use super::Outcome;
use super::bed::SOON;

/// Where workloads run that are to share.
pub const NODE: &str = "node-1";
/// From the death of mount-s3 until a workload reads again, on a machine that has nothing else to do.
const PROMISED: Duration = Duration::from_secs(10);
/// The same on any machine. It takes a few seconds; see `docs/testbed.md` for loaded machines.
pub const HEALED: Duration = Duration::from_secs(60);

/// Two workloads share a Mountpoint Pod, one with another fsGroup has its own; all see the same bytes.
pub async fn shared_mountpoint_pod(cluster: &RealCluster) -> Outcome {
    let volume = "shared";
    add(cluster, &S3Volume::new(volume)).await?;
    let [first, second] = ["shared-1", "shared-2"].map(|name| Shell::new(name, volume, NODE));
    let other_group = Shell { fs_group: Some(2000), ..Shell::new("shared-3", volume, NODE) };
    let [first, second, other_group] = <[PodPlace; 3]>::try_from(run(cluster, &[first, second, other_group]).await?)
        .map_err(|pods| format!("{pods:?} instead of three"))?;

    let served = cluster.served(volume).await?;
    let by = |pod: &PodPlace| served.get(&pod.uid).cloned();
    assert!(by(&first).is_some() && by(&first) == by(&second), "{served:?}");
    assert!(by(&other_group).is_some() && by(&other_group) != by(&first), "{served:?}");

    cluster.shell(&first.name, "echo first >greeting").await?;
    for reader in [&second, &other_group] {
        assert_eq!(cluster.shell(&reader.name, "cat greeting").await?, "first\n", "{}", reader.name);
    }
    assert_eq!(cluster.in_bucket(volume, "greeting")?, "first\n");
    // A child that closes what it inherited does not end the upload of its parent: mount-s3 can tell them apart.
    cluster.shell(&first.name, "exec 3>forked; (echo child >&3); echo parent >&3; exec 3>&-").await?;
    assert_eq!(cluster.in_bucket(volume, "forked")?, "child\nparent\n");

    // One that goes takes nothing from the others.
    cluster.end_shells(&[&first.name], SOON).await?;
    cluster.shell(&second.name, "echo second >greeting").await?;
    assert_eq!(cluster.shell(&other_group.name, "cat greeting").await?, "second\n");
    cluster.end_shells(&[&second.name, &other_group.name], SOON).await?;
    is_clean(cluster, volume).await?;
    assert_eq!(cluster.in_bucket(volume, "greeting")?, "second\n");
    Ok(cluster.remove_s3_volume(volume).await?)
}

/// A volume that many only read, and a claim that one only reads while another writes.
pub async fn read_only(cluster: &RealCluster) -> Outcome {
    let volumes = ["readers", "one-reads"];
    add(cluster, &S3Volume { access: "ReadOnlyMany", ..S3Volume::new("readers") }).await?;
    add(cluster, &S3Volume::new("one-reads")).await?;
    std::fs::write(cluster.s3()?.bucket("readers").join("greeting"), "here before\n")?;
    let reader = Shell::new("reader", "readers", NODE);
    // The first decides nothing for the second.
    let only_reads = Shell { read_only: true, ..Shell::new("only-reads", "one-reads", NODE) };
    run(cluster, &[reader, only_reads]).await?;
    run(cluster, &[Shell::new("writes", "one-reads", NODE)]).await?;

    assert_eq!(cluster.shell("reader", "cat greeting").await?, "here before\n");
    cluster.shell("writes", "echo hello >greeting").await?;
    assert_eq!(cluster.shell("only-reads", "cat greeting").await?, "hello\n");
    for name in ["reader", "only-reads"] {
        let refused = cluster.shell(name, "(echo mine >other) 2>&1 || true").await?;
        assert!(refused.contains("Read-only file system"), "{name}: {refused}");
    }
    assert!(!cluster.s3()?.bucket("one-reads").join("other").exists());

    cluster.end_shells(&["reader", "only-reads", "writes"], SOON).await?;
    for volume in volumes {
        is_clean(cluster, volume).await?;
        cluster.remove_s3_volume(volume).await?;
    }
    Ok(())
}

/// mount-s3 dies: mounted anew at once, for who may see it, and who may not is told so.
pub async fn mount_program_killed(cluster: &RealCluster) -> Outcome {
    let (volume, sees, blind) = ("killed", "killed-sees", "killed-blind");
    add(cluster, &S3Volume::new(volume)).await?;
    let shells = [Shell { sees_later_mounts: true, ..Shell::new(sees, volume, NODE) }, Shell::new(blind, volume, NODE)];
    let pods = run(cluster, &shells).await?;
    cluster.shell(sees, "echo before >greeting").await?;
    let serving = mountpoint_pod(cluster, volume, pods.first().ok_or("no pod")?).await?;

    let killed = Instant::now();
    cluster.kill_mount_program(&serving).await?;
    reads_again(cluster, sees, "greeting", "before\n").await?;
    let took = killed.elapsed();
    println!("mount_program_killed: read again after {:.1} s", took.as_secs_f64());
    if std::env::var_os("BULKHEAD_WIDE").is_some() {
        assert!(took <= PROMISED, "{took:?}");
    }
    told(cluster, blind, "MountDead").await?;
    logged(cluster, &serving, &[], "bucket killed is mounted at").await?;
    logged(cluster, &serving, &["--previous"], "mount-s3 was killed (signal 9)").await?;
    cluster.shell(sees, "echo after >greeting").await?;
    assert_eq!(cluster.in_bucket(volume, "greeting")?, "after\n");
    // Made anew, the other one has the new mount too; the first keeps its own.
    cluster.end_shells(&[blind], SOON).await?;
    reads_again(cluster, sees, "greeting", "after\n").await?;
    run(cluster, &[Shell::new(blind, volume, NODE)]).await?;
    assert_eq!(cluster.shell(blind, "cat greeting").await?, "after\n");

    cluster.end_shells(&[sees, blind], SOON).await?;
    is_clean(cluster, volume).await?;
    Ok(cluster.remove_s3_volume(volume).await?)
}

/// Waits until `kubectl logs` of a Mountpoint Pod has these words.
async fn logged(cluster: &RealCluster, pod: &PodPlace, more: &[&str], words: &str) -> Outcome {
    let command = [&["logs", "--namespace", MOUNTPOINT_NAMESPACE, pod.name.as_str()][..], more].concat();
    let look = async || {
        // Of a container that has not begun there are no logs.
        let logs = cluster.testbed.kubectl(&command).await.unwrap_or_else(|error| error.to_string());
        Ok(if logs.contains(words) { Ok(()) } else { Err(logs) })
    };
    Ok(cluster.wait(&format!("{words:?} is in the output of kubectl {}", command.join(" ")), SOON, look).await?)
}

/// Makes the bucket and the volume.
pub async fn add(cluster: &RealCluster, volume: &S3Volume) -> Outcome {
    cluster.s3()?.create_bucket(&volume.bucket)?;
    Ok(cluster.add_s3_volume(volume).await?)
}

/// Creates all at once, and waits until all run.
pub async fn run(cluster: &RealCluster, shells: &[Shell<'_>]) -> Result<Vec<PodPlace>, Failed> {
    for shell in shells {
        cluster.create_shell(shell).await?;
    }
    let mut pods = Vec::new();
    for shell in shells {
        pods.push(cluster.shell_runs(shell.name, SOON).await?);
    }
    Ok(pods)
}

/// The Mountpoint Pod of a workload.
pub async fn mountpoint_pod(cluster: &RealCluster, volume: &str, workload: &PodPlace) -> Result<PodPlace, Failed> {
    Ok(cluster.serving(volume, workload).await?.ok_or_else(|| format!("no Mountpoint Pod serves {}", workload.name))?)
}

/// Waits until a workload reads this in a file, whatever it reads before.
pub async fn reads_again(cluster: &RealCluster, name: &str, file: &str, expected: &str) -> Outcome {
    let read = format!("cat {file} 2>&1 || true");
    cluster
        .wait(&format!("{name} reads {file}"), HEALED, async || {
            // Where the volume is not a folder any more, not even the shell starts in it.
            let read = cluster.shell(name, &read).await.unwrap_or_else(|error| error.to_string());
            Ok(if read == expected { Ok(()) } else { Err(read) })
        })
        .await?;
    Ok(())
}

/// Waits until a workload has an Event for this reason, and returns what it says.
pub async fn told(cluster: &RealCluster, pod: &str, reason: &str) -> Result<String, Failed> {
    let events: Api<Event> = Api::default_namespaced(cluster.client.clone());
    let of_it = ListParams::default().fields(&format!("involvedObject.name={pod}"));
    let look = async || {
        let events = events.list(&of_it).await?;
        let found = events.iter().find(|event| event.reason.as_deref() == Some(reason));
        let message = found.map(|event| event.message.clone().unwrap_or_default());
        Ok(message.ok_or_else(|| format!("{:?}", events.iter().map(|it| &it.reason).collect::<Vec<_>>())))
    };
    Ok(cluster.wait(&format!("Event {reason} on {pod}"), SOON, look).await?)
}

/// Waits until nothing is left of a volume that nobody uses any more: no s3pa, no Mountpoint Pod, no mount, no folder.
pub async fn is_clean(cluster: &RealCluster, volume: &str) -> Outcome {
    let look = async || {
        let left = cluster.left_of(volume, NODE).await?;
        Ok(if left.is_empty() { Ok(()) } else { Err(left.join(", ")) })
    };
    Ok(cluster.wait(&format!("nothing is left of {volume}"), SOON, look).await?)
}
