//! `--plot`: answers drawn with bars, in lines that fit the terminal.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Float64Array, RecordBatch};
use datafusion::arrow::compute::{cast, concat_batches};
use datafusion::arrow::datatypes::{DataType, Float64Type, Schema};
use datafusion::arrow::error::ArrowError;
use datafusion::arrow::util::display::{ArrayFormatter, FormatOptions};
use datafusion::common::{exec_err, plan_err};
use datafusion::config::FormatOptions as FormatConfig;
use datafusion::error::Result;
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;

use crate::profile::chart::bar;
use crate::profile::figures::{float, printable, short};

/// Most bars of one drawing.
const MOST: usize = 1000;

/// Characters of a label, at most.
const LABEL: usize = 40;

/// Fewest characters of a bar.
const LEAST_BAR: usize = 8;

/// What an answer is drawn as, by the types of its columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One row with a list of numbers, such as quantiles.
    Numbers,
    /// One row with a list of structs of low, high and count.
    Histogram,
    /// Rows of a label and a number.
    Rows,
}

/// A labelled number.
struct Bar {
    label: String,
    /// The number as it is written.
    text: String,
    /// `None`: NULL, NaN or infinite, which has no bar.
    number: Option<f64>,
}

/// The answer as lines of this width, drawn with a bar for each number.
///
/// # Errors
/// The stream's own error; an answer that cannot be drawn, with what can be.
pub(super) async fn draw(
    mut stream: SendableRecordBatchStream,
    config: &FormatConfig,
    width: usize,
) -> Result<String> {
    let schema = stream.schema();
    let Some(kind) = kind(&schema) else {
        let columns = schema.fields().iter();
        let columns = columns.map(|field| format!("{} {}", field.name(), field.data_type()));
        return plan_err!(
            "--plot draws a list of numbers or a histogram in one row and one column, or rows of a label and a number, not: {}",
            columns.collect::<Vec<_>>().join(", ")
        );
    };
    let mut batches = Vec::new();
    let mut rows = 0;
    while let Some(batch) = stream.next().await.transpose()? {
        rows += batch.num_rows();
        check_number(rows, "rows")?;
        batches.push(batch);
    }
    let options: FormatOptions = config.try_into()?;
    let bars = bars(kind, &concat_batches(&schema, &batches)?, &options)?;
    Ok(lines(&bars, width))
}

fn check_number(number: usize, what: &str) -> Result<()> {
    if number > MOST {
        return exec_err!("--plot draws at most {MOST} {what}: put a LIMIT into the query, or ask for fewer");
    }
    Ok(())
}

fn kind(schema: &Schema) -> Option<Kind> {
    let types: Vec<_> = schema.fields().iter().map(|field| field.data_type()).collect();
    match types.as_slice() {
        [DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)] => {
            match item.data_type() {
                number if number.is_numeric() => Some(Kind::Numbers),
                DataType::Struct(fields) => {
                    let names: Vec<_> = fields.iter().map(|field| field.name().as_str()).collect();
                    (names == ["low", "high", "count"]).then_some(Kind::Histogram)
                }
                _ => None,
            }
        }
        [_, number] if number.is_numeric() => Some(Kind::Rows),
        _ => None,
    }
}

/// The labelled numbers of an answer.
///
/// # Errors
/// More than one row of a list; too many bars.
fn bars(kind: Kind, answer: &RecordBatch, options: &FormatOptions<'_>) -> Result<Vec<Bar>> {
    if kind == Kind::Rows {
        return labelled(answer.column(0), answer.column(1), options);
    }
    if answer.num_rows() > 1 {
        return plan_err!(
            "--plot draws a list of one row, and there are {} rows",
            answer.num_rows()
        );
    }
    let items = items(answer.column(0))?;
    check_number(items.len(), "items of a list")?;
    if kind == Kind::Numbers {
        let places: ArrayRef = Arc::new(Float64Array::from_iter_values(
            (1..=items.len()).map(|place| place as f64),
        ));
        return labelled(&cast(&places, &DataType::UInt64)?, &items, options);
    }
    let bins = items.as_struct();
    let (low, high) = (edges(bins.column(0), options)?, edges(bins.column(1), options)?);
    let mut bars = labelled(bins.column(1), bins.column(2), options)?;
    for (bar, (low, high)) in bars.iter_mut().zip(low.into_iter().zip(high)) {
        bar.label = format!("{low} to {high}");
    }
    Ok(bars)
}

/// The edges of bins as text, floating-point numbers to six digits.
fn edges(edges: &ArrayRef, options: &FormatOptions<'_>) -> Result<Vec<String>> {
    if edges.data_type().is_floating() {
        let edges = cast(edges, &DataType::Float64)?;
        let edges = edges.as_primitive::<Float64Type>().iter();
        return Ok(edges
            .map(|edge| edge.map_or_else(|| "NULL".to_owned(), float))
            .collect());
    }
    let texts = formatter(edges, options)?;
    let texts = (0..edges.len()).map(|place| Ok(printable(&texts.value(place).try_to_string()?)));
    Ok(texts.collect::<Result<_, ArrowError>>()?)
}

/// The items of the list in the only row; none of NULL and of no row.
fn items(column: &ArrayRef) -> Result<ArrayRef> {
    let (DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) =
        column.data_type()
    else {
        return plan_err!("--plot draws a list, not {}", column.data_type());
    };
    let lists = cast(column, &DataType::List(Arc::clone(item)))?;
    let lists = lists.as_list::<i32>();
    if lists.is_empty() || lists.is_null(0) {
        return Ok(lists.values().slice(0, 0));
    }
    Ok(lists.value(0))
}

fn formatter<'a>(array: &'a ArrayRef, options: &FormatOptions<'a>) -> Result<ArrayFormatter<'a>> {
    Ok(ArrayFormatter::try_new(array.as_ref(), options)?)
}

/// Numbers with the labels in the same places.
fn labelled(labels: &ArrayRef, numbers: &ArrayRef, options: &FormatOptions<'_>) -> Result<Vec<Bar>> {
    let (names, texts) = (formatter(labels, options)?, formatter(numbers, options)?);
    let floats = cast(numbers, &DataType::Float64)?;
    let floats = floats.as_primitive::<Float64Type>();
    let bar = |(place, number): (usize, Option<f64>)| {
        Ok(Bar {
            label: short(&printable(&names.value(place).try_to_string()?), LABEL),
            text: texts.value(place).try_to_string()?,
            number: number.filter(|number| number.is_finite()),
        })
    };
    Ok(floats
        .iter()
        .enumerate()
        .map(bar)
        .collect::<Result<_, ArrowError>>()?)
}

/// A line for each bar: the label, the number, and the bar, from 0 on.
fn lines(bars: &[Bar], width: usize) -> String {
    let characters = |of: fn(&Bar) -> &str| bars.iter().map(|bar| of(bar).chars().count()).max().unwrap_or(0);
    let (labels, texts) = (characters(|bar| &bar.label), characters(|bar| &bar.text));
    // Labels give way to bars, down to a third of the line.
    let labels = labels.min((width / 3).max(width.saturating_sub(texts + 4 + LEAST_BAR) / 2));
    let room = width.saturating_sub(labels + texts + 5).max(LEAST_BAR);
    let finite = || bars.iter().filter_map(|bar| bar.number);
    let (least, greatest) = (finite().fold(0.0, f64::min), finite().fold(0.0, f64::max));
    // Halves of both do not overflow where their difference would.
    let span = greatest / 2.0 - least / 2.0;
    let below = if span > 0.0 {
        (-least / 2.0 / span * room as f64).round() as usize
    } else {
        0
    };
    let mut text = String::new();
    for line in bars {
        let part = line.number.map_or(0.0, |number| number.abs() / 2.0 / span);
        let drawn = if line.number.is_some_and(|number| number < 0.0) {
            let full = ((part * room as f64).round() as usize).min(below);
            format!("{}{}", " ".repeat(below - full), "█".repeat(full))
        } else {
            format!("{}{}", " ".repeat(below), bar(part, room))
        };
        let label = short(&line.label, labels);
        let pad = " ".repeat(labels.saturating_sub(label.chars().count()));
        let drawn = format!("{label}{pad}  {:>texts$}  {drawn}", line.text);
        text.push_str(drawn.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    async fn drawn(sql: &str) -> Result<String> {
        let ctx = SessionContext::new();
        datafusion_quantiles::register_all(&ctx)?;
        let config = FormatConfig {
            null: "NULL".to_owned(),
            ..FormatConfig::default()
        };
        let stream = ctx.sql(sql).await?.execute_stream().await?;
        draw(stream, &config, 40).await
    }

    #[tokio::test]
    async fn numbers_are_drawn_from_zero() {
        let text = drawn("SELECT exact_quantiles(value, [0, 0.5, 1]) FROM range(0, 5)")
            .await
            .unwrap();
        let bar = |part: f64| "█".repeat((33.0 * part) as usize);
        assert_eq!(text, format!("1  0\n2  2  {}▌\n3  4  {}\n", bar(0.5), bar(1.0)));
        let text = drawn("SELECT * FROM (VALUES ('up', 1.5), ('down', -1.5), (NULL, NULL), ('much', 'inf'::float)) ORDER BY 2").await.unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], format!("down  -1.5  {}", "█".repeat(14)));
        assert_eq!(
            lines[1],
            format!("up     1.5  {}{}▌", " ".repeat(14), "█".repeat(13))
        );
        assert_eq!((lines[2], lines[3]), ("much   inf", "NULL  NULL"));
        // Nothing to draw.
        assert_eq!(drawn("SELECT 'a', 1 WHERE false").await.unwrap(), "");
        assert_eq!(
            drawn("SELECT exact_quantiles(value, [0.5]) FROM range(0, 0)")
                .await
                .unwrap(),
            ""
        );
    }

    #[tokio::test]
    async fn histograms_have_the_edges_of_their_bins() {
        let text = drawn("SELECT histogram(value, 2, 'equi-width') FROM range(0, 101)")
            .await
            .unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert!(
            lines.len() == 2 && lines[0].starts_with("0 to 50    51  █"),
            "{text}"
        );
        assert!(lines.iter().all(|line| line.chars().count() <= 40), "{text}");
    }

    #[tokio::test]
    async fn what_cannot_be_drawn_is_refused() {
        for (sql, said) in [
            (
                "SELECT 1 AS x, 'a' AS y",
                "--plot draws a list of numbers or a histogram in one row and one column, or rows of a label and a number, not: x Int64, y Utf8",
            ),
            ("SELECT 1", "not: Int64(1) Int64"),
            ("SELECT ['a']", "one column"),
            (
                "SELECT [value] FROM range(0, 2)",
                "a list of one row, and there are 2 rows",
            ),
            (
                "SELECT value, value + 1 AS next FROM range(0, 1001)",
                "at most 1000 rows: put a LIMIT",
            ),
            ("SELECT range(0, 1001)", "at most 1000 items"),
        ] {
            let message = drawn(sql).await.unwrap_err().strip_backtrace();
            assert!(
                message.to_lowercase().contains(&said.to_lowercase()),
                "{sql}: {message}"
            );
        }
    }
}
