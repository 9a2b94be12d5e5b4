//! Newtypes for the ids that cross module borders. All are 32 bits: a million blocks must stay small.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as an array index.
            #[inline]
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id! {
    /// A block of one pool: `slab * blocks_per_slab + index in the slab`.
    BlockId
}
id! {
    /// A fixed run of arena bytes, owned by one pool at a time.
    SlabId
}
id! {
    /// A pool of equal blocks.
    PoolId
}
id! {
    /// A cache group: layers that share a block table.
    GroupId
}

impl BlockId {
    /// The placeholder block. It stands in block tables where nothing is stored and is never handed out.
    pub const NULL: Self = Self(0);

    /// Whether this is the placeholder.
    #[inline]
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }
}
