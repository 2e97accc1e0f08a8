//! `hostler a2e --http` from outside: the built program, real processes, real connections.

mod agent;

mod endings;
mod replay;
mod routes;
mod sdk;
mod strangers;
