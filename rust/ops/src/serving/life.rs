//! [`Life`]: an engine and what happens to it, as bytes and as text.

use hybrid_blocks::vllm::KvCacheStats;

use super::engine::Engine;
use super::{Event, Setup};
use crate::lines;

/// A whole life of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// Setup of the engine.
    pub setup: Setup,
    /// Events in their order.
    pub events: Vec<Event>,
}

impl Life {
    /// The life that `bytes` stand for: the setup, then one event after the other. Bytes that are missing are 0; a
    /// rest too short for an event is left out.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Self {
        let (setup, events) = lines::split(bytes);
        Self {
            setup: Setup::decode(setup),
            events: events.iter().map(|&bytes| Event::decode(bytes)).collect(),
        }
    }

    /// JSON lines: the setup, then one event a line.
    #[must_use]
    pub fn to_text(&self) -> String {
        lines::to_text(&self.setup, &self.events)
    }

    /// Reads what [`Life::to_text`] wrote.
    ///
    /// # Errors
    /// The number of the first line that is not understood, and why.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (setup, events) = lines::parse(text)?;
        Ok(Self { setup, events })
    }

    /// Lives it, with every check after each step, until all requests have ended. Returns what happened.
    ///
    /// # Errors
    /// What the manager did wrong, and after which event.
    pub fn run(&self) -> Result<KvCacheStats, String> {
        let mut engine = Engine::new(&self.setup);
        for (number, event) in self.events.iter().enumerate() {
            let done = engine.apply(event);
            done.map_err(|error| format!("event {number}, {event:?}: {error}"))?;
        }
        engine.finish().map_err(|error| format!("at the end: {error}"))?;
        Ok(engine.stats())
    }
}
