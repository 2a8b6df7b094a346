//! External Data Representation (RFC 4506), as much of it as NFS needs: everything is in units of four bytes.

use super::NfsError;

/// What an opaque value is filled up to.
const UNIT: usize = 4;

/// Bytes that are written.
#[derive(Clone, Debug, Default)]
pub(super) struct Encoder(Vec<u8>);

impl Encoder {
    pub fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }

    pub fn flag(self, value: bool) -> Self {
        self.u32(value.into())
    }

    /// Of a length that both sides know, which is a multiple of four.
    pub fn fixed(mut self, value: &[u8]) -> Self {
        self.0.extend(value);
        self
    }

    /// With its length before it.
    pub fn opaque(self, value: &[u8]) -> Self {
        // No message here is near that long; a server refuses one whose length does not fit.
        let mut encoder = self.u32(u32::try_from(value.len()).unwrap_or(u32::MAX));
        encoder.0.extend(value);
        encoder.0.resize(encoder.0.len().next_multiple_of(UNIT), 0);
        encoder
    }

    pub fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Bytes that are read from their front.
#[derive(Clone, Copy, Debug)]
pub(super) struct Decoder<'a>(&'a [u8]);

impl<'a> Decoder<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// What was not read yet.
    pub fn rest(self) -> &'a [u8] {
        self.0
    }

    pub fn u32(&mut self) -> Result<u32, NfsError> {
        Ok(u32::from_be_bytes(self.fixed()?))
    }

    pub fn u64(&mut self) -> Result<u64, NfsError> {
        Ok(u64::from_be_bytes(self.fixed()?))
    }

    pub fn fixed<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], NfsError> {
        let (value, rest) = self.0.split_first_chunk().ok_or(NfsError::Protocol("the answer is too short"))?;
        self.0 = rest;
        Ok(*value)
    }

    pub fn opaque(&mut self) -> Result<&'a [u8], NfsError> {
        let too_short = NfsError::Protocol("the answer is too short");
        let Ok(length) = usize::try_from(self.u32()?) else { return Err(too_short) };
        let Some((value, rest)) = self.0.split_at_checked(length) else { return Err(too_short) };
        let fill = length.next_multiple_of(UNIT) - length;
        let Some(rest) = rest.get(fill..) else { return Err(too_short) };
        self.0 = rest;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opaque_values_are_filled_up_to_four_bytes() {
        let bytes = Encoder::default().opaque(b"abcde").flag(true).u64(7).bytes();
        assert_eq!(bytes, b"\0\0\0\x05abcde\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x07");
        let mut decoder = Decoder::new(&bytes);
        assert_eq!(decoder.opaque().expect("five bytes"), b"abcde");
        assert_eq!(decoder.u32().expect("a flag"), 1);
        assert_eq!(decoder.u64().expect("a number"), 7);
        assert!(decoder.u32().is_err());
    }

    #[test]
    fn a_length_that_is_a_lie_is_an_error() {
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\x05abc", b"\0\0\0\x03abc", b"\0\0"] {
            assert!(Decoder::new(bytes).opaque().is_err(), "{bytes:?}");
        }
    }
}
