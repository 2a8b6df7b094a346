mod adoption;
mod backends;
mod ends;
mod failovers;
mod names;
mod property;
mod world;
mod writes;
