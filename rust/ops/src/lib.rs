//! Random tests of the core: operations on a block manager, and lives of an engine that serves requests with it.
//!
//! An [`Input`] is the [`Script`] of a [`Setup`] and [`Op`]s. A [`World`] applies them to a
//! [`BlockManager`](hybrid_blocks::BlockManager) and compares what it does with a naive model and a simulated device.
//! A [`Life`] is the script of a [`serving::Setup`] and [`serving::Event`]s. They happen to an engine that calls
//! [`KvCacheManager`](hybrid_blocks::vllm::KvCacheManager) as vLLM's scheduler does, with a worker on the same device
//! and a KV connector.
//!
//! | driver | makes | where |
//! |---|---|---|
//! | proptest | arrays of bytes, shrunk whole operations at a time | `tests/{operations,serving}.rs` |
//! | cargo-fuzz | bytes, guided by coverage | `fuzz/` at the top of the repository |
//! | hypothesis | bytes; the calls that the world made are repeated through Python | `tests/bindings` |
//!
//! A failing input of any of them is bytes. The binary prints them as JSON lines, one operation or event a line. `cargo test`
//! replays those kept in `tests/recorded`, and `tests/seeds`: as few as reach what a fuzzer has reached.
//!
//! ```text
//! script                    bytes and JSON lines of either
//! tokens, memory            what tokens leave behind; the simulated device
//! op, setup                 the vocabulary of operations; knows no manager
//! system                    the only file that changes a hybrid_blocks::BlockManager
//! request <- world <- {predict, refuse, reserved, finish}
//! serving                   an engine over hybrid_blocks::vllm::KvCacheManager
//! ```
#![forbid(unsafe_code)]
#![allow(clippy::missing_errors_doc, reason = "every error tells what the manager did wrong")]

mod finish;
mod memory;
mod op;
mod predict;
mod refuse;
mod request;
mod reserved;
mod script;
pub mod serving;
mod setup;
mod system;
mod tokens;
mod world;

pub use finish::longest_request_finishes_alone;
pub use op::{Op, Refusal};
pub use script::{Part, Script, Setting};
pub use setup::{Group, Setup};
pub use system::Call;
pub use world::{Check, World};

/// Operations on a block manager.
pub type Input = Script<Setup>;
/// A life of an engine that serves requests.
pub type Life = Script<serving::Setup>;
