//! The test array's CSI driver as its users run it: the program, its sockets, its mounts. Most need root and /dev/fuse.
#![allow(clippy::expect_used, clippy::indexing_slicing, clippy::panic, clippy::unwrap_used, reason = "tests")]

mod bed;
mod controller;
mod deployment;
mod faults;
mod files;
mod nfs;
mod real_nodes;
mod writer;

use std::thread;

use bulkhead_testbed::ganesha::Ganesha;
use bulkhead_testbed::here;
use libtest_mimic::{Arguments, Trial};
use tokio::runtime::Runtime;

fn main() {
    let arguments = Arguments::from_args();
    let fuse = here::lacks_fuse();
    let ganesha = here::lacking(arguments.list, Ganesha::find);
    let nodes = here::lacking(arguments.list, bulkhead_testbed::real_nodes::check);
    let mounting = [
        trial("controller::csi_sanity_passes", controller::csi_sanity_passes),
        trial(
            "controller::calls_deadlines_and_codes_pass_to_the_array_and_back",
            controller::calls_deadlines_and_codes_pass_to_the_array_and_back,
        ),
        trial(
            "controller::a_node_plugin_says_how_a_volume_is_in_either_generation",
            controller::a_node_plugin_says_how_a_volume_is_in_either_generation,
        ),
        trial(
            "controller::the_kubelet_learns_where_the_node_plugin_is",
            controller::the_kubelet_learns_where_the_node_plugin_is,
        ),
        trial(
            "faults::mounts_of_a_plugin_that_was_killed_are_cleaned_or_staged_anew",
            faults::mounts_of_a_plugin_that_was_killed_are_cleaned_or_staged_anew,
        ),
        trial(
            "faults::a_link_that_hangs_is_an_error_in_time_and_heals",
            faults::a_link_that_hangs_is_an_error_in_time_and_heals,
        ),
        trial(
            "faults::what_the_array_does_not_allow_is_not_staged",
            faults::what_the_array_does_not_allow_is_not_staged,
        ),
        trial("files::a_volume_is_a_file_system", files::a_volume_is_a_file_system),
        trial(
            "files::a_writer_whose_node_is_cut_off_is_refused_and_its_data_is_found_elsewhere",
            files::a_writer_whose_node_is_cut_off_is_refused_and_its_data_is_found_elsewhere,
        ),
        trial(
            "files::a_raw_block_volume_is_a_loop_device_that_goes_with_it",
            files::a_raw_block_volume_is_a_loop_device_that_goes_with_it,
        ),
        here::unless(
            ganesha.as_deref(),
            trial(
                "nfs::a_client_of_an_exported_volume_goes_on_with_its_file_handle_when_the_server_moves",
                nfs::a_client_of_an_exported_volume_goes_on_with_its_file_handle_when_the_server_moves,
            ),
        ),
    ];
    let mut trials: Vec<_> = mounting.into_iter().map(|trial| here::unless(fuse, trial)).collect();
    trials.extend([
        in_runtime(
            "deployment::the_manifests_are_accepted_and_give_attacher_and_provisioner_what_they_need",
            deployment::the_manifests_are_accepted_and_give_attacher_and_provisioner_what_they_need,
        ),
        here::unless(
            nodes.as_deref(),
            in_runtime(
                "real_nodes::containers_of_real_nodes_write_move_and_are_cut_off",
                real_nodes::containers_of_real_nodes_write_move_and_are_cut_off,
            ),
        ),
        in_runtime(
            "writer::a_writer_goes_on_until_it_is_told_to_end",
            writer::a_writer_goes_on_until_it_is_told_to_end,
        ),
    ]);
    libtest_mimic::run(&arguments, trials).exit();
}

/// On a thread of its own: what mounts takes a mount namespace for its thread, which the next must not be in.
fn trial(name: &str, test: impl FnOnce() + Send + 'static) -> Trial {
    Trial::test(name, || {
        if let Err(panic) = thread::spawn(test).join() {
            std::panic::resume_unwind(panic);
        }
        Ok(())
    })
}

fn in_runtime<F: Future<Output = ()>>(name: &str, test: impl FnOnce() -> F + Send + 'static) -> Trial {
    trial(name, || Runtime::new().expect("runtime").block_on(test()))
}
