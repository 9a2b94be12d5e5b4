//! [`Classes`]: where prompts of each class are left.

use super::departures::{Departures, Rates};
use super::prompt::NUM_BEGINNINGS;
use super::{Leaving, PromptClass};

/// Departures by class. Those of client 0 are of the prompts of all clients.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    /// Departures of all prompts, where these count for each class.
    all: Option<Departures>,
    of: Vec<Departures>,
}

impl Default for Classes {
    /// Nothing seen so far.
    fn default() -> Self {
        Self { all: None, of: vec![Departures::prior(); NUM_BEGINNINGS] }
    }
}

impl Classes {
    /// Nothing seen so far, where what is seen of all counts as a few prompts of each class.
    pub(super) fn beside_all() -> Self {
        Self { all: Some(Departures::prior()), of: vec![Departures::default(); NUM_BEGINNINGS] }
    }

    /// A prompt of `class` was admitted.
    pub(super) fn add_prompt(&mut self, class: PromptClass) {
        self.each(class, Departures::add_prompt);
    }

    /// A prompt leaves an earlier one. That counts for the earlier one if no prompt left it there before.
    pub(super) fn on_left(&mut self, leaving: Option<Leaving>) {
        if let Some(Leaving { author, departure, num_before: None | Some(0), .. }) = leaving {
            self.each(author, |departures| departures.add(departure));
        }
    }

    /// Does something to what is known of a class, of such prompts of all clients, and of all.
    fn each(&mut self, class: PromptClass, change: impl Fn(&mut Departures)) {
        self.all.as_mut().map(&change);
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
        let alike = &self.of[class.beginning as usize];
        match &self.all {
            Some(all) => Departures::rates(&alike.beside(all), own),
            None => Departures::rates(alike, own),
        }
    }
}
