//! Rights on a real API server, from the table in `src/rights`: what each row grants is granted, and of what no row grants
//! nothing is, asked for each identity, verb and resource, and for objects that are somebody else's.

mod asked;
mod foreign;
mod identities;
mod rows;

use bulkhead_testbed::Identity;
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReview,
    SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use libtest_mimic::Failed;

use super::Outcome;
use super::world::{World, eventually};

use asked::Ask;
use identities::Subject;

pub use foreign::objects_of_others_are_out_of_reach;

/// Reviews under way at once.
const CONCURRENCY: usize = 32;
/// Fewer are no matrix.
const REFUSALS_MIN: usize = 200;

/// Each row of the table is allowed; everything else that is worth asking for is not.
pub async fn the_table_is_what_is_granted(world: &World) -> Outcome {
    let subjects = identities::install(world).await?;
    let admin = world.testbed.client(&Identity::Admin).await?;
    let granted: Vec<_> =
        subjects.iter().flat_map(|subject| asked::granted(subject).map(move |ask| (subject, ask))).collect();
    // The authorizer learns of a role some time after it is stored; only then a refusal says something.
    let all = async || missing(&admin, &granted).await.ok()?.is_empty().then_some(());
    if eventually("every row of the table", all).await.is_err() {
        return Err(format!("in the table, and not granted: {:#?}", missing(&admin, &granted).await?).into());
    }
    let asks = subjects.iter().flat_map(|subject| asked::others(subject).map(move |ask| (subject, ask)));
    let asks: Vec<_> = asks.filter(|(subject, ask)| !subject.may(ask)).collect();
    let answers = reviews(&admin, &asks).await?;
    let wrong: Vec<_> = answers.iter().filter(|(_, allowed)| *allowed).map(|(what, _)| what).collect();
    println!(
        "rights: {} granted by the table, {} refused, of {} identities",
        granted.len(),
        answers.len(),
        subjects.len()
    );
    assert!(wrong.is_empty(), "granted, and in no row of the table: {wrong:#?}");
    assert!(answers.len() >= REFUSALS_MIN, "only {} refusals were tried", answers.len());
    Ok(())
}

/// What the table grants and the server does not.
async fn missing(admin: &Client, asks: &[(&Subject, Ask)]) -> Result<Vec<String>, Failed> {
    let answers = reviews(admin, asks).await?;
    Ok(answers.into_iter().filter(|(_, allowed)| !allowed).map(|(what, _)| what).collect())
}

/// What the server says to each.
async fn reviews(admin: &Client, asks: &[(&Subject, Ask)]) -> Result<Vec<(String, bool)>, Failed> {
    let api: Api<SubjectAccessReview> = Api::all(admin.clone());
    let one = |(subject, ask): &(&Subject, Ask)| {
        let (api, what) = (api.clone(), format!("{}: {ask}", subject.name));
        let spec = SubjectAccessReviewSpec {
            user: Some(subject.user.clone()),
            groups: Some(subject.groups.clone()),
            resource_attributes: Some(ask.attributes()),
            ..SubjectAccessReviewSpec::default()
        };
        let review = SubjectAccessReview { spec, ..SubjectAccessReview::default() };
        async move {
            let answer = api.create(&PostParams::default(), &review).await?;
            Ok::<_, Failed>((what, answer.status.is_some_and(|status| status.allowed)))
        }
    };
    stream::iter(asks.iter().map(one).collect::<Vec<_>>()).buffer_unordered(CONCURRENCY).try_collect().await
}

/// Whether an identity has a right.
pub async fn may(client: &Client, verb: &str, resource: &str, namespace: &str, name: &str) -> Result<bool, Failed> {
    let (group, resource) = resource.split_once('/').ok_or("group/resource")?;
    let (resource, subresource) = match resource.split_once('/') {
        Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
        None => (resource, None),
    };
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource,
                namespace: Some(namespace.into()),
                name: Some(name.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = Api::<SelfSubjectAccessReview>::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}
