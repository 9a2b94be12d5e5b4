//! The loops over running requests of vLLM's scheduler, for those that decode one token a step.

mod batch;
mod row;
mod schedule;
mod stop;
mod update;

pub(crate) use batch::DecodeBatch;
pub(crate) use schedule::ScheduledDecodes;
pub(crate) use update::TakenOutputs;
