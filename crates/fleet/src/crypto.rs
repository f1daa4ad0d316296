//! The cryptographic provider and the forms of names that rustls needs.

use marline_core::fleet::Address;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::ServerName;

/// The cryptographic provider. No other function of this crate names one.
pub(crate) fn crypto_provider() -> CryptoProvider {
    rustls::crypto::ring::default_provider()
}

/// An address in the form in which rustls verifies certificates; `None` is not expected, because both accept the same texts.
pub(crate) fn server_name(address: &Address) -> Option<ServerName<'static>> {
    ServerName::try_from(address.as_str().to_owned()).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_what_rustls_accepts_as_a_server_name(text in "[a-zA-Z0-9._:*-]{0,12}") {
            let accepted = ServerName::try_from(text.clone()).is_ok();
            prop_assert_eq!(text.parse::<Address>().is_ok(), accepted);
        }
    }
}
