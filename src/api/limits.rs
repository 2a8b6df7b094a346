//! Numbers that a policy gives absolutely or as a share of the nodes.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// A whole number, or a percentage such as `10%`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum IntOrPercent {
    /// So many.
    Int(u32),
    /// This share of the total, as text (`10%`).
    Percent(String),
}

impl IntOrPercent {
    /// The number out of `total`; a percentage is rounded up, so that any share of a small cluster is at least one.
    /// A text that is no percentage counts as 0: the schema refuses it, and 0 acts on nothing.
    pub fn resolve(&self, total: usize) -> usize {
        match self {
            Self::Int(number) => *number as usize,
            Self::Percent(text) => {
                let percent: usize = text.strip_suffix('%').and_then(|p| p.parse().ok()).unwrap_or(0);
                (total * percent.min(100)).div_ceil(100)
            }
        }
    }
}

impl JsonSchema for IntOrPercent {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "IntOrPercent".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "maxLength": 4,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentage_is_rounded_up() {
        let tenth = IntOrPercent::Percent("10%".into());
        assert_eq!([0, 1, 3, 10, 11, 100].map(|n| tenth.resolve(n)), [0, 1, 1, 1, 2, 10]);
        assert_eq!(IntOrPercent::Int(3).resolve(1), 3);
        assert_eq!(IntOrPercent::Percent("many".into()).resolve(10), 0);
    }
}
