//! Canonical CBOR (RFC 8949, section 4.2): shortest heads, shortest floats, definite lengths.

use half::f16;

use super::key::BlockKey;
use super::{Token, Value};

const UNSIGNED: u8 = 0 << 5;
const NEGATIVE: u8 = 1 << 5;
const BYTES: u8 = 2 << 5;
const TEXT: u8 = 3 << 5;
const ARRAY: u8 = 4 << 5;
const FALSE: u8 = 0xf4;
const TRUE: u8 = 0xf5;
const NULL: u8 = 0xf6;
const HALF: u8 = 0xf9;
const SINGLE: u8 = 0xfa;
const DOUBLE: u8 = 0xfb;

/// Appends `(parent, tokens, extra)`.
pub(super) fn encode_block<T: Token>(out: &mut Vec<u8>, parent: &[u8], key: &BlockKey<'_, T>) {
    head(out, ARRAY, 3);
    blob(out, BYTES, parent);
    head(out, ARRAY, key.tokens.len() as u64);
    tokens(out, key.tokens);
    if key.lookahead.is_empty() {
        encode_value(out, key.extra.unwrap_or(&Value::None));
    } else {
        head(out, ARRAY, 1 + key.lookahead.len() as u64);
        encode_value(out, key.extra.unwrap_or(&Value::None));
        tokens(out, key.lookahead);
    }
}

/// Appends one value.
fn encode_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::None => out.push(NULL),
        Value::Bool(value) => out.push(if *value { TRUE } else { FALSE }),
        Value::Int(value) => int(out, *value),
        Value::Float(value) => float(out, *value),
        Value::Bytes(bytes) => blob(out, BYTES, bytes),
        Value::Str(text) => blob(out, TEXT, text.as_bytes()),
        Value::Tuple(items) => {
            head(out, ARRAY, items.len() as u64);
            items.iter().for_each(|item| encode_value(out, item));
        }
    }
}

fn tokens<T: Token>(out: &mut Vec<u8>, tokens: &[T]) {
    out.reserve(9 * tokens.len());
    for &token in tokens {
        int(out, token.into());
    }
}

/// A head of 1, 2, 3 or 5 bytes without a branch on which: token ids cross 65,536 at random, and
/// a mispredicted branch costs more than the spare bytes.
fn int(out: &mut Vec<u8>, value: i64) {
    let Ok(value) = u32::try_from(value) else {
        // -1 - n, which for a negative n is its complement.
        let (major, argument) = if value < 0 { (NEGATIVE, !value) } else { (UNSIGNED, value) };
        return head(out, major, argument.unsigned_abs());
    };
    let class = usize::from(value > 23) + usize::from(value > 0xff) + usize::from(value > 0xffff);
    let first = [value as u8, 0x18, 0x19, 0x1a][class];
    let [a, b, c, d] = (value << [0, 24, 16, 0][class]).to_be_bytes();
    let end = out.len() + [1, 2, 3, 5][class];
    out.extend_from_slice(&[first, a, b, c, d]);
    out.truncate(end);
}

fn head(out: &mut Vec<u8>, major: u8, argument: u64) {
    match argument {
        0..24 => out.push(major | argument as u8),
        24..=0xff => out.extend_from_slice(&[major | 0x18, argument as u8]),
        0x100..=0xffff => {
            out.push(major | 0x19);
            out.extend_from_slice(&(argument as u16).to_be_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(major | 0x1a);
            out.extend_from_slice(&(argument as u32).to_be_bytes());
        }
        _ => {
            out.push(major | 0x1b);
            out.extend_from_slice(&argument.to_be_bytes());
        }
    }
}

fn blob(out: &mut Vec<u8>, major: u8, bytes: &[u8]) {
    head(out, major, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// The shortest of half, single and double that loses nothing; every NaN becomes the half NaN.
fn float(out: &mut Vec<u8>, value: f64) {
    let half = f16::from_f64(value);
    let single = value as f32;
    if value.is_nan() {
        out.extend_from_slice(&[HALF, 0x7e, 0x00]);
    } else if half.to_f64().to_bits() == value.to_bits() {
        out.push(HALF);
        out.extend_from_slice(&half.to_be_bytes());
    } else if f64::from(single).to_bits() == value.to_bits() {
        out.push(SINGLE);
        out.extend_from_slice(&single.to_be_bytes());
    } else {
        out.push(DOUBLE);
        out.extend_from_slice(&value.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(value: &Value) -> String {
        let mut out = Vec::new();
        encode_value(&mut out, value);
        hex(&out)
    }

    fn hex(bytes: &[u8]) -> String {
        use std::fmt::Write;

        bytes.iter().fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").expect("a String takes everything");
            hex
        })
    }

    #[test]
    fn ints_are_those_of_the_rfc() {
        for (value, hex) in [
            (0, "00"),
            (1, "01"),
            (10, "0a"),
            (23, "17"),
            (24, "1818"),
            (25, "1819"),
            (100, "1864"),
            (255, "18ff"),
            (256, "190100"),
            (1000, "1903e8"),
            (65535, "19ffff"),
            (65536, "1a00010000"),
            (1_000_000, "1a000f4240"),
            (4_294_967_295, "1affffffff"),
            (4_294_967_296, "1b0000000100000000"),
            (1_000_000_000_000, "1b000000e8d4a51000"),
            (-1, "20"),
            (-10, "29"),
            (-100, "3863"),
            (-1000, "3903e7"),
            (-100_000, "3a0001869f"),
            (i64::MIN, "3b7fffffffffffffff"),
        ] {
            assert_eq!(encoded(&Value::Int(value)), hex, "{value}");
        }
    }

    #[test]
    fn floats_are_as_short_as_they_can_be() {
        for (value, hex) in [
            (0.0, "f90000"),
            (-0.0, "f98000"),
            (1.5, "f93e00"),
            (65504.0, "f97bff"),
            (5.960_464_477_539_063e-8, "f90001"),
            (100_000.0, "fa47c35000"),
            (3.402_823_466_385_288_6e38, "fa7f7fffff"),
            (1.1, "fb3ff199999999999a"),
            (1.0e300, "fb7e37e43c8800759c"),
            (f64::INFINITY, "f97c00"),
            (f64::NEG_INFINITY, "f9fc00"),
            (f64::NAN, "f97e00"),
        ] {
            assert_eq!(encoded(&Value::Float(value)), hex, "{value}");
        }
    }

    #[test]
    fn texts_bytes_and_arrays_are_those_of_appendix_a_of_the_rfc() {
        assert_eq!(encoded(&Value::str("")), "60");
        assert_eq!(encoded(&Value::str("IETF")), "6449455446");
        assert_eq!(encoded(&Value::str("\u{fc}")), "62c3bc");
        assert_eq!(encoded(&Value::bytes(&[1, 2, 3, 4])), "4401020304");
        let nested = Value::tuple([Value::Int(1), Value::tuple([Value::Int(2), Value::Int(3)])]);
        assert_eq!(encoded(&nested), "8201820203");
        assert_eq!(encoded(&Value::tuple([])), "80");
        let atoms = Value::tuple([Value::Bool(false), Value::Bool(true), Value::None]);
        assert_eq!(encoded(&atoms), "83f4f5f6");
    }

    #[test]
    fn a_block_is_its_parent_its_tokens_and_its_extra_keys() {
        let encoded = |key: BlockKey<'_, i32>| {
            let mut out = Vec::new();
            encode_block(&mut out, &[0xab, 0xcd], &key);
            hex(&out)
        };
        let key = BlockKey::new(&[7, 300]);
        let extra = Value::tuple([Value::str("a")]);
        assert_eq!(encoded(key), "8342abcd820719012cf6");
        assert_eq!(encoded(BlockKey { extra: Some(&extra), ..key }), "8342abcd820719012c816161");
        // With tokens ahead, the last item is a tuple of the extra keys and these.
        assert_eq!(encoded(BlockKey { lookahead: &[8, 9], ..key }), "8342abcd820719012c83f60809");
    }
}
