//! A plan as a tree, an operator a line.

use std::time::Duration;

use datafusion::physical_plan::metrics::{MetricType, MetricValue, MetricsSet};
use datafusion::physical_plan::{ExecutionPlan, displayable};

use super::time;
use crate::profile::chart::bar;
use crate::profile::figures::{count, printable, short};

/// Characters of the longest bar, in lines of at least [`WIDE`].
const BAR: usize = 16;

/// Characters of the longest bar in shorter lines.
const SHORT_BAR: usize = 4;

/// Columns of lines that have room.
const WIDE: usize = 80;

/// Measures that all operators have: the tree shows them as columns, or not at all.
const COMMON: [&str; 6] = [
    "output_rows",
    "elapsed_compute",
    "output_bytes",
    "output_batches",
    "start_timestamp",
    "end_timestamp",
];

/// What is shown of an operator beside its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Measures {
    None,
    All,
}

/// One operator.
struct Node {
    /// What stands before the name in its own line, and in those below it.
    indents: (String, String),
    name: String,
    rows: Option<usize>,
    time: Option<Duration>,
    measures: Vec<String>,
}

/// The operators of a plan in lines of this width.
pub(super) fn tree(plan: &dyn ExecutionPlan, measures: Measures, columns: usize) -> String {
    let mut nodes = Vec::new();
    collect(plan, (String::new(), String::new()), &mut nodes);
    if measures == Measures::None {
        let mut text = String::new();
        nodes
            .iter()
            .for_each(|node| push(&mut text, &node.named(columns)));
        return text;
    }
    measured(&nodes, columns)
}

impl Node {
    /// The name in its place of the tree, in so many characters.
    fn named(&self, characters: usize) -> String {
        short(&format!("{}{}", self.indents.0, self.name), characters)
    }

    /// The rows and the time as they are written.
    fn cells(&self) -> [String; 2] {
        let unknown = || "-".to_owned();
        let rows = self.rows.map(|rows| count(rows as u64));
        [rows.unwrap_or_else(unknown), self.time.map_or_else(unknown, time)]
    }
}

/// Operators with their rows, times, bars and measures.
fn measured(nodes: &[Node], columns: usize) -> String {
    let longest = nodes
        .iter()
        .filter_map(|node| node.time)
        .max()
        .unwrap_or_default();
    let cells: Vec<_> = nodes.iter().map(Node::cells).collect();
    let widest = |place: usize, heading: &str| {
        let widths = cells.iter().filter_map(|cells| cells.get(place));
        widths
            .map(|cell| cell.chars().count())
            .fold(heading.len(), usize::max)
    };
    let (rows, times) = (widest(0, "rows"), widest(1, "time"));
    let bars = if columns < WIDE { SHORT_BAR } else { BAR };
    let before = rows + times + bars + 4;
    // Narrow terminals and deep plans leave a name at least this much.
    let room = columns.saturating_sub(before).max(12);
    let mut text = String::new();
    push(&mut text, &format!("{:>rows$} {:>times$}", "rows", "time"));
    for (node, [output, spent]) in nodes.iter().zip(&cells) {
        let part = node.time.unwrap_or_default().as_secs_f64() / longest.as_secs_f64();
        let (drawn, name) = (bar(part, bars), node.named(room));
        push(
            &mut text,
            &format!("{output:>rows$} {spent:>times$} {drawn:<bars$}  {name}"),
        );
        let indent = &node.indents.1;
        let width = room.saturating_sub(indent.chars().count() + 2).max(12);
        for line in filled(&node.measures, width) {
            let line = short(&format!("{indent}  {line}"), room);
            push(&mut text, &format!("{:before$}{line}", ""));
        }
    }
    text
}

fn push(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

/// Adds an operator and those below it.
fn collect(plan: &dyn ExecutionPlan, indents: (String, String), nodes: &mut Vec<Node>) {
    let children = plan.children();
    let metrics = plan.metrics();
    let below = indents.1.clone();
    // The line that leads to the inputs goes past the measures.
    let beside = if children.is_empty() { "" } else { "│" };
    nodes.push(Node {
        indents: (indents.0, format!("{below}{beside}")),
        name: printable(displayable(plan).one_line().to_string().trim_end()),
        rows: metrics.as_ref().and_then(MetricsSet::output_rows),
        time: metrics
            .as_ref()
            .and_then(|metrics| spent(metrics, children.is_empty())),
        measures: metrics.map_or_else(Vec::new, |metrics| measures(metrics, children.is_empty())),
    });
    let last = children.len().saturating_sub(1);
    for (place, child) in children.into_iter().enumerate() {
        let (own, next) = if place == last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        let indents = (format!("{below}{own}"), format!("{below}{next}"));
        collect(child.as_ref(), indents, nodes);
    }
}

/// The processors' time of an operator. Scans of files count theirs by another name.
fn spent(metrics: &MetricsSet, is_scan: bool) -> Option<Duration> {
    let scan = metrics.sum_by_name("time_elapsed_processing");
    let scan = scan.map(|time| time.as_usize()).filter(|_| is_scan);
    let spent = metrics.elapsed_compute().max(scan)?;
    Some(Duration::from_nanos(spent as u64))
}

/// The measures of an operator alone that are not 0, as text. Of those of a scan, which are many, what sums it up.
fn measures(metrics: MetricsSet, is_scan: bool) -> Vec<String> {
    let metrics = metrics.aggregate_by_name();
    let shown = metrics.iter().filter(|metric| {
        let value = metric.value();
        let is_common = COMMON.contains(&value.name());
        let is_told = !is_scan || metric.metric_type() == MetricType::Summary;
        let is_zero = match value {
            MetricValue::Ratio { .. } => false,
            // Of nanoseconds: what is not measured adds up to a few.
            MetricValue::Time { time, .. } => time.value() < 100,
            value => value.as_usize() == 0,
        };
        !is_common && is_told && !is_zero
    });
    let shown = shown.map(|metric| {
        let value = match metric.value() {
            MetricValue::Count { count: number, .. } => count(number.value() as u64),
            MetricValue::Time { time: spent, .. } => time(Duration::from_nanos(spent.value() as u64)),
            other => other.to_string(),
        };
        format!("{} {value}", metric.value().name())
    });
    let mut shown: Vec<_> = shown.collect();
    shown.sort_unstable();
    shown
}

/// Items with commas between them, in lines of at most this width, unless one item is longer.
fn filled(items: &[String], width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for item in items {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 2 + item.chars().count() < width => {
                line.push_str(", ");
                line.push_str(item);
            }
            Some(line) => {
                line.push(',');
                lines.push(item.clone());
            }
            None => lines.push(item.clone()),
        }
    }
    lines
}
