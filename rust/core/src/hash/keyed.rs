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

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const PAIR_BITS: u32 = 12;
/// The two characters of each number of 12 bits.
static PAIRS: [[u8; 2]; 1 << PAIR_BITS] = pairs();

/// Digests of one file, whose key this is. The key is wiped from memory at the end.
pub struct KeyedDigests(Aes128);

/// Hashes that wait for their digests, which are made many at a time.
#[derive(Default)]
pub struct Hashes {
    /// Pieces of 16 bytes, zeros behind the last, of all hashes since the last of another size.
    pieces: Vec<Block>,
    sums: Vec<Block>,
    pieces_each: usize,
}

impl KeyedDigests {
    /// Prepares a key.
    #[must_use]
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self(Aes128::new(&key.into()))
    }

    /// Takes a hash; its digest is in `text` after [`finish`](Self::finish).
    pub fn push(&self, hash: &[u8], hashes: &mut Hashes, text: &mut Vec<u8>) {
        let (pieces, rest) = hash.as_chunks::<KEY_BYTES>();
        let has_rest = !rest.is_empty() || pieces.is_empty();
        let pieces_each = pieces.len() + usize::from(has_rest);
        if pieces_each != hashes.pieces_each {
            self.finish(hashes, text);
            hashes.pieces_each = pieces_each;
        }
        hashes.sums.push((hash.len() as u128).to_le_bytes().into());
        hashes.pieces.extend(pieces.iter().map(|&piece| Block::from(piece)));
        if has_rest {
            let mut piece = [0; KEY_BYTES];
            piece[..rest.len()].copy_from_slice(rest);
            hashes.pieces.push(piece.into());
        }
    }

    /// Appends the digests of the hashes that wait, each of [`TEXT_BYTES`] characters.
    pub fn finish(&self, hashes: &mut Hashes, text: &mut Vec<u8>) {
        let Hashes { pieces, sums, pieces_each } = hashes;
        for place in 0..*pieces_each {
            let of_place = pieces.iter().skip(place).step_by(*pieces_each);
            for (sum, piece) in sums.iter_mut().zip(of_place) {
                let next =
                    u128::from_ne_bytes((*sum).into()) ^ u128::from_ne_bytes((*piece).into());
                *sum = next.to_ne_bytes().into();
            }
            self.0.encrypt_blocks(sums);
        }
        text.reserve(sums.len() * TEXT_BYTES);
        for sum in sums.iter() {
            text.extend_from_slice(&characters(sum));
        }
        pieces.clear();
        sums.clear();
    }
}

/// Base64 of the first 9 bytes.
fn characters(sum: &Block) -> [u8; TEXT_BYTES] {
    let first = u128::from_be_bytes((*sum).into());
    let mut text = [0; TEXT_BYTES];
    let mut shift = u128::BITS;
    for pair in text.as_chunks_mut::<2>().0 {
        shift -= PAIR_BITS;
        *pair = PAIRS[(first >> shift) as usize & (PAIRS.len() - 1)];
    }
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
        // FIPS 197, appendix C.1, with the size of 16 bytes in the first byte.
        let key = 0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100_u128.to_le_bytes();
        let mut hash = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        hash[0] ^= 16;
        // 69 c4 e0, d8 6a 7b, 04 30 d8
        assert_eq!(text(key, &[&hash]), "acTg2Gp7BDDY");
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
    fn another_key_gives_other_digests() {
        assert_ne!(text([1; KEY_BYTES], &[&[9; 32]]), text([2; KEY_BYTES], &[&[9; 32]]));
    }
}
