//! Identifiers of the CA, written in hexadecimal: serial numbers of certificates, nonces of tokens, fingerprints of
//! authorities.
//!
//! A serial number has 16 bytes, of which the first begins with the bits `01`. In DER it is therefore positive and has
//! no leading zero (RFC 5280 §4.1.2.2), so that certificate, revocation list and log contain the same bytes. 126 bits
//! are random.

use std::fmt::{self, Display};
use std::str::FromStr;

use data_encoding::HEXLOWER;
use rustls::pki_types::CertificateDer;
use sha2::{Digest, Sha256};

use super::CaError;

/// Serial number of a certificate.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial([u8; 16]);

impl Serial {
    pub(super) fn random() -> Result<Self, CaError> {
        let mut bytes: [u8; 16] = random_bytes()?;
        if let Some(first) = bytes.first_mut() {
            *first = *first & 0x3f | 0x40;
        }
        Ok(Self(bytes))
    }

    /// From the bytes in a certificate; `None` if there are not 16.
    pub(super) fn of(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().map(Self).ok()
    }

    /// The bytes as in the certificate.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl FromStr for Serial {
    type Err = String;
    /// Also accepts openssl's form, in capitals and with colons.
    fn from_str(text: &str) -> Result<Self, String> {
        let digits = text.replace(':', "").to_ascii_lowercase();
        let wrong = || {
            format!(
                "`{text}` is not a serial number: expected 32 hexadecimal digits, as `marline fleet ca list` shows"
            )
        };
        parse_hex(&digits).map(Self).ok_or_else(wrong)
    }
}

/// Random number that makes each token unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nonce([u8; 16]);

impl Nonce {
    pub(crate) fn random() -> Result<Self, CaError> {
        Ok(Self(random_bytes()?))
    }
}

impl FromStr for Nonce {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_hex(text).map(Self).ok_or_else(|| format!("`{text}` is not a nonce: expected 32 hexadecimal digits"))
    }
}

/// SHA-256 of an authority's certificate (DER), by which a new member recognizes its authority.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fingerprint([u8; 32]);

impl Fingerprint {
    /// Fingerprint of this certificate.
    pub fn of(certificate: &CertificateDer<'_>) -> Self {
        Self(Sha256::digest(certificate).into())
    }
}

impl FromStr for Fingerprint {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_hex(text)
            .map(Self)
            .ok_or_else(|| format!("`{text}` is not a fingerprint: expected 64 hexadecimal digits"))
    }
}

macro_rules! impl_hex {
    ($($number:ident)+) => { $(
        impl Display for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0))
            }
        }
        impl fmt::Debug for $number {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&HEXLOWER.encode(&self.0))
            }
        }
    )+ };
}
impl_hex!(Serial Nonce Fingerprint);

fn random_bytes<const N: usize>() -> Result<[u8; N], CaError> {
    let mut bytes = [0; N];
    let filled = crate::crypto::crypto_provider().secure_random.fill(&mut bytes);
    filled.map_err(|_| CaError::Library("the system provides no random numbers".to_owned()))?;
    Ok(bytes)
}

/// Parses lower-case digits only, so that each number has exactly one text.
fn parse_hex<const N: usize>(text: &str) -> Option<[u8; N]> {
    HEXLOWER.decode(text.as_bytes()).ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_has_one_text_and_a_fixed_length() {
        let text = "4f0123456789abcdef0123456789abcd";
        let serial: Serial = text.parse().unwrap();
        assert_eq!((serial.to_string(), serial.as_bytes().len()), (text.to_owned(), 16));
        assert_eq!("4F:01:23:45:67:89:AB:CD:EF:01:23:45:67:89:AB:CD".parse(), Ok(serial));
        for bad in ["", "4f", "4g0123456789abcdef0123456789abcd", "4f0123456789abcdef0123456789abcd0"] {
            assert!(bad.parse::<Serial>().is_err(), "{bad}");
        }
    }

    #[test]
    fn serial_numbers_are_positive_and_have_sixteen_bytes_in_der() {
        let serials: Vec<Serial> = (0..64).map(|_| Serial::random().unwrap()).collect();
        assert!(serials.iter().all(|serial| (0x40..0x80).contains(&serial.as_bytes()[0])));
        assert!(serials.windows(2).all(|two| two[0] != two[1]));
    }
}
