//! Fuzzes `sparsync::fuzzing::frames`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::frames(bytes));
