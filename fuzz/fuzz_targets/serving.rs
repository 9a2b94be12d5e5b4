//! Any bytes are a life of an engine: no request may read what its tokens did not write, or wait for ever.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ops::Life;

fuzz_target!(|bytes: &[u8]| {
    let life = Life::decode(bytes);
    if let Err(error) = life.run() {
        panic!("{error}\n{}", life.to_text());
    }
});
