//! The incident, step by step, in a cluster that lives in one value. Expectations come from the design's order.

mod order;
mod proof;
mod returns;
mod world;
