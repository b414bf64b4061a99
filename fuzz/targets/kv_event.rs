#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzz::kv_event(data));
