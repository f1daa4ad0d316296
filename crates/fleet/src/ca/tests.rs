//! Tests of a certificate authority in its own directory: creation, crashes during creation, issuing, enrolment, used
//! tokens (in the file `spent`) and revocation.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);
const MONTH: Duration = Duration::from_secs(30 * 86_400);

fn now() -> UtcSeconds {
    "2026-10-02T12:00:00Z".parse().unwrap()
}

fn new_authority() -> (TempDir, Authority) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::init(&dir.path().join("ca"), "test fleet", now()).unwrap();
    (dir, authority)
}

fn template(identity: &str) -> CertTemplate {
    let addresses = if identity.contains("edge") { vec![] } else { vec!["relay1.example".parse().unwrap()] };
    CertTemplate::new(identity.parse().unwrap(), addresses, MONTH).unwrap()
}

fn edge_template() -> CertTemplate {
    template("marline://edge/cam-7")
}

fn new_request() -> Vec<u8> {
    KeyWithRequest::generate().unwrap().request.into_bytes()
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn an_authority_is_created_once_and_its_key_is_private() {
    let (_home, authority) = new_authority();
    let dir = &authority.dir;
    assert_eq!((mode(dir), mode(&dir.join("ca.key")), mode(&dir.join("ca.pem"))), (0o700, 0o600, 0o644));
    assert_eq!(authority.not_after(), now().saturating_add(LIFETIME));
    let before = std::fs::read(dir.join("ca.pem")).unwrap();
    assert!(matches!(Authority::init(dir, "again", now()), Err(CaError::Exists { .. })));
    assert_eq!(std::fs::read(dir.join("ca.pem")).unwrap(), before);
    assert_eq!(Authority::open(dir).unwrap().fingerprint(), authority.fingerprint());
    assert!(!format!("{authority:?}").contains("PRIVATE") && format!("{authority:?}").contains("MASKED"));
}

#[test]
fn the_certificate_is_that_of_a_ca_without_intermediates() {
    let (_home, authority) = new_authority();
    let (_, parsed) = x509_parser::parse_x509_certificate(authority.certificate()).unwrap();
    let basic = parsed.basic_constraints().unwrap().unwrap();
    assert!(basic.critical && basic.value.ca && basic.value.path_len_constraint == Some(0));
    let usage = parsed.key_usage().unwrap().unwrap();
    assert!(usage.critical && usage.value.key_cert_sign() && usage.value.crl_sign());
    assert!(!usage.value.digital_signature());
}

#[test]
fn an_invalid_name_creates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    for bad in ["", "a\nb", &"a".repeat(65)] {
        assert!(matches!(Authority::init(&dir.path().join("ca"), bad, now()), Err(CaError::Refused(_))));
    }
    assert!(!dir.path().join("ca").exists());
}

#[test]
fn an_interrupted_creation_is_completed_from_any_step() {
    // In the order in which `init` writes them. The last one, ca.pem, completes the creation.
    let files_in_order = ["ca.key", "issued.jsonl", "revoked.pem"];
    for existing in 0..=files_in_order.len() {
        let (_home, complete_ca) = new_authority();
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("ca");
        std::fs::create_dir(&dir).unwrap();
        for file in &files_in_order[..existing] {
            std::fs::copy(complete_ca.dir.join(file), dir.join(file)).unwrap();
        }
        // A half-written temporary file of the process that crashed.
        std::fs::write(dir.join(".ca.key.77.new"), "-----BEGIN PRIV").unwrap();
        let message = Authority::open(&dir).unwrap_err().to_string();
        assert!(message.contains("`marline fleet ca init --ca-dir"), "{message}");
        assert_eq!(message.contains("interrupted"), existing > 0, "{message}");
        let authority = Authority::init(&dir, "test fleet", now()).unwrap();
        authority.issue(&edge_template(), &CertRequest::parse(&new_request()).unwrap(), now()).unwrap();
        let reopened = Authority::open(&dir).unwrap();
        assert_eq!(reopened.issued_certs(now()).unwrap().len(), 1);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 4, "no temporary file remains");
    }
}

#[test]
fn a_lost_ca_certificate_is_not_created_again() {
    let (_home, authority) = new_authority();
    authority.issue_with_key(&edge_template(), now()).unwrap();
    std::fs::remove_file(authority.dir.join("ca.pem")).unwrap();
    let message = Authority::init(&authority.dir, "test fleet", now()).unwrap_err().to_string();
    assert!(message.contains("ca.pem: it is missing, and certificates were issued"), "{message}");
    assert_eq!(std::fs::read_to_string(authority.dir.join("issued.jsonl")).unwrap().lines().count(), 1);
}

#[test]
fn a_key_that_others_may_read_is_rejected_with_the_remedy() {
    let (_home, authority) = new_authority();
    let key = authority.dir.join("ca.key");
    for bad in [0o640, 0o604, 0o660] {
        set_mode(&key, bad);
        let message = Authority::open(&authority.dir).unwrap_err().to_string();
        assert!(message.contains(&format!("(mode {bad:04o}): chmod 600 {}", key.display())), "{message}");
    }
    set_mode(&key, 0o400);
    Authority::open(&authority.dir).unwrap();
    set_mode(&authority.dir, 0o770);
    let message = Authority::open(&authority.dir).unwrap_err().to_string();
    assert!(message.contains("write into") && message.contains("chmod 700"), "{message}");
}

#[test]
fn the_key_of_another_authority_is_detected() {
    let ((_home, authority), (_other_home, other)) = (new_authority(), new_authority());
    std::fs::copy(other.dir.join("ca.key"), authority.dir.join("ca.key")).unwrap();
    let message = Authority::open(&authority.dir).unwrap_err().to_string();
    assert!(message.contains("ca.key is not the key of this certificate"), "{message}");
    std::fs::write(authority.dir.join("ca.key"), "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
        .unwrap();
    let message = Authority::open(&authority.dir).unwrap_err().to_string();
    assert!(message.contains("holds no private key") && !message.contains("AAAA"), "{message}");
}

#[test]
fn a_certificate_contains_the_template_and_only_the_key_of_the_request() {
    let (_home, authority) = new_authority();
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["evil.example".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.subject_alt_names.push(rcgen::SanType::URI("marline://operator/root".try_into().unwrap()));
    let request_pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = CertRequest::parse(request_pem.as_bytes()).unwrap();
    let addresses = ["relay1.example", "192.0.2.7", "2001:db8::7"].map(|text| text.parse().unwrap()).to_vec();
    let relay = CertTemplate::new("marline://relay/fra-1".parse().unwrap(), addresses, MONTH).unwrap();
    let chain = authority.issue(&relay, &request, now()).unwrap();
    assert_eq!(crate::identity::Identity::of(&chain.certificate).unwrap(), *relay.identity());
    let (_, parsed) = x509_parser::parse_x509_certificate(&chain.certificate).unwrap();
    let names = parsed.subject_alternative_name().unwrap().unwrap().value.general_names.len();
    assert_eq!((names, parsed.is_ca()), (4, false));
    assert_eq!(parsed.public_key().raw, key.subject_public_key_info());
    let uses = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(uses.client_auth && uses.server_auth && !uses.any);
    assert_eq!(parsed.raw_serial(), chain.record.serial.as_bytes());
    let (chain, _) = authority.issue_with_key(&edge_template(), now()).unwrap();
    let (_, parsed) = x509_parser::parse_x509_certificate(&chain.certificate).unwrap();
    let uses = parsed.extended_key_usage().unwrap().unwrap().value;
    assert!(uses.client_auth && !uses.server_auth);
}

#[test]
fn no_certificate_outlives_its_authority() {
    let (_home, authority) = new_authority();
    let late = authority.not_after().saturating_sub(HOUR);
    let (chain, _) = authority.issue_with_key(&edge_template(), late).unwrap();
    assert_eq!(chain.record.not_after, authority.not_after());
    let message = authority.issue_with_key(&edge_template(), authority.not_after()).unwrap_err().to_string();
    assert!(message.contains("this authority expired at 2036-09-29T12:00:00Z"), "{message}");
}

#[test]
fn files_of_a_member_are_written_once_and_its_key_is_private() {
    let (home, authority) = new_authority();
    let (chain, key) = authority.issue_with_key(&edge_template(), now()).unwrap();
    let files = MemberFiles::of(home.path(), &edge_template().identity().name).unwrap();
    files.write(&chain, Some(&key)).unwrap();
    assert_eq!((mode(&files.key), mode(&files.certificate)), (0o600, 0o644));
    let certificate = pem(authority.certificate());
    assert_eq!(std::fs::read_to_string(&files.authority).unwrap(), certificate);
    let stored = std::fs::read_to_string(authority.dir.join("ca.pem")).unwrap();
    assert_eq!(stored, certificate, "both files are equal");
    let before = std::fs::read(&files.key).unwrap();
    assert!(matches!(files.write(&chain, Some(&key)), Err(CaError::Exists { .. })));
    assert_eq!(std::fs::read(&files.key).unwrap(), before);
    let (_other_home, other) = new_authority();
    let second = MemberFiles::of(home.path(), &"cam-8".parse().unwrap()).unwrap();
    assert!(second.check_can_write(authority.certificate(), true).is_ok());
    assert!(matches!(second.check_can_write(other.certificate(), true), Err(CaError::Exists { .. })));
    assert!(MemberFiles::of(home.path(), &"ca".parse().unwrap()).is_err());
}

#[test]
fn no_file_of_a_member_is_written_unless_all_of_them_can_be() {
    let (home, authority) = new_authority();
    let (chain, key) = authority.issue_with_key(&edge_template(), now()).unwrap();
    let files = MemberFiles::of(home.path(), &edge_template().identity().name).unwrap();
    let fingerprint = Fingerprint::of(authority.certificate());
    // A link to a missing file cannot be created again, although no file exists at its end.
    for taken in [&files.certificate, &files.key] {
        std::os::unix::fs::symlink("absent", taken).unwrap();
        assert!(matches!(files.check_absent(fingerprint), Err(CaError::Exists { path, .. }) if path == *taken));
        assert!(matches!(files.write(&chain, Some(&key)), Err(CaError::Exists { path, .. }) if path == *taken));
        std::fs::remove_file(taken).unwrap();
    }
    // A ca.pem that cannot be read.
    std::fs::create_dir(&files.authority).unwrap();
    assert!(files.write(&chain, Some(&key)).is_err());
    std::fs::remove_dir(&files.authority).unwrap();
    for path in [&files.certificate, &files.key, &files.authority] {
        assert!(!path.exists(), "{path:?}");
    }
    // An existing ca.pem is kept, and compared with the bundle of the service.
    let (_other_home, other) = new_authority();
    let bundle = pem(authority.certificate()) + &pem(other.certificate());
    std::fs::write(&files.authority, &bundle).unwrap();
    let trusts_others = |bundle: &str| {
        let result = files.write_parts(&chain.pem(), (authority.certificate(), bundle), Some(&key)).unwrap();
        [&files.certificate, &files.key].into_iter().for_each(|path| std::fs::remove_file(path).unwrap());
        result
    };
    assert!(!trusts_others(&bundle));
    assert!(trusts_others(&pem(authority.certificate())));
    assert_eq!(std::fs::read_to_string(&files.authority).unwrap(), bundle);
}

#[test]
fn a_token_yields_exactly_one_certificate() {
    let (_home, authority) = new_authority();
    let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    assert!(!format!("{token:?}").contains("mlt1"));
    let read = Token::parse_unverified(token.reveal()).unwrap();
    assert_eq!((read.template.clone(), read.expires_at), (edge_template(), now().saturating_add(HOUR)));
    assert_eq!(read.authority, Fingerprint::of(authority.certificate()));
    let chain = authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens).unwrap();
    assert_eq!(chain.record.identity, *edge_template().identity());
    assert_eq!(chain.record.not_after, now().saturating_add(MONTH));
    let enrol_again =
        |used_tokens: &mut UsedTokensFile| authority.enrol(token.reveal(), &new_request(), now(), used_tokens);
    assert!(matches!(enrol_again(&mut used_tokens), Err(EnrolError::Used)));
    // Opened again, as by another process or after a restart.
    let mut reopened = UsedTokensFile::open(&authority, now()).unwrap();
    assert!(matches!(enrol_again(&mut reopened), Err(EnrolError::Used)));
    assert_eq!(authority.issued_certs(now()).unwrap().len(), 1);
}

#[test]
fn a_used_token_stays_used_in_a_file_truncated_by_a_crash() {
    // Each line has the token's nonce, a space, the expiry and a line end. The last 21 bytes are the expiry (20) and the
    // line end (1), so the nonce is complete in all cases.
    for cut in 0..=21 {
        let (_home, authority) = new_authority();
        let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
        let tokens: Vec<TokenText> =
            (0..3).map(|_| authority.create_token(&edge_template(), HOUR, now()).unwrap()).collect();
        for token in &tokens[..2] {
            authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens).unwrap();
        }
        let path = authority.dir.join("spent");
        let text = std::fs::read(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - cut]).unwrap();
        // A process that opened the file before the truncation, and one that opens it afterwards.
        for mut used_tokens in [used_tokens, UsedTokensFile::open(&authority, now()).unwrap()] {
            for token in &tokens[..2] {
                let result = authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens);
                assert!(matches!(result, Err(EnrolError::Used)), "{cut} bytes cut");
            }
        }
        // An unused token can still be used, and adding it to the file loses no entry.
        let mut reopened = UsedTokensFile::open(&authority, now()).unwrap();
        authority.enrol(tokens[2].reveal(), &new_request(), now(), &mut reopened).unwrap();
        let mut reopened_again = UsedTokensFile::open(&authority, now()).unwrap();
        for token in &tokens {
            let result = authority.enrol(token.reveal(), &new_request(), now(), &mut reopened_again);
            assert!(matches!(result, Err(EnrolError::Used)), "{cut} bytes cut");
        }
    }
}

#[test]
fn two_processes_never_accept_the_same_token() {
    let (_home, authority) = new_authority();
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    let dir = &authority.dir;
    // Each thread opens the authority and the file itself, as separate processes do.
    let enrolled: usize = std::thread::scope(|scope| {
        let enrol = || {
            let authority = Authority::open(dir).unwrap();
            let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
            usize::from(authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens).is_ok())
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(enrol)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((enrolled, authority.issued_certs(now()).unwrap().len()), (1, 1));
}

#[test]
fn used_tokens_are_dropped_a_day_after_their_expiry_and_not_earlier() {
    let (_home, authority) = new_authority();
    let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens).unwrap();
    let count_lines_after_opening = |at: UtcSeconds| {
        UsedTokensFile::open(&authority, at).unwrap();
        std::fs::read_to_string(authority.dir.join("spent")).unwrap().lines().count()
    };
    // The token expires after one hour.
    assert_eq!(count_lines_after_opening(now().saturating_add(25 * HOUR)), 1);
    assert_eq!(count_lines_after_opening(now().saturating_add(25 * HOUR + Duration::from_secs(1))), 0);
}

#[test]
fn setting_the_clock_back_reuses_no_token_and_undoes_no_revocation() {
    let (_home, authority) = new_authority();
    // `now` is the correct time; the authority's clock is set back to `back`.
    let (back, mut used_tokens) = (now().saturating_sub(HOUR), UsedTokensFile::open(&authority, now()).unwrap());
    // A token that was created before the clock was set back can be used once. Its certificate begins earlier than the
    // correct time, so members with a correct clock accept it.
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    let chain = authority.enrol(token.reveal(), &new_request(), back, &mut used_tokens).unwrap();
    assert_eq!(chain.record.not_before, back.saturating_sub(Duration::from_secs(600)));
    for at in [back, now()] {
        let mut reopened = UsedTokensFile::open(&authority, at).unwrap();
        let result = authority.enrol(token.reveal(), &new_request(), at, &mut reopened);
        assert!(matches!(result, Err(EnrolError::Used)));
    }
    // Certificates begin 600 s before they are issued. If the authority's clock is up to ten minutes ahead, members with a
    // correct clock accept its certificates at once.
    let (issued_ahead, _) =
        authority.issue_with_key(&edge_template(), now().saturating_add(Duration::from_secs(599))).unwrap();
    assert!(issued_ahead.record.not_before < now());
    // A list that is signed after the clock was set back has a greater number than the previous one, although its time is
    // earlier, and contains the previous entries.
    let (first, second) = (chain.record.serial, issued_ahead.record.serial);
    let mut crl = RevocationFile::open(&authority.crl_path(), authority.certificate()).unwrap();
    authority.revoke(first, now()).unwrap();
    assert!(crl.refresh().unwrap());
    let number = crl.number();
    authority.revoke(second, back).unwrap();
    assert!(crl.refresh().unwrap() && crl.number() > number);
    assert!(crl.is_revoked(first.as_bytes()) && crl.is_revoked(second.as_bytes()));
}

#[test]
fn an_unreadable_file_of_used_tokens_stops_enrolment() {
    let (_home, authority) = new_authority();
    let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    std::fs::write(authority.dir.join("spent"), "not a line of this file\n").unwrap();
    let message = authority.enrol(token.reveal(), &new_request(), now(), &mut used_tokens).unwrap_err().to_string();
    assert!(message.contains("spent: line 1 cannot be read"), "{message}");
    assert!(UsedTokensFile::open(&authority, now()).is_err());
    assert_eq!(authority.issued_certs(now()).unwrap(), []);
}

#[test]
fn expired_foreign_and_changed_tokens_are_rejected_and_a_bad_request_does_not_use_up_a_token() {
    let ((_home, authority), (_other_home, other)) = (new_authority(), new_authority());
    let mut used_tokens = UsedTokensFile::open(&authority, now()).unwrap();
    let token = authority.create_token(&edge_template(), HOUR, now()).unwrap();
    let mut enrol =
        |token: &str, at: UtcSeconds, request: &[u8]| authority.enrol(token, request, at, &mut used_tokens);
    let request = new_request();
    let after_expiry = now().saturating_add(HOUR + Duration::from_secs(1));
    assert!(matches!(enrol(token.reveal(), after_expiry, &request), Err(EnrolError::Expired)));
    let foreign = other.create_token(&edge_template(), HOUR, now()).unwrap();
    assert!(matches!(enrol(foreign.reveal(), now(), &request), Err(EnrolError::OtherAuthority)));
    let parts: Vec<&str> = token.reveal().split('.').collect();
    // A forged token: the payload of an operator's token with the signature of an edge's token.
    let operator = CertTemplate::new("marline://operator/root".parse().unwrap(), vec![], MONTH).unwrap();
    let operator_token = authority.create_token(&operator, HOUR, now()).unwrap();
    let payload = operator_token.reveal().split('.').nth(1).unwrap();
    let forged = format!("mlt1.{payload}.{}", parts[2]);
    assert!(matches!(enrol(&forged, now(), &request), Err(EnrolError::OtherAuthority)));
    // `e30` is `{}` in base64url.
    for malformed in ["", "mlt1", "mlt2.e30.e30", "mlt1.e30.e30", "mlt1.!.e30", &"a".repeat(9000)] {
        assert!(matches!(enrol(malformed, now(), &request), Err(EnrolError::Malformed(_))), "{malformed}");
    }
    let truncated = &token.reveal()[..token.reveal().len() - 3];
    assert!(enrol(truncated, now(), &request).is_err());
    assert!(matches!(enrol(token.reveal(), now(), b"no request"), Err(EnrolError::Request(_))));
    // Surrounded by white space, as when a line is pasted.
    assert!(enrol(&format!(" {}\n", token.reveal()), now(), &request).is_ok());
}

#[test]
fn a_revoked_certificate_stays_on_the_list_until_a_day_after_its_expiry() {
    let (_home, authority) = new_authority();
    let chains: Vec<IssuedChain> =
        (0..3).map(|_| authority.issue_with_key(&edge_template(), now()).unwrap().0).collect();
    let path = authority.crl_path();
    let mut crl = RevocationFile::open(&path, authority.certificate()).unwrap();
    assert_eq!((crl.number(), crl.refresh().unwrap()), (1, false));
    authority.revoke(chains[0].record.serial, now()).unwrap();
    assert!(crl.refresh().unwrap() && crl.number() == 2);
    let revoked = |list: &RevocationFile| -> Vec<bool> {
        chains.iter().map(|chain| list.is_revoked(chain.record.serial.as_bytes())).collect()
    };
    assert_eq!(revoked(&crl), [true, false, false]);
    authority.revoke(chains[0].record.serial, now()).unwrap();
    assert!(!crl.refresh().unwrap(), "revoking twice changes nothing");
    // Returns all unexpired certificates of the name, including the one that was revoked before.
    assert_eq!(authority.revoke_name(edge_template().identity(), now()).unwrap().len(), 3);
    assert!(crl.refresh().unwrap() && crl.number() == 3);
    assert_eq!(revoked(&crl), [true, true, true]);
    let states: Vec<CertState> =
        authority.issued_certs(now()).unwrap().into_iter().map(|(_, state)| state).collect();
    assert_eq!(states, [CertState::Revoked; 3]);
    let expiry = now().saturating_add(MONTH);
    assert_eq!(authority.issued_certs(expiry.saturating_add(HOUR)).unwrap()[0].1, CertState::Expired);
    // A list that is signed 23 hours after the expiry of the three certificates still contains them.
    let (fourth, _) = authority.issue_with_key(&edge_template(), expiry).unwrap();
    authority.revoke(fourth.record.serial, expiry.saturating_add(23 * HOUR)).unwrap();
    assert!(crl.refresh().unwrap());
    assert_eq!(revoked(&crl), [true, true, true]);
    // A list that is signed 25 hours after their expiry does not.
    let (fifth, _) = authority.issue_with_key(&edge_template(), expiry).unwrap();
    authority.revoke(fifth.record.serial, expiry.saturating_add(25 * HOUR)).unwrap();
    assert!(crl.refresh().unwrap());
    assert_eq!(revoked(&crl), [false, false, false]);
    assert!(crl.is_revoked(fourth.record.serial.as_bytes()) && crl.is_revoked(fifth.record.serial.as_bytes()));
}

#[test]
fn unknown_and_expired_certificates_cannot_be_revoked() {
    let (_home, authority) = new_authority();
    let (chain, _) = authority.issue_with_key(&edge_template(), now()).unwrap();
    let unknown: Serial = "4f0123456789abcdef0123456789abcd".parse().unwrap();
    let message = authority.revoke(unknown, now()).unwrap_err().to_string();
    assert!(message.contains("no certificate") && message.contains("was issued here"), "{message}");
    let after_expiry = now().saturating_add(MONTH + HOUR);
    let message = authority.revoke(chain.record.serial, after_expiry).unwrap_err().to_string();
    assert!(message.contains("has expired"), "{message}");
    let message = authority.revoke_name(edge_template().identity(), after_expiry).unwrap_err().to_string();
    assert!(message.contains("no certificate"), "{message}");
    let same_name_other_role = "marline://operator/cam-7".parse().unwrap();
    assert!(authority.revoke_name(&same_name_other_role, now()).is_err(), "an edge is not an operator");
}

#[test]
fn a_damaged_foreign_or_older_list_changes_nothing() {
    let ((_home, authority), (_other_home, other)) = (new_authority(), new_authority());
    let path = authority.crl_path();
    let older = std::fs::read(&path).unwrap();
    let (chain, _) = authority.issue_with_key(&edge_template(), now()).unwrap();
    authority.revoke(chain.record.serial, now()).unwrap();
    let newer = std::fs::read(&path).unwrap();
    let mut crl = RevocationFile::open(&path, authority.certificate()).unwrap();
    let foreign = std::fs::read(other.crl_path()).unwrap();
    let bad: [(&[u8], &str); 4] = [
        (&older, "list 1 is older than list 2"),
        (&foreign, "not signed by the authority"),
        (&newer[..newer.len() / 2], "revoked.pem: "),
        (b"", "revoked.pem: "),
    ];
    for (bytes, expected) in bad {
        std::fs::write(&path, bytes).unwrap();
        let message = crl.refresh().unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
        assert!(crl.is_revoked(chain.record.serial.as_bytes()));
    }
    std::fs::remove_file(&path).unwrap();
    assert!(crl.refresh().is_err() && crl.is_revoked(chain.record.serial.as_bytes()));
    std::fs::write(&path, &newer).unwrap();
    assert!(!crl.refresh().unwrap(), "the same list in a new file is not a new list");
    // The authority itself does not use a list of another authority either.
    std::fs::write(&path, &foreign).unwrap();
    assert!(authority.issued_certs(now()).is_err());
    assert!(authority.revoke_name(edge_template().identity(), now()).is_err());
}

/// The directory of another host, with a copy of this authority.
fn copy_authority(authority: &Authority) -> (TempDir, Authority) {
    let dir = tempfile::tempdir().unwrap();
    set_mode(dir.path(), 0o700);
    for file in ["ca.key", "ca.pem", "issued.jsonl", "revoked.pem"] {
        std::fs::copy(authority.dir.join(file), dir.path().join(file)).unwrap();
    }
    let copy = Authority::open(dir.path()).unwrap();
    (dir, copy)
}

#[test]
fn concurrent_revocations_on_two_hosts_are_merged() {
    let (_home, here) = new_authority();
    let chains: Vec<IssuedChain> =
        (0..4).map(|_| here.issue_with_key(&edge_template(), now()).unwrap().0).collect();
    let (_dir, copied_authority) = copy_authority(&here);
    let (_offline_dir, offline) = copy_authority(&here);
    let text = |authority: &Authority| std::fs::read_to_string(authority.crl_path()).unwrap();
    let list = |authority: &Authority| {
        let list = RevocationFile::open(&authority.crl_path(), authority.certificate()).unwrap();
        let revoked = chains.iter().map(|chain| list.is_revoked(chain.record.serial.as_bytes()));
        (list.number(), revoked.collect::<Vec<_>>())
    };
    here.revoke(chains[0].record.serial, now()).unwrap();
    copied_authority.revoke(chains[1].record.serial, now()).unwrap();
    assert_eq!(
        (list(&here), list(&copied_authority)),
        ((2, vec![true, false, false, false]), (2, vec![false, true, false, false]))
    );
    // Both lists have the number 2, with different entries. The merged list contains both entries and has the number 3;
    // the other host takes it over unchanged.
    assert!(here.merge_crl(&text(&copied_authority), now()).unwrap());
    assert_eq!(list(&here), (3, vec![true, true, false, false]));
    assert!(copied_authority.merge_crl(&text(&here), now()).unwrap());
    assert_eq!(text(&copied_authority), text(&here));
    assert!(!here.merge_crl(&text(&copied_authority), now()).unwrap(), "the lists are equal");
    // A list with a smaller number and fewer entries changes nothing.
    let older = text(&copied_authority);
    copied_authority.revoke(chains[2].record.serial, now()).unwrap();
    assert!(!copied_authority.merge_crl(&older, now()).unwrap(), "an older list with fewer entries");
    assert_eq!(list(&copied_authority), (4, vec![true, true, true, false]));
    // Two hosts that have revoked the same certificates independently have lists with equal numbers and entries. Merging
    // them changes nothing.
    let (_same_dir, same) = copy_authority(&here);
    same.revoke(chains[2].record.serial, now()).unwrap();
    assert!(!same.merge_crl(&text(&copied_authority), now()).unwrap());
    assert_eq!(list(&same), list(&copied_authority));
    // A host that was offline during all this has revoked another certificate. Its list has a smaller number and fewer
    // entries, but its entry must not be lost, and it must not remove the others.
    offline.revoke(chains[3].record.serial, now()).unwrap();
    assert_eq!(list(&offline), (2, vec![false, false, false, true]));
    assert!(copied_authority.merge_crl(&text(&offline), now()).unwrap());
    assert_eq!(list(&copied_authority), (5, vec![true; 4]));
    assert!(offline.merge_crl(&text(&copied_authority), now()).unwrap());
    assert_eq!(text(&offline), text(&copied_authority));
    assert!(here.merge_crl("no list", now()).is_err());
    let (_foreign_home, foreign) = new_authority();
    assert!(here.merge_crl(&text(&foreign), now()).is_err());
}

#[test]
fn a_received_list_applies_even_if_the_file_cannot_be_written() {
    let (_home, authority) = new_authority();
    let chain = authority.issue_with_key(&edge_template(), now()).unwrap().0;
    let dir = tempfile::tempdir().unwrap();
    // A file cannot be renamed over a directory, whatever the privileges; this simulates a full disk.
    let path = dir.path().join("revoked.pem");
    std::fs::copy(authority.crl_path(), &path).unwrap();
    let mut list = RevocationFile::open(&path, authority.certificate()).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::fs::create_dir(&path).unwrap();
    authority.revoke(chain.record.serial, now()).unwrap();
    let newer = std::fs::read_to_string(authority.crl_path()).unwrap();
    // Clones share received lists: an update by one of them applies to the others at their next `refresh`.
    let clone = list.clone();
    assert!(clone.update(&newer).is_err(), "the list cannot be written to the file");
    assert!(list.refresh().unwrap() && list.is_revoked(chain.record.serial.as_bytes()) && list.number() == 2);
    assert!(!list.update(&newer).unwrap(), "the list is already known");
}
