//! [`StateFormat`]: recurrent states of 32-bit numbers in fewer bytes.

/// A head whose largest magnitude is below this is stored as zeros: its inverse scale would be
/// infinite.
const SMALLEST_HEAD: f32 = f32::from_bits((127 - 100) << 23);
const INFINITE: u32 = 0x7F80_0000;
const MAGNITUDE: u32 = 0x7FFF_FFFF;

/// How a head's 32-bit numbers are stored. The 8-bit formats keep a scale before each head.
///
/// A head `x` with largest magnitude `a` comes back as `y`, up to a relative 2^-21:
/// - [`Bfloat16`](Self::Bfloat16): `|y - x| <= 2^-8 |x|`;
/// - [`Int8`](Self::Int8): `|y - x| <= a / 254`;
/// - [`Float8`](Self::Float8): `|y - x| <= max(2^-4 |x|, 2^-10 a / 448)`.
///
/// In the 8-bit formats a head with `a < 2^-100` comes back as zeros, and one that holds an infinity or
/// a NaN as NaN throughout. The numbers are part of [`LayoutVersion`](super::LayoutVersion).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateFormat {
    /// The upper half of the 32 bits, rounded to nearest.
    Bfloat16 = 1,
    /// 4 bits of exponent and 3 of mantissa (e4m3), with a scale a head.
    Float8 = 2,
    /// Whole numbers from -127 to 127, with a scale a head.
    Int8 = 3,
}

impl StateFormat {
    /// The format of a name: `bf16`, `fp8` or `int8`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "bf16" => Some(Self::Bfloat16),
            "fp8" => Some(Self::Float8),
            "int8" => Some(Self::Int8),
            _ => None,
        }
    }

    /// Bytes of a head of this many numbers.
    pub(super) fn head_bytes(self, numbers: u64) -> u64 {
        match self {
            Self::Bfloat16 => numbers * 2,
            Self::Float8 | Self::Int8 => numbers + 4,
        }
    }

    /// The largest magnitude of a scaled format, onto which a head's is mapped.
    fn largest(self) -> f32 {
        match self {
            Self::Float8 => 448.0,
            Self::Bfloat16 | Self::Int8 => 127.0,
        }
    }

    /// Stores one head.
    pub(super) fn encode(self, head: &[u8], stored: &mut [u8]) {
        if self == Self::Bfloat16 {
            for (value, into) in numbers(head).zip(stored.chunks_exact_mut(2)) {
                into.copy_from_slice(&to_bfloat16(value).to_le_bytes());
            }
            return;
        }
        let (scale_bytes, values) = stored.split_at_mut(4);
        // Without the sign, bit patterns are ordered as magnitudes are, NaN above infinity.
        let peak_bits = numbers(head).map(|it| it.to_bits() & MAGNITUDE).max().unwrap_or(0);
        let peak = f32::from_bits(peak_bits);
        let is_finite = peak_bits < INFINITE;
        if !is_finite || peak < SMALLEST_HEAD {
            let scale = if is_finite { 0.0 } else { f32::NAN };
            scale_bytes.copy_from_slice(&scale.to_le_bytes());
            values.fill(0);
            return;
        }
        scale_bytes.copy_from_slice(&(peak / self.largest()).to_le_bytes());
        let inverse = self.largest() / peak;
        if self == Self::Int8 {
            pack(head, values, |value| to_int8(value * inverse));
        } else {
            pack(head, values, |value| to_float8(value * inverse));
        }
    }

    /// Restores one head.
    pub(super) fn decode(self, stored: &[u8], head: &mut [u8]) {
        if self == Self::Bfloat16 {
            for (value, into) in stored.chunks_exact(2).zip(head.chunks_exact_mut(4)) {
                into.copy_from_slice(&[0, 0, value[0], value[1]]);
            }
            return;
        }
        let (scale, values) = stored.split_at(4);
        let scale = numbers(scale).next().unwrap_or(f32::NAN);
        if self == Self::Int8 {
            unpack(values, head, |value| of_int8(value) * scale);
        } else {
            unpack(values, head, |value| of_float8(value) * scale);
        }
    }
}

fn pack(head: &[u8], values: &mut [u8], one: impl Fn(f32) -> u8) {
    for (value, into) in numbers(head).zip(values) {
        *into = one(value);
    }
}

fn unpack(values: &[u8], head: &mut [u8], one: impl Fn(u8) -> f32) {
    for (value, into) in values.iter().zip(head.chunks_exact_mut(4)) {
        into.copy_from_slice(&one(*value).to_le_bytes());
    }
}

fn numbers(bytes: &[u8]) -> impl Iterator<Item = f32> + '_ {
    bytes.chunks_exact(4).map(|it| f32::from_le_bytes([it[0], it[1], it[2], it[3]]))
}

fn to_bfloat16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = if value.is_nan() {
        (bits >> 16) | 0x40
    } else {
        (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    };
    rounded as u16
}

/// Adding 1.5 · 2^23 leaves the nearest whole number in the low byte.
fn to_int8(value: f32) -> u8 {
    (value + 12_582_912.0).to_bits() as u8
}

fn of_int8(value: u8) -> f32 {
    f32::from(value.cast_signed())
}

fn to_float8(value: f32) -> u8 {
    let magnitude = value.abs().min(448.0);
    let sign = (value.to_bits() >> 24) & 0x80;
    let stored = if magnitude < 0.015_625 {
        // Below 2^-6 the spacing is 2^-9, which adding 2^14 rounds to.
        (magnitude + 16384.0).to_bits() - 0x4680_0000
    } else {
        let bits = magnitude.to_bits();
        ((bits + 0x7_FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    };
    (sign | stored) as u8
}

fn of_float8(value: u8) -> f32 {
    let stored = u32::from(value & 0x7F);
    let magnitude = match stored {
        0x7F => f32::NAN,
        0..8 => stored as f32 * 0.001_953_125,
        _ => f32::from_bits((stored << 20) + (120 << 23)),
    };
    if value & 0x80 == 0 { magnitude } else { -magnitude }
}
