//! Tests with manifests of all forms, and with manifests that try to lead players into local networks.

use url::Url;

use super::segments::split_template;
use super::*;
use crate::playlist::segment_index::Rendition;
use crate::playlist::url_rewrite::tests::{PROXY_PREFIX, same_url_context, test_budget};

fn rewrite(text: &str, context: &RewriteContext) -> Result<RewrittenPlaylist, PlaylistError> {
    super::rewrite(text, context, &mut test_budget())
}

fn urls_after(rendition: &Rendition, first: &str, most: usize) -> Vec<String> {
    let next = rendition.index.after(&Url::parse(first).unwrap(), None, most).unwrap();
    next.iter().map(|piece| piece.url.as_str().to_owned()).collect()
}

const NUMBERS: &str = r#"<?xml version="1.0"?>
<!-- kept -->
<MPD xmlns="urn:mpeg:dash:schema:mpd:2011" xmlns:xlink="http://www.w3.org/1999/xlink" mediaPresentationDuration="PT10S">
 <Location>https://h/d/live.mpd?a=1&amp;b=2</Location>
 <BaseURL serviceLocation="a>b"><![CDATA[https://cdn/x/]]></BaseURL>
 <Period xlink:href="/period.xml"><AdaptationSet>
  <SegmentTemplate timescale="1000" duration="4000" startNumber="5" media="$RepresentationID$/$Number%04d$.m4s?a=1&amp;b"
initialization="/init-$RepresentationID$.mp4"/>
  <Representation id="v1" bandwidth="1000"><BaseURL>low/</BaseURL></Representation>
  <Representation id="v2" bandwidth="2000"/>
 </AdaptationSet></Period>
</MPD>"#;

#[test]
fn urls_are_rewritten_and_the_rest_is_preserved_to_the_byte() {
    let out = rewrite(NUMBERS, &same_url_context("https://h/d/live.mpd")).unwrap();
    let want = NUMBERS
        .replace("https://h/d", &format!("{PROXY_PREFIX}https://h/d"))
        .replace("<![CDATA[https://cdn/x/]]>", &format!("{PROXY_PREFIX}from-list/https://cdn/x/"))
        .replace("\"/period.xml", &format!("\"{PROXY_PREFIX}from-list/https://cdn/period.xml"))
        .replace("\"/init-", &format!("\"{PROXY_PREFIX}from-list/https://cdn/init-"));
    assert_eq!((out.text.as_str(), out.changed_urls, out.can_choose), (want.as_str(), 4, true));
    // The result can be parsed again.
    assert_eq!(XmlTree::parse(&out.text, &mut test_budget()).unwrap().name(XmlTree::ROOT), "MPD");
}

#[test]
fn representations_whose_ids_are_urls_get_their_own_templates() {
    let text = "<m:MPD xmlns:m='x'><m:Period><m:AdaptationSet><m:SegmentTemplate duration='1' media='$RepresentationID$/$Number$.m4s' \
        initialization='i-$RepresentationID$.mp4'/><m:Representation id='plain-1'/><m:Representation id='/abs'/>\
        <m:Representation id='https://cdn/x'><m:SubRepresentation/></m:Representation><m:Representation id='../../../up'>\
        <m:SegmentTemplate startNumber='7' initialization='$RepresentationID$'/></m:Representation></m:AdaptationSet></m:Period></m:MPD>";
    let out = rewrite(text, &same_url_context("https://h/a/b.mpd")).unwrap();
    let rewritten = |media: &str| {
        format!("<m:SegmentTemplate media=\"{PROXY_PREFIX}{media}/$Number$.m4s\"/></m:Representation>")
    };
    let want = text
        .replace("id='/abs'/>", &format!("id='/abs'>{}", rewritten("https://h/abs")))
        .replace(
            "<m:SubRepresentation/></m:Representation>",
            &format!("<m:SubRepresentation/>{}", rewritten("from-list/https://cdn/x")),
        )
        .replace(
            "<m:SegmentTemplate startNumber",
            &format!("<m:SegmentTemplate media=\"{PROXY_PREFIX}https://h/up/$Number$.m4s\" startNumber"),
        )
        .replace("initialization='$RepresentationID$'", &format!("initialization='{PROXY_PREFIX}https://h/up'"));
    assert_eq!(out.text, want);
}

#[test]
fn an_id_that_is_a_request_to_the_proxy_is_marked() {
    let text = "<MPD><Period><AdaptationSet><SegmentTemplate media='$RepresentationID$'/>\
        <Representation id='/http://10.0.0.1/x'/></AdaptationSet></Period></MPD>";
    let out = rewrite(text, &same_url_context("https://h/a/b.mpd")).unwrap().text;
    assert!(
        out.contains(&format!("<SegmentTemplate media=\"{PROXY_PREFIX}https://h/http://10.0.0.1/x\"/>")),
        "{out}"
    );
    assert!(out.contains("id='/from-list/http://10.0.0.1/x'"), "{out}");
}

#[test]
fn a_template_above_a_base_of_another_host_uses_that_host() {
    let text = "<MPD><Period><AdaptationSet><SegmentTemplate media='/$RepresentationID$.m4s'/><Representation id='a'>\
        <BaseURL>https://cdn/</BaseURL></Representation><Representation id='b'/></AdaptationSet></Period></MPD>";
    let out = rewrite(text, &same_url_context("https://h/a/b.mpd")).unwrap().text;
    let rewritten = format!(
        "</BaseURL><SegmentTemplate media=\"{PROXY_PREFIX}from-list/https://cdn/a.m4s\"/></Representation>"
    );
    assert!(out.contains(&rewritten) && out.contains("<Representation id='b'/>"), "{out}");
}

#[test]
fn time_servers_are_queried_through_the_proxy() {
    let text = |head: &str, iso: &str| {
        format!(
            "<MPD><UTCTiming schemeIdUri='urn:mpeg:dash:utc:http-head:2014' value='{head}'/><UTCTiming \
             schemeIdUri='urn:mpeg:dash:utc:http-iso:2014' value='{iso}'/><UTCTiming schemeIdUri='urn:mpeg:dash:utc:direct:2014' \
             value='/x'/></MPD>"
        )
    };
    let out =
        rewrite(&text("/time", "/time  https://clock/?iso time"), &same_url_context("https://h/a/b.mpd")).unwrap();
    let iso = format!("{PROXY_PREFIX}https://h/time {PROXY_PREFIX}from-list/https://clock/?iso time");
    assert_eq!(out.text, text("https://h/time", &iso));
}

#[test]
fn segments_by_number_follow_until_the_period_ends() {
    let out = rewrite(NUMBERS, &same_url_context("https://h/d/live.mpd")).unwrap();
    let next = urls_after(&out.renditions[0], "https://cdn/x/low/v1/0005.m4s?a=1&b", 9);
    assert_eq!(next, ["https://cdn/x/low/v1/0006.m4s?a=1&b", "https://cdn/x/low/v1/0007.m4s?a=1&b"]);
    let next = urls_after(&out.renditions[1], "https://cdn/x/v2/0006.m4s?a=1&b", 9);
    assert_eq!(next, ["https://cdn/x/v2/0007.m4s?a=1&b"]);
}

#[test]
fn segments_by_time_follow_their_timeline() {
    let text = r#"<MPD mediaPresentationDuration="PT10S"><Period><AdaptationSet>
      <SegmentTemplate timescale="10" media="a-$Time$.m4s"><SegmentTimeline><S t="5" d="20" r="1"/><S d="30" r="-1"/>
      </SegmentTimeline></SegmentTemplate><Representation id="a"/></AdaptationSet></Period></MPD>"#;
    let out = rewrite(text, &same_url_context("https://h/m.mpd")).unwrap();
    assert_eq!((out.text.as_str(), out.changed_urls, out.can_choose), (text, 0, false));
    let next = urls_after(&out.renditions[0], "https://h/a-5.m4s", 9);
    assert_eq!(next, ["https://h/a-25.m4s", "https://h/a-45.m4s", "https://h/a-75.m4s"]);
}

#[test]
fn segments_of_a_list_follow_their_order() {
    let text = r#"<MPD><Period><AdaptationSet><Representation id="a"><BaseURL>/all.mp4</BaseURL>
      <SegmentList timescale="2" duration="5"><Initialization sourceURL="/i.mp4"/><SegmentURL mediaRange="0-99"/>
      <SegmentURL mediaRange="100-149"/><SegmentURL media="x.mp4"/></SegmentList></Representation></AdaptationSet>
      </Period></MPD>"#;
    let out = rewrite(text, &same_url_context("https://h/d/m.mpd")).unwrap();
    assert_eq!(out.changed_urls, 2);
    let all = Url::parse("https://h/all.mp4").unwrap();
    let next = out.renditions[0].index.after(&all, Some(&(0..100)), 9).unwrap();
    assert_eq!((next[0].range.clone(), next[0].duration), (Some(100..150), Duration::from_millis(2500)));
    assert_eq!(next[1].url.as_str(), "https://h/x.mp4");
}

#[test]
fn a_url_with_elements_in_it_is_refused() {
    for name in ["Location", "BaseURL"] {
        let text = format!("<MPD><{name}>/<x/>http<x/>://10.0.0.1/</{name}></MPD>");
        let refused = rewrite(&text, &same_url_context("https://h/m.mpd"));
        assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("elements in it")));
    }
}

#[test]
fn no_base_of_several_turns_a_url_into_a_request_to_the_proxy() {
    let up = "../../10.0.0.1/x";
    let several = "<BaseURL>/a/b/c/d/</BaseURL><BaseURL>/</BaseURL>";
    let written = |bases: &str, inner: &str| {
        let text = format!("<MPD>{bases}<Period><AdaptationSet>{inner}</AdaptationSet></Period></MPD>");
        rewrite(&text, &same_url_context("https://h/m.mpd")).unwrap().text
    };
    let rewritten_url = format!("{PROXY_PREFIX}https://h/a/b/10.0.0.1/x");
    let rep = "<Representation id='1' bandwidth='1'/>";
    for (bases, inner) in [
        (several, format!("<SegmentTemplate media='{up}'/>{rep}")),
        (several, format!("<SegmentTemplate media='&#46;&#46;/../10.0.0.1/x'/>{rep}")),
        (several, format!("<SegmentTemplate initialization='{up}'/>{rep}")),
        (several, format!("<Representation id='1'><BaseURL>{up}</BaseURL></Representation>")),
        ("<BaseURL>/a/b/c/d/</BaseURL>", format!("<SegmentList><SegmentURL media='{up}'/></SegmentList>{rep}")),
        (
            several,
            "<SegmentTemplate media='$RepresentationID$/x'/><Representation id='../../10.0.0.1'/>".to_owned(),
        ),
    ] {
        let out = written(bases, &inner);
        assert!(out.contains(&format!("{rewritten_url}\"")) || out.contains(&rewritten_url), "{out}");
        assert!(!out.contains("media='..") && !out.contains(">.."), "{out}");
    }
    // Several bases within a representation.
    let template = format!("<SegmentTemplate media='{up}'/>");
    let bases = several.replace("/a/b/c/d/", "/a/b/c/e/");
    let out = written(
        "<BaseURL>/a/b/c/d/</BaseURL>",
        &format!("{template}<Representation id='1'>{bases}</Representation>"),
    );
    assert!(out.contains(&format!("<SegmentTemplate media=\"{rewritten_url}\"/></Representation>")), "{out}");
    // A fragment of another manifest, whose bases are unknown.
    let out = rewrite(&format!("<Period>{template}</Period>"), &same_url_context("https://h/a/b/c/d/p.xml"))
        .unwrap()
        .text;
    assert!(out.contains(&rewritten_url), "{out}");
    // With a single base, relative URLs are kept.
    let one = written("", "<SegmentTemplate media='a/../$Number$.m4s'/><Representation id='1' bandwidth='2'/>");
    assert!(one.contains("media='a/../$Number$.m4s'"), "{one}");
    let out = written(several, "<SegmentTemplate media='v/$Number$.m4s'/><Representation id='1' bandwidth='2'/>");
    assert!(out.contains("media='v/$Number$.m4s'/><Representation id='1' bandwidth='2'/>"), "{out}");
}

#[test]
fn no_empty_id_turns_a_template_into_a_request_to_the_proxy() {
    for media in
        [".$RepresentationID$./10.0.0.1/x", "$Bandwidth$http://10.0.0.1/x", "http$RepresentationID$://10.0.0.1/x"]
    {
        let text = format!(
            "<MPD><Period><AdaptationSet><SegmentTemplate media='{media}'/><Representation id=''/></AdaptationSet></Period></MPD>"
        );
        let out = rewrite(&text, &same_url_context("https://h/m.mpd")).unwrap().text;
        let template = out.rsplit_once("<SegmentTemplate media=\"").unwrap().1;
        assert!(
            template.starts_with(&format!("{PROXY_PREFIX}https://h/10"))
                || template.starts_with(&format!("{PROXY_PREFIX}from-list/http://10")),
            "{out}"
        );
    }
}

#[test]
fn element_names_in_another_case_are_refused() {
    for text in ["<mpd/>", "<MPD><baseurl>/http:</baseurl></MPD>", "<MPD><representation id='/http:'/></MPD>"] {
        let refused = rewrite(text, &same_url_context("https://h/m.mpd"));
        assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("another case")), "{text}");
    }
}

#[test]
fn other_documents_are_refused() {
    let bomb = "<!DOCTYPE x [<!ENTITY a \"aaaa\"><!ENTITY b \"&a;&a;\">]><MPD>&b;</MPD>";
    for text in ["", "{}", "<html/>", "<MPD>", bomb] {
        assert!(rewrite(text, &same_url_context("https://h/m.mpd")).is_err(), "{text}");
    }
}

#[test]
fn durations_are_parsed_as_in_xml_schema() {
    for (text, want) in [
        ("PT1H2M3.5S", Some(3723.5)),
        ("P1DT1S", Some(86_401.0)),
        ("P0Y0M0DT10S", Some(10.0)),
        ("P1Y", None),
        ("10", None),
        ("PT1", None),
        ("PT-1S", None),
        ("PT99999999999999999999999S", None),
    ] {
        assert_eq!(parse_duration(text).map(|duration| duration.as_secs_f64()), want, "{text}");
    }
}

#[test]
fn in_templates_two_dollars_stand_for_one() {
    assert_eq!(split_template("a$$b$Number$c"), Some(("a$$b", "Number", 1, "c")));
    assert_eq!(split_template("$Time%09d$"), Some(("", "Time", 9, "")));
    for bad in ["abc", "$Number", "$Other$", "$Number%x$", "$Number%0999d$"] {
        assert_eq!(split_template(bad), None, "{bad}");
    }
}

/// What a player reads in a manifest: its attributes and texts, with references, CDATA sections and comments resolved.
fn values(text: &str) -> Vec<String> {
    let tree = XmlTree::parse(text, &mut test_budget()).unwrap();
    let ids = || 0..tree.len();
    let attributes = ids().flat_map(|id| tree.attributes(id)).map(|attribute| attribute.value().into_owned());
    attributes.chain(ids().flat_map(|id| tree.own_and_nested_text(id, &mut test_budget()).unwrap())).collect()
}

#[test]
fn text_that_players_read_is_marked_in_every_spelling() {
    // XML and URL parsers read each of these as `/http://10.0.0.1/x`.
    let (attributes, texts) = (
        [
            "/http://10.0.0.1/x",
            "&#47;http:&#47;&#47;10.0.0.1/x",
            "/http&#58;//10.0.0.1/x",
            "/http&#x3a;//10.0.0.1/x?a=1&amp;b='2'",
            "/&#104;ttp://10.0.0.1/x",
            "/ht&#10;tp://10.0.0.1/x",
            "&unknown; /http&#58;//10.0.0.1/x",
            "http://127.1:8480&#x2F;http&#58;//10.0.0.1/x",
        ],
        [
            "/http<![CDATA[:]]>//10.0.0.1/x",
            "<![CDATA[/ht]]><![CDATA[tp://10.0.0.1/x]]>",
            "/http<!-- x -->://10.0.0.1/x",
            "/http<?x y?>:&#47;/10.0.0.1/x",
            "/ht\ntp://10.0.0.1/x",
        ],
    );
    for value in attributes {
        let positions = [
            format!("<Event messageData=\"{value}\"/>"),
            format!("<EssentialProperty schemeIdUri=\"u\" x:value=\"{value}\"/>"),
            format!("<UTCTiming schemeIdUri=\"urn:mpeg:dash:utc:direct:2014\" value=\"{value}\"/>"),
            format!("<Representation id=\"{value}\"/>"),
        ];
        for position in positions {
            check(&position);
        }
    }
    for value in attributes.iter().chain(&texts) {
        check(&format!("<Event>{value}</Event>"));
        check(&format!("<p:Laurl Lic_type='x'> {value}</p:Laurl>"));
    }
    fn check(inner: &str) {
        let text = format!("<MPD xmlns:p='p' xmlns:x='x'><Period>{inner}</Period></MPD>");
        let out = rewrite(&text, &same_url_context("https://h/m.mpd")).unwrap().text;
        let context = same_url_context("https://h/m.mpd");
        for value in values(&out) {
            assert_eq!(context.mark_value(&value, &mut test_budget()).unwrap(), None, "{inner}: {out}");
        }
        assert!(out.contains("/from-list/"), "{inner}: {out}");
    }
}

#[test]
fn text_with_elements_in_it_is_refused_where_it_would_need_a_mark() {
    for inner in
        ["/http<x/>://10.0.0.1/", "/http<x>y</x>://10.0.0.1/", "/http<x>:</x>//10.0.0.1/", "&#47;<x/>https://h/"]
    {
        let refused = rewrite(&format!("<MPD><Event>{inner}</Event></MPD>"), &same_url_context("https://h/m.mpd"));
        assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("elements in it")), "{inner}");
    }
    let stray =
        "<MPD>> <Period><BaseURL>https://h/a/</BaseURL>\n<Event>a <b>https://g/</b> c</Event></Period></MPD>";
    assert!(rewrite(stray, &same_url_context("https://h/m.mpd")).is_ok());
}

#[test]
fn references_that_only_html_parsers_resolve_are_refused() {
    for value in ["/http&colon;//10.0.0.1/", "&sol;http://10.0.0.1/", "/http&#58//10.0.0.1/", "/ht&Tab;tp://h/"] {
        let refused =
            rewrite(&format!("<MPD><Event messageData='{value}'/></MPD>"), &same_url_context("https://h/m.mpd"));
        assert!(matches!(refused, Err(PlaylistError::Limit(why)) if why.contains("reference")), "{value}");
    }
}

#[test]
fn steering_imports_and_reports_go_through_the_proxy() {
    let text = |steering: &str, import: &str, report: &str| {
        format!(
            "<MPD xmlns:dvb='d'><ContentSteering defaultServiceLocation='a'>{steering}</ContentSteering><Metrics><Reporting \
             dvb:reportingUrl='{report}'/></Metrics><Period><ImportedMPD uri='{import}'>{import}</ImportedMPD></Period></MPD>"
        )
    };
    let out = rewrite(
        &text("https://steer/s?a=1&amp;b", "/next.mpd", "https://h/r"),
        &same_url_context("https://h/d/m.mpd"),
    )
    .unwrap();
    let via = |url: &str| format!("{PROXY_PREFIX}{url}");
    let want = text(&via("from-list/https://steer/s?a=1&amp;b"), &via("https://h/next.mpd"), &via("https://h/r"));
    assert_eq!(out.text, want);
    let odd = text("&#47;http:&#47;&#47;10.0.0.1&#47;s", "/http&#58;//10.0.0.1/i", "/http&#58;//10.0.0.1/r");
    let out = rewrite(&odd, &same_url_context("https://h/d/m.mpd")).unwrap().text;
    let expected = |name: &str| via(&format!("https://h/http://10.0.0.1/{name}"));
    assert_eq!(out, text(&expected("s"), &expected("i"), &expected("r")));
}

#[test]
fn a_time_server_url_at_the_proxy_is_marked() {
    for (kind, value) in [
        ("head", "http://127.1:8480/http://127.0.0.1:7001/clk"),
        ("head", "http://127.0.0.1:8480/http&#58;//127.0.0.1:7001/clk https://h/time"),
        ("head", "http://localhost:8480/a/../http://127.0.0.1:7001/clk"),
        ("iso", "x:/http://127.0.0.1:7001/clk"),
    ] {
        let text =
            format!("<MPD><UTCTiming value='{value}' schemeIdUri='urn:mpeg:dash:utc:http-{kind}:2014'/></MPD>");
        let out = rewrite(&text, &same_url_context("https://h/a/b.mpd")).unwrap().text;
        assert!(out.contains("/from-list/http://127.0.0.1:7001/clk"), "{out}");
        assert!(!out.contains("8480/http:"), "{out}");
    }
}

proptest::proptest! {
    #[test]
    fn no_spelling_of_a_value_goes_without_a_mark(
        value in "(/|&#47;|http|h|&#116;|tp|s|:|&#58;|<!--x-->|<!\\[CDATA\\[:\\]\\]>|<!\\[CDATA\\[/http\\]\\]>|\n|&#9;|&amp;|//10\\.0\\.0\\.1/|127\\.0\\.0\\.1:8480|<x/>){0,12}",
    ) {
        let context = same_url_context("https://h/m.mpd");
        let text = format!("<MPD><Event>{value}</Event></MPD>");
        if let Ok(out) = rewrite(&text, &context) {
            for value in values(&out.text) {
                proptest::prop_assert_eq!(context.mark_value(&value, &mut test_budget()).unwrap(), None, "{}", out.text);
            }
        }
    }

    #[test]
    fn rewritten_manifests_are_well_formed(
        inner in "(<Representation id='(a|/b|\\.\\./\\.\\./c|https://d/)'(/>|>(<BaseURL>(/e/|https://f/)</BaseURL>)?(<SegmentTemplate( media='\\$RepresentationID\\$')?/>)?</Representation>)){0,4}",
        template in "(<SegmentTemplate( media='/?\\$RepresentationID\\$/\\$Number\\$')?( initialization='(\\.\\./)?\\$Bandwidth\\$')?/>)?",
    ) {
        let text = format!("<MPD><Period><AdaptationSet>{template}{inner}</AdaptationSet></Period></MPD>");
        let context = same_url_context("https://h/a/m.mpd");
        let once = rewrite(&text, &context).unwrap();
        proptest::prop_assert!(XmlTree::parse(&once.text, &mut test_budget()).is_ok(), "{}", once.text);
        proptest::prop_assert!(once.changed_urls > 0 || once.text == text);
    }
}
