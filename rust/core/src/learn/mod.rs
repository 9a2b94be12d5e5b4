//! Places of checkpoints: what a request remembers of those that it resumes from and leaves, and where it leaves more.

mod checkpoints;
mod resume_point;
mod trail;

pub(crate) use checkpoints::{Checkpoints, Reason};
pub(crate) use resume_point::ResumePoint;
pub(crate) use trail::CheckpointTrail;
