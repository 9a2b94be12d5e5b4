//! [`CheckpointFormat`]: how the numbers of a checkpoint are stored.

/// How the 32-bit numbers of a recurrent state are stored in a checkpoint. Numbers of other formats stay as they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CheckpointFormat {
    /// As in a running state.
    #[default]
    Full,
    /// In 16 bits, bfloat16.
    Bf16,
    /// In 8 bits, e4m3, with a scale a head.
    Fp8,
    /// In 8 bits, whole numbers, with a scale a head.
    Int8,
}

impl CheckpointFormat {
    /// All known formats.
    pub const ALL: [Self; 4] = [Self::Full, Self::Bf16, Self::Fp8, Self::Int8];

    /// The name that users give.
    pub fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Bf16 => "bf16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
        }
    }
}
