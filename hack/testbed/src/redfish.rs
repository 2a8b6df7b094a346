//! BMCs of simulated nodes, over real HTTP: Redfish with basic authentication, a power state that changes only some time after
//! the call was taken, and faults. What was asked is on record.

use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::{Path, Request, State};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Router, body::Bytes};
use http::StatusCode;
use http::header::{AUTHORIZATION, CONTENT_TYPE, WWW_AUTHENTICATE};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::lock::lock;
use crate::nodes::SimulatedNode;

/// Who may log in.
pub const USER: &str = "fencer";
/// And how.
pub const PASSWORD: &str = "open sesame";
/// The two as they come in a request.
const BASIC: &str = "Basic ZmVuY2VyOm9wZW4gc2VzYW1l";

/// What goes wrong at a BMC.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// So many calls of any kind are answered with 503.
    pub refuse: usize,
    /// Resets are taken and not carried out.
    pub deaf: bool,
    /// It says that the machine is off, whatever is true.
    pub calls_off: bool,
    /// How long a machine takes to lose its power.
    pub delay: Duration,
}

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The machine.
    pub machine: String,
    /// Method and path below the machine's URL.
    pub what: String,
    /// `ResetType`, of a reset.
    pub reset: Option<String>,
    /// How it was answered.
    pub status: u16,
}

struct Machine {
    node: SimulatedNode,
    uuid: String,
    power: &'static str,
    faults: Faults,
}

#[derive(Clone, Default)]
struct Shared {
    machines: Arc<Mutex<BTreeMap<String, Machine>>>,
    asked: Arc<Mutex<Vec<Asked>>>,
}

/// The BMCs; they end when this is dropped.
pub struct Redfish {
    address: SocketAddr,
    shared: Shared,
    _serving: JoinSet<()>,
}

impl Redfish {
    /// Serves on any free port of 127.0.0.1.
    ///
    /// # Errors
    /// When there is none.
    pub async fn start() -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let (address, shared) = (listener.local_addr()?, Shared::default());
        let routes = routes(shared.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            if let Err(error) = axum::serve(listener, routes).await {
                tracing::warn!(%error, "the BMCs end");
            }
        });
        Ok(Self { address, shared, _serving: serving })
    }

    /// Gives a node a BMC that calls the machine by this UUID. Returns its URL.
    pub fn add(&self, node: SimulatedNode, uuid: &str) -> String {
        let name = node.name().to_owned();
        let machine = Machine { node, uuid: uuid.to_owned(), power: "On", faults: Faults::default() };
        lock(&self.shared.machines).insert(name.clone(), machine);
        format!("http://{}/{name}", self.address)
    }

    /// What goes wrong at a machine from now on.
    pub fn set_faults(&self, machine: &str, faults: Faults) {
        if let Some(machine) = lock(&self.shared.machines).get_mut(machine) {
            machine.faults = faults;
        }
    }

    /// A machine loses its power without anybody's call: it is off when this returns, and its BMC says so.
    pub async fn lose_power(&self, machine: &str) {
        let node = lock(&self.shared.machines).get(machine).map(|machine| machine.node.clone());
        if let Some(node) = node {
            node.power_off().await;
        }
        if let Some(machine) = lock(&self.shared.machines).get_mut(machine) {
            machine.power = "Off";
        }
    }

    /// What a machine was asked, in order.
    pub fn asked(&self, machine: &str) -> Vec<Asked> {
        lock(&self.shared.asked).iter().filter(|asked| asked.machine == machine).cloned().collect()
    }

    /// The resets that a machine has taken.
    pub fn resets(&self, machine: &str) -> Vec<String> {
        let taken = self.asked(machine).into_iter().filter(|asked| asked.status == 204);
        taken.filter_map(|asked| asked.reset).collect()
    }
}

fn routes(shared: Shared) -> Router {
    Router::new()
        .route("/{machine}/redfish/v1/Systems", get(systems))
        .route("/{machine}/redfish/v1/Systems/1", get(system))
        .route("/{machine}/redfish/v1/Systems/1/Actions/ComputerSystem.Reset", post(reset))
        .fallback(|| async { StatusCode::NOT_FOUND })
        .layer(middleware::from_fn_with_state(shared.clone(), guarded))
        .with_state(shared)
}

/// Lets nobody in without credentials, lets go wrong what is to go wrong, and records the call.
async fn guarded(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let path = request.uri().path().trim_start_matches('/').to_owned();
    let (machine, rest) = path.split_once('/').unwrap_or((path.as_str(), ""));
    let what = format!("{} /{rest}", request.method());
    let known = request.headers().get(AUTHORIZATION).is_some_and(|given| given == BASIC);
    let refused = lock(&shared.machines).get_mut(machine).is_some_and(|machine| {
        let refused = machine.faults.refuse > 0;
        machine.faults.refuse = machine.faults.refuse.saturating_sub(1);
        refused
    });
    let answer = match (known, refused) {
        (false, _) => (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Basic realm=\"bmc\"")]).into_response(),
        (true, true) => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        (true, false) => next.run(request).await,
    };
    let reset = answer.extensions().get::<ResetType>().map(|reset| reset.0.clone());
    let asked = Asked { machine: machine.to_owned(), what, reset, status: answer.status().as_u16() };
    lock(&shared.asked).push(asked);
    answer
}

fn respond(body: &Value) -> Response {
    ([(CONTENT_TYPE, "application/json")], body.to_string()).into_response()
}

async fn systems() -> Response {
    respond(&json!({ "Members": [{ "@odata.id": "/redfish/v1/Systems/1" }], "Members@odata.count": 1 }))
}

async fn system(State(shared): State<Shared>, Path(name): Path<String>) -> Response {
    match lock(&shared.machines).get(&name) {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(machine) => respond(&json!({
            "@odata.id": "/redfish/v1/Systems/1",
            "UUID": machine.uuid,
            "PowerState": if machine.faults.calls_off { "Off" } else { machine.power },
            "Actions": { "#ComputerSystem.Reset": {
                "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
                "ResetType@Redfish.AllowableValues": ["On", "ForceOff"],
            } },
        })),
    }
}

/// What a reset asked for, for the record.
#[derive(Clone)]
struct ResetType(String);

async fn reset(State(shared): State<Shared>, Path(name): Path<String>, body: Bytes) -> Response {
    let Ok(body) = serde_json::from_slice::<Value>(&body) else { return StatusCode::BAD_REQUEST.into_response() };
    let kind = body.get("ResetType").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut answer = take(&shared, &name, &kind).into_response();
    answer.extensions_mut().insert(ResetType(kind));
    answer
}

/// Takes a reset that fits the power state; it is carried out later.
fn take(shared: &Shared, name: &str, kind: &str) -> StatusCode {
    let mut machines = lock(&shared.machines);
    let Some(machine) = machines.get_mut(name) else { return StatusCode::NOT_FOUND };
    let next = match (kind, machine.power) {
        ("ForceOff", "On") => "PoweringOff",
        ("On", "Off") => "PoweringOn",
        ("ForceOff" | "On", _) => return StatusCode::CONFLICT,
        _ => return StatusCode::BAD_REQUEST,
    };
    if !machine.faults.deaf {
        machine.power = next;
        tokio::spawn(carry_out(shared.clone(), name.to_owned(), machine.node.clone(), next, machine.faults.delay));
    }
    StatusCode::NO_CONTENT
}

/// The power state is told when it is so: Off when nothing runs any more.
async fn carry_out(shared: Shared, name: String, node: SimulatedNode, next: &'static str, delay: Duration) {
    tokio::time::sleep(delay).await;
    let power = if next == "PoweringOff" {
        node.power_off().await;
        "Off"
    } else {
        if let Err(error) = node.revive().await {
            tracing::warn!(%error, name, "the machine does not boot");
        }
        "On"
    };
    if let Some(machine) = lock(&shared.machines).get_mut(&name) {
        machine.power = power;
    }
}
