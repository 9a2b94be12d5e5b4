//! vLLM's `Request`: how it is read, and its state between calls.

mod attributes;
mod state;
mod view;

pub(crate) use attributes::{RequestAttribute, RequestGetState, show};
pub(crate) use state::{Counts, Named, RequestState};
pub(crate) use view::{RequestView, at_least_none, count, progress, span};
