//! The Helm chart: the same objects as kustomize makes of `config/`, over a matrix of values, and what it refuses. The real
//! helm and kubectl, no control plane; `api::what_the_chart_makes_is_taken` shows its objects to a server.

mod agent_sidecar;
mod effect;
mod notes;
mod refused;
pub mod render;
mod rights;
mod same;
mod scraped;
pub mod values;

use libtest_mimic::Trial;

/// All tests of this module.
pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("chart::makes_the_same_objects_as_kustomize", same::objects_of_kustomize),
        Trial::test("chart::makes_the_same_monitoring", same::monitoring),
        Trial::test("chart::every_program_is_scraped", scraped::every_program_is_scraped),
        Trial::test("chart::our_own_pods_say_where_they_are_scraped", scraped::our_own_pods_say_where_they_are_scraped),
        Trial::test("chart::every_set_of_values_renders", values::every_set_renders),
        Trial::test("chart::each_value_does_something", effect::each_value_does_something),
        Trial::test("chart::what_is_switched_off_is_gone", effect::what_is_switched_off_is_gone),
        Trial::test(
            "chart::mountpoint_pods_have_a_namespace_of_any_name",
            effect::mountpoint_pods_have_a_namespace_of_any_name,
        ),
        Trial::test(
            "chart::mountpoint_pods_are_pulled_with_the_same_secrets",
            effect::mountpoint_pods_are_pulled_with_the_same_secrets,
        ),
        Trial::test("chart::its_examples_are_packaged", effect::its_examples_are_packaged),
        Trial::test("chart::says_what_it_does", notes::says_what_it_does),
        Trial::test("chart::enforcement_is_one_value", values::enforcement_is_one_value),
        Trial::test("chart::images_are_named_by_values", values::images_are_named_by_values),
        Trial::test("chart::cleanup_is_logged_where_upstream_looks", values::cleanup_is_logged_where_upstream_looks),
        Trial::test("chart::has_the_versions_that_are_built", values::has_the_versions_that_are_built),
        Trial::test("chart::its_readme_names_every_value", values::the_readme_names_every_value),
        Trial::test("chart::what_cannot_work_is_refused", refused::what_cannot_work_is_refused),
        Trial::test("chart::each_driver_has_its_own_sidecar", rights::each_driver_has_its_own),
        Trial::test(
            "chart::the_agent_beside_a_driver_is_that_of_the_daemonset",
            agent_sidecar::the_agent_beside_a_driver_is_that_of_the_daemonset,
        ),
        Trial::test(
            "chart::the_agent_beside_a_driver_has_the_rights_of_the_daemonset",
            agent_sidecar::it_has_the_rights_of_the_daemonset,
        ),
        Trial::test("chart::no_manifest_lists_secrets", rights::no_manifest_lists_secrets),
    ]
}
