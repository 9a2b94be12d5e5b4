//! One vocabulary of operations on a block manager, for every random test of it.
//!
//! An [`Input`] is a [`Setup`] and a list of [`Op`]s. Any bytes decode to one: [`Setup::BYTES`] for
//! the setup, then [`Op::BYTES`] an operation. A [`World`] applies the operations to the manager and
//! compares what it does with a naive model and a simulated device.
//!
//! | driver | makes | where |
//! |---|---|---|
//! | proptest | arrays of bytes, shrunk whole operations at a time | `tests/operations.rs` |
//! | cargo-fuzz | bytes, guided by coverage | `fuzz/` at the top of the repository |
//! | hypothesis | bytes; the calls that the world made are repeated through Python | `tests/bindings` |
//!
//! A failing input of any of them is bytes. The binary prints them as JSON lines, one operation
//! a line; kept in `tests/recorded`, they are replayed by `cargo test`.
//!
//! ```text
//! op, setup <- input        the vocabulary and its forms; knows no manager
//! memory                    the simulated device
//! system                    the only file that calls hybrid_blocks::BlockManager
//! request <- world <- {predict, refuse, finish}
//! ```
#![forbid(unsafe_code)]

mod finish;
mod input;
mod memory;
mod op;
mod predict;
mod refuse;
mod request;
mod setup;
mod system;
mod world;

pub use finish::longest_request_finishes_alone;
pub use input::Input;
pub use op::{Op, Refusal};
pub use setup::{Group, Policy, Setup};
pub use system::Call;
pub use world::{Check, World};
