//! An engine that serves requests as vLLM does, over [`KvCacheManager`](hybrid_blocks::vllm::KvCacheManager),
//! with a worker and a KV connector that are simulated.
//!
//! Whatever happens, a request reads what its tokens wrote, a look-up finds nothing that is not written, and every
//! request comes to its end.
//!
//! ```text
//! setup, event              the vocabulary
//! request, step             what an engine knows of a request, and what it had computed in a step
//! engine                    queues; the calls of the manager that have several callers
//! engine <- {schedule, admit, load, worker, update, check}
//! ```

mod admit;
mod check;
mod engine;
mod event;
mod load;
mod request;
mod schedule;
mod setup;
mod step;
mod update;
mod worker;

pub use engine::Engine;
pub use event::Event;
pub use setup::{Connector, Setup};
