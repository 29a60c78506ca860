//! A profile for reading in a terminal.

use std::fmt::Write;

use datafusion::error::{DataFusionError, Result};
use datafusion_quantiles::profile::{ColumnProfile, PERCENTAGES};

use super::Profile;
use super::chart::{bar, blocks, chart};
use super::figures::{count, distinct, float, percent, printable, short, unit_of_length, value};

/// Width of lines where the output is no terminal.
const COLUMNS: usize = 100;

/// Widest line: longer ones are hard to read.
const MOST_COLUMNS: usize = 120;

/// Characters of a value that is shown, at most.
const VALUE: usize = 40;

/// Characters of the bar of a value that all rows have.
const BAR: usize = 30;

/// The profile as text, in lines that fit the terminal.
pub(super) fn text(profile: &Profile) -> Result<String> {
    let width = ::console::Term::stdout()
        .size_checked()
        .map_or(COLUMNS, |(_, columns)| columns.into());
    let width = width.clamp(40, MOST_COLUMNS);
    let mut text = printable(&profile.source) + "\n";
    for group in &profile.groups {
        let table = &group.profile;
        let rows = amount(table.rows, "row");
        let heading = match profile.heading(group)? {
            heading if heading.is_empty() => String::new(),
            heading => format!("\n{heading}: "),
        };
        put(
            &mut text,
            format_args!(
                "{heading}{rows}, {}\n",
                amount(table.columns.len() as u64, "column")
            ),
        )?;
        for column in &table.columns {
            put(
                &mut text,
                format_args!("\n{}  {}\n", printable(&column.name), column.data_type),
            )?;
            lines(&mut text, width, &counts(column, table.rows))?;
            describe(&mut text, width, column)?;
        }
    }
    Ok(text)
}

/// A number of things, such as `1 row` or `2,000 rows`.
fn amount(number: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(number), if number == 1 { "" } else { "s" })
}

fn put(text: &mut String, arguments: std::fmt::Arguments<'_>) -> Result<()> {
    text.write_fmt(arguments)
        .map_err(|error| DataFusionError::External(error.into()))
}

/// Items in lines of this width, indented by two spaces and parted by two.
fn lines(text: &mut String, width: usize, items: &[String]) -> Result<()> {
    let mut line = String::new();
    for item in items {
        if !line.is_empty() && line.chars().count() + 2 + item.chars().count() > width {
            put(text, format_args!("{line}\n"))?;
            line.clear();
        }
        line.push_str("  ");
        line.push_str(item);
    }
    match line.is_empty() {
        true => Ok(()),
        false => put(text, format_args!("{line}\n")),
    }
}

/// How many values, NULLs and distinct values there are, and how long they are.
fn counts(column: &ColumnProfile, rows: u64) -> Vec<String> {
    let mut items = vec![match column.nulls {
        0 => "no NULLs".to_owned(),
        nulls => format!("{} NULL ({})", count(nulls), percent(nulls, rows)),
    }];
    items.extend(distinct(column));
    if let Some(nans @ 1..) = column.nans {
        items.push(format!("{} NaN", count(nans)));
    }
    if let Some(lengths) = column.lengths {
        let unit = unit_of_length(&column.data_type);
        items.push(match lengths.shortest == lengths.longest {
            true => format!("{} {unit} each", count(lengths.longest)),
            false => format!(
                "{} to {} {unit}, {} on average",
                count(lengths.shortest),
                count(lengths.longest),
                float(lengths.mean)
            ),
        });
    }
    items
}

/// Percentiles, mean, fences, picture and most frequent values.
fn describe(text: &mut String, width: usize, column: &ColumnProfile) -> Result<()> {
    let mut items = Vec::new();
    let shown = |scalar| value(scalar).map(|value| short(&value, VALUE));
    if let Some((least, greatest)) = &column.range {
        items.push(format!("min {}", shown(least)?));
        for percentage in PERCENTAGES {
            if let Some(value) = column.percentile(percentage) {
                items.push(format!("p{percentage} {}", shown(value)?));
            }
        }
        items.push(format!("max {}", shown(greatest)?));
    }
    lines(text, width, &items)?;
    items.clear();
    if let Some(mean) = column.mean {
        items.push(format!("mean {}", float(mean)));
    }
    if let Some(deviation) = column.deviation {
        items.push(format!("deviation {}", float(deviation)));
    }
    if let Some(fences) = &column.fences {
        let (low, high) = (shown(&fences.low)?, shown(&fences.high)?);
        items.push(match fences.beyond {
            Some((0, 0)) => format!("none beyond the fences {low} and {high}"),
            Some((below, above)) => format!(
                "{} below the fence {low}, {} above {high}",
                count(below),
                count(above)
            ),
            None => format!("fences {low} and {high}"),
        });
    }
    lines(text, width, &items)?;
    if let Some(chart) = chart(column)? {
        let cut = if chart.is_cut {
            " (those between the fences)"
        } else {
            ""
        };
        let (low, high) = (shown(&chart.low)?, shown(&chart.high)?);
        put(text, format_args!("  {low} {} {high}{cut}\n", blocks(&chart)))?;
    }
    frequent(text, width, column)
}

/// The most frequent values: a line each with a bar where they say much, else one line for all.
fn frequent(text: &mut String, width: usize, column: &ColumnProfile) -> Result<()> {
    let top = column
        .top
        .iter()
        .map(|(scalar, number)| Ok((short(&value(scalar)?, VALUE), *number)));
    let top = top.collect::<Result<Vec<_>>>()?;
    let most = top.first().map_or(0, |(_, number)| *number);
    // Values that occur once tell nothing.
    if most <= 1 {
        return Ok(());
    }
    // Less than a hundredth is no bar.
    if column.histogram.is_some() || most * 100 < column.values {
        let mut items = vec!["top".to_owned()];
        items.extend(
            top.iter()
                .map(|(value, number)| format!("{value} ({})", count(*number))),
        );
        return lines(text, width, &items);
    }
    let names = top
        .iter()
        .map(|(value, _)| value.chars().count())
        .max()
        .unwrap_or(0);
    let numbers = top
        .iter()
        .map(|(_, number)| count(*number).len())
        .max()
        .unwrap_or(0);
    for (value, number) in &top {
        let part = *number as f64 / column.values.max(1) as f64;
        let bar = bar(part, BAR);
        let percent = percent(*number, column.values);
        let pad = " ".repeat(names - value.chars().count());
        let line = format!("  {value}{pad}  {:>numbers$}  {percent:>7} {bar}", count(*number));
        put(text, format_args!("{}\n", line.trim_end()))?;
    }
    Ok(())
}
