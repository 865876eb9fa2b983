//! Fuzzes `sparsync::fuzzing::attributes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::attributes(bytes));
