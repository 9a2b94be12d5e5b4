//! [`Unanswered`]: prompts that later ones may still leave.

use std::collections::VecDeque;

use super::PromptClass;

/// Latest prompts that others may still leave. A prompt counts once it is left, or once as many came after it as
/// come in the mean before one is left. Else those whose next turns are still to come would count as if none followed.
#[derive(Clone, Debug)]
pub(super) struct Unanswered {
    /// `None` for those that were left.
    prompts: VecDeque<Option<PromptClass>>,
    /// All so far.
    num_prompts: u32,
    /// Prompts after which one is left, in the mean.
    lag: f64,
    /// Number of those in the mean, up to [`MEMORY`].
    num_left: f64,
}

/// Prompts that were left over which the lag is averaged.
const MEMORY: f64 = 64.0;

/// The lag that is believed in before any prompt was left.
const FIRST_LAG: f64 = 64.0;

/// Most prompts that are open.
const MOST: usize = 256;

impl Default for Unanswered {
    fn default() -> Self {
        Self { prompts: VecDeque::new(), num_prompts: 0, lag: FIRST_LAG, num_left: 0.0 }
    }
}

impl Unanswered {
    pub(super) fn num_prompts(&self) -> u32 {
        self.num_prompts
    }

    /// The prompt with a number is left. Returns its class if it was open.
    pub(super) fn on_left(&mut self, number: u32) -> Option<PromptClass> {
        let lag = self.num_prompts.wrapping_sub(number);
        self.num_left = (self.num_left + 1.0).min(MEMORY);
        self.lag += (f64::from(lag) - self.lag) / self.num_left;
        let at = self.prompts.len().checked_sub(lag as usize)?;
        self.prompts.get_mut(at)?.take()
    }

    /// A prompt came. Returns the classes of those that are open no more.
    pub(super) fn on_prompt(
        &mut self,
        class: PromptClass,
    ) -> impl Iterator<Item = PromptClass> + use<'_> {
        self.num_prompts = self.num_prompts.wrapping_add(1);
        self.prompts.push_back(Some(class));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let most = (self.lag.ceil() as usize).min(MOST);
        let num_over = self.prompts.len().saturating_sub(most);
        self.prompts.drain(..num_over).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_counts_once_it_is_left_or_once_it_is_overdue() {
        let (mut unanswered, class) = (Unanswered::default(), PromptClass::default());
        let mut counted = 0;
        for number in 0..10 {
            counted += unanswered.on_prompt(class).count();
            if number >= 3 {
                assert_eq!(unanswered.on_left(number - 3), Some(class), "the fourth before");
                assert_eq!(unanswered.on_left(number - 3), None, "left already");
            }
        }
        assert_eq!((counted, unanswered.num_prompts()), (0, 10));
        // As many come after each as came before others were left.
        assert_eq!((0..10).map(|_| unanswered.on_prompt(class).count()).sum::<usize>(), 9);
    }
}
