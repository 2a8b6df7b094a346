//! Feeds one parser: with libFuzzer, or without it with the files that are named.
#![cfg_attr(feature = "libfuzzer", no_main)]
// What libFuzzer calls has a C name.
#![cfg_attr(feature = "libfuzzer", allow(unsafe_code))]

#[cfg(feature = "libfuzzer")]
libfuzzer_sys::fuzz_target!(|data: &[u8]| bulkhead_fuzzing::chosen(data));

#[cfg(not(feature = "libfuzzer"))]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let name = arguments.next().unwrap_or_default();
    let target = bulkhead_fuzzing::target(&name).ok_or_else(|| bulkhead_fuzzing::unknown(&name))?;
    for file in arguments {
        println!("{name}: {file}");
        (target.feed)(&std::fs::read(file)?);
    }
    Ok(())
}
