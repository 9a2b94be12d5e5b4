//! [`Input`]: a setup and the operations on it, as bytes and as text.

use crate::lines;
use crate::op::Op;
use crate::setup::Setup;
use crate::system::Call;
use crate::world::{Check, World};

/// A whole test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Input {
    /// Setup of the manager.
    pub setup: Setup,
    /// Operations in their order.
    pub ops: Vec<Op>,
}

impl Input {
    /// The input that `bytes` stand for: the setup, then one operation after the other. Bytes that
    /// are missing are 0; a rest too short for an operation is left out.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let (setup, ops) = lines::split(bytes);
        Self {
            setup: Setup::decode(setup),
            ops: ops.iter().map(|&bytes| Op::decode(bytes)).collect(),
        }
    }

    /// JSON lines: the setup, then one operation a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        lines::to_text(&self.setup, &self.ops)
    }

    /// Reads what [`Input::to_text`] wrote.
    ///
    /// # Errors
    /// The number of the first line that is not understood, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (setup, ops) = lines::parse(text)?;
        Ok(Self { setup, ops })
    }

    /// Runs all operations, and every check after each.
    ///
    /// # Errors
    /// What the manager did wrong, and after which operation.
    pub fn run(&self) -> Check {
        self.run_in(&mut World::new(&self.setup))
    }

    /// As [`Input::run`]; also returns the calls that were made and what they answered.
    ///
    /// # Errors
    /// As [`Input::run`].
    pub fn transcript(&self) -> Result<Vec<Call>, String> {
        let mut world = World::new(&self.setup).with_transcript();
        self.run_in(&mut world)?;
        Ok(world.take_transcript())
    }

    /// As [`Input::run`], in a world without requests that was made for the same setup.
    ///
    /// # Errors
    /// As [`Input::run`].
    pub fn run_in(&self, world: &mut World) -> Check {
        for (number, op) in self.ops.iter().enumerate() {
            world.apply(op).map_err(|error| format!("operation {number}, {op:?}: {error}"))?;
        }
        world.finish().map_err(|error| format!("at the end: {error}"))
    }
}
