//! Decisions in which releases of vLLM differ.

use crate::error::Error;

/// Rules that some releases of vLLM follow and others do not. The caller says which of them hold:
/// the core knows no release.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "independent rules")]
pub struct ReleaseRules {
    /// Whether sparse retention keeps, for a drafter's group, the block below a junction too: a
    /// request that diverges right after the junction resumes there.
    pub keeps_block_below_junction: bool,
    /// Whether a running state that has its key already is left alone.
    pub keys_running_state_once: bool,
    /// Whether a running state is entered at the end of its block too, by the key of its tokens.
    pub keys_states_at_block_ends: bool,
    /// Whether a prompt that is sent again is known to leave its last token to compute: no tail is
    /// entered that only the whole prompt reaches.
    pub leaves_last_token: bool,
    /// Whether a drafter's groups look past the tokens that a hit may have, for what they then drop.
    pub looks_past_limit: bool,
    /// Whether drafts' blocks move on in a step that writes a checkpoint.
    pub moves_drafts_at_checkpoints: bool,
    /// Whether checkpoints inside a chunk lie where hits can end, rather than at hash blocks.
    pub places_checkpoints_at_hits: bool,
    /// Whether a checkpoint inside a chunk is kept as the retention interval says. Otherwise it is
    /// kept always, or at prompts' ends if nothing else is retained.
    pub retains_checkpoints_by_interval: bool,
}

impl ReleaseRules {
    /// All of these rules.
    pub const ALL: Self = Self {
        keeps_block_below_junction: true,
        keys_running_state_once: true,
        keys_states_at_block_ends: true,
        leaves_last_token: true,
        looks_past_limit: true,
        moves_drafts_at_checkpoints: true,
        places_checkpoints_at_hits: true,
        retains_checkpoints_by_interval: true,
    };

    /// The rules of these names, which are those of the fields.
    ///
    /// # Errors
    /// [`Error::InvalidConfig`] where a name is no rule's.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, Error> {
        let mut rules = Self::default();
        for name in names {
            let rule = match name {
                "keeps_block_below_junction" => &mut rules.keeps_block_below_junction,
                "keys_running_state_once" => &mut rules.keys_running_state_once,
                "keys_states_at_block_ends" => &mut rules.keys_states_at_block_ends,
                "leaves_last_token" => &mut rules.leaves_last_token,
                "looks_past_limit" => &mut rules.looks_past_limit,
                "moves_drafts_at_checkpoints" => &mut rules.moves_drafts_at_checkpoints,
                "places_checkpoints_at_hits" => &mut rules.places_checkpoints_at_hits,
                "retains_checkpoints_by_interval" => &mut rules.retains_checkpoints_by_interval,
                other => {
                    let what = format!("no rule of a vLLM release is called {other:?}");
                    return Err(Error::InvalidConfig(what));
                }
            };
            *rule = true;
        }
        Ok(rules)
    }
}
