//! The endpoints over the small model of the repository: by the router alone, and over a real socket.

mod access;
mod bodies;
mod chat;
mod conversations;
mod downloads;
mod drafts;
mod engines;
mod form;
mod messages;
mod models;
mod native;
mod responses;
mod rig;
mod room;
mod scopes;
mod scoreboard;
mod socket;
mod support;
mod work;
