//! Fuzzes `sparsync::fuzzing::file_list`.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| sparsync::fuzzing::file_list(bytes));
