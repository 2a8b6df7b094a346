//! Finds what is of no use before anything is made of it: of most pods of a cluster only their names are.

use super::json::{Malformed, Value, next};
use crate::api::slim::protobuf::{Kind, Message};

/// What an object has that is of use: at the end of a path of messages, a field of such a name.
#[derive(Clone, Copy)]
pub struct Sieve {
    /// Names of messages, or of lists of them, from the object inwards.
    pub path: &'static [&'static str],
    /// Whether a field there is such a one. One that is in no table has an empty name.
    pub wanted: fn(&str) -> bool,
}

impl Sieve {
    /// Whether an object has it.
    pub fn passes(self, message: &Message, object: &[u8]) -> Result<bool, Malformed> {
        self.finds(self.path, message, object)
    }

    fn finds(self, path: &[&str], message: &Message, mut bytes: &[u8]) -> Result<bool, Malformed> {
        while !bytes.is_empty() {
            let (number, value) = next(&mut bytes)?;
            let field = message.field(number).map(|(_, field)| field);
            let found = match (path.split_first(), field, value) {
                (None, field, _) => (self.wanted)(field.map_or("", |field| field.name)),
                (Some((name, path)), Some(field), Value::Bytes(bytes)) if field.name == *name => match field.kind {
                    Kind::Object(inner) | Kind::Objects(inner) | Kind::Inline(inner) => {
                        self.finds(path, inner, bytes)?
                    }
                    _ => false,
                },
                _ => false,
            };
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
