//! Tests of rewriting HLS playlists.

use super::*;
use crate::playlist::segment_index::{MediaSegment, SegmentTiming};
use crate::playlist::url_rewrite::tests::{PROXY_PREFIX, same_url_context, test_budget};

fn rewrite(text: &str, context: &RewriteContext) -> Result<RewrittenPlaylist, PlaylistError> {
    super::rewrite(text, context, &[], &mut test_budget())
}

#[test]
fn attributes_are_parsed_as_players_do() {
    for (line, to) in [
        ("KEY:URI=\"\"", "KEY:URI=\"\""),
        ("MEDIA:URI=\"\"{a}/b\"\"", "MEDIA:URI=\"\"{a}/b\"\""),
        ("MAP:URI=\"/b\"c,SERVER-URI=\"/d\"", "MAP:URI=\"@h/b\"c,SERVER-URI=\"@h/d\""),
        ("MAP:URI=/b", "MAP:URI=@h/b"),
        ("KEY:METHOD=AES-128,URI=/b ,IV=0x1", "KEY:METHOD=AES-128,URI=@h/b ,IV=0x1"),
        ("MAP:X,URI=/b", "MAP:X,URI=@h/b"),
        ("MAP:URI=\"/a", "MAP:URI=\"@h/a"),
        ("KEY:X=\"", "KEY:X=\""),
    ] {
        let text = format!("#EXTM3U\n#EXT-X-{line}\n#EXTINF:1,12\"\n/b.ts\n");
        let want = format!("#EXTM3U\n#EXT-X-{to}\n#EXTINF:1,12\"\n@h/b.ts\n")
            .replace('@', &format!("{PROXY_PREFIX}https://"));
        assert_eq!(rewrite(&text, &same_url_context("https://h/a/list.m3u8")).unwrap().text, want);
    }
}

#[test]
fn lines_end_where_players_end_them() {
    let text = "#EXTM3U\r#EXTINF:2,\r/a.ts\r\n#EXTINF:3,\0/b.ts\n\n/c.ts";
    let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
    let want = text.replace("/a.ts", &format!("{PROXY_PREFIX}https://h/a.ts"));
    let want = want.replace("/b.ts", &format!("{PROXY_PREFIX}https://h/b.ts"));
    assert_eq!(out.text, want.replace("/c.ts", &format!("{PROXY_PREFIX}https://h/c.ts")));
    assert!(out.renditions[0].timing(&Url::parse("https://h/b.ts").unwrap(), None).is_some());
}

#[test]
fn unparsed_text_is_marked() {
    for line in ["#EXT-X-NEW:X='@'", "#EXT-X-KEY:METHOD=AES-128 URI=\"@\"", "# see @", "seg:@", "#EXTINF:x,@"] {
        let text = |address: &str| format!("#EXTM3U\n{}\n/b.ts\n", line.replace('@', address));
        let out = rewrite(&text("/http://10.0.0.1/x"), &same_url_context("https://h/l.m3u8")).unwrap();
        let want = text("/from-list/http://10.0.0.1/x").replace("\n/b", &format!("\n{PROXY_PREFIX}https://h/b"));
        assert_eq!((out.text.as_str(), out.changed_urls), (want.as_str(), 2));
        assert!(out.urls.contains(&Url::parse("http://10.0.0.1/y").unwrap()));
    }
    // A URL that was parsed stays, whatever it contains.
    let text = "#EXTM3U\nseg.ts?u=/http://10.0.0.1/x\n";
    assert_eq!(rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap().text, text);
    let out = rewrite("#EXTM3U\n/http://10.0.0.1/x\n", &same_url_context("https://h/l.m3u8")).unwrap();
    assert_eq!(out.text, format!("#EXTM3U\n{PROXY_PREFIX}https://h/http://10.0.0.1/x\n"));
    let is_listed = |url: &str| out.urls.contains(&Url::parse(url).unwrap());
    assert!(is_listed("http://10.0.0.1/y") && !is_listed("http://10.0.0.1:81/x") && !is_listed("https://g/"));
}

#[test]
fn everything_but_urls_is_preserved_to_the_byte() {
    let text = "#EXTM3U\r\n#EXT-X-VERSION:9\r\n#EXT-X-TARGETDURATION:4\n#EXT-X-NEW-THING:A=\"b,c\",URI=\"/k\",Z=1\n\
        # a comment with URI=\"/no\"\n\n#EXT-X-KEY:METHOD=AES-128,URI=\"https://keys/1?a=b,c\",IV=0x01\n\
        #EXT-X-MAP:URI=\"/init.mp4\",BYTERANGE=\"10@0\"\n#EXT-X-PART:DURATION=0.3,URI=\"/p.1.mp4\",INDEPENDENT=YES\n\
        #EXTINF:4.0,Title, with /slashes\nseg1.m4s\n#EXTINF:4.0,\n/x/seg2.m4s\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"n.mp4\"";
    let out = rewrite(text, &same_url_context("https://h/a/list.m3u8")).unwrap();
    let want = text
        .replace("URI=\"/k\"", &format!("URI=\"{PROXY_PREFIX}https://h/k\""))
        .replace("https://keys", &format!("{PROXY_PREFIX}from-list/https://keys"))
        .replace("\"/init.mp4", &format!("\"{PROXY_PREFIX}https://h/init.mp4"))
        .replace("\"/p.1.mp4", &format!("\"{PROXY_PREFIX}https://h/p.1.mp4"))
        .replace("\n/x/", &format!("\n{PROXY_PREFIX}https://h/x/"));
    assert_eq!((out.text.as_str(), out.changed_urls), (want.as_str(), 5));
}

#[test]
fn a_multivariant_playlist_has_variants_and_no_segments() {
    let text = "#EXTM3U\n#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"a\",NAME=\"de\",URI=\"/audio.m3u8\"\n\
        #EXT-X-STREAM-INF:BANDWIDTH=1000,AUDIO=\"a\"\nlow.m3u8\n#EXT-X-STREAM-INF:BANDWIDTH=9000,AUDIO=\"a\"\n\
        https://cdn/high.m3u8\n#EXT-X-I-FRAME-STREAM-INF:BANDWIDTH=10,URI=\"/iframe.m3u8\"\n";
    let out = rewrite(text, &same_url_context("https://h/m.m3u8")).unwrap();
    assert_eq!((out.changed_urls, out.can_choose, out.renditions.len()), (3, true, 0));
    assert!(
        out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/high.m3u8\n"))
            && out.text.contains("\nlow.m3u8\n")
    );
}

#[test]
fn following_segments_are_found_by_url_and_range() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXTINF:4.0,\n#EXT-X-BYTERANGE:100@10\nall.ts\n#EXTINF:3.5,\n\
        #EXT-X-BYTERANGE:50\nall.ts\n#EXTINF:2,\nlast.ts\n#EXT-X-ENDLIST\n";
    let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
    let all = Url::parse("https://h/all.ts").unwrap();
    let next = out.renditions[0].index.after(&all, Some(&(10..110)), 5).unwrap();
    assert_eq!(
        next[0],
        MediaSegment { url: all.clone(), range: Some(110..160), duration: Duration::from_millis(3500) }
    );
    assert_eq!((next.len(), next[1].url.as_str()), (2, "https://h/last.ts"));
    let timing_of = |text: &str, span: &Range<u64>| {
        let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
        out.renditions[0].timing(&all, Some(span))
    };
    let duration = Duration::from_millis(3500);
    assert_eq!(
        timing_of(text, &(110..160)),
        Some(SegmentTiming { duration, time_left: Some(Duration::from_secs(2)) })
    );
    assert_eq!(timing_of(text, &(110..161)), None);
    let live = text.replace("#EXT-X-ENDLIST\n", "");
    assert_eq!(timing_of(&live, &(110..160)), Some(SegmentTiming { duration, time_left: None }));
}

#[test]
fn variables_that_the_playlist_defines_are_expanded() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-DEFINE:NAME=\"host\",VALUE=\"https://cdn\"\n\
        #EXTINF:4,\n{$host}/a.ts\n#EXTINF:4,\n{$other}{$host}/{$host\n";
    let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
    assert!(out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/a.ts\n")), "{}", out.text);
    assert!(out.text.ends_with("\n{$other}{$host}/{$host\n"), "{}", out.text);
}

#[test]
fn values_of_variables_are_not_expanded_again() {
    let text =
        "#EXTM3U\n#EXT-X-DEFINE:NAME=\"a\",VALUE=\"/{$b}\"\n#EXT-X-DEFINE:NAME=\"b\",VALUE=\"/c\"\n{$a}{$b}\n";
    let out = rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap();
    assert!(out.text.ends_with(&format!("\n{PROXY_PREFIX}https://h/%7B$b%7D/c\n")), "{}", out.text);
}

#[test]
fn a_list_of_channels_is_rewritten_and_has_no_segments() {
    let text = "#EXTM3U\n#EXTINF:-1 tvg-id=\"a\",A channel\nhttp://h/1\n#EXTINF:0,Radio\nhttp://h/2\n";
    let out = rewrite(text, &same_url_context("http://h/l.m3u")).unwrap();
    let radio = Url::parse("http://h/2").unwrap();
    let is_segment = out.renditions.iter().any(|rendition| rendition.timing(&radio, None).is_some());
    assert!(out.changed_urls == 2 && !is_segment && out.note.is_some(), "{out:?}");
}

#[test]
fn preload_hints_are_remembered() {
    let text = "#EXTM3U\n#EXT-X-TARGETDURATION:4\n#EXT-X-PRELOAD-HINT:TYPE=PART,URI=\"/p.3.mp4\"\n";
    let out = rewrite(text, &same_url_context("https://h/a/l.m3u8")).unwrap();
    assert_eq!(out.target_duration, Some(Duration::from_secs(4)));
    assert_eq!(out.preload_hints.iter().map(Url::as_str).collect::<Vec<_>>(), ["https://h/p.3.mp4"]);
    assert!(out.text.contains(&format!("\"{PROXY_PREFIX}https://h/p.3.mp4\"")));
}

#[test]
fn without_a_header_the_lines_are_urls() {
    let text = "http://radio/stream\n\n# a comment\n/http://10.0.0.1/x\nother.mp3\n";
    let out = rewrite(text, &same_url_context("https://h/a/radio.m3u")).unwrap();
    let want = text.replace("http://radio", &format!("{PROXY_PREFIX}from-list/http://radio"));
    let want = want.replace("/http://10", &format!("{PROXY_PREFIX}https://h/http://10"));
    assert_eq!((out.text, out.changed_urls), (want, 2));
    assert!(out.urls.contains(&Url::parse("http://radio/stream").unwrap()));
    assert_eq!(rewrite("", &same_url_context("https://h/l.m3u")).unwrap().text, "");
}

#[test]
fn unusual_quotes_hide_no_request_to_the_proxy() {
    for (open, close) in [("'", "'"), ("`", "`"), ("\u{2018}", "\u{2019}"), ("<", ">"), ("(", ")"), ("\"'", "'\"")]
    {
        let text = |address: &str| format!("#EXTM3U\n#EXT-X-MAP:URI={open}{address}{close}\n/b.ts\n");
        let out = rewrite(&text("/http://10.0.0.1/x"), &same_url_context("https://h/l.m3u8")).unwrap();
        let want = text("/from-list/http://10.0.0.1/x").replace("\n/b", &format!("\n{PROXY_PREFIX}https://h/b"));
        assert_eq!(out.text, want);
        let line = format!("#EXTM3U\n{open}/http://10.0.0.1/x{close}\n");
        let marked = line.replace("/http", "/from-list/http");
        assert_eq!(rewrite(&line, &same_url_context("https://h/l.m3u8")).unwrap().text, marked);
    }
    let text = "#EXTM3U\n#EXT-X-MAP:URI=web/2020/http://10.0.0.1/x\n";
    assert_eq!(rewrite(text, &same_url_context("https://h/l.m3u8")).unwrap().text, text);
}

#[test]
fn imported_and_query_variables_are_expanded() {
    let master =
        "#EXTM3U\n#EXT-X-DEFINE:NAME=\"cdn\",VALUE=\"https://cdn/x\"\n#EXT-X-STREAM-INF:BANDWIDTH=1\nl.m3u8\n";
    let defined = rewrite(master, &same_url_context("https://h/m.m3u8")).unwrap().variables;
    assert_eq!(defined, [("cdn".to_owned(), "https://cdn/x".to_owned())]);
    let text = "#EXTM3U\n#EXT-X-DEFINE:IMPORT=\"cdn\"\n#EXT-X-DEFINE:QUERYPARAM=\"t\"\n#EXTINF:4,\n{$cdn}/a.ts\n\
        #EXTINF:4,\nb.ts?t={$t}\n";
    let context = same_url_context("https://h/l.m3u8?t=a%2Fb");
    let out = super::rewrite(text, &context, &defined, &mut test_budget()).unwrap();
    assert!(out.text.contains(&format!("\n{PROXY_PREFIX}from-list/https://cdn/x/a.ts\n")), "{}", out.text);
    // The player may take the value from a different URL.
    assert!(out.text.ends_with("\nb.ts?t=a/b\n"), "{}", out.text);
    assert!(out.renditions[0].timing(&Url::parse("https://cdn/x/a.ts").unwrap(), None).is_some());
    let refused = rewrite(text, &context);
    assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("variable `cdn`")));
    // Unused variables are ignored.
    assert!(rewrite("#EXTM3U\n#EXT-X-DEFINE:IMPORT=\"x\"\na.ts\n", &context).is_ok());
}

proptest::proptest! {
    #[test]
    fn no_text_breaks_it(text in "(#EXTM3U\n)?(#EXT[A-Z-]{0,12}[:=\",a-zA-Z0-9é]{0,20}\n|[a-z/.:{$}]{0,12}\n){0,8}") {
        let _ = rewrite(&text, &same_url_context("https://h/l.m3u8"));
    }
}
