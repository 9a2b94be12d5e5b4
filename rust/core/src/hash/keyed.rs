//! Keyed digests: without the key they say which blocks are equal, and nothing else.
//!
//! The function is SipHash-2-4 with 128 bits (Aumasson and Bernstein, 2012), cut to 66 bits and
//! written as 11 characters of base64.

/// Bytes of a key.
pub const KEY_BYTES: usize = 16;
/// Characters of a digest's text.
pub const TEXT_BYTES: usize = 11;

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the text of `message`'s digest to `text`.
pub fn push_keyed_digest(text: &mut Vec<u8>, key: [u8; KEY_BYTES], message: &[u8]) {
    let [low, high] = siphash128(key, message);
    let sum = u128::from(low) | (u128::from(high) << 64);
    text.extend((0..TEXT_BYTES).map(|at| ALPHABET[((sum >> (6 * at)) & 63) as usize]));
}

fn siphash128(key: [u8; KEY_BYTES], message: &[u8]) -> [u64; 2] {
    let [k0, k1] = [word(&key[..8]), word(&key[8..])];
    let mut state = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d ^ 0xee,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let words = message.chunks_exact(8);
    let mut last = (message.len() as u64) << 56;
    for (at, &byte) in words.remainder().iter().enumerate() {
        last |= u64::from(byte) << (8 * at);
    }
    for bytes in words {
        absorb(&mut state, word(bytes));
    }
    absorb(&mut state, last);
    [(2, 0xee), (1, 0xdd)].map(|(part, mark)| {
        state[part] ^= mark;
        rounds(&mut state, 4);
        state.iter().fold(0, |sum, part| sum ^ part)
    })
}

fn word(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(bytes);
    u64::from_le_bytes(word)
}

fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    rounds(state, 2);
    state[0] ^= word;
}

fn rounds(state: &mut [u64; 4], count: usize) {
    let [mut a, mut b, mut c, mut d] = *state;
    for _ in 0..count {
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key 00 01 … 0f of the published vectors.
    fn key() -> [u8; KEY_BYTES] {
        0x0f0e_0d0c_0b0a_0908_0706_0504_0302_0100_u128.to_le_bytes()
    }

    #[test]
    fn the_published_vectors_are_met() {
        let message: Vec<u8> = (0..15).collect();
        let sum = |length: usize| {
            let [low, high] = siphash128(key(), &message[..length]);
            u128::from(low) | (u128::from(high) << 64)
        };
        assert_eq!(sum(0), 0x9302_55c7_1472_f66d_e6a8_25ba_047f_81a3);
        assert_eq!(sum(1), 0x45fc_229b_1159_7634_44af_996b_d8c1_87da);
        assert_eq!(sum(15), 0xd9c3_cf97_0fec_087e_11a8_b033_99e9_9354);
    }

    #[test]
    fn a_text_is_base64_of_66_bits() {
        let mut text = Vec::new();
        push_keyed_digest(&mut text, key(), b"");
        push_keyed_digest(&mut text, key(), b"a block's hash, longer than a word");
        assert_eq!(text.len(), 2 * TEXT_BYTES);
        assert!(text.iter().all(|one| ALPHABET.contains(one)));
        assert_ne!(text[..TEXT_BYTES], text[TEXT_BYTES..]);
    }

    #[test]
    fn another_key_and_another_length_give_another_digest() {
        let mut other = key();
        other[15] ^= 1;
        assert_ne!(siphash128(key(), b"12345678"), siphash128(other, b"12345678"));
        assert_ne!(siphash128(key(), b"1234567"), siphash128(key(), b"1234567\0"));
    }
}
