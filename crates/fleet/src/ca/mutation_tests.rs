//! Random changes to external inputs: nothing panics, and changed inputs are never accepted with another meaning.

use std::time::Duration;

use proptest::prelude::*;
use rcgen::PublicKeyData as _;
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;

use super::crl::Crl;
use super::*;

/// An authority with one revoked certificate; a token, a request and the revocation list.
struct Samples {
    _home: tempfile::TempDir,
    authority: Authority,
    token: TokenText,
    request: Vec<u8>,
    crl: Vec<u8>,
    now: UtcSeconds,
}

impl Samples {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let now: UtcSeconds = "2026-10-02T12:00:00Z".parse().unwrap();
        let authority = Authority::init(&home.path().join("ca"), "test fleet", now).unwrap();
        let life = Duration::from_secs(86_400);
        let template = CertTemplate::new("marline://edge/cam-7".parse().unwrap(), vec![], life).unwrap();
        let (chain, _) = authority.issue_with_key(&template, now).unwrap();
        authority.revoke(chain.record.serial, now).unwrap();
        let pem = KeyWithRequest::generate().unwrap().request;
        Self {
            token: authority.create_token(&template, life, now).unwrap(),
            request: CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap().to_vec(),
            crl: std::fs::read(authority.crl_path()).unwrap(),
            _home: home,
            authority,
            now,
        }
    }
}

/// Replaced, inserted and removed bytes, and truncation.
fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    prop::collection::vec((any::<prop::sample::Index>(), 0_u8..4, any::<u8>()), 1..4)
}

fn mutate(bytes: &[u8], changes: &[(prop::sample::Index, u8, u8)]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, mutation, byte) in changes {
        if bytes.is_empty() {
            break;
        }
        let at = at.index(bytes.len());
        match mutation {
            0 => bytes[at] = *byte,
            1 => bytes.insert(at, *byte),
            2 => drop(bytes.remove(at)),
            _ => bytes.truncate(at),
        }
    }
    bytes
}

#[test]
fn changed_inputs_are_rejected_or_mean_the_same() {
    let samples = Samples::new();
    let Samples { authority, token, request, crl: list, now, .. } = &samples;
    let expected = authority.verify_token(token.reveal(), *now).unwrap();
    let key = CertRequest::parse(request).unwrap().public_key().subject_public_key_info();
    let crl = Crl::parse(list, authority.certificate()).unwrap();
    assert_eq!(crl.revoked.len(), 1);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(3000));
    let ran = runner.run(&mutations(), |changes| {
        if let Ok(text) = String::from_utf8(mutate(token.reveal().as_bytes(), &changes))
            && let Ok(read) = authority.verify_token(&text, *now)
        {
            // The change was white space around the token, or an equal byte.
            prop_assert_eq!(text.trim(), token.reveal());
            prop_assert_eq!(&read, &expected);
        }
        if let Ok(read) = CertRequest::parse(&mutate(request, &changes)) {
            prop_assert_eq!(read.public_key().subject_public_key_info(), key.clone());
        }
        if let Ok(read) = Crl::parse(&mutate(list, &changes), authority.certificate()) {
            prop_assert_eq!((read.number, &read.revoked), (crl.number, &crl.revoked));
        }
        Ok(())
    });
    ran.unwrap();
}

#[test]
fn noise_is_rejected() {
    let samples = Samples::new();
    let authority = &samples.authority;
    proptest!(ProptestConfig::with_cases(2000), |(bytes: Vec<u8>, text in "mlt1\\.[A-Za-z0-9_-]{0,40}\\.[A-Za-z0-9_-]{0,40}")| {
        prop_assert!(CertRequest::parse(&bytes).is_err());
        prop_assert!(Crl::parse(&bytes, authority.certificate()).is_err());
        prop_assert!(authority.verify_token(&text, samples.now).is_err());
        prop_assert!(authority.verify_token(&String::from_utf8_lossy(&bytes), samples.now).is_err());
    });
}
