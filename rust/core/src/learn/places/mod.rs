//! Where a prompt leaves checkpoints of its recurrent state, learned from where later prompts leave
//! earlier ones. It knows tokens and blocks by number, no store: any set of rules can ask it.
//!
//! ```text
//! distances <- departures <- choose, classes <- Placement      authors, pressure: facts for it
//! ```
//! The caller tells what it sees:
//! 1. [`Authors`]: which prompt computed each attention block.
//! 2. [`Placement::on_prompt`]: a prompt was admitted, and where it leaves the path of an earlier one.
//! 3. [`Pressure`]: blocks evicted, and tokens saved by what was cached for how long.
//!
//! and asks [`Placement::plan`] for the lengths at which a prompt leaves checkpoints.

mod again;
mod authors;
mod choose;
mod classes;
mod departures;
mod distances;
mod outlook;
mod pressure;
mod prompt;
#[cfg(test)]
mod tests;
mod unanswered;

pub use again::Again;
pub use authors::{Author, Authors, Leaving};
pub use choose::{Lengths, MAX_PLACES};
pub use departures::Departure;
pub use outlook::Outlook;
pub use pressure::Pressure;
pub use prompt::{Beginning, Prompt, PromptClass};

use choose::{Demand, choose};
use classes::Classes;
use distances::Distances;
use prompt::last_resume;
use unanswered::Unanswered;

/// The checkpoints of one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Where the prompt leaves checkpoints, ascending.
    pub lengths: Lengths,
    /// Whether a copy follows its answer.
    pub end: bool,
    /// Which of the lengths is a branch, 0 for none.
    pub branch: u32,
}

/// A step's fixed time in tokens, where the engine names no number: 4.83 ms by the replay's step times.
pub const STEP_TOKENS: f64 = 149.0;

/// Tokens that a checkpoint has to save there beyond the price of its bytes. The chunk that it ends costs
/// a step its fixed time, and a batch of 16 shares all but a small part of that.
const BOUNDARY_TOKENS: f64 = 16.0;

/// Tokens that a checkpoint costs which ends no chunk: the forward pass stops inside to keep it.
pub const PREFILL_CHECKPOINT_TOKENS: f64 = 30.0;

/// A prompt that is sent again finds as much as it can, if a checkpoint costs no more tokens than this.
const SENT_AGAIN_TOKENS: f64 = 32.0;

/// Share of an answer's tokens that a copy which follows it costs: one every 64 tokens reads and
/// writes 300 MB for a state of 150 MB, at 4.8 TB/s the time of 2 tokens.
const FOLLOW_SHARE: f64 = 1.0 / 32.0;

/// Where checkpoints go. It learns with each call.
#[derive(Clone, Debug)]
pub struct Placement {
    /// Tokens whose attention blocks take as many bytes as one checkpoint.
    state_tokens: f64,
    /// A length is a multiple of this.
    alignment: u32,
    /// Tokens that a checkpoint has to save beyond the price of its bytes.
    place_tokens: f64,
    distances: Distances,
    /// How far prompts found earlier ones: it decides where checkpoints go.
    found: Classes,
    /// How far they share them, though part of that was evicted: it decides what checkpoints are worth.
    shared: Classes,
    again: Again,
    unanswered: Unanswered,
    /// Tokens of a window, where checkpoints are windows that cost more than the attention of their tokens; else 0.
    window: u32,
}

impl Placement {
    /// Nothing seen so far.
    #[must_use]
    pub fn new(state_tokens: f64, alignment: u32) -> Self {
        Self {
            state_tokens,
            alignment,
            place_tokens: BOUNDARY_TOKENS,
            distances: Distances::new(alignment),
            found: Classes::default(),
            shared: Classes::default(),
            again: Again::default(),
            unanswered: Unanswered::default(),
            window: 0,
        }
    }

    /// From now on each checkpoint has to save `place_tokens` beyond the price of its bytes.
    pub fn set_place_tokens(&mut self, place_tokens: f64) {
        self.place_tokens = place_tokens;
    }

    /// With checkpoints that are windows of `window` tokens, 0 if they are states. Some cost more than the attention of
    /// their tokens. A place costs there the part that no other needs, and prompts of all classes teach each class.
    #[must_use]
    pub fn of_windows(self, window: u32) -> Self {
        if window == 0 || self.state_tokens <= f64::from(window) {
            return self;
        }
        let (found, shared) = (Classes::beside_all(), Classes::beside_all());
        Self { found, shared, window, ..self }
    }

    /// A prompt of `class` was admitted, and leaves an earlier one: where that is no longer `found`, and where
    /// it is no longer `shared`. What they share and the cache has lost lies between. Each counts for the earlier
    /// one if no prompt left it there before.
    pub fn on_prompt(
        &mut self,
        class: PromptClass,
        found: Option<Leaving>,
        shared: Option<Leaving>,
    ) {
        let number = shared.or(found).map(|leaving| leaving.number);
        let left = number.and_then(|number| self.unanswered.on_left(number));
        let open = self.unanswered.on_prompt(class);
        let mut add = |class| [&mut self.found, &mut self.shared].map(|it| it.add_prompt(class));
        if self.window > 0 {
            left.into_iter().chain(open).for_each(|class| _ = add(class));
        } else {
            drop(open);
            add(class);
        }
        self.found.on_left(found);
        self.shared.on_left(shared);
        if let Some(num_before) = found.and_then(|leaving| leaving.num_before) {
            self.again.add(num_before);
        }
    }

    /// Prompts so far.
    #[must_use]
    pub fn num_prompts(&self) -> u32 {
        self.unanswered.num_prompts()
    }

    /// The chance that a place that `num_uses` prompts went on from is gone on from once more.
    #[must_use]
    pub fn chance_again(&self, num_uses: u8) -> f64 {
        self.again.chance(num_uses)
    }

    /// Where a prompt leaves checkpoints, while bytes cost `price`: the tokens that the attention of
    /// one token, in their place, would save.
    #[must_use]
    pub fn plan(&self, prompt: Prompt, price: f64, most: usize) -> Plan {
        let cost = self.place_tokens + price * self.state_tokens;
        let rates = self.found.rates(prompt.class);
        let saved_by_end = rates.into_answer * rates.answer_tokens;
        let end = saved_by_end > price * self.state_tokens && rates.into_answer > FOLLOW_SHARE;
        let demand = Demand {
            rates: &rates,
            serves_answers: !end,
            alignment: self.alignment,
            distances: &self.distances,
            cost,
            window: self.window,
        };
        let branch = if most > 0 { self.branch(prompt, cost) } else { 0 };
        let start = if branch > 0 { branch } else { prompt.start };
        let most = most.min(MAX_PLACES) - usize::from(branch > 0);
        let choose = |most| choose(&demand, start, prompt.num_tokens, most);
        let mut lengths = choose(most);
        // While bytes are worth nothing, the same prompt sent again is served as far as it can be. Of many places, the
        // one that saves least makes room for that.
        let last = last_resume(prompt.num_tokens, self.alignment);
        let is_free = price <= 0.0
            && self.place_tokens <= SENT_AGAIN_TOKENS
            && last > start
            && !lengths.as_slice().contains(&last);
        if is_free && lengths.as_slice().len() == most && most > 1 {
            lengths = choose(most - 1);
        }
        if is_free && lengths.as_slice().len() < most {
            lengths.insert(last);
        }
        if branch > 0 {
            lengths.insert(branch);
        }
        Plan { lengths, end, branch }
    }

    /// Returns the tokens that a prompt's checkpoints at `lengths`, ascending, are likely to save. `again` is the
    /// probability by use count that one is used once more. A checkpoint behind the prompt serves prompts that
    /// continue into the answer.
    #[must_use]
    pub fn outlook(
        &self,
        class: PromptClass,
        num_tokens: u32,
        lengths: &[u32],
        again: &[f64],
    ) -> Outlook {
        let rates = self.shared.rates(class);
        let end = num_tokens / self.alignment * self.alignment;
        let served = rates.served(&self.distances);
        let reach = |&length: &u32| if length <= end { served.within(end - length) } else { 0.0 };
        Outlook {
            reached: lengths.iter().map(reach).chain([-rates.into_answer]).collect(),
            tokens: lengths.iter().map(|&length| f64::from(length)).collect(),
            again: again.to_vec(),
            windows: None,
        }
    }

    /// The branch, if a checkpoint there is worth its cost.
    fn branch(&self, prompt: Prompt, cost: f64) -> u32 {
        if prompt.branch <= prompt.start || prompt.branch >= prompt.num_tokens {
            return 0;
        }
        let uses = self.again.uses(prompt.num_left.saturating_add(1));
        let saved = f64::from(prompt.branch) - f64::from(prompt.start);
        if uses * saved > cost { prompt.branch } else { 0 }
    }
}
