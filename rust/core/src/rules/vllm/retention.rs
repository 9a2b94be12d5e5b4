//! Which full blocks of sparse groups are worth keeping.

use super::config::{GroupConfig, ManagerConfig};
use super::progress::RequestProgress;
use crate::group::{GroupKind, sliding_window};

/// Which blocks of `start..end` to keep, or `None` for all of them. `request` names the boundaries
/// that are kept whatever the interval.
///
/// A hit ends where every group can resume. So only the last window before such an end is of use,
/// and only the state at it.
pub(super) fn mask(
    config: &ManagerConfig,
    group: &GroupConfig,
    use_eagle: bool,
    (start, end): (u32, u32),
    request: Option<&RequestProgress>,
) -> Option<Vec<bool>> {
    let block = group.block_size;
    let alignment = config.hit_alignment();
    // Blocks that a hit needs at its end, and how far past it a drafter's group looks.
    let (need, shift) = match group.kind {
        GroupKind::SlidingWindow { .. } if !alignment.is_multiple_of(block) => return None,
        GroupKind::SlidingWindow { window, .. } => {
            (sliding_window::window_blocks(window, block, use_eagle), u32::from(use_eagle))
        }
        kind if kind.is_mamba() => (1, 0),
        _ => return None,
    };
    let segment = match config.retention_interval {
        None if group.kind.is_mamba() => return None,
        None => alignment,
        Some(interval) => interval,
    };
    let per_segment = segment / block;
    if segment > 0 && need >= per_segment {
        return None;
    }
    let mut keep = vec![false; (end - start) as usize];
    if segment > 0 {
        for (position, keep) in (start..end).zip(&mut keep) {
            let in_segment = position.checked_sub(shift).map(|from| from % per_segment);
            *keep = in_segment.is_some_and(|at| at >= per_segment - need);
        }
    }
    if config.retention_interval.is_some()
        && let Some(request) = request
    {
        for boundary in reachable_boundaries(config, group, request) {
            let aligned = boundary.div_euclid(i64::from(alignment)) * i64::from(alignment);
            let tail_end = aligned.div_euclid(i64::from(block)) + i64::from(shift);
            let tail = tail_end - i64::from(need)..tail_end;
            for (position, keep) in (start..end).zip(&mut keep) {
                *keep |= tail.contains(&i64::from(position));
            }
        }
    }
    Some(keep)
}

/// Token counts at which a later request can resume this one's prompt, and at which others were
/// seen to diverge from it.
///
/// The same prompt sent again must compute its last token, a longer one need not; the two differ
/// where the prompt ends with a block, and a drafter drops one block of either.
fn reachable_boundaries(
    config: &ManagerConfig,
    group: &GroupConfig,
    request: &RequestProgress,
) -> Vec<i64> {
    let num_prompt = i64::from(request.num_prompt);
    let mut boundaries = if config.drops_eagle_block {
        let block = i64::from(config.scheduler_block_size);
        let drop = |num_tokens: i64| (num_tokens.div_euclid(block) * block - block).max(0);
        vec![drop(num_prompt - 1), drop(num_prompt)]
    } else {
        vec![num_prompt - 1]
    };
    if request.shared_prefix_boundary > 0 {
        let junction = i64::from(request.shared_prefix_boundary);
        boundaries.push(junction);
        if group.use_eagle && config.release.keeps_block_below_junction {
            boundaries.push(junction - i64::from(group.block_size));
        }
    }
    boundaries
}
