//! Past requests teach where prompts leave earlier ones, and clients say how sessions continue. Two decisions follow
//! from both: at which lengths a request leaves checkpoints, and for how long content is kept.
//!
//! | file | noun |
//! |---|---|
//! | `places` | `Placement`: lengths at which later prompts leave earlier ones; knows no store |
//! | `sessions` | conversations, hints of clients, and the chance that one continues |
//! | `history` | the uses of each checkpoint |
//! | `traffic` | `Traffic`: the counts of both over the store |
//! | `windows` | windows of attention as checkpoints |
//! | `keeper` | `Keeper`: priorities of content |
//! | `checkpoint_policy` | the options of a user, and one request's plan |
//! | `checkpoints`, `resume_point`, `trail` | one request's part in all of these |

pub(crate) mod checkpoint_policy;
mod checkpoints;
mod history;
pub(crate) mod keeper;
pub mod places;
mod resume_point;
pub(crate) mod sessions;
pub(crate) mod traffic;
mod trail;
pub(crate) mod windows;

pub(crate) use checkpoints::{Checkpoints, Reason};
pub(crate) use resume_point::ResumePoint;
pub(crate) use trail::CheckpointTrail;
