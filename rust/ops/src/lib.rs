//! Random tests of the core: operations on a block manager, and lives of an engine that serves requests with it.
//!
//! An [`Input`] is a [`Setup`] and a list of [`Op`]s. A [`World`] applies them to a
//! [`BlockManager`](hybrid_blocks::BlockManager) and compares what it does with a naive model and a simulated device.
//! A [`serving::Life`] is a [`serving::Setup`] and a list of [`serving::Event`]s. They happen to an engine that calls
//! [`KvCacheManager`](hybrid_blocks::vllm::KvCacheManager) as vLLM's scheduler does, with a worker on the same device
//! and a KV connector.
//!
//! Any bytes decode to either: `BYTES` of the setup, then those of one operation or event after the other.
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
//! lines                     bytes and JSON lines
//! tokens, memory            what tokens leave behind; the simulated device
//! op, setup <- input        the vocabulary of operations; knows no manager
//! system                    the only file that calls hybrid_blocks::BlockManager
//! request <- world <- {predict, refuse, reserved, finish}
//! serving                   an engine over hybrid_blocks::vllm::KvCacheManager
//! ```
#![forbid(unsafe_code)]

mod finish;
mod input;
mod lines;
mod memory;
mod op;
mod predict;
mod refuse;
mod request;
mod reserved;
pub mod serving;
mod setup;
mod system;
mod tokens;
mod world;

pub use finish::longest_request_finishes_alone;
pub use input::Input;
pub use op::{Op, Refusal};
pub use setup::{Group, Setup};
pub use system::Call;
pub use world::{Check, World};
