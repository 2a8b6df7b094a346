mod attributes;
mod build;
mod flags;
mod lives;
mod property;
mod settled;
mod volumes;
mod world;
