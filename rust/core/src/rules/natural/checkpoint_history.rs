//! [`CheckpointHistory`]: what is known of checkpoints besides their content.

use crate::ids::BlockId;

/// Requests that make a checkpoint shared.
const SHARED: u8 = 2;

/// What a checkpoint was left for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The next turn, which repeats the prompt.
    Prompt,
    /// Requests that leave a prefix where an earlier one left it.
    Branch,
    /// The next turn, which repeats the answer too.
    End,
}

/// Who went on from one checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Checkpoint {
    num_uses: u8,
    num_turns: u8,
    is_end: bool,
    /// The shorter checkpoint that its request kept beside it, 0 for none.
    spare: u32,
}

/// Who went on from each checkpoint of a pool, by block.
#[derive(Debug, Default)]
pub(crate) struct CheckpointHistory {
    of: Vec<Checkpoint>,
    ends: Ends,
}

impl CheckpointHistory {
    pub(crate) fn new(num_ids: u32) -> Self {
        Self { of: vec![Checkpoint::default(); num_ids as usize], ends: Ends::default() }
    }

    /// A new checkpoint, left in the turn `num_turns` of a conversation. At a branch, two requests
    /// have come by already.
    pub(crate) fn leave(&mut self, block: BlockId, num_turns: u8, origin: Origin) {
        let num_uses = if origin == Origin::Branch { SHARED } else { 0 };
        let is_end = origin == Origin::End;
        self.of[block.index()] = Checkpoint { num_uses, num_turns, is_end, spare: 0 };
    }

    /// A request goes on from a checkpoint. Returns which turn of a conversation that is: 0 unless the
    /// request is the first to go on from there.
    pub(crate) fn go_on(&mut self, block: BlockId) -> u8 {
        let checkpoint = &mut self.of[block.index()];
        checkpoint.num_uses = checkpoint.num_uses.saturating_add(1);
        if checkpoint.num_uses > 1 {
            return 0;
        }
        self.ends.used += u32::from(checkpoint.is_end);
        checkpoint.num_turns.saturating_add(1)
    }

    /// A request ended and keeps a checkpoint of `num_tokens` beside this one.
    pub(crate) fn set_spare(&mut self, block: BlockId, num_tokens: u32) {
        self.of[block.index()].spare = num_tokens;
    }

    /// The length of the checkpoint kept beside this one, 0 for none.
    pub(crate) fn spare(&self, block: BlockId) -> u32 {
        self.of[block.index()].spare
    }

    /// Whether the end of one more request is to be kept.
    pub(crate) fn wants_end(&mut self) -> bool {
        self.ends.wants_one_more()
    }

    /// Whether several requests went on from a checkpoint, so that more may come.
    pub(crate) fn is_shared(&self, block: BlockId) -> bool {
        self.of[block.index()].num_uses >= SHARED
    }

    /// A checkpoint was moved to another block.
    pub(crate) fn relocate(&mut self, src: BlockId, dst: BlockId) {
        self.of[dst.index()] = self.of[src.index()];
    }
}

/// Requests whose end was kept, lately, and how many were gone on from there. Whether the next turn
/// repeats an answer word for word depends on the client: some leave out what the model thought.
#[derive(Debug)]
struct Ends {
    kept: u32,
    used: u32,
    asked: u32,
}

impl Default for Ends {
    /// At first, ends are believed in.
    fn default() -> Self {
        Self { kept: 8, used: 4, asked: 0 }
    }
}

impl Ends {
    /// Of how many kept ends one has to be used.
    const WORTHWHILE: u32 = 8;
    /// Of how many ends that are not worthwhile one is kept all the same, to see whether it is used.
    const PROBE: u32 = 8;
    /// Kept ends after which older ones count half.
    const MEMORY: u32 = 128;

    fn wants_one_more(&mut self) -> bool {
        self.asked = self.asked.wrapping_add(1);
        let is_worthwhile = self.used * Self::WORTHWHILE >= self.kept;
        if !is_worthwhile && !self.asked.is_multiple_of(Self::PROBE) {
            return false;
        }
        self.kept += 1;
        if self.kept > Self::MEMORY {
            self.kept /= 2;
            self.used /= 2;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_count_up_along_a_conversation_and_start_anew_where_it_branches() {
        let mut history = CheckpointHistory::new(4);
        let (prefix, first, second) = (BlockId(1), BlockId(2), BlockId(3));
        history.leave(prefix, 0, Origin::Branch);
        assert_eq!(history.go_on(prefix), 0);
        history.leave(first, 0, Origin::Prompt);
        assert_eq!(history.go_on(first), 1);
        history.leave(second, 1, Origin::End);
        assert_eq!(history.go_on(second), 2);
        assert_eq!(history.go_on(first), 0, "the conversation branches");
        assert!(history.is_shared(prefix) && history.is_shared(first));
        assert!(!history.is_shared(second));
    }

    #[test]
    fn ends_are_kept_while_they_are_used_and_probed_while_they_are_not() {
        let mut history = CheckpointHistory::new(2);
        let num_kept = |history: &mut CheckpointHistory, is_used: bool| {
            let kept = (0..400).filter(|_| {
                let is_kept = history.wants_end();
                if is_kept && is_used {
                    history.leave(BlockId(1), 0, Origin::End);
                    history.go_on(BlockId(1));
                }
                is_kept
            });
            kept.count()
        };
        assert_eq!(num_kept(&mut history, true), 400);
        let learning = num_kept(&mut history, false);
        assert!((100..350).contains(&learning), "{learning}");
        assert_eq!(num_kept(&mut history, false), 50, "one of eight");
        assert!(num_kept(&mut history, true) > 250, "the client is another one now");
    }
}
