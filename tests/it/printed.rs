//! What `kubectl get` prints of a kind: the server makes the table.
#![allow(clippy::indexing_slicing, reason = "a test says what it expects by panicking")]

use http::{Request, header};
use kube::Client;
use libtest_mimic::Failed;
use serde_json::Value;

/// The columns, which are those of `kubectl get` and, after them, those that `-o wide` adds; and one row.
#[derive(Debug)]
pub struct Printed {
    pub columns: Vec<String>,
    pub wide: Vec<String>,
    cells: Vec<(String, Value)>,
}

impl Printed {
    /// Asks for the table of one object, as kubectl does.
    pub async fn of(client: &Client, path: &str) -> Result<Self, Failed> {
        let request = Request::get(path).header(header::ACCEPT, "application/json;as=Table;v=v1;g=meta.k8s.io");
        let table: Value = client.request(request.body(Vec::new())?).await?;
        let columns = table["columnDefinitions"].as_array().ok_or("no table")?;
        let name = |column: &Value| column["name"].as_str().unwrap_or_default().to_owned();
        let (usual, wide): (Vec<_>, Vec<_>) = columns.iter().partition(|column| column["priority"].as_i64() == Some(0));
        let cells = table["rows"][0]["cells"].as_array().ok_or("no row")?;
        Ok(Self {
            columns: usual.into_iter().map(name).collect(),
            wide: wide.into_iter().map(name).collect(),
            cells: columns.iter().map(name).zip(cells.iter().cloned()).collect(),
        })
    }

    /// What stands in the column of this name; null where nothing does.
    pub fn cell(&self, column: &str) -> &Value {
        self.cells.iter().find(|(name, _)| name == column).map_or(&Value::Null, |(_, cell)| cell)
    }
}
