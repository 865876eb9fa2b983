//! Fuzzes `sparsync::fuzzing::native`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::native(bytes));
