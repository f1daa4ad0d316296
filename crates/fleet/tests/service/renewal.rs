//! Members that renew their certificates over the API, before these end.

use marline_fleet::reload::Reloads;
use marline_fleet::renew::{Own, RenewalError, keep_renewed, renew};
use serde_json::Value;
use tokio::sync::watch;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

impl Place {
    /// Files of a member whose certificate, good for a minute, was made so long ago.
    pub(super) fn aged(&self, identity: &str, age: Duration) -> (MemberFiles, Credentials) {
        let identity: Identity = identity.parse().unwrap();
        let addresses = match identity.role {
            Role::Relay | Role::Fleet => vec!["127.0.0.1".parse().unwrap(), "relay.example".parse().unwrap()],
            _ => vec![],
        };
        let grant = Grant::new(identity.clone(), addresses, MINUTE).unwrap();
        let (chain, key) = self.authority().issue_with_key(&grant, Stamp::now().before(age)).unwrap();
        let dir = self.path(&chain.issued.serial.to_string());
        std::fs::create_dir(&dir).unwrap();
        let files = MemberFiles::of(&dir, &identity.name).unwrap();
        files.write(&chain, Some(&key)).unwrap();
        let own = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
        (files, own)
    }
}

fn why(answer: Result<marline_fleet::renew::Renewed, RenewalError>) -> Problem {
    match answer.unwrap_err() {
        RenewalError::Service(ClientError::Refused(problem)) => problem,
        other => panic!("{other}"),
    }
}

#[test]
fn each_member_renews_its_own_certificate_and_only_in_time() {
    block_on(async {
        let place = Place::open().await;
        for identity in ["marline://relay/fra-1", "marline://edge/cam-7", "marline://operator/ann"] {
            let (files, own) = place.aged(identity, MINUTE * 3 / 4);
            let new = renew(&place.url(), &own).await.unwrap();
            assert_eq!(new.own.peer().unwrap().identity.to_string(), identity);
            assert!(new.ends > own.span().unwrap().ends && new.own.span().unwrap().life() == MINUTE);
            new.write(&files).unwrap();
            let read = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
            place.client_of(&read).fetch::<Value>("/v1/revoked").await.unwrap_err();
            assert!(place.client_of(&read).text("/v1/revoked").await.unwrap().contains("X509 CRL"));
            let issued = place.authority().list(Stamp::now()).unwrap();
            assert!(issued.last().unwrap().0.renews.is_some(), "and it is on the list");
        }
        let (_, young) = place.aged("marline://edge/cam-8", Duration::from_secs(5));
        let problem = why(renew(&place.url(), &young).await);
        assert_eq!((problem.status, problem.title.as_str()), (409, "not-due"));
        assert!(problem.detail.starts_with("marline://edge/cam-8: it is renewed from "), "{problem}");
        // Who has been revoked, or was too late, is not even let in; nor is who has nothing to show.
        let (_, revoked) = place.aged("marline://edge/cam-9", MINUTE * 3 / 4);
        place.authority().revoke_name(&revoked.peer().unwrap().identity, Stamp::now()).unwrap();
        until("the list is read", async || renew(&place.url(), &revoked).await.is_err()).await;
        let (_, over) = place.aged("marline://edge/cam-6", MINUTE + Duration::from_secs(2));
        assert!(matches!(
            renew(&place.url(), &over).await,
            Err(RenewalError::Service(ClientError::Network { .. }))
        ));
        let config = marline_fleet::tls::first_contact_config(place.authority().fingerprint(), true).unwrap();
        let mut stranger = Client::new(&place.url(), config).unwrap();
        assert_eq!(refused(stranger.send::<Value>("/v1/renew", &serde_json::json!({})).await).status, 403);
    });
}

#[test]
fn who_keeps_its_certificate_new_never_has_one_that_has_ended() {
    block_on(async {
        let place = Place::open().await;
        let (files, own) = place.aged("marline://relay/fra-1", MINUTE - Duration::from_secs(12));
        let first = own.span().unwrap();
        let tls = |own: &Credentials| Arc::new(client_config(own, None, true).unwrap());
        let shown = watch::Sender::new(tls(&own));
        let newest = shown.subscribe();
        let mut relay = place.client_of(&own).showing(move || Arc::clone(&newest.borrow()));
        let url = place.url();
        let member = Own::new(files.clone(), None);
        let keeps = keep_renewed(Some(&url), &member, own, Reloads::never(), |own| {
            shown.send_replace(tls(own));
            Ok(())
        });
        let beats = async {
            while Stamp::now() <= first.ends.after(Duration::from_secs(2)) {
                relay.send::<Value>("/v1/relays/heartbeat", &beat(100, Mark::default())).await.unwrap();
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            never = keeps => match never {},
            () = beats => {}
        }
        let read = Credentials::read(&files.certificate, &files.key, &files.authority).unwrap();
        assert!(read.span().unwrap().ends > first.ends, "and it is in its file");
    });
}

#[test]
fn where_its_file_cannot_be_written_it_is_kept_elsewhere() {
    block_on(async {
        let place = Place::open().await;
        let (files, own) = place.aged("marline://edge/cam-7", MINUTE * 3 / 4);
        let state = place.path("state");
        std::fs::create_dir(&state).unwrap();
        // Beside what is read-only nothing can be written: whoever runs the test, the place of the new file is taken.
        let taken = files.certificate.with_file_name(format!(".cam-7.pem.{}.new", std::process::id()));
        std::fs::create_dir(&taken).unwrap();
        let (member, url) = (Own::new(files.clone(), Some(&state)), place.url());
        let seen = watch::Sender::new(None);
        tokio::select! {
            never = keep_renewed(Some(&url), &member, own.clone(), Reloads::never(), |own| {
                seen.send_replace(own.span().ok());
                Ok(())
            }) => match never {},
            () = until("it is kept", async || state.join("cam-7.pem").exists()) => {}
        }
        let read = member.read().unwrap().span().unwrap();
        assert!(*seen.borrow() == Some(read) && read.ends > own.span().unwrap().ends, "the later one counts");
        assert_eq!(Own::new(files, None).read().unwrap().span().unwrap(), own.span().unwrap());
    });
}

#[test]
fn another_certificate_that_somebody_has_put_there_counts() {
    block_on(async {
        let place = Place::open().await;
        let (files, own) = place.aged("marline://edge/cam-7", Duration::ZERO);
        let (strange, _) = place.aged("marline://edge/cam-8", Duration::ZERO);
        let seen = watch::Sender::new(None);
        let member = Own::new(files.clone(), None);
        let keeps = keep_renewed(None, &member, own.clone(), Reloads::never(), |own| {
            seen.send_replace(Some(own.span().unwrap()));
            Ok(())
        });
        let puts = async {
            // Half of a pair, and somebody else's, are not taken.
            std::fs::copy(&strange.certificate, &files.certificate).unwrap();
            std::fs::copy(&strange.key, &files.key).unwrap();
            tokio::time::sleep(Duration::from_millis(1500)).await;
            assert_eq!(*seen.borrow(), None);
            let grant = Grant::new(own.peer().unwrap().identity, vec![], MINUTE * 2).unwrap();
            let (chain, key) = place.authority().issue_with_key(&grant, Stamp::now()).unwrap();
            std::fs::write(&files.key, key.reveal()).unwrap();
            std::fs::write(&files.certificate, chain.pem()).unwrap();
            until("it counts", async || seen.borrow().is_some_and(|span| span.life() == MINUTE * 2)).await;
        };
        tokio::select! {
            never = keeps => match never {},
            () = puts => {}
        }
    });
}
