//! The player page on the status port, and the playback state that it reports.

use crate::proxy::Proxy;
use crate::server::{Resource, Server};

const STATE: &str =
    r#"{"url":"URL","position_s":12.5,"buffer_s":3.25,"waiting":false,"stalls":1,"stalled_s":0.5,"ended":false}"#;

#[test]
fn the_page_runs_only_its_own_script_and_cannot_be_framed() {
    let proxy = Proxy::start(&[]);
    let page = proxy.request(&format!("{}play", proxy.status_url), &[]);
    assert_eq!((page.status, page.field("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.field("content-security-policy").unwrap();
    let media = format!("media-src http://{}/;", proxy.address);
    for part in ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", &media]
    {
        assert!(policy.contains(part), "{policy}");
    }
    assert!(!page.text().contains("<script>") && page.text().contains(&format!("http://{}/", proxy.address)));
    for (file, kind) in [("page.js", "text/javascript"), ("page.css", "text/css")] {
        let got = proxy.request(&format!("{}{file}", proxy.status_url), &[]);
        assert!(got.status == 200 && got.field("content-type").unwrap().starts_with(kind), "{got:?}");
        assert_eq!(got.field("cross-origin-resource-policy"), Some("same-origin"));
    }
    // Media may be played by the proxy's own page, and not by pages of other sites.
    let server = Server::honest(&Resource::new(1000));
    for (site, status, policy) in
        [("same-site", 200, "cross-origin"), ("none", 200, "same-site"), ("cross-site", 403, "same-site")]
    {
        let got = proxy.get(&server.url("/file"), &["-H", &format!("Sec-Fetch-Site: {site}")]);
        assert_eq!((got.status, got.field("cross-origin-resource-policy")), (status, Some(policy)), "{site}");
    }
    // The page is refused without the token, for pages of other sites, and on the media port.
    let (root, token) = proxy.status_url.trim_end_matches('/').rsplit_once('/').unwrap();
    assert_eq!(proxy.request(&format!("{root}/play"), &[]).status, 404);
    let script_url = format!("{}page.js", proxy.status_url);
    assert_eq!(proxy.request(&script_url, &["-H", "Sec-Fetch-Site: cross-site"]).status, 403);
    assert_eq!(proxy.request(&script_url, &["-H", "Sec-Fetch-Site: same-site"]).status, 403);
    assert_eq!(proxy.request(&format!("http://{}/{token}/play", proxy.address), &[]).status, 400);
}

#[test]
fn a_state_reported_by_the_page_is_in_the_status_and_one_from_another_site_is_refused() {
    let server = Server::honest(&Resource::new(100_000));
    let proxy = Proxy::start(&[]);
    let url = server.url("/file?token=secret");
    proxy.get(&url, &[]);
    let (root, _) = proxy.status_url.trim_end_matches('/').rsplit_once('/').unwrap();
    let address = format!("{}state", proxy.status_url);
    let state = STATE.replace("URL", &url);
    let same_origin = format!("Origin: {root}");
    let json = "Content-Type: application/json";
    let long = format!("{{\"url\":\"{}\"}}", "x".repeat(20_000));
    for (args, status) in [
        (&["-H", json, "-d", &state][..], 200),
        (&["-H", json, "-H", &same_origin, "-d", &state], 200),
        (&["-H", json, "-H", "Origin: http://evil.example", "-d", &state], 403),
        (&["-H", json, "-H", "Origin: null", "-d", &state], 403),
        (&["-H", json, "-H", "Sec-Fetch-Site: same-site", "-d", &state], 403),
        (&["-H", json, "-H", "Host: evil.example", "-d", &state], 421),
        // A form of a foreign page could send this without a CORS preflight.
        (&["-H", "Content-Type: text/plain", "-d", &state], 415),
        (&["-H", json, "-d", "{}"], 400),
        (&["-H", json, "-d", &long], 413),
    ] {
        let got = proxy.request(&address, args);
        assert_eq!(got.status, status, "{args:?}: {}", got.text());
    }
    assert_eq!(proxy.request(&address, &[]).status, 404, "the state can only be posted");
    let now = proxy.status();
    let page_report = &now["sessions"][0]["player_report"];
    assert_eq!((page_report["source"].as_str(), page_report["position_s"].as_f64()), (Some("page"), Some(12.5)));
    assert_eq!((page_report["buffer_s"].as_f64(), page_report["stalls"].as_u64()), (Some(3.25), Some(1)));
    assert!(!now.to_string().contains("secret"));
}
