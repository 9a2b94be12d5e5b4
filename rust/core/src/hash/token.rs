//! [`Token`]: the integer types that token ids come in.

/// A token id, as wide as its source stores it. Equal values hash equally, whatever their width.
pub trait Token: Copy + Eq + Into<i64> {}

impl Token for i32 {}
impl Token for u32 {}
impl Token for i64 {}
