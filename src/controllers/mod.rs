//! The controllers, one folder each, all of one shape: `observe` gathers what is seen, `decide` (pure) says the next
//! step, `act` carries it out, `status` (pure) says what is reported, `mod` wires them to the informers.

pub mod node_fence;
pub mod resiliency_policy;
