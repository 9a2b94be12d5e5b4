//! Keyed digests: without the key they say which hashes are equal, and nothing else.
//!
//! A digest is the first 9 bytes of a hash's CBC-MAC with AES-128, which begins with the hash's
//! size: 12 characters of base64. All hashes of a file have one size. For such messages CBC-MAC
//! cannot be told from a random function. Among `n` hashes, two different ones have equal digests
//! with a chance of `n² / 2⁷³`: one in 9 million for the 33 million digests of 400 MB.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Block};

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Characters of a digest's text.
pub const TEXT_BYTES: usize = 12;

/// Bytes of vLLM's hashes, the fast case.
const USUAL_BYTES: usize = 32;
const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PAIR_BITS: u32 = 12;
/// The two characters of each number of 12 bits.
static PAIRS: [[u8; 2]; 1 << PAIR_BITS] = pairs();

/// Digests of one file, whose key this is. The key is wiped from memory at the end.
pub struct KeyedDigests(Aes128);

/// Hashes that wait for their digests, which are made many at a time.
#[derive(Default)]
pub struct Hashes {
    /// All hashes since the last of another size, one behind another.
    bytes: Vec<u8>,
    bytes_each: usize,
    count: usize,
    sums: Vec<Block>,
}

impl KeyedDigests {
    /// Prepares a key.
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self(Aes128::new(&key.into()))
    }

    /// Takes a hash; its digest is in `text` after [`finish`](Self::finish).
    pub fn push(&self, hash: &[u8], hashes: &mut Hashes, text: &mut Vec<u8>) {
        if hash.len() != hashes.bytes_each {
            self.finish(hashes, text);
            hashes.bytes_each = hash.len();
        }
        hashes.count += 1;
        if let Ok(hash) = <&[u8; USUAL_BYTES]>::try_from(hash) {
            hashes.bytes.extend_from_slice(hash); // as its size is known, without a call
        } else {
            hashes.bytes.extend_from_slice(hash);
        }
    }

    /// Appends the digests of the hashes that wait, each of [`TEXT_BYTES`] characters.
    pub fn finish(&self, hashes: &mut Hashes, text: &mut Vec<u8>) {
        let Hashes { bytes, bytes_each, count, sums } = hashes;
        let (usual, rest) = bytes.as_chunks::<USUAL_BYTES>();
        let size = *bytes_each as u128;
        sums.resize(*count, size.to_le_bytes().into());
        if *bytes_each == USUAL_BYTES && rest.is_empty() {
            for place in 0..USUAL_BYTES / KEY_BYTES {
                for (sum, hash) in sums.iter_mut().zip(usual) {
                    add(sum, hash.as_chunks().0[place]);
                }
                self.0.encrypt_blocks(sums);
            }
        } else {
            for place in 0..bytes_each.div_ceil(KEY_BYTES).max(1) {
                for (number, sum) in sums.iter_mut().enumerate() {
                    let hash = &bytes[number * *bytes_each..][..*bytes_each];
                    let mut piece = [0; KEY_BYTES];
                    for (to, from) in piece.iter_mut().zip(hash.iter().skip(place * KEY_BYTES)) {
                        *to = *from;
                    }
                    add(sum, piece);
                }
                self.0.encrypt_blocks(sums);
            }
        }
        let begin = text.len();
        text.resize(begin + sums.len() * TEXT_BYTES, 0);
        let places = text[begin..].as_chunks_mut::<TEXT_BYTES>().0;
        for (place, sum) in places.iter_mut().zip(&*sums) {
            *place = characters(sum);
        }
        sums.clear();
        bytes.clear();
        *count = 0;
    }
}

/// Adds a piece of a hash to a sum.
fn add(sum: &mut Block, piece: [u8; KEY_BYTES]) {
    let next = u128::from_ne_bytes((*sum).into()) ^ u128::from_ne_bytes(piece);
    *sum = next.to_ne_bytes().into();
}

/// Base64 of the first 9 bytes.
fn characters(sum: &Block) -> [u8; TEXT_BYTES] {
    let sum = u128::from_be_bytes((*sum).into());
    let (first, ninth) = ((sum >> 64) as u64, (sum >> 56) as u8);
    let mut text = [0; TEXT_BYTES];
    let (pairs, last) = text.split_at_mut(TEXT_BYTES - 2);
    let mut shift = u64::BITS;
    for pair in pairs.as_chunks_mut::<2>().0 {
        shift -= PAIR_BITS;
        *pair = PAIRS[(first >> shift) as usize & (PAIRS.len() - 1)];
    }
    // Four bits are left of the first 8 bytes.
    last.copy_from_slice(&PAIRS[(first as usize & 0xf) << 8 | usize::from(ninth)]);
    text
}

const fn pairs() -> [[u8; 2]; 1 << PAIR_BITS] {
    let mut pairs = [[0; 2]; 1 << PAIR_BITS];
    let mut number = 0;
    while number < pairs.len() {
        pairs[number] = [ALPHABET[number >> 6], ALPHABET[number & 63]];
        number += 1;
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(key: [u8; KEY_BYTES], hashes: &[&[u8]]) -> String {
        let (mut waiting, mut text) = (Hashes::default(), Vec::new());
        let digests = KeyedDigests::new(key);
        for hash in hashes {
            digests.push(hash, &mut waiting, &mut text);
        }
        digests.finish(&mut waiting, &mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_digest_is_the_beginning_of_the_published_cipher_text() {
        // FIPS 197, appendices C.1 and B, with the size of 16 bytes in the first byte:
        // 69 c4 e0, d8 6a 7b, 04 30 d8 and 39 25 84, 1d 02 dc, 09 fb dc.
        let published: [(u128, u128, _); 2] = [
            (
                0x0001_0203_0405_0607_0809_0a0b_0c0d_0e0f,
                0x0011_2233_4455_6677_8899_aabb_ccdd_eeff,
                "acTg2Gp7BDDY",
            ),
            (
                0x2b7e_1516_28ae_d2a6_abf7_1588_09cf_4f3c,
                0x3243_f6a8_885a_308d_3131_98a2_e037_0734,
                "OSWEHQLcCfvc",
            ),
        ];
        for (key, plain, digest) in published {
            let mut hash = plain.to_be_bytes();
            hash[0] ^= 16;
            assert_eq!(text(key.to_be_bytes(), &[&hash]), digest);
        }
    }

    #[test]
    fn every_byte_and_the_size_of_a_hash_count() {
        let key = [7; KEY_BYTES];
        let mut seen = vec![text(key, &[&[0; 32]]), text(key, &[&[0; 16]]), text(key, &[&[0; 31]])];
        for place in 0..32 {
            let mut hash = [0; 32];
            hash[place] = 1;
            seen.push(text(key, &[&hash]));
        }
        seen.extend([1, 2].map(|byte| text(key, &[&[byte; 32]])));
        let num = seen.len();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), num);
    }

    #[test]
    fn many_hashes_of_several_sizes_have_the_digests_of_each_in_order() {
        let key = [7; KEY_BYTES];
        let hashes: Vec<Vec<u8>> = (0..100_u8)
            .map(|number| vec![number; [32, 32, 16, 5, 40, 0][usize::from(number) % 6]])
            .collect();
        let all: Vec<&[u8]> = hashes.iter().map(Vec::as_slice).collect();
        let each: String = all.iter().map(|&hash| text(key, &[hash])).collect();
        assert_eq!(each.len(), 100 * TEXT_BYTES);
        assert_eq!(text(key, &all), each);
    }

    #[test]
    fn hashes_of_half_the_usual_size_are_not_taken_for_half_as_many() {
        let (key, hashes) = ([7; KEY_BYTES], [[1; 16], [2; 16]]);
        let each: String = hashes.iter().map(|hash| text(key, &[hash])).collect();
        assert_eq!(text(key, &hashes.each_ref().map(<[u8; 16]>::as_slice)), each);
    }

    #[test]
    fn another_key_gives_other_digests() {
        assert_ne!(text([1; KEY_BYTES], &[&[9; 32]]), text([2; KEY_BYTES], &[&[9; 32]]));
    }
}
