//! Any bytes are operations on a manager: none may panic, break its integrity, or differ from the
//! naive model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use ops::Input;

fuzz_target!(|bytes: &[u8]| {
    let input = Input::decode(bytes);
    if let Err(error) = input.run() {
        panic!("{error}\n{}", input.to_text());
    }
});
