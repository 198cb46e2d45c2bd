//! The tables of `docs/observability.md` and the code say the same.

use std::{collections::BTreeSet, sync::Mutex};

use mcp_supervisor::{Supervisor, ToolCall};
use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Metadata, Recorder, SharedString, Unit,
    with_local_recorder,
};
use serde_json::json;

use super::{
    FIELDS, Scene,
    support::{bounded, initialize, world::Wire},
};

/// The rows of the table below a heading: the cells, without their backticks.
fn rows(heading: &str) -> Vec<Vec<String>> {
    let text = include_str!("../../docs/observability.md");
    let section = text
        .split(&format!("\n## {heading}\n"))
        .nth(1)
        .expect("the heading is there");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let cells = |line: &str| {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().replace('`', "")).collect()
    };
    rows.map(cells).collect()
}

fn first_cells(heading: &str) -> BTreeSet<String> {
    let cells = rows(heading).into_iter().map(|mut row| row.remove(0));
    cells.collect()
}

/// Notes what it is told of each metric.
#[derive(Default)]
struct Described(Mutex<BTreeSet<(String, &'static str, Option<String>)>>);

impl Described {
    fn note(&self, name: &KeyName, kind: &'static str, unit: Option<Unit>, text: &str) {
        assert!(!text.is_empty());
        let name = name.as_str().to_owned();
        self.0
            .lock()
            .unwrap()
            .insert((name, kind, unit.map(|u| u.as_str().to_owned())));
    }
}

impl Recorder for Described {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.note(&name, "counter", unit, &text);
    }
    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.note(&name, "gauge", unit, &text);
    }
    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, text: SharedString) {
        self.note(&name, "histogram", unit, &text);
    }
    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }
    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }
    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::noop()
    }
}

#[test]
fn the_table_of_metrics_is_what_a_recorder_is_told() {
    let described = Described::default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    with_local_recorder(&described, || {
        runtime.block_on(async { drop(Supervisor::builder().start().await.unwrap()) });
    });
    let described = described.0.into_inner().unwrap();
    assert!(described.len() > 10);
    let written: BTreeSet<_> = rows("Metrics")
        .into_iter()
        .map(|row| {
            let unit = match &*row[2] {
                "seconds" => Unit::Seconds,
                "count" => Unit::Count,
                other => panic!("the unit {other} of {}", row[0]),
            };
            let kind = match &*row[1] {
                "counter" => "counter",
                "gauge" => "gauge",
                "histogram" => "histogram",
                other => panic!("the kind {other} of {}", row[0]),
            };
            (row[0].clone(), kind, Some(unit.as_str().to_owned()))
        })
        .collect();
    assert_eq!(written, described);
}

#[test]
fn the_table_of_events_has_each_kind_of_event() {
    let source = syn::parse_file(include_str!("../../src/event.rs")).unwrap();
    let what = source.items.iter().find_map(|item| match item {
        syn::Item::Enum(what) if what.ident == "What" => Some(what),
        _ => None,
    });
    let variants = what.expect("the enum is there").variants.iter();
    let variants: BTreeSet<_> = variants.map(|v| v.ident.to_string()).collect();
    assert_eq!(first_cells("Events"), variants);
}

#[tokio::test]
async fn the_table_of_attributes_has_each_field_of_the_span() {
    bounded(async {
        let scene = Scene::new(Wire::Stdio, initialize(), json!({})).await;
        let server = scene.open(scene.spec()).await;
        server
            .call_tool(ToolCall::new("echo", json!({})))
            .await
            .unwrap();
        scene.end().await;
    })
    .await;
    let fields = FIELDS.lock().unwrap();
    let fields: BTreeSet<_> = fields["mcp.operation"]
        .iter()
        .map(|f| (*f).to_owned())
        .collect();
    assert_eq!(first_cells("Attributes of the span"), fields);
}
