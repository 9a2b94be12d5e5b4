//! What releases of vLLM decide differently.

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
}

impl ReleaseRules {
    /// All rules.
    pub const ALL: Self = Self { keeps_block_below_junction: true, keys_running_state_once: true };

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
