//! The network of a testbed's real nodes: two links per node, control and storage, that end in a switch which is a network
//! namespace of its own. The host is in both networks. What listens there, and who talks, is not known here.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::path::PathBuf;

use super::command::{HOST, InNamespaces, run};
use super::error::RealNodeError;
use super::guard::Guard;

/// The first of the machine's subnets `10.x.0.0/16` that testbeds use, and how many there are: one each.
const FIRST_SUBNET: u8 = 100;
const SUBNETS: u8 = 64;
/// How many real nodes fit into a testbed. Each knows the way to the pods of all others from its start.
pub(super) const MAX_NODES: u8 = 32;
/// The share of its packets that a lossy link loses.
const LOSS: &str = "0.01";

/// One of the two links of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Link {
    Control,
    Storage,
}

impl Link {
    pub(super) const BOTH: [Self; 2] = [Self::Control, Self::Storage];

    /// The bridge's name in the switch.
    fn bridge(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Storage => "storage",
        }
    }

    /// The interface's name in the node.
    fn interface(self) -> &'static str {
        match self {
            Self::Control => "eth0",
            Self::Storage => "eth1",
        }
    }
}

/// The networks of one testbed. Dropping it removes them, and all real nodes with them.
#[derive(Debug)]
pub struct NodeNetwork {
    second_byte: u8,
    pub(super) guard: Guard,
    /// Keeps the subnet from other testbeds; unlocked by the kernel when this process ends, however it ends.
    _lock: File,
}

impl NodeNetwork {
    /// Makes the networks, in a subnet that nothing on this machine uses.
    ///
    /// # Errors
    /// When this machine can have no real nodes, and says why; or when no subnet is free.
    pub async fn create() -> Result<Self, RealNodeError> {
        super::requirements::check()?;
        let taken = run(&HOST, "ip", ["-4", "-o", "route", "show", "table", "all"], "").await?;
        let links = run(&HOST, "ip", ["-o", "link", "show"], "").await?;
        for second_byte in FIRST_SUBNET..FIRST_SUBNET + SUBNETS {
            let host_link = format!("{}:", host_interface(second_byte, Link::Control));
            let used = taken.contains(&format!("10.{second_byte}.")) || links.contains(&host_link);
            let path = std::env::temp_dir().join(format!("bulkhead-network-{second_byte}.lock"));
            let lock = lock_file(&path)?;
            if used || lock.try_lock().is_err() {
                continue;
            }
            let guard = Guard::start(&format!("bulkhead-testbed-{second_byte}")).await?;
            let network = Self { second_byte, guard, _lock: lock };
            network.connect_host().await?;
            return Ok(network);
        }
        Err(RealNodeError::NoSubnet)
    }

    /// The host's address in the control network, where the nodes find the API server.
    pub fn host_control_address(&self) -> Ipv4Addr {
        self.address(Link::Control, 1)
    }

    /// The host's address in the storage network, where the nodes find an array.
    pub fn host_storage_address(&self) -> Ipv4Addr {
        self.address(Link::Storage, 1)
    }

    /// The address of the node with this number.
    pub(super) fn node_address(&self, link: Link, node: u8) -> Ipv4Addr {
        self.address(link, 11 + node)
    }

    /// The subnet of that node's pods.
    pub(super) fn pod_subnet(&self, node: u8) -> String {
        format!("10.{}.{}.0/24", self.second_byte, 16 + node)
    }

    fn address(&self, link: Link, last: u8) -> Ipv4Addr {
        let third = match link {
            Link::Control => 0,
            Link::Storage => 1,
        };
        Ipv4Addr::new(10, self.second_byte, third, last)
    }

    fn switch(&self) -> InNamespaces {
        InNamespaces::network(self.guard.pid())
    }

    async fn connect_host(&self) -> Result<(), RealNodeError> {
        let guard = self.guard.pid();
        let mut host = String::new();
        let mut switch = String::new();
        for link in Link::BOTH {
            let (interface, bridge) = (host_interface(self.second_byte, link), link.bridge());
            let address = self.address(link, 1);
            host += &format!("link add {interface} type veth peer name host-{bridge} netns {guard}\n");
            host += &format!("address add {address}/24 dev {interface}\nlink set {interface} up\n");
            switch += &format!("link set host-{bridge} master {bridge}\nlink set host-{bridge} up\n");
        }
        host += &self.pod_routes(None);
        batch(&HOST, &host).await?;
        batch(&self.switch(), &switch).await
    }

    /// Routes to the pods of every node but `except`.
    fn pod_routes(&self, except: Option<u8>) -> String {
        let others = (0..MAX_NODES).filter(|other| Some(*other) != except);
        others
            .map(|other| {
                let gateway = self.node_address(Link::Control, other);
                // Nobody answers for nodes that do not exist, but the way to them is known.
                format!("route add {} via {gateway}\n", self.pod_subnet(other))
            })
            .collect()
    }

    /// Plugs both cables into the node whose first process is `init`.
    pub(super) async fn connect(&self, node: u8, init: i32) -> Result<(), RealNodeError> {
        let mut switch = String::new();
        let mut inside = String::new();
        for link in Link::BOTH {
            let (interface, bridge, port) = (link.interface(), link.bridge(), port(link, node));
            // The cable of the last boot, if the kernel has not removed it yet.
            let _ = run(&self.switch(), "ip", ["link", "delete", &port], "").await;
            switch += &format!("link add {port} type veth peer name {interface} netns {init}\n");
            switch += &format!("link set {port} master {bridge}\n");
            let address = self.node_address(link, node);
            inside += &format!("address add {address}/24 dev {interface}\nlink set {interface} up\n");
        }
        inside += &format!("route add default via {}\n", self.host_control_address());
        inside += &self.pod_routes(Some(node));
        batch(&self.switch(), &switch).await?;
        batch(&InNamespaces::network(init), &inside).await?;
        // Nobody in the storage network knows the way to pods.
        let pods = self.pod_subnet(node);
        let storage = Link::Storage.interface();
        let masquerade = ["-w", "-t", "nat", "-A", "POSTROUTING", "-s", &pods, "-o", storage, "-j", "MASQUERADE"];
        run(&InNamespaces::node(init), "iptables", masquerade, "").await.map(drop)
    }

    /// Pulls a node's cable out of the switch, or plugs it in.
    pub(super) async fn set_link(&self, link: Link, node: u8, up: bool) -> Result<(), RealNodeError> {
        let state = if up { "up" } else { "down" };
        batch(&self.switch(), &format!("link set {} {state}\n", port(link, node))).await
    }

    /// Lets a link of the node whose first process is `init` lose packets, or none any more. By iptables: many kernels have no
    /// netem.
    pub(super) async fn set_lossy(&self, link: Link, init: i32, is_lossy: bool) -> Result<(), RealNodeError> {
        let (node, interface, host) = (InNamespaces::node(init), link.interface(), self.address(link, 1).to_string());
        // What comes is lost here, so what goes to another node is lost there. The host loses nothing: what goes to it is lost
        // here, as far as its sender is not told of that, as that of a datagram would be.
        let coming = ["PREROUTING", "-i", interface];
        let going = ["POSTROUTING", "-o", interface, "-d", &host, "-p", "tcp"];
        let loss = ["-m", "statistic", "--mode", "random", "--probability", LOSS, "-j", "DROP"];
        for packets in [&coming[..], &going[..]] {
            let rule = |action| ["-w", "-t", "mangle", action].into_iter().chain(packets.iter().copied()).chain(loss);
            let is_there = run(&node, "iptables", rule("-C"), "").await.is_ok();
            if is_there != is_lossy {
                run(&node, "iptables", rule(if is_lossy { "-A" } else { "-D" }), "").await?;
            }
        }
        Ok(())
    }
}

/// Names of interfaces have at most 15 letters.
fn host_interface(second_byte: u8, link: Link) -> String {
    format!("bh{second_byte}-{}", link.bridge())
}

/// The switch's end of a node's cable.
fn port(link: Link, node: u8) -> String {
    format!("{}-{node}", link.bridge())
}

async fn batch(place: &InNamespaces, commands: &str) -> Result<(), RealNodeError> {
    run(place, "ip", ["-batch", "-"], commands).await.map(drop)
}

fn lock_file(path: &PathBuf) -> Result<File, RealNodeError> {
    File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(|source: io::Error| RealNodeError::File { path: path.clone(), source })
}
