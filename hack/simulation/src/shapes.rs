//! Shapes by chance.

use crate::chance::Chance;
use crate::shape::Shape;

/// A shape by chance.
pub(crate) fn random(_: &mut dyn Chance) -> Shape {
    Shape::plain()
}
