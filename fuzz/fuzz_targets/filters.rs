//! Fuzzes `sparsync::fuzzing::filters`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::filters(bytes));
