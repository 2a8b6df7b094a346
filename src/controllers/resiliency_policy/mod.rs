//! Protects the pods that policies select: opens a NodeFence, with its plan, when a node is declared failed.

pub mod brakes;
pub mod decide;
pub mod evidence;
pub mod plan;
pub mod select;
pub mod status;
