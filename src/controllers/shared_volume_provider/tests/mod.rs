//! The pure parts of the controller.

mod discover;
mod flags;
mod pace;
mod report;
mod world;
