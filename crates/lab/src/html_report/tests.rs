//! Tests of the page: it is well-formed, contains its input, and survives any characters in names.

use super::*;

fn example() -> Page {
    let run = |rate: f64| (0..60).map(|n| if n < 3 { rate * f64::from(n) / 3.0 } else { rate }).collect();
    let chart = |title: &str| Chart {
        title: title.into(),
        series: vec![
            Series { name: "wifi".into(), runs: vec![run(80.0), run(79.0)], slot_s: 0.1 },
            Series { name: "lte".into(), runs: vec![run(61.0)], slot_s: 0.1 },
        ],
        marks: vec![
            ChartMark { at_s: 5.88, label: "ideal 5.88 s".into(), stroke: Stroke::Ideal },
            ChartMark { at_s: 6.0, label: "6.00 s".into(), stroke: Stroke::End },
            ChartMark { at_s: 6.24, label: "aria2-s2 6.24 s".into(), stroke: Stroke::BestOther },
        ],
    };
    Page {
        title: "floor-a: \"two\" <links> & more".into(),
        lead: "one line".into(),
        facts: vec![("command".into(), "marline-lab run scenarios/floor-a.toml".into())],
        sections: vec![Section {
            heading: "a".into(),
            lead: "wifi,rate=80Mbit/s".into(),
            charts: vec![chart("marline"), chart("curl \u{7}")],
            table: Some(Table {
                header: vec!["client".into(), "s".into()],
                rows: vec![vec!["marline".into(), "6.00".into()], vec!["aria2-s2".into(), "10.2".into()]],
                note: Some("n = 3".into()),
            }),
        }],
    }
}

/// Checks that tags are closed in order and that no reserved character is unescaped. Covers the XML that the report
/// uses.
fn check_well_formed(text: &str) -> Result<(), String> {
    let body = text.strip_prefix("<!DOCTYPE html>\n").ok_or("no document type")?;
    let mut open: Vec<&str> = Vec::new();
    let mut remaining = body;
    while let Some(start) = remaining.find('<') {
        let (before, tag) = remaining.split_at(start);
        for (at, _) in before.match_indices('&') {
            let known =
                ["&amp;", "&lt;", "&gt;", "&quot;", "&apos;"].iter().any(|name| before[at..].starts_with(name));
            known.then_some(()).ok_or_else(|| format!("a free & in {before:?}"))?;
        }
        let end = tag.find('>').ok_or_else(|| format!("`{tag:.40}` is never closed"))?;
        let inner = &tag[1..end];
        (inner.matches('"').count() % 2 == 0).then_some(()).ok_or_else(|| format!("odd quotes in {inner}"))?;
        if let Some(name) = inner.strip_prefix('/') {
            let opened = open.pop();
            (opened == Some(name)).then_some(()).ok_or_else(|| format!("{opened:?} closed by {name}"))?;
        } else if !inner.ends_with('/') {
            open.push(inner.split(' ').next().unwrap_or_default());
        }
        remaining = &tag[end + 1..];
    }
    open.is_empty().then_some(()).ok_or_else(|| format!("{open:?} left open"))
}

#[test]
fn the_page_is_well_formed_and_contains_its_input() {
    let html = example().to_html();
    check_well_formed(&html).unwrap();
    for part in ["floor-a: &quot;two&quot; &lt;links&gt; &amp; more", "aria2-s2 6.24 s", "time (s)", "(Mbit/s)"] {
        assert!(html.contains(part), "{part}");
    }
    assert_eq!(html.matches("<polyline").count(), 6);
    assert!(html.contains("prefers-color-scheme: dark"));
    for outside in ["<script", "<link", "src=", "@import", "url("] {
        assert!(!html.contains(outside), "{outside}");
    }
}

#[test]
fn the_checker_rejects_malformed_xml() {
    for bad in ["<a><b></a></b>", "<a>", "<a>x & y</a>", "<a b=\"c></a>"] {
        assert!(check_well_formed(&format!("<!DOCTYPE html>\n{bad}")).is_err(), "{bad}");
    }
}

#[test]
fn an_empty_page_and_an_empty_chart_are_well_formed() {
    check_well_formed(&Page::default().to_html()).unwrap();
    let section = Section { charts: vec![Chart::default()], ..Section::default() };
    let html = Page { sections: vec![section], ..Page::default() }.to_html();
    check_well_formed(&html).unwrap();
    assert!(!html.contains("NaN") && !html.contains("inf"), "{html}");
}

#[test]
fn long_runs_are_drawn_with_few_points() {
    let mut page = example();
    page.sections[0].charts[0].series[0].runs = vec![vec![7.49; 2782]];
    let html = page.to_html();
    let longest = html.lines().filter(|line| line.contains("<polyline")).map(str::len).max().unwrap();
    assert!(longest < 3000, "{longest}");
}

#[test]
fn a_text_table_aligns_its_columns() {
    let table = example().sections[0].table.clone().unwrap();
    assert_eq!(table.to_text(), "client       s\nmarline   6.00\naria2-s2  10.2\nn = 3\n");
}
