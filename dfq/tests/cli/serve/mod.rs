//! `dfq serve`: clients of PostgreSQL's protocol, those that are let in and those that are not.

mod access;
mod catalog;
mod limits;
mod load;
mod mutations;
mod psql;
mod recorded;
mod scripts;
mod server;
mod statements;
