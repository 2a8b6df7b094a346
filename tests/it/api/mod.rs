//! The API as a real server sees it: definitions, samples, rules, admission policies and RBAC. One control plane of
//! apiserver and etcd for all; only what must break it starts its own.
#![allow(clippy::indexing_slicing, reason = "a test says what it expects by panicking")]

mod admission;
pub mod agent;
mod approval;
mod chart;
mod controller_rights;
mod flow;
pub mod objects;
mod protobuf;
pub mod rights;
mod rule_cases;
mod rules;
mod s3_manifests;
mod samples;
mod shared_volume_rights;
mod shared_volume_rules;
mod skew;
mod volume_rights;
mod volumes;
pub mod world;

use std::sync::Arc;

use libtest_mimic::{Failed, Trial};

use crate::shared::Shared;

use world::World;

/// Why a test failed.
type Outcome = Result<(), Failed>;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    let shared = match Shared::<World>::new() {
        Ok(shared) => Arc::new(shared),
        Err(error) => return vec![Trial::test("api::runtime", move || Err(error.into()))],
    };
    let (alone, old) = (shared.clone(), shared.clone());
    vec![
        Trial::test("api::fields_of_a_newer_release_are_ignored", skew::fields_of_a_newer_release_are_ignored),
        trial(&shared, "definitions_are_served_and_explained", samples::definitions_are_served_and_explained),
        trial(&shared, "the_first_policy_gets_every_default", samples::the_first_policy_gets_every_default),
        trial(&shared, "applying_a_sample_again_changes_nothing", samples::applying_a_sample_again_changes_nothing),
        trial(&shared, "every_rule_refuses_what_it_names", rules::every_rule_refuses_what_it_names),
        trial(&shared, "limits_and_enums_are_enforced", rules::limits_and_enums_are_enforced),
        trial(&shared, "what_the_rules_of_shared_volumes_let_pass", shared_volume_rules::what_the_rules_let_pass),
        trial(
            &shared,
            "the_shortest_shared_volumes_get_every_default",
            shared_volume_rules::the_shortest_ones_get_every_default,
        ),
        trial(&shared, "few_may_point_a_service_anywhere", shared_volume_rights::few_may_point_a_service_anywhere),
        trial(&shared, "teams_write_no_status", shared_volume_rights::teams_write_no_status),
        trial(&shared, "the_controller_writes_its_own_services", shared_volume_rights::the_controller_writes_its_own),
        trial(
            &shared,
            "the_controller_annotates_claims_and_no_more",
            shared_volume_rights::the_controller_annotates_claims_and_no_more,
        ),
        trial(&shared, "an_incident_may_grow_and_recur", rules::an_incident_may_grow_and_recur),
        trial(&shared, "only_the_fencer_attests", admission::only_the_fencer_attests),
        trial(&shared, "only_the_driver_reports", admission::only_the_driver_reports),
        trial(&shared, "only_the_fencer_tells_of_power", admission::only_the_fencer_tells_of_power),
        trial(&shared, "only_the_agent_of_a_node_reports", agent::only_the_agent_of_a_node_reports),
        trial(
            &shared,
            "a_report_leaves_the_rest_of_the_object_alone",
            agent::a_report_leaves_the_rest_of_the_object_alone,
        ),
        trial(&shared, "a_fence_is_ranked_before_other_workloads", flow::a_fence_is_ranked_before_other_workloads),
        trial(
            &shared,
            "the_controller_is_ranked_before_other_workloads",
            flow::the_controller_is_ranked_before_other_workloads,
        ),
        trial(&shared, "people_change_no_plan", admission::people_change_no_plan),
        trial(&shared, "people_approve_and_hold", approval::people_approve_and_hold),
        trial(
            &shared,
            "the_controller_neither_approves_nor_holds",
            approval::the_controller_neither_approves_nor_holds,
        ),
        trial(&shared, "only_the_controller_plans", admission::only_the_controller_plans),
        trial(&shared, "what_is_planned_and_asked_for_is_frozen", admission::what_is_planned_and_asked_for_is_frozen),
        trial(&shared, "a_fenced_node_gets_no_attachments", admission::a_fenced_node_gets_no_attachments),
        trial(
            &shared,
            "a_fence_is_asked_for_in_an_open_incident_only",
            admission::a_fence_is_asked_for_in_an_open_incident_only,
        ),
        trial(&shared, "a_tainted_volume_is_bound_to_no_claim", volumes::a_tainted_volume_is_bound_to_no_claim),
        trial(
            &shared,
            "the_claim_that_volumes_are_reserved_for_is_never_made",
            volumes::the_claim_that_volumes_are_reserved_for_is_never_made,
        ),
        trial(
            &shared,
            "a_tainted_volume_is_attached_to_no_further_node",
            volumes::a_tainted_volume_is_attached_to_no_further_node,
        ),
        trial(&shared, "a_new_pod_of_a_tainted_volume_waits", volumes::a_new_pod_of_a_tainted_volume_waits),
        trial(&shared, "a_pod_that_may_tolerate_the_taints_passes", volumes::a_pod_that_may_tolerate_the_taints_passes),
        trial(&shared, "only_the_controller_projects", volume_rights::only_the_controller_projects),
        trial(&shared, "only_the_controller_lets_a_pod_go", volume_rights::only_the_controller_lets_a_pod_go),
        trial(
            &shared,
            "the_controller_taints_nodes_and_no_more",
            controller_rights::the_controller_taints_nodes_and_no_more,
        ),
        trial(
            &shared,
            "the_controller_marks_volumes_and_no_more",
            controller_rights::the_controller_marks_volumes_and_no_more,
        ),
        trial(&shared, "s3_manifests_and_samples_are_taken", s3_manifests::manifests_and_samples_are_taken),
        trial(
            &shared,
            "the_s3_node_service_takes_its_taint_off_its_node_and_no_more",
            s3_manifests::the_node_service_takes_its_taint_off_its_node_and_no_more,
        ),
        trial(
            &shared,
            "what_is_read_in_protobuf_is_what_json_says",
            protobuf::what_is_read_in_protobuf_is_what_json_says,
        ),
        trial(&shared, "what_the_chart_makes_is_taken", chart::what_the_chart_makes_is_taken),
        trial(&shared, "an_installation_is_checked", chart::an_installation_is_checked),
        trial(&shared, "the_table_of_rights_is_what_is_granted", rights::the_table_is_what_is_granted),
        trial(&shared, "objects_of_others_are_out_of_reach", rights::objects_of_others_are_out_of_reach),
        Trial::test("api::without_our_definitions_nodes_get_attachments", move || {
            alone.block_on(admission::without_our_definitions_nodes_get_attachments())
        }),
        Trial::test("api::without_the_gate_pods_are_refused_and_without_our_definitions_nothing_is", move || {
            old.block_on(volumes::without_the_gate_pods_are_refused_and_without_our_definitions_nothing_is())
        }),
    ]
}

fn trial<T>(shared: &Arc<Shared<World>>, name: &str, test: T) -> Trial
where
    T: AsyncFn(&World) -> Outcome + Send + 'static,
{
    let shared = shared.clone();
    Trial::test(format!("api::{name}"), move || shared.block_on(async { test(shared.world().await?).await }))
}
