//! Fuzzes `sparsync::fuzzing::tokens`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::tokens(bytes));
