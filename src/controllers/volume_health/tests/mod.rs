mod beats;
mod lives;
mod nodes;
mod people;
mod projection;
mod sources;
mod table;
mod world;
