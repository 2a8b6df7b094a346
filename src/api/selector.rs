//! Label selectors with the limits that our definitions need.

use std::collections::BTreeMap;

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// Label selector; empty selects everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelSelector {
    /// Label key to value; all must match.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "schema::labels")]
    pub match_labels: BTreeMap<String, String>,
    /// Label requirements; all must match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub match_expressions: Vec<Requirement>,
}

/// One requirement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.operator in ['In','NotIn'] ? has(self.values) && size(self.values) > 0 : !has(self.values) || size(self.values) == 0").message("values is required for In and NotIn and must be empty for Exists and DoesNotExist"))]
pub struct Requirement {
    /// Label key.
    #[schemars(length(min = 1, max = 317))]
    pub key: String,
    /// Relation of key to values.
    pub operator: Operator,
    /// Required for In and NotIn, empty otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub values: Vec<String>,
}

/// Relation of a label to values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label has one of the values.
    In,
    /// The label is absent or has none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether `labels` satisfy every part.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.match_labels.iter().all(|(key, value)| labels.get(key) == Some(value))
            && self.match_expressions.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|v| self.values.contains(v)),
            Operator::NotIn => value.is_none_or(|v| !self.values.contains(v)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect()
    }

    fn requirement(operator: Operator, values: &[&str]) -> LabelSelector {
        LabelSelector {
            match_expressions: vec![Requirement {
                key: "tier".into(),
                operator,
                values: values.iter().map(|v| (*v).into()).collect(),
            }],
            ..LabelSelector::default()
        }
    }

    #[test]
    fn every_operator_follows_the_kubernetes_rules() {
        let (with, without) = (labels(&[("tier", "db")]), labels(&[]));
        for (operator, values, on_with, on_without) in [
            (Operator::In, &["db"][..], true, false),
            (Operator::In, &["web"], false, false),
            (Operator::NotIn, &["db"], false, true),
            (Operator::NotIn, &["web"], true, true),
            (Operator::Exists, &[], true, false),
            (Operator::DoesNotExist, &[], false, true),
        ] {
            let selector = requirement(operator, values);
            assert_eq!(selector.matches(&with), on_with, "{operator:?} {values:?}");
            assert_eq!(selector.matches(&without), on_without, "{operator:?} {values:?}");
        }
    }

    #[test]
    fn the_empty_selector_selects_everything() {
        assert!(LabelSelector::default().matches(&labels(&[])));
    }
}
