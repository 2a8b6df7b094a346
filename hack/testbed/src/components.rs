//! The command lines of the upstream programs, and nothing else.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use crate::binaries::Program;
use crate::options::{AttacherOptions, Component, KwokNodes, KwokOptions, TestbedOptions};
use crate::pki::{CertificateFiles, Pki};
use crate::ports::Ports;

/// The first address of the Services' range, which is the apiserver's own.
pub(crate) const SERVICE_ADDRESS: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 0, 0, 1);

/// What the command lines are made from.
pub(crate) struct Layout<'a> {
    pub folder: &'a Path,
    pub ports: Ports,
    pub pki: &'a Pki,
    pub options: &'a TestbedOptions,
    /// Kubeconfig files of the controller-manager and the scheduler.
    pub controller_manager: &'a Path,
    pub scheduler: &'a Path,
    /// By which kubelets know the apiserver, if it is to reach any.
    pub kubelet_client: Option<CertificateFiles>,
}

/// Arguments of a program, collected flag by flag.
#[derive(Default)]
struct Args(Vec<OsString>);

impl Args {
    fn flag(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        let mut argument = OsString::from(format!("--{name}="));
        argument.push(value);
        self.0.push(argument);
        self
    }

    fn duration(self, name: &str, value: Duration) -> Self {
        self.flag(name, format!("{}ms", value.as_millis()))
    }

    fn number(self, name: &str, value: impl ToString) -> Self {
        self.flag(name, value.to_string())
    }
}

impl Component {
    /// The program that the component is.
    pub(crate) fn program(self) -> Program {
        match self {
            Self::Etcd => Program::Etcd,
            Self::ApiServer => Program::KubeApiserver,
            Self::ControllerManager => Program::KubeControllerManager,
            Self::Scheduler => Program::KubeScheduler,
        }
    }

    /// The component's arguments.
    pub(crate) fn args(self, layout: &Layout<'_>) -> Vec<OsString> {
        let mut args = match self {
            Self::Etcd => etcd(layout),
            Self::ApiServer => apiserver(layout),
            Self::ControllerManager => controller_manager(layout),
            Self::Scheduler => secure_server(layout, layout.ports.scheduler)
                .flag("kubeconfig", layout.scheduler)
                .flag("leader-elect", "false"),
        };
        if self != Self::Etcd && !layout.options.feature_gates.is_empty() {
            let gates: Vec<String> =
                layout.options.feature_gates.iter().map(|(gate, on)| format!("{gate}={on}")).collect();
            args = args.flag("feature-gates", gates.join(","));
        }
        let extra = layout.options.extra_args.get(&self);
        args.0.extend(extra.into_iter().flatten().map(OsString::from));
        args.0
    }
}

fn etcd(layout: &Layout<'_>) -> Args {
    let client = format!("http://127.0.0.1:{}", layout.ports.etcd);
    let peer = format!("http://127.0.0.1:{}", layout.ports.etcd_peer);
    Args::default()
        .flag("data-dir", layout.folder.join("etcd"))
        .flag("listen-client-urls", &client)
        .flag("advertise-client-urls", &client)
        .flag("listen-peer-urls", &peer)
        .flag("initial-advertise-peer-urls", &peer)
        .flag("initial-cluster", format!("default={peer}"))
        // The data live no longer than the testbed.
        .flag("unsafe-no-fsync", "true")
        .flag("log-level", "warn")
}

/// TLS and the address, which all servers of Kubernetes take alike.
fn secure_server(layout: &Layout<'_>, port: u16) -> Args {
    secure_server_on("127.0.0.1", layout, port)
}

fn secure_server_on(address: &str, layout: &Layout<'_>, port: u16) -> Args {
    let serving = layout.pki.serving();
    Args::default()
        .flag("bind-address", address)
        .number("secure-port", port)
        .flag("tls-cert-file", serving.certificate)
        .flag("tls-private-key-file", serving.key)
}

fn apiserver(layout: &Layout<'_>) -> Args {
    let advertised = layout.options.advertise_address;
    let address = if advertised.is_some() { "0.0.0.0" } else { "127.0.0.1" };
    let mut args = secure_server_on(address, layout, layout.ports.apiserver)
        .flag("etcd-servers", format!("http://127.0.0.1:{}", layout.ports.etcd))
        .flag("client-ca-file", layout.pki.authority_file())
        .flag("authorization-mode", "Node,RBAC")
        .flag("service-account-issuer", "https://kubernetes.default.svc")
        .flag("service-account-signing-key-file", layout.pki.service_account_key())
        .flag("service-account-key-file", layout.pki.service_account_public_key())
        .flag("service-cluster-ip-range", "10.0.0.0/16")
        .flag("allow-privileged", "true");
    args = match advertised {
        // A loopback address may not stand in the endpoints of the Service `kubernetes`.
        None => args.flag("endpoint-reconciler-type", "none"),
        Some(address) => args
            .flag("advertise-address", address.to_string())
            .flag("enable-admission-plugins", "NodeRestriction")
            .flag("kubelet-preferred-address-types", "InternalIP"),
    };
    if let Some(files) = &layout.kubelet_client {
        args = args.flag("kubelet-client-certificate", &files.certificate).flag("kubelet-client-key", &files.key);
    }
    if !layout.options.controller_manager {
        args = args.flag("disable-admission-plugins", "ServiceAccount");
    }
    if layout.options.audit {
        args = args
            .flag("audit-policy-file", layout.folder.join("audit-policy.yaml"))
            .flag("audit-log-path", layout.folder.join("audit.log"))
            // In megabytes: one file, never rotated.
            .flag("audit-log-maxsize", "100000");
    }
    args
}

fn controller_manager(layout: &Layout<'_>) -> Args {
    let options = layout.options;
    secure_server(layout, layout.ports.controller_manager)
        .flag("kubeconfig", layout.controller_manager)
        .flag("leader-elect", "false")
        .flag("use-service-account-credentials", "true")
        .flag("service-account-private-key-file", layout.pki.service_account_key())
        .flag("root-ca-file", layout.pki.authority_file())
        .duration("node-monitor-period", options.node_monitor_period)
        .duration("node-monitor-grace-period", options.node_monitor_grace_period)
        .number("kube-api-qps", options.controller_manager_qps)
        .number("kube-api-burst", options.controller_manager_burst)
}

/// The arguments of an external-attacher for the CSI driver behind `socket`.
pub(crate) fn attacher(kubeconfig: &Path, socket: &Path, options: &AttacherOptions) -> Vec<OsString> {
    let (retry_start, retry_max) = options.retry_interval;
    Args::default()
        .flag("kubeconfig", kubeconfig)
        .flag("csi-address", socket)
        .flag("leader-election", "false")
        .duration("reconcile-sync", options.reconcile_sync)
        .duration("timeout", options.timeout)
        .duration("retry-interval-start", retry_start)
        .duration("retry-interval-max", retry_max)
        .number("kube-api-qps", options.qps)
        .number("kube-api-burst", options.burst)
        .number("worker-threads", options.worker_threads)
        .0
}

/// The arguments of a kwok for some nodes.
pub(crate) fn kwok(kubeconfig: &Path, stages: &Path, nodes: &KwokNodes, options: &KwokOptions) -> Vec<OsString> {
    let args = Args::default()
        .flag("kubeconfig", kubeconfig)
        .flag("config", stages)
        .number("node-lease-duration-seconds", options.lease_duration.as_secs().max(1));
    match nodes {
        KwokNodes::One(name) => args.flag("manage-single-node", name).0,
        KwokNodes::Labelled(selector) => args.flag("manage-nodes-with-label-selector", selector).0,
    }
}
