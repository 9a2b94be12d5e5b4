//! Rules over a store of slabs, which vLLM does not have: hooks and methods of its `KvCacheManager` and `Call`.
//!
//! | file | rule |
//! |---|---|
//! | `leave_states` | where a request leaves checkpoints of its states |
//! | `prefill_checkpoints` | states that a worker keeps from inside a forward pass |
//! | `copies` | the copies of a step, and which of them are given up for a running request |
//! | `reservations` | blocks that an admission leaves to running requests |
//! | `progress_guarantee` | every admitted request comes to its end, though blocks never move |
//! | `usable_hit` | how much of a hit a request may use and still come to its end |
//! | `session` | hints of clients |
//! | `allocate` | the hooks through which an allocation of vLLM asks these rules |

mod allocate;
mod copies;
mod leave_states;
mod prefill_checkpoints;
mod progress_guarantee;
mod reservations;
mod session;
mod usable_hit;
