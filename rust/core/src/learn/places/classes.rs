//! [`Classes`]: where prompts of each class are left.

use super::departures::{Departures, Rates};
use super::prompt::NUM_BEGINNINGS;
use super::{Leaving, PromptClass};

/// Departures by class. Those of client 0 are of the prompts of all clients.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    of: Vec<Departures>,
}

impl Default for Classes {
    /// Nothing seen so far.
    fn default() -> Self {
        Self { of: vec![Departures::prior(); NUM_BEGINNINGS] }
    }
}

impl Classes {
    /// A prompt of `class` was admitted, and leaves an earlier one. That counts for the earlier one if
    /// no prompt left it there before.
    pub(super) fn on_prompt(&mut self, class: PromptClass, leaving: Option<Leaving>) {
        self.each(class, Departures::add_prompt);
        if let Some(Leaving { author, departure, num_before: None | Some(0) }) = leaving {
            self.each(author, |departures| departures.add(departure));
        }
    }

    /// Does something to what is known of a class, and of such prompts of all clients.
    fn each(&mut self, class: PromptClass, change: impl Fn(&mut Departures)) {
        change(&mut self.of[class.beginning as usize]);
        if class.client > 0 {
            if self.of.len() <= class.index() {
                self.of.resize_with(class.index() + 1, Departures::default);
            }
            change(&mut self.of[class.index()]);
        }
    }

    pub(super) fn rates(&self, class: PromptClass) -> Rates {
        let own = self.of.get(class.index()).filter(|_| class.client > 0);
        Departures::rates(&self.of[class.beginning as usize], own)
    }
}
