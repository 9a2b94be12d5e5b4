//! [`BlockStore`]: a store of either kind.

use super::parts::{Journal, Parts, PoolParts};
use super::{FixedStore, Reservation, SlabStore, Store};
use crate::error::Error;
use crate::ids::{BlockId, PoolId, SlabId};
use crate::pool::BlockStates;
use crate::prefix_index::{Key, PrefixIndex};

/// A store whose kind is chosen at run time. Each call tests the kind once.
#[derive(Debug)]
pub enum BlockStore {
    /// One pool of equal blocks.
    Fixed(FixedStore),
    /// Pools that share an arena of slabs.
    Slab(SlabStore),
}

impl BlockStore {
    /// A [`FixedStore`] of `num_blocks` blocks.
    ///
    /// # Errors
    /// As [`FixedStore::new`].
    pub fn fixed(num_blocks: u32) -> Result<Self, Error> {
        FixedStore::new(num_blocks).map(Self::Fixed)
    }

    /// A [`SlabStore`] of `num_slabs` slabs, with one pool an entry of `blocks_per_slab`.
    ///
    /// # Errors
    /// As [`SlabStore::new`].
    pub fn shared(num_slabs: u32, blocks_per_slab: &[u32]) -> Result<Self, Error> {
        SlabStore::new(num_slabs, blocks_per_slab).map(Self::Slab)
    }
}

/// Methods that call the same method of the store there is.
macro_rules! delegate {
    ($(fn $name:ident [$($receiver:tt)+] ($this:ident $(, $arg:ident: $type:ty)*) $(-> $out:ty)?;)+) => {
        $(
            #[inline]
            fn $name($($receiver)+ $this $(, $arg: $type)*) $(-> $out)? {
                match $this {
                    Self::Fixed(store) => store.$name($($arg),*),
                    Self::Slab(store) => store.$name($($arg),*),
                }
            }
        )+
    };
}

impl Parts for BlockStore {
    delegate! {
        fn journal[&](self) -> &Journal;
        fn parts[&mut](self, pool: PoolId) -> PoolParts<'_>;
        fn clear_hashed[&mut](self, pool: PoolId, block: BlockId);
        fn reset_pool[&mut](self, pool: PoolId);
        fn drop_duplicate[&mut](self, pool: PoolId, key: &Key, kept: BlockId);
        fn collect_emptied[&mut](self, pool: PoolId);
    }
}

impl Store for BlockStore {
    delegate! {
        fn pool[&](self, pool: PoolId) -> &BlockStates;
        fn prefix_index[&](self, pool: PoolId) -> &PrefixIndex;
        fn free_order[&](self, pool: PoolId) -> Vec<BlockId>;
        fn as_slabs[&](self) -> Option<&SlabStore>;
        fn as_slabs_mut[&mut](self) -> Option<&mut SlabStore>;
        fn take[&mut](
            self,
            pool: PoolId,
            num_blocks: u64,
            near: Option<SlabId>,
            reservation: &mut Reservation,
            out: &mut Vec<BlockId>
        );
        fn touch_all[&mut](
            self,
            pool: PoolId,
            blocks: impl Iterator<Item = BlockId>
        ) -> Result<(), Error>;
        fn undo_touch[&mut](self, pool: PoolId, block: BlockId);
        fn free[&mut](
            self,
            pool: PoolId,
            blocks: impl Iterator<Item = BlockId> + Clone
        ) -> Result<(), Error>;
        fn read_ahead[&](self, pool: PoolId, block: BlockId, key: &Key) -> u32;
        fn insert_run[&mut](
            self,
            pool: PoolId,
            before: Option<BlockId>,
            entries: impl Iterator<Item = (BlockId, Key, u32)>
        );
        fn memory_bytes[&](self) -> usize;
        fn check_integrity[&](self) -> Result<(), String>;
    }
}
