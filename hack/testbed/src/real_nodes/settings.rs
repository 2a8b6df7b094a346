//! The files and arguments that a node's programs are started with, and nothing else.

use serde_json::{Value, json};

use super::RealNodeOptions;
use super::faults::NodeProgram;

/// The name of the image that holds a pod's namespaces.
pub(super) const PAUSE_IMAGE: &str = "docker.io/library/testbed-pause:latest";
/// containerd's socket in the node.
pub(super) const CONTAINERD_SOCKET: &str = "/run/containerd/containerd.sock";

/// What the files are made from.
pub(super) struct Settings<'a> {
    pub name: &'a str,
    pub options: &'a RealNodeOptions,
    /// `https://` and the API server's address in the control network.
    pub server: String,
    pub node_address: String,
    pub pod_subnet: String,
    pub plugins: &'a str,
    pub runc: String,
}

impl Settings<'_> {
    /// The files, by their path in the node.
    pub(super) fn files(&self) -> Vec<(&'static str, String)> {
        vec![
            ("etc/kubernetes/kubelet.json", pretty(&self.kubelet())),
            ("etc/kubernetes/kubelet.kubeconfig", pretty(&self.kubeconfig("kubelet"))),
            ("etc/kubernetes/kube-proxy.kubeconfig", pretty(&self.kubeconfig("kube-proxy"))),
            ("etc/cni/net.d/10-pods.conflist", pretty(&self.cni())),
            ("etc/containerd/config.toml", self.containerd()),
        ]
    }

    /// The arguments of one of the node's programs.
    pub(super) fn args(&self, program: NodeProgram) -> Vec<String> {
        let words: Vec<String> = match program {
            NodeProgram::Containerd => vec!["--config=/etc/containerd/config.toml".into()],
            NodeProgram::Kubelet => vec![
                "--config=/etc/kubernetes/kubelet.json".into(),
                "--kubeconfig=/etc/kubernetes/kubelet.kubeconfig".into(),
                "--cert-dir=/var/lib/kubelet/pki".into(),
                format!("--hostname-override={}", self.name),
                format!("--node-ip={}", self.node_address),
                format!("--node-labels={}", self.labels()),
            ],
            NodeProgram::KubeProxy => vec![
                "--kubeconfig=/etc/kubernetes/kube-proxy.kubeconfig".into(),
                format!("--hostname-override={}", self.name),
                "--proxy-mode=iptables".into(),
                // The machine's limit is not ours to set.
                "--conntrack-max-per-core=0".into(),
                // Without the kernel's bridge filter, answers of a pod on the same node would not find back otherwise.
                "--masquerade-all=true".into(),
            ],
        };
        words
    }

    fn labels(&self) -> String {
        let pairs: Vec<String> = self.options.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    }

    fn kubelet(&self) -> Value {
        let options = self.options;
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": false},
                "webhook": {"enabled": true},
                "x509": {"clientCAFile": "/etc/kubernetes/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": format!("unix://{CONTAINERD_SOCKET}"),
            "resolvConf": "/etc/resolv.conf",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
            // Several kubelets share the machine: none of them divides it up, cleans it or sets its kernel.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": false,
            "enforceNodeAllocatable": [],
            "failCgroupV1": false,
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": false,
            "registerNode": true,
            "nodeStatusUpdateFrequency": milliseconds(options.status_update_frequency),
            "nodeLeaseDurationSeconds": options.lease_duration.as_secs().max(1),
            "syncFrequency": milliseconds(options.sync_frequency),
            "volumeStatsAggPeriod": milliseconds(options.volume_stats_period),
        })
    }

    fn kubeconfig(&self, user: &str) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "testbed", "cluster": {
                "server": self.server,
                "certificate-authority": "/etc/kubernetes/ca.crt",
            }}],
            "users": [{"name": user, "user": {
                "client-certificate": format!("/etc/kubernetes/{user}.crt"),
                "client-key": format!("/etc/kubernetes/{user}.key"),
            }}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": user}}],
            "current-context": "testbed",
        })
    }

    fn cni(&self) -> Value {
        json!({
            "cniVersion": "1.0.0",
            "name": "pods",
            "plugins": [
                {
                    "type": "bridge",
                    "bridge": "cni0",
                    "isGateway": true,
                    "hairpinMode": true,
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{"subnet": self.pod_subnet}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                        // Empty after a reboot, as the pods are gone.
                        "dataDir": "/run/cni",
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": true}},
            ],
        })
    }

    fn containerd(&self) -> String {
        let (plugins, runc) = (self.plugins, &self.runc);
        format!(
            r#"version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
disable_apparmor = true
# Without CAP_SYS_RESOURCE runc may not do what it is asked for otherwise.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugins}"]
conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"
SystemdCgroup = false
"#
        )
    }
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn milliseconds(time: std::time::Duration) -> String {
    format!("{}ms", time.as_millis())
}
