//! Heartbeats: a node's death in seconds. Each agent sends one small authenticated datagram per second to every replica of
//! the controller; before silence counts for anything, peers are asked. Nothing of it is written to the API at rest.
//!
//! `agent` and `monitor` hold all of the protocol, for either side, without a socket or a clock; `sender` and `listener`
//! give them both, and `announce` tells the agents where the replicas are. `neighbours` introduces agents to each other, and
//! `peers` is what an agent hears of its own: for self-fencing alone.

pub mod agent;
pub mod announce;
pub mod keys;
pub mod listener;
pub mod metrics;
pub mod monitor;
pub mod neighbours;
pub mod peers;
pub mod replicas;
pub mod sender;
#[cfg(test)]
mod tests;
pub mod tracker;
pub mod verdict;
pub mod wire;
