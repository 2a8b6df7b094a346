//! What can be chosen about a testbed. Defaults are upstream's, but for one that costs each start
//! seconds: see [`TestbedOptions::controller_manager_qps`].

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

/// A part of the control plane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "each variant is the component of that name")]
pub enum Component {
    Etcd,
    ApiServer,
    ControllerManager,
    Scheduler,
}

/// How a testbed's control plane is set up.
#[derive(Clone, Debug)]
pub struct TestbedOptions {
    /// The folder of programs that the user named; see [`crate::binaries`].
    pub binaries: Option<PathBuf>,
    /// Feature gates for the apiserver, the controller-manager and the scheduler.
    pub feature_gates: BTreeMap<String, bool>,
    /// Whether kube-controller-manager runs. Without it nothing makes the default ServiceAccount
    /// of a namespace, so the admission plugin that asks for it is off.
    pub controller_manager: bool,
    /// Whether kube-scheduler runs.
    pub scheduler: bool,
    /// How often the node controller looks at the nodes.
    pub node_monitor_period: Duration,
    /// How long a node may be silent until it becomes `Ready=Unknown`.
    pub node_monitor_grace_period: Duration,
    /// Requests per second of the controller-manager to the apiserver, per client of it. Upstream
    /// has 20, and 30 at once, with which it needs four more seconds to start; a measurement that
    /// should show what a real cluster does sets these two.
    pub controller_manager_qps: u32,
    /// Requests that the controller-manager may send at once.
    pub controller_manager_burst: u32,
    /// The address of this machine by which real nodes and their pods find the apiserver, which then listens on every
    /// address, asks node certificates for no more than nodes may (NodeRestriction), and reaches kubelets for logs and exec.
    pub advertise_address: Option<Ipv4Addr>,
    /// Whether the apiserver writes the audit log that [`crate::audit`] reads.
    pub audit: bool,
    /// Further arguments, behind the testbed's own.
    pub extra_args: BTreeMap<Component, Vec<String>>,
}

impl Default for TestbedOptions {
    fn default() -> Self {
        Self {
            binaries: None,
            feature_gates: BTreeMap::new(),
            controller_manager: true,
            scheduler: true,
            node_monitor_period: Duration::from_secs(5),
            node_monitor_grace_period: Duration::from_secs(50),
            controller_manager_qps: 200,
            controller_manager_burst: 300,
            advertise_address: None,
            audit: true,
            extra_args: BTreeMap::new(),
        }
    }
}

impl TestbedOptions {
    /// Only etcd and the apiserver: enough for tests of schemas, admission policies and RBAC.
    pub fn api_server_only() -> Self {
        Self { controller_manager: false, scheduler: false, ..Self::default() }
    }

    /// Silent nodes are noticed after 8 seconds instead of 50, for tests that wait for it.
    /// Goes with [`KwokOptions::fast`].
    pub fn fast_nodes() -> Self {
        Self {
            node_monitor_period: Duration::from_secs(1),
            node_monitor_grace_period: Duration::from_secs(8),
            ..Self::default()
        }
    }

    pub(crate) fn runs(&self, component: Component) -> bool {
        match component {
            Component::Etcd | Component::ApiServer => true,
            Component::ControllerManager => self.controller_manager,
            Component::Scheduler => self.scheduler,
        }
    }
}

/// How an external-attacher is set up. Defaults are upstream's.
#[derive(Clone, Debug)]
pub struct AttacherOptions {
    /// How often attachments are compared with what the driver lists.
    pub reconcile_sync: Duration,
    /// Requests per second to the apiserver.
    pub qps: u32,
    /// Requests that may be sent at once.
    pub burst: u32,
    /// How long a call of the driver may take.
    pub timeout: Duration,
    /// How many attachments are worked on at once.
    pub worker_threads: u32,
    /// The first and the longest pause between two tries for one attachment.
    pub retry_interval: (Duration, Duration),
}

impl Default for AttacherOptions {
    fn default() -> Self {
        Self {
            reconcile_sync: Duration::from_secs(60),
            qps: 5,
            burst: 10,
            timeout: Duration::from_secs(15),
            worker_threads: 10,
            retry_interval: (Duration::from_secs(1), Duration::from_secs(300)),
        }
    }
}

/// How kwok keeps nodes alive.
#[derive(Clone, Debug)]
pub struct KwokOptions {
    /// How long a node's Lease lasts; kwok renews it after a quarter of that. A kwok that is
    /// started for a node whose last one was killed waits until the old Lease has run out.
    pub lease_duration: Duration,
}

impl Default for KwokOptions {
    fn default() -> Self {
        Self { lease_duration: Duration::from_secs(40) }
    }
}

impl KwokOptions {
    /// A renewal each second, for short grace periods.
    pub fn fast() -> Self {
        Self { lease_duration: Duration::from_secs(4) }
    }
}

/// The nodes that one kwok process keeps alive, and that its end kills.
#[derive(Clone, Debug)]
pub enum KwokNodes {
    /// The node of this name.
    One(String),
    /// All nodes that this label selector matches, for many nodes that die together or never.
    Labelled(String),
}
