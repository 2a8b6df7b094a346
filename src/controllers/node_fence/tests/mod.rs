//! The incident, step by step, in a cluster that lives in one value. Expectations come from the design's order.

mod build;
mod checks;
mod fencer;
mod guard;
mod order;
mod property;
mod proof;
mod returns;
mod waits;
mod world;
