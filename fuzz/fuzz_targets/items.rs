//! Fuzzes `sparsync::fuzzing::items`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::items(bytes));
