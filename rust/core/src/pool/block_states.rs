//! [`BlockStates`]: the owners of every block of a pool, and whether its content can be found.

use crate::error::Error;
use crate::ids::BlockId;

/// The block's content is in the prefix index.
pub(super) const HASHED: u32 = 1 << 31;
/// The block waits among the cached ones and may be evicted.
pub(super) const EVICTABLE: u32 = 1 << 30;
/// The null block, or a block of a slab that the pool does not own.
pub(super) const ABSENT: u32 = 1 << 29;
/// The number of owners.
pub(super) const REFS: u32 = ABSENT - 1;

/// One 32-bit word a block, owners' count and marks, and how many blocks are free, cached and live.
#[derive(Debug)]
pub struct BlockStates {
    pub(super) words: Box<[u32]>,
    pub(super) num_free: u32,
    pub(super) num_cached: u32,
    /// Cached blocks whose content was dropped for other content, so far, though somebody might have needed it.
    pub(crate) num_evicted: u64,
    pub(super) num_live: u32,
}

impl BlockStates {
    /// States of `num_blocks` blocks that all have `word`.
    pub(super) fn new(num_blocks: u32, word: u32) -> Result<Self, Error> {
        if num_blocks == 0 || num_blocks > ABSENT {
            return Err(Error::InvalidConfig(format!(
                "a pool holds 1 to {ABSENT} blocks, not {num_blocks}; give it more or fewer slabs"
            )));
        }
        let words = vec![word; num_blocks as usize].into_boxed_slice();
        Ok(Self { words, num_free: 0, num_cached: 0, num_evicted: 0, num_live: 0 })
    }

    /// Ids below this are valid, the null block's among them.
    pub fn num_ids(&self) -> u32 {
        self.words.len() as u32
    }

    /// Blocks without owner, cached ones included.
    #[inline]
    pub fn num_available(&self) -> u32 {
        self.num_free + self.num_cached
    }

    /// Blocks without owner and content.
    #[inline]
    pub fn num_free(&self) -> u32 {
        self.num_free
    }

    /// Blocks without owner that can still be hit.
    #[inline]
    pub fn num_cached(&self) -> u32 {
        self.num_cached
    }

    /// Blocks with owners.
    #[inline]
    pub fn num_live(&self) -> u32 {
        self.num_live
    }

    /// Owners of a block; 0 for the null block and for foreign blocks.
    #[inline]
    pub fn ref_count(&self, block: BlockId) -> u32 {
        self.words.get(block.index()).map_or(0, |word| word & REFS)
    }

    /// Whether the block's content is in the prefix index.
    #[inline]
    pub fn is_hashed(&self, block: BlockId) -> bool {
        self.words[block.index()] & HASHED != 0
    }

    /// Whether the block has no owner and can be handed out.
    #[inline]
    pub fn is_available(&self, block: BlockId) -> bool {
        self.words.get(block.index()).is_some_and(|word| word & (ABSENT | REFS) == 0)
    }

    pub(super) fn is_evictable(&self, block: u32) -> bool {
        self.words[block as usize] & EVICTABLE != 0
    }

    /// Marks a block whose content has just entered the prefix index.
    #[inline]
    pub(crate) fn set_hashed(&mut self, block: BlockId) {
        self.words[block.index()] |= HASHED;
    }

    /// Heap bytes held.
    pub(super) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.words)
    }

    /// Gives free blocks, which have left their list, a first owner.
    #[inline]
    pub(super) fn own_free(&mut self, blocks: &[BlockId]) {
        // Not while walking the list: large arrays lie at the same offset in their pages, where a
        // store to one holds up the next load from the other.
        for block in blocks {
            self.words[block.index()] = 1;
        }
        self.num_free -= blocks.len() as u32;
        self.num_live += blocks.len() as u32;
    }

    /// Gives an evictable block, which has left its list, a first owner. It is no longer hashed.
    #[inline]
    pub(super) fn own_evicted(&mut self, block: BlockId) {
        self.words[block.index()] = 1;
        self.num_cached -= 1;
        self.num_evicted += 1;
        self.num_live += 1;
    }

    /// Adds an owner to each block. Those that had none are `revived` and must leave their lists;
    /// each comes with whether it was free. After an error those before it have their owner.
    #[inline]
    pub(super) fn add_owners(
        &mut self,
        blocks: impl Iterator<Item = BlockId>,
        mut revived: impl FnMut(u32, bool),
    ) -> Result<(), Error> {
        let (mut num_revived, mut num_free, mut added) = (0, 0, Ok(()));
        for block in blocks {
            let word = self.words.get(block.index()).copied().unwrap_or(ABSENT);
            if word & ABSENT != 0 {
                added = Err(Error::ForeignBlock { block, num_blocks: self.num_ids() });
                break;
            }
            self.words[block.index()] = (word & !EVICTABLE) + 1;
            if word & REFS == 0 {
                let was_free = word & EVICTABLE == 0;
                num_revived += 1;
                num_free += u32::from(was_free);
                revived(block.0, was_free);
            }
        }
        self.num_free -= num_free;
        self.num_cached -= num_revived - num_free;
        self.num_live += num_revived;
        added
    }

    /// Undoes the latest [`Self::add_owners`] of a live or cached block. Returns whether the block is
    /// cached again and must go back to its place.
    #[inline]
    pub(super) fn undo_add_owner(&mut self, block: BlockId) -> bool {
        let word = &mut self.words[block.index()];
        *word -= 1;
        let is_cached = *word & REFS == 0;
        if is_cached {
            *word |= EVICTABLE;
            self.num_cached += 1;
            self.num_live -= 1;
        }
        is_cached
    }

    /// Takes one owner from each block and puts those that lost their last one into `orphaned`.
    /// Returns true only if all of these are hashed. After an error nothing has changed.
    #[inline]
    pub(super) fn remove_owners(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
        orphaned: &mut Vec<u32>,
    ) -> Result<bool, Error> {
        orphaned.clear();
        // Most blocks have one owner. A run of them names each block once.
        let (mut num_sole, mut common, mut all) = (0, HASHED, true);
        for block in blocks.clone() {
            match self.words.get_mut(block.index()) {
                Some(word) if *word & REFS == 1 => {
                    *word -= 1;
                    common &= *word;
                    num_sole += 1;
                }
                _ => {
                    all = false;
                    break;
                }
            }
        }
        if all {
            orphaned.extend(blocks.map(|block| block.0));
        } else {
            orphaned.extend(blocks.clone().take(num_sole).map(|block| block.0));
            self.remove_shared(blocks, num_sole, orphaned)?;
            common = 0;
        }
        self.num_live -= orphaned.len() as u32;
        Ok(common & HASHED != 0)
    }

    /// Takes one owner from each block after the first `done`, or gives all back that were taken.
    fn remove_shared(
        &mut self,
        blocks: impl Iterator<Item = BlockId> + Clone,
        done: usize,
        orphaned: &mut Vec<u32>,
    ) -> Result<(), Error> {
        for (done, block) in blocks.clone().enumerate().skip(done) {
            match self.words.get_mut(block.index()) {
                Some(word) if *word & REFS > 0 => {
                    *word -= 1;
                    if *word & REFS == 0 {
                        orphaned.push(block.0);
                    }
                }
                _ => {
                    for block in blocks.take(done) {
                        self.words[block.index()] += 1;
                    }
                    return Err(Error::NotLive { block });
                }
            }
        }
        Ok(())
    }
}
