//! What a CSI driver's node plugin that is not ready means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is done about a node where a driver's node plugin is not ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum DriverPluginDown {
    /// New pods are kept off it.
    TaintNode,
    /// Nothing.
    Ignore,
}
