//! The loops over running requests of vLLM's scheduler, for those that decode.

mod advance;
mod append;
mod batch;
mod drafts;
mod extras;
mod row;
mod schedule;
mod stop;
mod update;

pub(crate) use batch::DecodeBatch;
pub(crate) use drafts::SpecCounts;
pub(crate) use schedule::ScheduledDecodes;
pub(crate) use update::TakenOutputs;
