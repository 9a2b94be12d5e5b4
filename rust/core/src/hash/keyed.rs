//! Keyed digests: without the key they say which hashes are equal, and nothing else.
//!
//! A hash is folded to 16 bytes by XOR, encrypted with AES-128 under the key, and cut to 9 bytes.
//! They are 12 characters of base64. Spread hashes fold to equal ones as seldom as 16 bytes agree.

use aes::cipher::{BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Block};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Characters of a digest's text.
pub const TEXT_BYTES: usize = 12;

const DIGEST_BYTES: usize = 9;

/// Digests of one file, whose key this is.
#[derive(Clone)]
pub struct KeyedDigests(Aes128);

impl KeyedDigests {
    /// Prepares a key.
    #[must_use]
    pub fn new(key: [u8; KEY_BYTES]) -> Self {
        Self(Aes128::new(&key.into()))
    }

    /// Folds a hash, as [`text`](Self::text) takes it; zeros fill a short one.
    #[must_use]
    pub fn fold(hash: &[u8]) -> [u8; KEY_BYTES] {
        let mut block = [0; KEY_BYTES];
        for piece in hash.chunks(KEY_BYTES) {
            block.iter_mut().zip(piece).for_each(|(sum, byte)| *sum ^= byte);
        }
        block
    }

    /// Returns the digests of hashes one behind another, each of [`TEXT_BYTES`] characters.
    #[must_use]
    pub fn text(&self, folded: impl IntoIterator<Item = [u8; KEY_BYTES]>) -> String {
        let mut blocks: Vec<Block> = folded.into_iter().map(Block::from).collect();
        self.0.encrypt_blocks(&mut blocks);
        let mut digests = Vec::with_capacity(blocks.len() * DIGEST_BYTES);
        for block in &blocks {
            digests.extend_from_slice(&block[..DIGEST_BYTES]);
        }
        STANDARD.encode(digests)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_the_beginning_of_the_published_cipher_text() {
        // FIPS 197, appendix C.1.
        let key = KeyedDigests::new(0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100_u128.to_le_bytes());
        let hash = 0x0011_2233_4455_6677_8899_aabb_ccdd_eeff_u128.to_be_bytes();
        let text = key.text([KeyedDigests::fold(&hash)]);
        let expected = [0x69, 0xc4, 0xe0, 0xd8, 0x6a, 0x7b, 0x04, 0x30, 0xd8];
        assert_eq!(STANDARD.decode(text).unwrap(), expected);
    }

    #[test]
    fn each_hash_has_its_own_characters_in_order() {
        let key = KeyedDigests::new([7; KEY_BYTES]);
        let hashes: Vec<_> = (0..100_u128).map(u128::to_be_bytes).collect();
        let all = key.text(hashes.iter().copied());
        let each: Vec<_> = hashes.iter().map(|&hash| key.text([hash])).collect();
        assert!(each.iter().all(|digest| digest.len() == TEXT_BYTES));
        assert_eq!(all, each.concat());
    }

    #[test]
    fn all_bytes_of_a_long_hash_count_and_zeros_fill_a_short_one() {
        let mut hash = [0; 32];
        (hash[3], hash[19], hash[31]) = (5, 6, 7);
        assert_eq!(KeyedDigests::fold(&hash)[3], 5 ^ 6);
        assert_eq!(KeyedDigests::fold(&hash)[15], 7);
        assert_eq!(KeyedDigests::fold(&[3; 8])[6..10], [3, 3, 0, 0]);
        assert_eq!(KeyedDigests::new([1; KEY_BYTES]).text([]), "");
    }

    #[test]
    fn another_key_gives_other_digests() {
        let texts = [1, 2].map(|key| KeyedDigests::new([key; KEY_BYTES]).text([[9; KEY_BYTES]]));
        assert_ne!(texts[0], texts[1]);
    }
}
