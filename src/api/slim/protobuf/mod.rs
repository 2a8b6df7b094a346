//! How a kind of Kubernetes is written in protobuf, as far as it is read: field by field, by the numbers of its `generated.proto`.
//! Numbers are never given anew, so that a table holds for every version of Kubernetes.
//!
//! Here is what a table is made of; [`kinds`](self::kinds) has the tables.

mod kinds;

pub use self::kinds::*;

/// A message, by the fields that are read. All others are skipped.
#[derive(Debug)]
pub struct Message {
    /// In no order.
    pub fields: &'static [Field],
    /// A field that is not in the table is told by its number, as an empty object, instead of being skipped: where it matters
    /// that there is one at all.
    pub tells_unknown: bool,
}

/// A field of a message.
#[derive(Debug)]
pub struct Field {
    /// Its number.
    pub number: u32,
    /// Its name in JSON.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
}

/// What a field is. Go writes a field without a pointer even if it is empty, and leaves it out of JSON all the same: such a one
/// is left out here too.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A string.
    Text,
    /// A number; 0 is left out.
    Number,
    /// A number behind a pointer; 0 is a value.
    OptionalNumber,
    /// A truth value; false is left out.
    Flag,
    /// A truth value behind a pointer; false is a value.
    OptionalFlag,
    /// A time in whole seconds.
    Time,
    /// A time with microseconds.
    MicroTime,
    /// A Quantity, which is a string in a message.
    Quantity,
    /// A message.
    Object(&'static Message),
    /// A message whose fields are those of the message that it is in.
    Inline(&'static Message),
    /// A message of which only is read that it is there.
    Presence,
    /// Strings.
    Texts,
    /// Messages.
    Objects(&'static Message),
    /// Names and strings.
    TextMap,
    /// Names and Quantities.
    QuantityMap,
}

impl Message {
    /// A message with these fields.
    pub const fn of(fields: &'static [Field]) -> Self {
        Self { fields, tells_unknown: false }
    }

    /// The same; others are told by their number.
    pub const fn telling_unknown(fields: &'static [Field]) -> Self {
        Self { fields, tells_unknown: true }
    }

    /// The field with that number, and where it is in the table.
    pub(crate) fn field(&self, number: u32) -> Option<(usize, &'static Field)> {
        self.fields.iter().enumerate().find(|(_, field)| field.number == number)
    }
}

/// A field.
pub const fn field(number: u32, name: &'static str, kind: Kind) -> Field {
    Field { number, name, kind }
}
