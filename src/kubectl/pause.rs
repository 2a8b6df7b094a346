//! `kubectl bulkhead pause` and `resume`: the annotation `bulkhead.dev/paused` on a policy or a node.

use clap::{Args, Subcommand};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::api::names::{self, PAUSED_ANNOTATION};
use crate::api::resiliency_policy::ResiliencyPolicy;
use crate::api::slim::Node;

use super::approve::Written;
use super::error::{Error, Result};
use super::gather::Cluster;
use super::print::Output;
use super::write;

/// What is paused.
#[derive(Debug, Subcommand)]
pub enum Pause {
    /// Everything that this policy does.
    Policy(Reasoned),
    /// Everything that is done about this node.
    Node(Reasoned),
}

/// Which one, and why.
#[derive(Debug, Args)]
pub struct Reasoned {
    /// Its name.
    name: String,
    /// Why; shown in status and Events.
    #[arg(long)]
    reason: String,
}

/// What goes on.
#[derive(Debug, Subcommand)]
pub enum Resume {
    /// This policy.
    Policy {
        /// Its name.
        name: String,
    },
    /// This node.
    Node {
        /// Its name.
        name: String,
    },
}

const POLICIES: Which = Which { kind: "ResiliencyPolicy", word: "policy", resource: "resiliencypolicies.bulkhead.dev" };
const NODES: Which = Which { kind: "Node", word: "node", resource: "nodes" };

/// What can be paused.
#[derive(Clone, Copy)]
struct Which {
    kind: &'static str,
    word: &'static str,
    resource: &'static str,
}

impl Pause {
    /// Pauses.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<String> {
        let written = match self {
            Self::Policy(asked) => pause::<ResiliencyPolicy>(cluster, POLICIES, asked).await?,
            Self::Node(asked) => pause::<Node>(cluster, NODES, asked).await?,
        };
        output.render(&written)
    }
}

impl Resume {
    /// Lets it go on.
    pub async fn run(self, cluster: &Cluster, output: Output) -> Result<String> {
        let written = match self {
            Self::Policy { name } => resume::<ResiliencyPolicy>(cluster, POLICIES, &name).await?,
            Self::Node { name } => resume::<Node>(cluster, NODES, &name).await?,
        };
        output.render(&written)
    }
}

async fn pause<K>(cluster: &Cluster, which: Which, asked: Reasoned) -> Result<Written>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Reasoned { name, reason } = asked;
    let object: K = read(cluster, which, &name).await?;
    if names::paused(object.meta()) == Some(reason.as_str()) {
        return Ok(which.written(name.clone(), false, format!("{} {name} is paused already: {reason}", which.word)));
    }
    let annotations = json!({ PAUSED_ANNOTATION: reason });
    write::annotate(cluster, &object, annotations, which.resource).await?;
    let message = format!(
        "{0} {name} is paused: nothing new is begun, and what runs stops before its next destructive step. \
         kubectl bulkhead resume {0} {name} ends that",
        which.word
    );
    Ok(which.written(name, true, message))
}

async fn resume<K>(cluster: &Cluster, which: Which, name: &str) -> Result<Written>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let object: K = read(cluster, which, name).await?;
    if names::paused(object.meta()).is_none() {
        return Ok(which.written(name.to_owned(), false, format!("{} {name} is not paused", which.word)));
    }
    let after = write::annotate(cluster, &object, json!({}), which.resource).await?;
    if let Some(reason) = names::paused(after.meta()) {
        return Err(Error::Refused(format!(
            "{0} {name} is still paused ({reason}): somebody else set the annotation. kubectl annotate {1} {name} \
             {PAUSED_ANNOTATION}- removes it, whoever set it",
            which.word, which.resource
        )));
    }
    Ok(which.written(name.to_owned(), true, format!("{} {name} goes on", which.word)))
}

async fn read<K>(cluster: &Cluster, which: Which, name: &str) -> Result<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::all(cluster.clients.reads.clone());
    let found = api.get_opt(name).await.map_err(Error::of_write("get", which.resource))?;
    let remedy = format!("kubectl get {} lists them", which.resource);
    found.ok_or_else(|| Error::NotFound { kind: which.word, name: name.to_owned(), remedy })
}

impl Which {
    fn written(self, name: String, changed: bool, message: String) -> Written {
        Written { kind: self.kind, name, changed, message }
    }
}
