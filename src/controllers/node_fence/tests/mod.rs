//! The incident, step by step, in a cluster that lives in one value. Expectations come from the design's order.

mod act;
mod ahead;
mod boots;
mod build;
mod checks;
mod classes;
mod cleaning;
mod effects;
mod external;
mod fencer;
mod guard;
mod held;
mod io;
mod machine;
mod network;
mod order;
mod outage;
mod proof;
mod property;
mod returns;
mod storage;
mod units;
mod volumes;
mod waits;
mod waves;
mod world;
