//! `kubectl bulkhead`: says why something is done or not done, what would be done, and lets a person approve, hold and
//! pause. It runs on a person's machine with the person's own rights, decides with the functions of the controller, and
//! writes nothing without being asked.

mod approve;
mod arguments;
mod doctor;
mod error;
mod explain_node;
mod explain_pod;
mod foresee;
mod gather;
mod incident;
mod pause;
mod print;
#[cfg(test)]
mod printed_tests;
pub mod sidecar;
mod simulate;
mod support_bundle;
mod words;
mod write;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::api::names;

pub use doctor::WriterLog;
pub use error::{Error, Result};
pub use print::Output;

use gather::{Cluster, Gathered};
use print::Report;

/// Bulkhead for people: why it acts or does not, what it would do, what is not in order, and how to stop it.
#[derive(Debug, Parser)]
#[command(name = "kubectl-bulkhead", bin_name = "kubectl bulkhead", version)]
pub struct Cli {
    #[command(flatten)]
    connection: Connection,
    #[command(subcommand)]
    command: Command,
}

/// How the cluster is reached, and how the answer looks.
#[derive(Debug, Args)]
struct Connection {
    /// Kubeconfig file. Without it: KUBECONFIG, then ~/.kube/config.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig file. Without it: the current one.
    #[arg(long, global = true)]
    context: Option<String>,
    /// Namespace of a pod, or of a driver's controller. Without it: that of the context; for a controller all.
    #[arg(long, short, global = true)]
    namespace: Option<String>,
    /// Namespace of the operator, where its Leases live.
    #[arg(long, global = true, env = "BULKHEAD_NAMESPACE", default_value = names::OPERATOR_NAMESPACE)]
    operator_namespace: String,
    /// How the answer is printed.
    #[arg(long, short, global = true, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Why something was done, is done, or is not done.
    #[command(subcommand)]
    Explain(Explained),
    /// The exact plan that would be carried out. Writes nothing.
    #[command(subcommand)]
    Simulate(Simulated),
    /// Approve the plan of a node's incident, as it was read.
    #[command(subcommand)]
    Approve(approve::Approve),
    /// Stop a node's incident before its next destructive step.
    #[command(subcommand)]
    Hold(approve::Hold),
    /// Let a node's incident go on.
    #[command(subcommand)]
    Unhold(approve::Unhold),
    /// Emergency brake: nothing new is begun, and running incidents stop before the next destructive step.
    #[command(subcommand)]
    Pause(pause::Pause),
    /// Take the emergency brake away.
    #[command(subcommand)]
    Resume(pause::Resume),
    /// What is not in order, before it is needed. Exit code 0: nothing was found; 1: warnings; 2: it could not look.
    Doctor(doctor::Doctor),
    /// What adds our sidecar to the controller of a CSI driver, and the rights that it needs. Writes nothing.
    Sidecar(sidecar::Sidecar),
    /// Collect what somebody who helps needs to see into one archive. No Secrets; what looks like a credential is masked.
    SupportBundle(support_bundle::SupportBundle),
}

#[derive(Debug, Subcommand)]
enum Explained {
    /// A node: the evidence, the brakes, its pods, its incident.
    Node {
        /// Its name.
        name: String,
    },
    /// A pod: its policies, what would become of it, its volumes, its last incident.
    Pod {
        /// Its name.
        name: String,
    },
}

#[derive(Debug, Subcommand)]
enum Simulated {
    /// A node that fails now.
    Node {
        /// Its name.
        name: String,
    },
}

/// Runs the command.
pub async fn run(cli: Cli) -> ExitCode {
    match answer(cli).await {
        Ok((text, code)) => {
            print!("{text}");
            code
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::from(2)
        }
    }
}

async fn answer(cli: Cli) -> Result<(String, ExitCode)> {
    let Connection { kubeconfig, context, namespace, operator_namespace, output } = cli.connection;
    let cluster = Cluster::connect(kubeconfig.as_deref(), context.as_deref(), &operator_namespace).await?;
    let named = namespace.clone();
    let reached = [("--kubeconfig", kubeconfig.map(|path| path.display().to_string())), ("--context", context)];
    let namespace = namespace.unwrap_or_else(|| cluster.clients.reads.default_namespace().to_owned());
    let fine = |text: String| (text, ExitCode::SUCCESS);
    Ok(match cli.command {
        Command::Explain(Explained::Node { name }) => {
            fine(output.render(&node(&cluster.gather().await?, &name).await?)?)
        }
        Command::Explain(Explained::Pod { name }) => {
            fine(output.render(&pod(&cluster.gather().await?, &namespace, &name).await?)?)
        }
        Command::Simulate(Simulated::Node { name }) => {
            fine(output.render(&simulation(&cluster.gather().await?, &name).await?)?)
        }
        Command::Approve(asked) => fine(asked.run(&cluster, output).await?),
        Command::Hold(asked) => fine(asked.run(&cluster, output).await?),
        Command::Unhold(asked) => fine(asked.run(&cluster, output).await?),
        Command::Pause(asked) => fine(asked.run(&cluster, output).await?),
        Command::Resume(asked) => fine(asked.run(&cluster, output).await?),
        Command::Doctor(asked) => asked.run(&cluster, output).await?,
        Command::Sidecar(asked) => fine(asked.run(&cluster, named.as_deref(), &reached, output).await?),
        Command::SupportBundle(asked) => fine(output.render(&asked.run(&cluster).await?)?),
    })
}

async fn simulation(gathered: &Gathered, name: &str) -> Result<impl Report + use<>> {
    gathered.existing_node(name)?;
    Ok(gathered.failure(name).await?.1)
}

async fn node(gathered: &Gathered, name: &str) -> Result<impl Report + use<>> {
    let (node, lease, fence) = (gathered.node(name)?, gathered.lease(name), gathered.fence(name));
    let present = gathered.present(name).await?;
    let (failure, simulation) = gathered.failure(name).await?;
    let facts = explain_node::Facts {
        name,
        node: node.as_deref(),
        lease: lease.as_deref(),
        fence: fence.as_deref(),
        present: &present,
        failure: &failure,
        simulation: &simulation,
    };
    let renewed = |fencer: &str| gathered.operator_lease_age(&names::fencer_lease(fencer));
    Ok(explain_node::explain_by_leases(&facts, renewed, gathered.now))
}

async fn pod(gathered: &Gathered, namespace: &str, name: &str) -> Result<impl Report + use<>> {
    let pod = gathered.pod(namespace, name).await?;
    let node = pod.pod.spec.node_name.clone().unwrap_or_default();
    let (failure, simulation) = gathered.failure(&node).await?;
    let facts = explain_pod::Facts {
        pod: &pod,
        seen: &failure.seen,
        simulation: Some(&simulation),
        fences: &gathered.fences(),
    };
    Ok(explain_pod::explain(&facts, gathered.now))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        Cli::command().debug_assert();
    }
}
