//! The datagrams: each kind has one size, begins with version, kind, the sender's key and a counter, and ends with a tag.
//!
//! | kind | way | says |
//! |---|---|---|
//! | Heartbeat | agent → replica | I am here |
//! | Leaving | agent → replica | I end in order: from now on nothing is known of me |
//! | Ask | replica → peer | pass these two probes on, and tell me what came back |
//! | Probe | replica → (peer →) agent | answer this nonce |
//! | Echo | agent → (peer →) replica | I am here, and this was the nonce |
//! | Answer | peer → replica | what came back |
//! | Introduce | replica → agent | these are your neighbours: whoever hears none of them is alone |
//!
//! Probe and Echo are sealed between the replica and the agent that is asked: the peer only carries them. Neighbours ask
//! each other with the same two, sealed between them, and say good-bye with Leaving.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::keys::{KeyId, PUBLIC, PairKey, PublicKey, TAG, Tag};

/// Version of the protocol.
const VERSION: u8 = 1;
/// Version, kind, sender, counter.
const HEAD: usize = 1 + 1 + 8 + 8;
/// An address and a port.
const PLACE: usize = 16 + 2;
/// Size of a Heartbeat and of a Leaving.
pub const BEAT: usize = HEAD + TAG;
/// Size of a Probe and of an Echo.
pub const PROBE: usize = HEAD + NONCE + TAG;
/// Size of an Ask.
pub const ASK: usize = HEAD + 8 + 2 * (PLACE + PROBE) + TAG;
/// Size of an Answer.
pub const ANSWER: usize = HEAD + 8 + 1 + 2 * PROBE + TAG;
/// Neighbours of an agent at most.
pub const NEIGHBOURS_MAX: usize = 6;
/// Size of an Introduce.
pub const INTRODUCE: usize = HEAD + 1 + NEIGHBOURS_MAX * (PLACE + PUBLIC) + TAG;
/// No datagram is longer.
pub const LONGEST: usize = INTRODUCE;
/// Bytes of a nonce.
pub const NONCE: usize = 16;

/// What makes a probe unlike every other.
pub type Nonce = [u8; NONCE];
/// A sealed Probe or Echo, as it is carried by others.
pub type Carried = [u8; PROBE];

/// What a datagram says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// I am here.
    Heartbeat,
    /// I end in order.
    Leaving,
    /// Pass two probes on.
    Ask {
        /// Which round of questions it belongs to.
        round: u64,
        /// The node in question.
        target: Errand,
        /// Another node, which shows whether the peer reaches anybody.
        witness: Errand,
    },
    /// Answer this nonce.
    Probe(Nonce),
    /// This was the nonce.
    Echo(Nonce),
    /// What came back; `None`: nothing in time.
    Answer {
        /// Of which round.
        round: u64,
        /// The target's echo.
        target: Option<Carried>,
        /// The witness's echo.
        witness: Option<Carried>,
    },
    /// These are your neighbours.
    Introduce(Vec<Neighbour>),
}

/// Another agent, as an agent has to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its key.
    pub key: PublicKey,
    /// Where it is reached.
    pub at: SocketAddr,
}

/// A probe, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errand {
    /// Where to.
    pub to: SocketAddr,
    /// The sealed Probe.
    pub probe: Carried,
}

/// A datagram whose tag has not been looked at yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram<'a> {
    /// Whose it claims to be.
    pub sender: KeyId,
    /// The sender's counter.
    pub counter: u64,
    /// What it says.
    pub message: Message,
    signed: &'a [u8],
    tag: Tag,
}

impl Datagram<'_> {
    /// Whether it is of somebody who has this key.
    pub fn is_of(&self, key: &PairKey) -> bool {
        key.verifies(self.signed, &self.tag)
    }
}

/// A datagram, sealed.
pub fn seal(key: &PairKey, sender: KeyId, counter: u64, message: &Message) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(LONGEST);
    bytes.extend([VERSION, kind(message)]);
    bytes.extend(sender.0);
    bytes.extend(counter.to_be_bytes());
    match message {
        Message::Heartbeat | Message::Leaving => {}
        Message::Ask { round, target, witness } => {
            bytes.extend(round.to_be_bytes());
            for errand in [target, witness] {
                bytes.extend(place(errand.to));
                bytes.extend(errand.probe);
            }
        }
        Message::Probe(nonce) | Message::Echo(nonce) => bytes.extend(nonce),
        Message::Answer { round, target, witness } => {
            bytes.extend(round.to_be_bytes());
            bytes.push(u8::from(target.is_some()) | u8::from(witness.is_some()) << 1);
            for echo in [target, witness] {
                bytes.extend(echo.unwrap_or([0; PROBE]));
            }
        }
        Message::Introduce(neighbours) => {
            let known = neighbours.iter().take(NEIGHBOURS_MAX);
            bytes.push(u8::try_from(known.len()).unwrap_or_default());
            let written = known.map(|one| (place(one.at), one.key.bytes()));
            let empty = std::iter::repeat(([0; PLACE], [0; PUBLIC]));
            for (place, key) in written.chain(empty).take(NEIGHBOURS_MAX) {
                bytes.extend(place);
                bytes.extend(key);
            }
        }
    }
    let tag = key.tag(&bytes);
    bytes.extend(tag);
    bytes
}

/// A sealed Probe or Echo; `None` for anything else.
pub fn carried(sealed: &[u8]) -> Option<Carried> {
    let parsed = parse(sealed)?;
    matches!(parsed.message, Message::Probe(_) | Message::Echo(_)).then(|| sealed.try_into().ok())?
}

/// Reads a datagram; `None` if it is none of this version.
pub fn parse(bytes: &[u8]) -> Option<Datagram<'_>> {
    let (signed, tag) = bytes.split_last_chunk::<TAG>()?;
    let mut rest = Reader(signed);
    let [version, kind] = rest.take::<2>()?;
    if version != VERSION {
        return None;
    }
    let (sender, counter) = (KeyId(rest.take()?), rest.number()?);
    let message = match kind {
        1 => Message::Heartbeat,
        2 => Message::Leaving,
        3 => Message::Ask { round: rest.number()?, target: rest.errand()?, witness: rest.errand()? },
        4 => Message::Probe(rest.take()?),
        5 => Message::Echo(rest.take()?),
        6 => rest.answer()?,
        7 => rest.introduce()?,
        _ => return None,
    };
    let is_whole = rest.0.is_empty();
    is_whole.then_some(Datagram { sender, counter, message, signed, tag: *tag })
}

fn kind(message: &Message) -> u8 {
    match message {
        Message::Heartbeat => 1,
        Message::Leaving => 2,
        Message::Ask { .. } => 3,
        Message::Probe(_) => 4,
        Message::Echo(_) => 5,
        Message::Answer { .. } => 6,
        Message::Introduce(_) => 7,
    }
}

/// IPv4 addresses are written as IPv6 has them (RFC 4291, section 2.5.5.2).
fn place(to: SocketAddr) -> [u8; PLACE] {
    let address = match to.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let mut place = [0; PLACE];
    let bytes = address.octets().into_iter().chain(to.port().to_be_bytes());
    place.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    place
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*taken)
    }

    fn number(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn place(&mut self) -> Option<SocketAddr> {
        let address = IpAddr::V6(Ipv6Addr::from(self.take::<16>()?)).to_canonical();
        let port = u16::from_be_bytes(self.take()?);
        Some(SocketAddr::new(address, port))
    }

    fn errand(&mut self) -> Option<Errand> {
        Some(Errand { to: self.place()?, probe: self.take()? })
    }

    fn introduce(&mut self) -> Option<Message> {
        let [count] = self.take::<1>()?;
        let mut neighbours = Vec::new();
        for _ in 0..NEIGHBOURS_MAX {
            let at = self.place()?;
            neighbours.push(Neighbour { at, key: PublicKey::from_bytes(self.take()?) });
        }
        let is_known = usize::from(count) <= NEIGHBOURS_MAX;
        neighbours.truncate(usize::from(count));
        is_known.then_some(Message::Introduce(neighbours))
    }

    fn answer(&mut self) -> Option<Message> {
        let (round, [found]) = (self.number()?, self.take::<1>()?);
        let (target, witness) = (self.take()?, self.take()?);
        let is_known = found < 4;
        is_known.then_some(Message::Answer {
            round,
            target: (found & 1 != 0).then_some(target),
            witness: (found & 2 != 0).then_some(witness),
        })
    }
}
