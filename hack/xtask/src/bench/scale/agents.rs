//! The agents of all nodes: each sends a real heartbeat a second, all of them by one socket.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use bulkhead::api::names;
use bulkhead::heartbeat::agent::Agent;
use bulkhead::heartbeat::keys::{KeyPair, PublicKey};
use bulkhead::heartbeat::replicas;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use tokio::time::MissedTickBehavior;

use crate::Result;

/// In how many parts a second is divided: as many agents beat together.
const PARTS: usize = 50;

/// The agents.
pub struct Agents {
    agents: Vec<Agent>,
    /// Their keys, by node.
    pub keys: Vec<PublicKey>,
}

impl Agents {
    /// So many, with new keys.
    pub fn new(count: usize) -> Result<Self> {
        let pairs: Vec<_> = (0..count).map(|_| KeyPair::generate()).collect::<Result<_, _>>()?;
        let keys = pairs.iter().map(KeyPair::public).collect();
        Ok(Self { agents: pairs.into_iter().map(Agent::new).collect(), keys })
    }

    /// Learns where the controller listens, as agents do.
    pub async fn learn(&mut self, client: &Client) -> Result<()> {
        let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), names::OPERATOR_NAMESPACE);
        let data = config_maps.get(replicas::CONFIG_MAP).await?.data.unwrap_or_default();
        let found = replicas::read(&data);
        if found.is_empty() {
            return Err(format!("the controller does not say where it listens for heartbeats: {data:?}").into());
        }
        self.agents.iter_mut().for_each(|agent| agent.set_replicas(&found));
        Ok(())
    }

    /// All of them beat for so long, but for so many of the first. Returns how many datagrams were sent.
    pub async fn beat(&mut self, silent: usize, length: Duration) -> Result<usize> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let mut pace = tokio::time::interval(Duration::from_secs(1) / u32::try_from(PARTS)?);
        pace.set_missed_tick_behavior(MissedTickBehavior::Burst);
        let until = tokio::time::Instant::now() + length;
        let mut sent = 0;
        for part in (0..PARTS).cycle() {
            if pace.tick().await >= until {
                break;
            }
            let agents = self.agents.iter_mut().enumerate();
            let together = agents.filter(|(number, _)| *number >= silent && number % PARTS == part);
            for (to, datagram) in together.flat_map(|(_, agent)| agent.beat()) {
                socket.send_to(&datagram, to)?;
                sent += 1;
            }
        }
        Ok(sent)
    }
}
