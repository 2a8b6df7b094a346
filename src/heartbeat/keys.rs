//! Keys of agents and replicas. Each process makes a key pair at its start and keeps its secret to itself (an agent that
//! may have to fence itself also on its node's disk: docs/adr/0023); what an agent and a replica share is computed by both
//! from the other's public key (X25519, then HKDF), so that no secret is ever in the API, and no process can speak for
//! another.

use std::fmt;
use std::io;

use hkdf::Hkdf;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::{Digest as _, Sha256};
use x25519_dalek::{PublicKey as Point, StaticSecret};

use crate::api::names;

/// Bytes of a public key.
pub const PUBLIC: usize = 32;
/// Bytes of a [`Tag`].
pub const TAG: usize = 16;
/// What the shared keys are for, and in which version of the protocol.
const CONTEXT: &[u8] = b"bulkhead heartbeat v1";
/// The same for two agents.
const PEERS: &[u8] = b"bulkhead heartbeat peers v1";

/// The first bytes of a datagram's HMAC-SHA-256.
pub type Tag = [u8; TAG];

/// A process's own keys.
#[derive(Clone)]
pub struct KeyPair {
    secret: StaticSecret,
    public: PublicKey,
}

/// The key by which others know a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; PUBLIC]);

/// Names a public key in datagrams: the first bytes of its SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub [u8; 8]);

/// What one agent and one replica share, or two agents.
#[derive(Clone)]
pub struct PairKey(Hmac<Sha256>);

impl KeyPair {
    /// New keys from the kernel's random numbers.
    pub fn generate() -> io::Result<Self> {
        Ok(Self::from_secret(random()?))
    }

    /// The keys of a secret.
    pub fn from_secret(secret: [u8; 32]) -> Self {
        let secret = StaticSecret::from(secret);
        let public = PublicKey(Point::from(&secret).to_bytes());
        Self { secret, public }
    }

    /// The public half.
    pub fn public(&self) -> PublicKey {
        self.public
    }

    /// What this agent shares with a replica; `None` for a key that would make it known to everybody.
    pub fn with_replica(&self, replica: PublicKey) -> Option<PairKey> {
        self.shared(CONTEXT, replica, self.public, replica)
    }

    /// What this replica shares with an agent.
    pub fn with_agent(&self, agent: PublicKey) -> Option<PairKey> {
        self.shared(CONTEXT, agent, agent, self.public)
    }

    /// What this agent shares with another.
    pub fn with_peer(&self, peer: PublicKey) -> Option<PairKey> {
        let (first, second) = if self.public.0 < peer.0 { (self.public, peer) } else { (peer, self.public) };
        self.shared(PEERS, peer, first, second)
    }

    /// The secret half, for the disk of the node alone.
    pub fn secret(&self) -> [u8; 32] {
        self.secret.to_bytes()
    }

    fn shared(&self, context: &[u8], other: PublicKey, first: PublicKey, second: PublicKey) -> Option<PairKey> {
        let shared = self.secret.diffie_hellman(&Point::from(other.0));
        // RFC 7748, section 6.1: points of small order give the same secret to everybody.
        if !shared.was_contributory() {
            return None;
        }
        let mut key = [0; 32];
        let info = [first.0, second.0].concat();
        Hkdf::<Sha256>::new(Some(context), shared.as_bytes()).expand(&info, &mut key).ok()?;
        Hmac::new_from_slice(&key).ok().map(PairKey)
    }
}

impl PublicKey {
    /// Reads 64 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        let mut key = [0; PUBLIC];
        if digits.len() != PUBLIC * 2 {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            let [high, low] = pair else { return None };
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Some(Self(key))
    }

    /// The key as it is in datagrams.
    pub fn from_bytes(bytes: [u8; PUBLIC]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub fn bytes(&self) -> [u8; PUBLIC] {
        self.0
    }

    /// Its name in datagrams.
    pub fn id(&self) -> KeyId {
        let hash = Sha256::digest(self.0);
        let mut id = [0; 8];
        id.iter_mut().zip(hash).for_each(|(to, from)| *to = from);
        KeyId(id)
    }
}

fn digit(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

impl PairKey {
    /// The tag of a datagram.
    pub fn tag(&self, signed: &[u8]) -> Tag {
        let mut mac = self.0.clone();
        mac.update(signed);
        let mut tag = [0; TAG];
        tag.iter_mut().zip(mac.finalize().into_bytes()).for_each(|(to, from)| *to = from);
        tag
    }

    /// Whether the tag is of somebody who has this key; in constant time.
    pub fn verifies(&self, signed: &[u8], tag: &Tag) -> bool {
        let mut mac = self.0.clone();
        mac.update(signed);
        mac.verify_truncated_left(tag).is_ok()
    }
}

/// Random bytes that nobody can guess.
pub fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&names::hex(&self.0, PUBLIC))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Debug for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&names::hex(&self.0, self.0.len()))
    }
}

impl fmt::Debug for KeyPair {
    /// Never the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.public)
    }
}

impl fmt::Debug for PairKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PairKey")
    }
}
