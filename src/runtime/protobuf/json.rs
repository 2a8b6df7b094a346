//! From protobuf to JSON: the fields of a [`Message`], and nothing else. Nothing here knows a kind, or a connection.

use chrono::{DateTime, SecondsFormat, Utc};
use prost::bytes::Buf as _;
use prost::encoding::{WireType, decode_key, decode_varint};

use crate::api::slim::protobuf::{Field, Kind, Message};

/// Deeper than any kind that Kubernetes has; an embedded message of its own kind would be the only way there.
const DEPTH: u32 = 32;

/// It is not what Kubernetes writes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The bytes are no protobuf.
    #[error("no protobuf: {0}")]
    Wire(String),
    /// A field is of another type than its table says.
    #[error("field {0} is of another type")]
    Type(&'static str),
    /// A field comes twice, or its elements do not come together.
    #[error("field {0} comes twice")]
    Twice(&'static str),
    /// Messages in messages without end.
    #[error("messages are nested too deep")]
    Depth,
}

/// A value on the wire.
pub(super) enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    /// Of a type that Kubernetes' kinds have for fields that are not read.
    Fixed,
}

/// Takes the next field off the front.
pub(super) fn next<'a>(bytes: &mut &'a [u8]) -> Result<(u32, Value<'a>), Malformed> {
    let wire = |error: prost::DecodeError| Malformed::Wire(error.to_string());
    let (number, wire_type) = decode_key(bytes).map_err(wire)?;
    let fixed = |bytes: &mut &'a [u8], size: usize| take(bytes, size).map(|_| Value::Fixed);
    let value = match wire_type {
        WireType::Varint => Value::Varint(decode_varint(bytes).map_err(wire)?),
        WireType::LengthDelimited => {
            let length = decode_varint(bytes).map_err(wire)?;
            Value::Bytes(take(bytes, usize::try_from(length).unwrap_or(usize::MAX))?)
        }
        WireType::SixtyFourBit => fixed(bytes, 8)?,
        WireType::ThirtyTwoBit => fixed(bytes, 4)?,
        WireType::StartGroup | WireType::EndGroup => return Err(Malformed::Wire("a group".into())),
    };
    Ok((number, value))
}

fn take<'a>(bytes: &mut &'a [u8], size: usize) -> Result<&'a [u8], Malformed> {
    let taken = bytes.get(..size).ok_or_else(|| Malformed::Wire("it ends too early".into()))?;
    bytes.advance(size);
    Ok(taken)
}

/// The bytes of the field with that number; `None` where it is absent.
pub(super) fn bytes_of(bytes: &[u8], wanted: u32) -> Result<Option<&[u8]>, Malformed> {
    let mut found = None;
    each(bytes, wanted, |value| {
        found = Some(value);
        Ok(())
    })?;
    Ok(found)
}

/// Hands the bytes of each field with that number to `take`.
pub(super) fn each<'a>(
    mut bytes: &'a [u8],
    wanted: u32,
    mut take: impl FnMut(&'a [u8]) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    while !bytes.is_empty() {
        if let (number, Value::Bytes(value)) = next(&mut bytes)?
            && number == wanted
        {
            take(value)?;
        }
    }
    Ok(())
}

/// Writes a message as an object, after members that are there already.
pub(super) fn object(message: &Message, bytes: &[u8], members: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    Writer { out }.object(message, bytes, members, DEPTH)
}

/// Writes a string with what JSON wants around and in it. Whoever creates an object may write bytes that are no text; the API
/// server keeps them, and puts the same in their place in JSON.
pub(super) fn text(bytes: &[u8], out: &mut Vec<u8>) {
    // Nearly every text can stay as it is. To find that out, all of it is looked at: so the compiler takes many bytes at once.
    let is_odd = |byte: u8| !matches!(byte, b' '..=b'~') | (byte == b'"') | (byte == b'\\');
    if bytes.iter().fold(false, |odd, byte| odd | is_odd(*byte)) {
        // Writing to memory does not fail, nor does a string as JSON.
        let _ = serde_json::to_writer(out, &String::from_utf8_lossy(bytes));
        return;
    }
    out.push(b'"');
    out.extend_from_slice(bytes);
    out.push(b'"');
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
}

/// Where a message's members stand: whether there is one yet, which fields were there, and whose elements are being written.
#[derive(Default)]
struct Members {
    any: bool,
    seen: u64,
    open: Option<(usize, Kind)>,
}

impl Writer<'_> {
    fn object(&mut self, message: &Message, bytes: &[u8], members: &[u8], depth: u32) -> Result<(), Malformed> {
        self.out.push(b'{');
        self.out.extend_from_slice(members);
        self.members(message, bytes, &mut !members.is_empty(), depth)?;
        self.out.push(b'}');
        Ok(())
    }

    fn members(&mut self, message: &Message, mut bytes: &[u8], any: &mut bool, depth: u32) -> Result<(), Malformed> {
        let depth = depth.checked_sub(1).ok_or(Malformed::Depth)?;
        let mut state = Members { any: *any, ..Members::default() };
        while !bytes.is_empty() {
            let (number, value) = next(&mut bytes)?;
            match message.field(number) {
                Some((place, field)) => self.member(place, field, &value, &mut state, depth)?,
                None if message.tells_unknown => self.unknown(number, &mut state),
                None => {}
            }
        }
        self.close(&mut state);
        *any = state.any;
        Ok(())
    }

    fn member(
        &mut self,
        place: usize,
        field: &Field,
        value: &Value<'_>,
        state: &mut Members,
        depth: u32,
    ) -> Result<(), Malformed> {
        let bit = u32::try_from(place).ok().and_then(|place| 1u64.checked_shl(place)).unwrap_or_default();
        let known = state.seen & bit != 0;
        state.seen |= bit;
        let goes_on = state.open.is_some_and(|(open, _)| open == place);
        if known && !goes_on {
            return Err(Malformed::Twice(field.name));
        }
        if goes_on {
            self.out.push(b',');
        } else {
            self.close(state);
        }
        match (field.kind, value) {
            (Kind::Inline(message), Value::Bytes(bytes)) => self.members(message, bytes, &mut state.any, depth),
            (Kind::Texts | Kind::Objects(_) | Kind::TextMap | Kind::QuantityMap, Value::Bytes(bytes)) => {
                if !goes_on {
                    self.name(field.name, state);
                    let is_list = matches!(field.kind, Kind::Texts | Kind::Objects(_));
                    self.out.push(if is_list { b'[' } else { b'{' });
                    state.open = Some((place, field.kind));
                }
                self.element(field, bytes, depth)
            }
            _ => self.single(field, value, state, depth),
        }
    }

    fn element(&mut self, field: &Field, bytes: &[u8], depth: u32) -> Result<(), Malformed> {
        match field.kind {
            Kind::Objects(message) => return self.object(message, bytes, b"", depth),
            Kind::Texts => self.text(bytes),
            Kind::QuantityMap => self.entry(bytes, |value| Ok(bytes_of(value, 1)?.unwrap_or_default()))?,
            _ => self.entry(bytes, Ok)?,
        }
        Ok(())
    }

    /// An entry of a map: a message of key and value.
    fn entry<'b>(
        &mut self,
        bytes: &'b [u8],
        value: impl FnOnce(&'b [u8]) -> Result<&'b [u8], Malformed>,
    ) -> Result<(), Malformed> {
        self.text(bytes_of(bytes, 1)?.unwrap_or_default());
        self.out.push(b':');
        self.text(value(bytes_of(bytes, 2)?.unwrap_or_default())?);
        Ok(())
    }

    fn single(&mut self, field: &Field, value: &Value<'_>, state: &mut Members, depth: u32) -> Result<(), Malformed> {
        match (field.kind, value) {
            (Kind::Text, Value::Bytes([])) => {}
            (Kind::Number | Kind::Flag, Value::Varint(0)) => {}
            // A time that is not set is an empty message.
            (Kind::Time | Kind::MicroTime, Value::Bytes([])) => {}
            (Kind::Text, Value::Bytes(bytes)) => {
                self.name(field.name, state);
                self.text(bytes);
            }
            (Kind::Quantity, Value::Bytes(bytes)) => {
                self.name(field.name, state);
                self.text(bytes_of(bytes, 1)?.unwrap_or_default());
            }
            (Kind::Number | Kind::OptionalNumber, Value::Varint(number)) => {
                self.name(field.name, state);
                self.out.extend_from_slice(number.cast_signed().to_string().as_bytes());
            }
            (Kind::Flag | Kind::OptionalFlag, Value::Varint(flag)) => {
                self.name(field.name, state);
                self.out.extend_from_slice(if *flag == 0 { b"false" } else { b"true" });
            }
            (Kind::Time | Kind::MicroTime, Value::Bytes(bytes)) => {
                let fraction =
                    if matches!(field.kind, Kind::Time) { SecondsFormat::Secs } else { SecondsFormat::Micros };
                // One that no calendar has is none.
                if let Some(time) = time(bytes)? {
                    self.name(field.name, state);
                    self.text(time.to_rfc3339_opts(fraction, true).as_bytes());
                }
            }
            (Kind::Object(message), Value::Bytes(bytes)) => {
                self.name(field.name, state);
                self.object(message, bytes, b"", depth)?;
            }
            (Kind::Presence, Value::Bytes(_)) => {
                self.name(field.name, state);
                self.out.extend_from_slice(b"{}");
            }
            _ => return Err(Malformed::Type(field.name)),
        }
        Ok(())
    }

    fn unknown(&mut self, number: u32, state: &mut Members) {
        self.close(state);
        self.name(&format!("field {number}"), state);
        self.out.extend_from_slice(b"{}");
    }

    /// A name of a table: nothing in it has to be escaped.
    fn name(&mut self, name: &str, state: &mut Members) {
        if state.any {
            self.out.push(b',');
        }
        state.any = true;
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Ends the list or map that is being written.
    fn close(&mut self, state: &mut Members) {
        if let Some((_, kind)) = state.open.take() {
            self.out.push(if matches!(kind, Kind::Texts | Kind::Objects(_)) { b']' } else { b'}' });
        }
    }

    fn text(&mut self, bytes: &[u8]) {
        text(bytes, self.out);
    }
}

fn time(mut bytes: &[u8]) -> Result<Option<DateTime<Utc>>, Malformed> {
    let (mut seconds, mut nanos) = (0, 0);
    while !bytes.is_empty() {
        match next(&mut bytes)? {
            (1, Value::Varint(value)) => seconds = value.cast_signed(),
            (2, Value::Varint(value)) => nanos = value,
            _ => {}
        }
    }
    Ok(DateTime::from_timestamp(seconds, u32::try_from(nanos).unwrap_or(u32::MAX)))
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
