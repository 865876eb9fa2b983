//! Fuzzes `sparsync::fuzzing::handshake`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::handshake(bytes));
