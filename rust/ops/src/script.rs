//! [`Script`]: a setup and what happens in it, as bytes and as text.

use std::fmt::Debug;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::world::Check;

/// A part of a script: JSON takes a line of each.
pub trait Part: Clone + Debug + PartialEq + Serialize + DeserializeOwned {
    /// As many bytes as a part is decoded from.
    type Bytes: Default + AsMut<[u8]>;

    /// Returns the part that `bytes` stand for; every array stands for one.
    fn decode(bytes: Self::Bytes) -> Self;
}

/// The first part of a script.
pub trait Setting: Part {
    /// All later parts.
    type Event: Part;
    /// The system under test, with all that surrounds it.
    type World;

    /// Makes the world before the first event.
    fn world(&self) -> Self::World;

    /// Lets an event happen, then compares everything that can be seen.
    fn apply(world: &mut Self::World, event: &Self::Event) -> Check;

    /// Carries all that is under way to its end. Nothing may be left behind.
    fn finish(world: &mut Self::World) -> Check;
}

/// A whole test.
#[derive(Clone, Debug, PartialEq)]
pub struct Script<S: Setting> {
    /// Setup of the system under test.
    pub setup: S,
    /// Events in their order.
    pub events: Vec<S::Event>,
}

/// Decodes a part from the start of `bytes`; those that are missing are 0.
fn decode<P: Part>(bytes: &[u8]) -> P {
    let mut own = P::Bytes::default();
    own.as_mut().iter_mut().zip(bytes).for_each(|(own, &byte)| *own = byte);
    P::decode(own)
}

fn read<P: Part>((number, line): (usize, &str)) -> Result<P, String> {
    serde_json::from_str(line).map_err(|error| format!("line {number}: {error}"))
}

impl<S: Setting> Script<S> {
    /// Returns the script that `bytes` stand for: the setup, then one event after the other. A rest too short for an
    /// event is left out.
    pub fn decode(bytes: &[u8]) -> Self {
        let (head, tail) = bytes.split_at(bytes.len().min(size_of::<S::Bytes>()));
        let events = tail.chunks_exact(size_of::<<S::Event as Part>::Bytes>());
        Self { setup: decode(head), events: events.map(decode).collect() }
    }

    /// Writes JSON lines: the setup, then one event a line.
    ///
    /// # Panics
    /// For parts that JSON has no form of.
    pub fn to_text(&self) -> String {
        let setup = serde_json::to_string(&self.setup).expect("a setup is JSON");
        let events = self.events.iter().map(|it| serde_json::to_string(it).expect("it is JSON"));
        std::iter::once(setup).chain(events).map(|line| line + "\n").collect()
    }

    /// Reads what [`Script::to_text`] wrote. An error names the first line that is not understood.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = (1..).zip(text.lines());
        let setup = read(lines.next().unwrap_or((1, "")))?;
        Ok(Self { setup, events: lines.map(read).collect::<Result<_, _>>()? })
    }

    /// Runs all events in a new world, and every check after each. An error tells what the manager did wrong, and
    /// after which event.
    pub fn run(&self) -> Result<S::World, String> {
        let mut world = self.setup.world();
        self.run_in(&mut world)?;
        Ok(world)
    }

    /// As [`Script::run`], in a world that was made for the same setup and in which nothing happened.
    pub fn run_in(&self, world: &mut S::World) -> Check {
        for (number, event) in self.events.iter().enumerate() {
            let done = S::apply(world, event);
            done.map_err(|error| format!("event {number}, {event:?}: {error}"))?;
        }
        S::finish(world).map_err(|error| format!("at the end: {error}"))
    }
}
