//! Pickle protocol 5, exactly as `CPython`'s C pickler writes it (PEP 3154 for framing).
//!
//! Opcodes and data go into frames. A frame is closed before the next object once it holds
//! [`FRAME_TARGET`] bytes; a `str` or `bytes` of that size lies outside any frame. A frame of fewer
//! than [`FRAME_MIN`] bytes loses its header. Every `bytes`, `str` and non-empty tuple enters the
//! memo, in the order in which it is completed; a second occurrence of the same object is written as
//! a reference to it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::key::BlockKey;
use super::{Token, Value};

const PROTO_5: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const FRAME_HEADER: usize = 9;
const FRAME_TARGET: usize = 64 * 1024;
const FRAME_MIN: usize = 4;
const STOP: u8 = b'.';
const MARK: u8 = b'(';
const NONE: u8 = b'N';
const NEWTRUE: u8 = 0x88;
const NEWFALSE: u8 = 0x89;
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const BININT: u8 = b'J';
const LONG1: u8 = 0x8a;
const BINFLOAT: u8 = b'G';
const EMPTY_TUPLE: u8 = b')';
const TUPLE1: u8 = 0x85;
const TUPLE: u8 = b't';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';

/// The opcodes of one variable-length type, by the width of the length that follows.
struct BlobOpcodes {
    u8: u8,
    u32: u8,
    u64: u8,
}

const BYTES: BlobOpcodes = BlobOpcodes { u8: b'C', u32: b'B', u64: 0x8e };
const UNICODE: BlobOpcodes = BlobOpcodes { u8: 0x8c, u32: b'X', u64: 0x8d };

/// The longest int: opcode, length, 8 bytes.
const MAX_INT_LEN: usize = 10;

/// Which objects were written, and as which entry. Kept between pickles for its allocation.
#[derive(Clone, Debug, Default)]
pub(super) struct Memo {
    len: u32,
    index_of: FxHashMap<usize, u32>,
}

/// Appends the pickle of `(parent, tokens, extra)`.
pub(super) fn encode_block<T: Token>(
    out: &mut Vec<u8>,
    memo: &mut Memo,
    parent: &[u8],
    key: &BlockKey<'_, T>,
) {
    let mut pickler = Pickler::new(out, memo);
    pickler.boundary();
    pickler.blob(&BYTES, parent);
    pickler.memoize();
    pickler.int_tuple(key.tokens);
    match key.extra.unwrap_or(&Value::None) {
        extra if key.lookahead.is_empty() => pickler.value(extra),
        extra => pickler.tuple(1 + key.lookahead.len(), |pickler| {
            pickler.value(extra);
            pickler.ints(key.lookahead);
        }),
    }
    pickler.op(&[TUPLE1 + 2]);
    pickler.memoize();
    pickler.finish();
}

struct Pickler<'a> {
    out: &'a mut Vec<u8>,
    memo: &'a mut Memo,
    /// Where the header of the open frame lies.
    frame: Option<usize>,
}

impl<'a> Pickler<'a> {
    fn new(out: &'a mut Vec<u8>, memo: &'a mut Memo) -> Self {
        out.extend_from_slice(&PROTO_5);
        memo.len = 0;
        memo.index_of.clear();
        Self { out, memo, frame: None }
    }

    fn finish(mut self) {
        self.op(&[STOP]);
        self.close_frame();
    }

    fn value(&mut self, value: &Value) {
        self.boundary();
        match value {
            Value::None => self.op(&[NONE]),
            Value::Bool(true) => self.op(&[NEWTRUE]),
            Value::Bool(false) => self.op(&[NEWFALSE]),
            Value::Int(value) => self.int(*value),
            Value::Float(value) => {
                self.op(&[BINFLOAT]);
                self.out.extend_from_slice(&value.to_be_bytes());
            }
            Value::Bytes(bytes) => self.object(Arc::as_ptr(bytes).cast(), |pickler| {
                pickler.blob(&BYTES, bytes);
                pickler.memoize();
            }),
            Value::Str(text) => self.object(Arc::as_ptr(text).cast(), |pickler| {
                pickler.blob(&UNICODE, text.as_bytes());
                pickler.memoize();
            }),
            Value::Tuple(items) if items.is_empty() => self.op(&[EMPTY_TUPLE]),
            Value::Tuple(items) => self.object(Arc::as_ptr(items).cast(), |pickler| {
                pickler.tuple(items.len(), |pickler| {
                    items.iter().for_each(|item| pickler.value(item));
                });
            }),
        }
    }

    /// Writes an object of one identity, or a reference to where it was written. `write` makes
    /// the object's own memo entry last.
    fn object(&mut self, identity: *const u8, write: impl FnOnce(&mut Self)) {
        if let Some(&index) = self.memo.index_of.get(&identity.addr()) {
            if let Ok(index) = u8::try_from(index) {
                self.op(&[BINGET, index]);
            } else {
                self.op(&[LONG_BINGET]);
                self.out.extend_from_slice(&index.to_le_bytes());
            }
        } else {
            write(self);
            self.memo.index_of.insert(identity.addr(), self.memo.len - 1);
        }
    }

    /// A tuple of `len` > 0 items, which `items` writes.
    fn tuple(&mut self, len: usize, items: impl FnOnce(&mut Self)) {
        if len > 3 {
            self.op(&[MARK]);
            items(self);
            self.op(&[TUPLE]);
        } else {
            items(self);
            self.op(&[TUPLE1 - 1 + len as u8]);
        }
        self.memoize();
    }

    fn int_tuple<T: Token>(&mut self, items: &[T]) {
        self.boundary();
        if items.is_empty() {
            self.op(&[EMPTY_TUPLE]);
        } else {
            self.tuple(items.len(), |pickler| pickler.ints(items));
        }
    }

    /// Ints one after the other. Frames are looked at only where one could be full.
    fn ints<T: Token>(&mut self, mut items: &[T]) {
        self.out.reserve(FRAME_HEADER + MAX_INT_LEN * items.len());
        while !items.is_empty() {
            self.boundary();
            self.open_frame();
            let safe = (FRAME_TARGET.saturating_sub(self.frame_len()) / MAX_INT_LEN).max(1);
            let (run, rest) = items.split_at(safe.min(items.len()));
            for &item in run {
                self.int(item.into());
            }
            items = rest;
        }
    }

    /// 1, 2 or 4 bytes without a branch on which: token ids cross 65,536 at random, and a
    /// mispredicted branch costs more than the spare bytes.
    fn int(&mut self, value: i64) {
        self.open_frame();
        let Ok(narrow) = i32::try_from(value) else {
            return self.long(value);
        };
        let class = usize::from(!(0..=0xff).contains(&narrow))
            + usize::from(!(0..=0xffff).contains(&narrow));
        let [a, b, c, d] = narrow.to_le_bytes();
        let end = self.out.len() + [2, 3, 5][class];
        self.out.extend_from_slice(&[[BININT1, BININT2, BININT][class], a, b, c, d]);
        self.out.truncate(end);
    }

    /// The shortest two's complement, little-endian.
    #[cold]
    fn long(&mut self, value: i64) {
        let magnitude_bits = 64 - (value ^ (value >> 63)).leading_zeros() as usize;
        let len = magnitude_bits / 8 + 1;
        self.out.extend_from_slice(&[LONG1, len as u8]);
        self.out.extend_from_slice(&value.to_le_bytes()[..len]);
    }

    fn blob(&mut self, opcodes: &BlobOpcodes, data: &[u8]) {
        let outside = data.len() >= FRAME_TARGET;
        if outside {
            self.close_frame();
        } else {
            self.open_frame();
        }
        if let Ok(len) = u8::try_from(data.len()) {
            self.out.extend_from_slice(&[opcodes.u8, len]);
        } else if let Ok(len) = u32::try_from(data.len()) {
            self.out.push(opcodes.u32);
            self.out.extend_from_slice(&len.to_le_bytes());
        } else {
            self.out.push(opcodes.u64);
            self.out.extend_from_slice(&(data.len() as u64).to_le_bytes());
        }
        self.out.extend_from_slice(data);
    }

    fn memoize(&mut self) {
        self.op(&[MEMOIZE]);
        self.memo.len += 1;
    }

    fn op(&mut self, bytes: &[u8]) {
        self.open_frame();
        self.out.extend_from_slice(bytes);
    }

    fn open_frame(&mut self) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEADER]);
        }
    }

    /// Bytes in the open frame.
    fn frame_len(&self) -> usize {
        self.frame.map_or(0, |start| self.out.len() - start - FRAME_HEADER)
    }

    /// Between two objects: a full frame is closed.
    fn boundary(&mut self) {
        if self.frame_len() >= FRAME_TARGET {
            self.close_frame();
        }
    }

    fn close_frame(&mut self) {
        let len = self.frame_len();
        let Some(start) = self.frame.take() else { return };
        if len < FRAME_MIN {
            self.out.drain(start..start + FRAME_HEADER);
        } else {
            let body = start + FRAME_HEADER;
            self.out[start] = FRAME;
            self.out[start + 1..body].copy_from_slice(&(len as u64).to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(parent: &[u8], tokens: &[i64], extra: Option<&Value>) -> Vec<u8> {
        let mut out = Vec::new();
        let key = BlockKey { tokens, lookahead: &[], extra };
        encode_block(&mut out, &mut Memo::default(), parent, &key);
        out
    }

    #[test]
    fn ints_of_every_width_are_written_as_python_writes_them() {
        let tokens = [
            0,
            255,
            256,
            65535,
            65536,
            i64::from(i32::MAX),
            1 << 31,
            -1,
            i64::from(i32::MIN),
            i64::from(i32::MIN) - 1,
            i64::MAX,
            i64::MIN,
        ];
        let ints: &[&[u8]] = &[
            b"K\x00",
            b"K\xff",
            b"M\x00\x01",
            b"M\xff\xff",
            b"J\x00\x00\x01\x00",
            b"J\xff\xff\xff\x7f",
            b"\x8a\x05\x00\x00\x00\x80\x00",
            b"J\xff\xff\xff\xff",
            b"J\x00\x00\x00\x80",
            b"\x8a\x05\xff\xff\xff\x7f\xff",
            b"\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x80",
        ];
        let expected: &[&[u8]] = &[
            b"\x80\x05\x95\x4e\x00\x00\x00\x00\x00\x00\x00",
            b"C\x04abcd\x94",
            b"(",
            &ints.concat(),
            b"t\x94",
            b"N\x87\x94.",
        ];
        assert_eq!(block(b"abcd", &tokens, None), expected.concat());
    }

    #[test]
    fn a_shared_object_is_written_once_and_an_equal_one_again() {
        let name = Value::str("lora");
        let pair = Value::tuple([name.clone(), Value::str("a")]);
        let extra = Value::tuple([pair.clone(), pair, name, Value::str("a")]);
        let expected: &[&[u8]] = &[
            b"\x80\x05\x95\x23\x00\x00\x00\x00\x00\x00\x00",
            b"C\x04abcd\x94)",
            b"(\x8c\x04lora\x94\x8c\x01a\x94\x86\x94h\x03h\x01\x8c\x01a\x94t\x94",
            b"\x87\x94.",
        ];
        assert_eq!(block(b"abcd", &[], Some(&extra)), expected.concat());
    }

    #[test]
    fn tokens_ahead_of_a_block_stand_behind_its_extra_keys() {
        let mut out = Vec::new();
        let key = BlockKey { lookahead: &[8, 9], ..BlockKey::new(&[7]) };
        encode_block(&mut out, &mut Memo::default(), b"abcd", &key);
        let expected: &[&[u8]] = &[
            b"\x80\x05\x95\x15\x00\x00\x00\x00\x00\x00\x00",
            b"C\x04abcd\x94K\x07\x85\x94",
            b"NK\x08K\x09\x87\x94\x87\x94.",
        ];
        assert_eq!(out, expected.concat());
    }

    #[test]
    fn atoms_and_the_empty_tuple_are_written_without_a_memo() {
        let extra = Value::tuple([
            Value::None,
            Value::Bool(true),
            Value::Bool(false),
            Value::tuple([]),
            Value::Float(1.5),
        ]);
        let out = block(b"abcd", &[], Some(&extra));
        let expected = b"C\x04abcd\x94)(N\x88\x89)G\x3f\xf8\x00\x00\x00\x00\x00\x00t\x94\x87\x94.";
        assert_eq!(&out[11..], expected);
    }

    #[test]
    fn a_full_frame_is_closed_before_the_next_object() {
        let tokens = vec![70_000; 2 * FRAME_TARGET / 5];
        let out = block(b"abcd", &tokens, None);
        let mut frames = Vec::new();
        let mut rest = &out[PROTO_5.len()..];
        while let [FRAME, header @ ..] = rest {
            let (len, body) = header.split_first_chunk().unwrap();
            let len = u64::from_le_bytes(*len) as usize;
            frames.push(len);
            rest = &body[len..];
        }
        assert!(rest.is_empty());
        assert_eq!(frames, [65_538, 65_542, 4]);
    }
}
