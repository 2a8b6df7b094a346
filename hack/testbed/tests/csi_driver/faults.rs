//! What goes wrong on a node, and what is left to clean up.

use std::fs;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::mpsc;
use std::time::Instant;

use bulkhead_testbed::array::Link;
use rustix::io::Errno;
use tonic::Code;

use crate::bed::{Bed, SOON, code, wait};

fn errno(error: &io::Error) -> Option<i32> {
    error.raw_os_error()
}

pub fn mounts_of_a_plugin_that_was_killed_are_cleaned_or_staged_anew() {
    let bed = Bed::new();
    let plugin = bed.plugin("a");
    let (kept, gone, block) = (bed.volume("kept"), bed.volume("gone"), bed.volume("block"));
    let (at_kept, at_gone) = (plugin.mounted(&kept, "a", false), plugin.mounted(&gone, "a", false));
    let at_block = plugin.mounted(&block, "a", true);
    fs::write(at_kept.target.join("file"), b"kept").unwrap();
    plugin.kill();
    for at in [&at_kept, &at_gone] {
        let dead = fs::read_dir(&at.target).unwrap_err();
        assert_eq!(errno(&dead), Some(Errno::NOTCONN.raw_os_error()));
    }

    let plugin = bed.plugin("a");
    for (volume, at) in [(&gone, &at_gone), (&block, &at_block)] {
        plugin.unpublish(volume, &at.target).unwrap();
        plugin.unstage(volume, &at.staging).unwrap();
        assert!(!at.target.exists());
    }
    let left = bed.mounts();
    assert_eq!(left, [at_kept.staging.clone(), at_kept.target.clone()]);

    plugin.publish(&kept, &at_kept.staging, &at_kept.target, false, false).unwrap();
    assert_eq!(fs::read(at_kept.target.join("file")).unwrap(), b"kept");
    plugin.stage(&kept, &at_kept.staging, false).unwrap();
    assert_eq!(bed.mounts().len(), 2, "{:?}", bed.mounts());
    plugin.unpublish(&kept, &at_kept.target).unwrap();
    plugin.unstage(&kept, &at_kept.staging).unwrap();
    assert!(bed.mounts().is_empty(), "{:?}", bed.mounts());
}

pub fn a_link_that_hangs_is_an_error_in_time_and_heals() {
    let bed = Bed::new();
    let (first, second) = (bed.plugin("a"), bed.plugin("b"));
    let (one, two) = (bed.volume("one"), bed.volume("two"));
    let (at_one, at_two) = (first.mounted(&one, "a", false), second.mounted(&two, "b", false));
    let file = fs::File::create(at_one.target.join("file")).unwrap();
    file.write_all_at(b"before", 0).unwrap();

    bed.array.set_link("a", Link::Hang);
    let (done, hung) = mpsc::channel();
    let hanging = file.try_clone().unwrap();
    let writing = std::thread::spawn(move || done.send(hanging.write_all_at(b"during", 0)));
    fs::write(at_two.target.join("file"), b"another node's").unwrap();
    assert!(hung.try_recv().is_err(), "another volume does not wait");
    let started = Instant::now();
    assert_eq!(code(first.stage("none", &bed.path("a/none"), false)), Code::Unavailable);
    let error = hung.recv_timeout(SOON).unwrap().unwrap_err();
    assert_eq!(errno(&error), Some(Errno::IO.raw_os_error()), "after {:?}", started.elapsed());
    writing.join().unwrap().unwrap();

    bed.array.set_link("a", Link::Refuse);
    assert_eq!(errno(&file.write_all_at(b"refused", 0).unwrap_err()), Some(Errno::IO.raw_os_error()));
    bed.array.set_link("a", Link::Up);
    wait("the link is up", || file.write_all_at(b"after!", 0).is_ok());
    assert_eq!(fs::read(at_one.target.join("file")).unwrap(), b"after!");

    // Cleaning needs no array.
    drop(file);
    bed.array.set_link("a", Link::Hang);
    first.unpublish(&one, &at_one.target).unwrap();
    first.unstage(&one, &at_one.staging).unwrap();
    assert_eq!(bed.mounts(), [at_two.staging, at_two.target]);
}

pub fn what_the_array_does_not_allow_is_not_staged() {
    let bed = Bed::new();
    let plugin = bed.plugin("a");
    let volume = bed.volume("v");
    let (staging, target) = (bed.path("a/staging"), bed.path("a/target"));
    assert_eq!(code(plugin.stage(&volume, &staging, false)), Code::FailedPrecondition);
    assert_eq!(code(plugin.publish(&volume, &staging, &target, false, false)), Code::FailedPrecondition);
    bed.attach(&volume, "a");
    plugin.stage(&volume, &staging, false).unwrap();
    plugin.stage(&volume, &staging, false).unwrap();
    assert_eq!(code(plugin.stage(&volume, &staging, true)), Code::AlreadyExists);
    plugin.unstage(&volume, &staging).unwrap();
    assert!(bed.mounts().is_empty());
}
