//! What is staged on nodes, and given to pods there: the calls of the driver's node plugin.

use tonic::Status;

use super::{Refusal, State};
use crate::ledger::{Event, Operation, Reason};

impl State {
    /// The node lost what its kernel knew: nothing is staged there any more.
    pub fn forget_staging(&mut self, node: &str) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.staged.clear();
            node.targets.clear();
        }
    }

    pub fn stage(&mut self, volume: &str, node: &str) -> Result<(), Status> {
        let id = self.volume(volume)?.0.clone();
        self.node(node)?;
        if !self.attaches {
            self.publish(volume, node, false)?;
        }
        self.admit(volume, node, Operation::Stage).map_err(|Refusal(reason)| match reason {
            Reason::LinkDown => Status::unavailable("the node does not reach the array"),
            _ => Status::failed_precondition(format!("volume {volume} is not published to node {node}")),
        })?;
        let there = self.nodes.entry(node.into()).or_default();
        if there.staged.insert(id.clone()) {
            self.record(&id, node, Event::Staged);
        }
        Ok(())
    }

    pub fn unstage(&mut self, volume: &str, node: &str) -> Result<(), Status> {
        self.node(node)?;
        let there = self.nodes.entry(node.into()).or_default();
        if there.targets.iter().any(|(id, _)| &**id == volume) {
            return Err(Status::failed_precondition(format!(
                "volume {volume} is still published to a pod on node {node}"
            )));
        }
        if let Some(id) = there.staged.take(volume) {
            self.record(&id, node, Event::Unstaged);
            if !self.attaches {
                self.unpublish(volume, Some(node))?;
            }
        }
        Ok(())
    }

    pub fn publish_to_pod(&mut self, volume: &str, node: &str, target: &str) -> Result<(), Status> {
        self.volume(volume)?;
        self.node(node)?;
        let there = self.nodes.entry(node.into()).or_default();
        let Some(id) = there.staged.get(volume).cloned() else {
            return Err(Status::failed_precondition(format!("volume {volume} is not staged on node {node}")));
        };
        there.targets.insert((id, target.to_owned()));
        Ok(())
    }

    pub fn unpublish_from_pod(&mut self, volume: &str, node: &str, target: &str) -> Result<(), Status> {
        self.node(node)?;
        if let Some(there) = self.nodes.get_mut(node) {
            there.targets.remove(&(volume.into(), target.to_owned()));
        }
        Ok(())
    }
}
