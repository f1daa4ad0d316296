//! Members that renew their certificates through the API before they expire.

use std::os::fd::AsRawFd as _;

use marline_fleet::reload::ReloadRequests;
use marline_fleet::renew::{MemberCert, RenewalError, renew, run_renewal};
use serde_json::Value;
use tokio::sync::watch;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

impl TestService {
    /// A member with a certificate that is valid for one minute in total and was issued `age` ago.
    pub(super) fn aged_member(&self, identity: &str, age: Duration) -> (MemberFiles, Credentials) {
        let identity: Identity = identity.parse().unwrap();
        let addresses = match identity.role {
            Role::Relay | Role::Fleet => vec!["127.0.0.1".parse().unwrap(), "relay.example".parse().unwrap()],
            _ => vec![],
        };
        let template = CertTemplate::new(identity.clone(), addresses, MINUTE).unwrap();
        let (chain, key) =
            self.authority().issue_with_key(&template, UtcSeconds::now().saturating_sub(age)).unwrap();
        let dir = self.path(&chain.record.serial.to_string());
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &identity.name).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        let credentials = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
        (files, credentials)
    }
}

fn expect_renewal_problem(answer: Result<marline_fleet::renew::Renewed, RenewalError>) -> Problem {
    match answer.unwrap_err() {
        RenewalError::Service(ClientError::Refused(problem)) => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn each_member_renews_its_own_certificate_and_only_in_time() {
    block_on(async {
        let service = TestService::start_default().await;
        for identity in ["marline://relay/fra-1", "marline://edge/cam-7", "marline://operator/ann"] {
            let (files, credentials) = service.aged_member(identity, MINUTE * 3 / 4);
            let new = renew(&service.url(), &credentials).await.unwrap();
            assert_eq!(new.credentials.peer().unwrap().identity.to_string(), identity);
            assert!(
                new.not_after > credentials.validity().unwrap().not_after
                    && new.credentials.validity().unwrap().lifetime() == MINUTE
            );
            new.write(&files).unwrap();
            let read = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
            service.client_of(&read).get::<Value>("/v1/revoked").await.unwrap_err();
            assert!(service.client_of(&read).get_text("/v1/revoked").await.unwrap().contains("X509 CRL"));
            let issued = service.authority().issued_certs(UtcSeconds::now()).unwrap();
            assert!(issued.last().unwrap().0.renews.is_some(), "the renewal is recorded");
        }
        let (_, young) = service.aged_member("marline://edge/cam-8", Duration::from_secs(5));
        let problem = expect_renewal_problem(renew(&service.url(), &young).await);
        assert_eq!((problem.status, problem.title.as_str()), (409, "not_due"));
        assert!(problem.detail.starts_with("marline://edge/cam-8: it is renewed from "), "{problem}");
        // Clients with a revoked or an expired certificate are refused in the handshake; clients without one get 403.
        let (_, revoked) = service.aged_member("marline://edge/cam-9", MINUTE * 3 / 4);
        service.authority().revoke_name(&revoked.peer().unwrap().identity, UtcSeconds::now()).unwrap();
        wait_until("the list is in force", async || renew(&service.url(), &revoked).await.is_err()).await;
        let (_, over) = service.aged_member("marline://edge/cam-6", MINUTE + Duration::from_secs(2));
        assert!(matches!(
            renew(&service.url(), &over).await,
            Err(RenewalError::Service(ClientError::Network { .. }))
        ));
        let config = marline_fleet::tls::first_contact_config(service.authority().fingerprint(), true).unwrap();
        let mut anonymous = Client::new(&service.url(), config).unwrap();
        assert_eq!(expect_problem(anonymous.post::<Value>("/v1/renew", &serde_json::json!({})).await).status, 403);
    });
}

#[test]
fn a_member_that_renews_never_presents_an_expired_certificate() {
    block_on(async {
        let service = TestService::start_default().await;
        let (files, credentials) = service.aged_member("marline://relay/fra-1", MINUTE - Duration::from_secs(12));
        let first = credentials.validity().unwrap();
        let tls = |credentials: &Credentials| Arc::new(client_config(credentials, None, true).unwrap());
        let current_tls = watch::Sender::new(tls(&credentials));
        let newest = current_tls.subscribe();
        let mut relay = service.client_of(&credentials).with_tls(move || Arc::clone(&newest.borrow()));
        let url = service.url();
        let member = MemberCert::new(files.clone(), None);
        let renewal = run_renewal(Some(&url), &member, credentials, ReloadRequests::never(), |credentials| {
            current_tls.send_replace(tls(credentials));
            Ok(())
        });
        let heartbeats = async {
            while UtcSeconds::now() <= first.not_after.saturating_add(Duration::from_secs(2)) {
                relay
                    .post::<Value>("/v1/relays/heartbeat", &heartbeat(100, StateVersion::default()))
                    .await
                    .unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            never = renewal => match never {},
            () = heartbeats => {}
        }
        let read = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
        assert!(read.validity().unwrap().not_after > first.not_after, "the renewed certificate is in its file");
    });
}

#[test]
fn a_certificate_whose_file_cannot_be_written_is_kept_in_the_state_directory() {
    block_on(async {
        let service = TestService::start_default().await;
        let (mut files, credentials) = service.aged_member("marline://edge/cam-7", MINUTE * 3 / 4);
        let state = service.path("state");
        std::fs::create_dir(&state).unwrap();
        // No file can be created in /proc/self/fd, not even by root.
        let open = std::fs::File::open(&files.certificate).unwrap();
        files.certificate = format!("/proc/self/fd/{}", open.as_raw_fd()).into();
        let stored = state.join(files.certificate.file_name().unwrap());
        let (member, url) = (MemberCert::new(files.clone(), Some(&state)), service.url());
        let last_validity = watch::Sender::new(None);
        tokio::select! {
            never = run_renewal(Some(&url), &member, credentials.clone(), ReloadRequests::never(), |credentials| {
                last_validity.send_replace(credentials.validity().ok());
                Ok(())
            }) => match never {},
            () = wait_until("the certificate is stored", async || stored.exists()) => {}
        }
        let read = member.read().unwrap().validity().unwrap();
        assert!(
            *last_validity.borrow() == Some(read) && read.not_after > credentials.validity().unwrap().not_after,
            "the later certificate is used"
        );
        assert_eq!(
            MemberCert::new(files, None).read().unwrap().validity().unwrap(),
            credentials.validity().unwrap()
        );
    });
}

#[test]
fn a_certificate_that_was_replaced_by_hand_is_used() {
    block_on(async {
        let service = TestService::start_default().await;
        let (files, credentials) = service.aged_member("marline://edge/cam-7", Duration::ZERO);
        let (other_member, _) = service.aged_member("marline://edge/cam-8", Duration::ZERO);
        let last_validity = watch::Sender::new(None);
        let member = MemberCert::new(files.clone(), None);
        let renewal = run_renewal(None, &member, credentials.clone(), ReloadRequests::never(), |credentials| {
            last_validity.send_replace(Some(credentials.validity().unwrap()));
            Ok(())
        });
        let replacements = async {
            // An incomplete pair, and a certificate of another member, are not used.
            std::fs::copy(&other_member.certificate, &files.certificate).unwrap();
            std::fs::copy(&other_member.key, &files.key).unwrap();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(*last_validity.borrow(), None);
            let template = CertTemplate::new(credentials.peer().unwrap().identity, vec![], MINUTE * 2).unwrap();
            let (chain, key) = service.authority().issue_with_key(&template, UtcSeconds::now()).unwrap();
            std::fs::write(&files.key, key.reveal()).unwrap();
            std::fs::write(&files.certificate, chain.pem()).unwrap();
            wait_until("it is used", async || {
                last_validity.borrow().is_some_and(|validity| validity.lifetime() == MINUTE * 2)
            })
            .await;
        };
        tokio::select! {
            never = renewal => match never {},
            () = replacements => {}
        }
    });
}
