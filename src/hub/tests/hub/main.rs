//! Models of a hub, against a server on this machine that plays one.

mod cache;
mod choice;
mod downloads;
mod hostile;
mod support;
