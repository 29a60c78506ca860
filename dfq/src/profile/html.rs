//! A profile as one HTML page, with all that it needs in it.

use std::fmt::{Display, Write};

use datafusion::error::{DataFusionError, Result};
use datafusion::scalar::ScalarValue;
use datafusion_quantiles::profile::{ColumnProfile, Distinct, PERCENTAGES, position};

use super::Profile;
use super::chart::{CELLS, Chart, chart};
use super::figures::{count, float, percent, short, unit_of_length, value};
use super::json;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");

/// Ways to sort the columns: what the script knows them by, and what they are called.
const ORDERS: [(&str, &str); 5] = [
    ("place", "order in the table"),
    ("name", "name"),
    ("nulls", "most NULLs"),
    ("distinct", "most distinct values"),
    ("beyond", "most values beyond the fences"),
];

/// Width and heights of a chart, in its own unit.
const WIDTH: f64 = 400.0;
const BARS: f64 = 80.0;
const HEIGHT: f64 = 104.0;

/// Characters of a value in a figure, at most.
const VALUE: usize = 200;

/// The profile as a page.
pub(super) fn page(profile: &Profile) -> Result<String> {
    let mut page = Page::default();
    let source = Text(&profile.source);
    let rows = profile.groups.iter().map(|group| group.profile.rows).sum();
    let columns = profile
        .groups
        .first()
        .map_or(0, |group| group.profile.columns.len());
    let groups = match profile.by.as_slice() {
        [] => String::new(),
        by => format!(
            ", {} groups by {}",
            count(profile.groups.len() as u64),
            by.join(", ")
        ),
    };
    // Scripts and styles of the page alone may run, and nothing is loaded.
    page.put(format_args!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
         <title>Profile of {source}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <header>\n<h1>{source}</h1>\n<p>{} rows, {} columns{}; percentiles are exact</p>\n</header>\n",
        count(rows),
        count(columns as u64),
        Text(&groups),
    ))?;
    page.put(format_args!(
        "<form id=\"controls\" role=\"search\" hidden>\n<label>Find a column <input id=\"find\" type=\"search\" autocomplete=\"off\"></label>\n\
         <label>Sort by <select id=\"sort\">\n"
    ))?;
    for (order, name) in ORDERS {
        page.put(format_args!("<option value=\"{order}\">{name}</option>\n"))?;
    }
    page.put(format_args!(
        "</select></label>\n<output id=\"shown\" for=\"find\" aria-live=\"polite\"></output>\n</form>\n<main id=\"columns\">\n"
    ))?;
    // The groups of a column side by side.
    for place in 0..columns {
        for (number, group) in profile.groups.iter().enumerate() {
            if let Some(column) = group.profile.columns.get(place) {
                let place = place * profile.groups.len() + number;
                article(
                    &mut page,
                    place,
                    column,
                    group.profile.rows,
                    &profile.heading(group)?,
                )?;
            }
        }
    }
    // `<` would end the element where a value has `</script>`.
    let data = json::document(profile)?.to_string().replace('<', "\\u003c");
    page.put(format_args!(
        "</main>\n<script type=\"application/json\" id=\"profile\">{data}</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    ))?;
    Ok(page.0)
}

/// The text of a page.
#[derive(Default)]
struct Page(String);

impl Page {
    fn put(&mut self, arguments: std::fmt::Arguments<'_>) -> Result<()> {
        self.0
            .write_fmt(arguments)
            .map_err(|error| DataFusionError::External(error.into()))
    }

    /// A figure with its name.
    fn figure(&mut self, name: impl Display, figure: impl AsRef<str>) -> Result<()> {
        let figure = short(figure.as_ref(), VALUE);
        self.put(format_args!(
            "<div><dt>{name}</dt><dd>{}</dd></div>\n",
            Text(&figure)
        ))
    }
}

/// Text whose characters mean nothing to HTML.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

fn article(page: &mut Page, place: usize, column: &ColumnProfile, rows: u64, group: &str) -> Result<()> {
    let beyond = column
        .fences
        .as_ref()
        .and_then(|fences| fences.beyond)
        .map_or(0, |(below, above)| below + above);
    let name = match group {
        "" => column.name.clone(),
        group => format!("{}: {group}", column.name),
    };
    page.put(format_args!(
        "<article aria-labelledby=\"name-{place}\" data-place=\"{place}\" data-name=\"{}\" data-nulls=\"{}\" data-distinct=\"{}\" \
         data-beyond=\"{beyond}\">\n<h2 id=\"name-{place}\">{} <small>{}</small></h2>\n",
        Text(&name),
        column.nulls,
        column.distinct.map_or(0, Distinct::number),
        Text(&name),
        Text(&column.data_type.to_string()),
    ))?;
    figures(page, column, rows)?;
    if let Some(chart) = chart(column)? {
        picture(page, column, &chart)?;
    }
    top(page, column)?;
    histogram(page, column)?;
    page.put(format_args!("</article>\n"))
}

fn figures(page: &mut Page, column: &ColumnProfile, rows: u64) -> Result<()> {
    page.put(format_args!("<dl>\n"))?;
    page.figure("values", count(column.values))?;
    page.figure(
        "NULLs",
        match column.nulls {
            0 => "none".to_owned(),
            nulls => format!("{} ({})", count(nulls), percent(nulls, rows)),
        },
    )?;
    match column.distinct {
        Some(Distinct::Exact(number)) => page.figure("distinct values", count(number))?,
        Some(Distinct::Estimated(number)) => {
            page.figure("distinct values", format!("about {}", count(number)))?
        }
        None => {}
    }
    if let Some(nans @ 1..) = column.nans {
        page.figure("NaN", count(nans))?;
    }
    if let Some((least, greatest)) = &column.range {
        page.figure("least", value(least)?)?;
        for percentage in PERCENTAGES {
            if let Some(found) = column.percentile(percentage) {
                let name = if percentage == 50 {
                    "median".to_owned()
                } else {
                    format!("{percentage} %")
                };
                page.figure(name, value(found)?)?;
            }
        }
        page.figure("greatest", value(greatest)?)?;
    }
    if let Some(mean) = column.mean {
        page.figure("mean", float(mean))?;
    }
    if let Some(deviation) = column.deviation {
        page.figure("standard deviation", float(deviation))?;
    }
    if let Some(fences) = &column.fences {
        let edges = [
            ("lower fence", &fences.low, fences.beyond.map(|beyond| beyond.0)),
            ("upper fence", &fences.high, fences.beyond.map(|beyond| beyond.1)),
        ];
        for (name, fence, beyond) in edges {
            let beyond = beyond.map_or_else(String::new, |beyond| format!(" ({} beyond)", count(beyond)));
            page.figure(name, value(fence)? + &beyond)?;
        }
    }
    if let Some(lengths) = column.lengths {
        let unit = unit_of_length(&column.data_type);
        page.figure(format_args!("{unit}, fewest"), count(lengths.shortest))?;
        page.figure(format_args!("{unit}, mean"), float(lengths.mean))?;
        page.figure(format_args!("{unit}, most"), count(lengths.longest))?;
    }
    page.put(format_args!("</dl>\n"))
}

/// Bars of the values, and a box from the 25th to the 75th percentile with a line at the median, between lines to the 5th and the 95th.
fn picture(page: &mut Page, column: &ColumnProfile, chart: &Chart) -> Result<()> {
    let (low, high) = (value(&chart.low)?, value(&chart.high)?);
    let median = column.percentile(50).map(value).transpose()?.unwrap_or_default();
    page.put(format_args!(
        "<figure>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Where the values of {} lie between {} and {}; the median is {}\">\n",
        Text(&column.name),
        Text(&low),
        Text(&high),
        Text(&median),
    ))?;
    let most = chart.parts.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    let step = WIDTH / CELLS as f64;
    for (place, part) in chart.parts.iter().enumerate() {
        let height = part / most * BARS;
        page.put(format_args!(
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{height:.1}\"><title>{:.2} %</title></rect>\n",
            place as f64 * step,
            BARS - height,
            step - 1.0,
            part * 100.0,
        ))?;
    }
    let ends = position(&chart.low)?.zip(position(&chart.high)?);
    let at = |scalar: &ScalarValue| {
        let (start, end) = ends?;
        let place = position(scalar).ok().flatten()?;
        Some(((place - start) / (end - start) * WIDTH).clamp(0.0, WIDTH))
    };
    let at = |percentage| column.percentile(percentage).and_then(at);
    if let (Some(p5), Some(p25), Some(p50), Some(p75), Some(p95)) = (at(5), at(25), at(50), at(75), at(95)) {
        page.put(format_args!(
            "<line x1=\"{p5:.1}\" x2=\"{p95:.1}\" y1=\"94\" y2=\"94\"/>\n\
             <rect class=\"box\" x=\"{p25:.1}\" y=\"87\" width=\"{:.1}\" height=\"14\"/>\n\
             <line class=\"median\" x1=\"{p50:.1}\" x2=\"{p50:.1}\" y1=\"86\" y2=\"102\"/>\n",
            p75 - p25,
        ))?;
    }
    let cut = if chart.is_cut {
        "values between the fences"
    } else {
        "all values"
    };
    page.put(format_args!(
        "</svg>\n<figcaption><span>{}</span> <span class=\"note\">{cut}; box: middle half, mark: median</span> <span>{}</span></figcaption>\n</figure>\n",
        Text(&low),
        Text(&high),
    ))
}

fn top(page: &mut Page, column: &ColumnProfile) -> Result<()> {
    // Values that occur once tell nothing.
    if column.top.first().is_none_or(|(_, number)| *number <= 1) {
        return Ok(());
    }
    page.put(format_args!(
        "<table>\n<caption>Most frequent values</caption>\n<thead><tr><th scope=\"col\">value</th><th scope=\"col\" class=\"number\">count</th>\
         <th scope=\"col\" class=\"number\">share</th><th></th></tr></thead>\n<tbody>\n"
    ))?;
    for (found, number) in &column.top {
        let part = 100.0 * *number as f64 / column.values.max(1) as f64;
        let text = short(&value(found)?, VALUE);
        let text = if text.is_empty() {
            "(empty)".to_owned()
        } else {
            text
        };
        page.put(format_args!(
            "<tr><th scope=\"row\">{}</th><td class=\"number\">{}</td><td class=\"number\">{}</td>\
             <td class=\"share\"><span style=\"width:{part:.1}%\"></span></td></tr>\n",
            Text(&text),
            count(*number),
            percent(*number, column.values),
        ))?;
    }
    page.put(format_args!("</tbody>\n</table>\n"))
}

/// The bins, folded away: what the picture is drawn from.
fn histogram(page: &mut Page, column: &ColumnProfile) -> Result<()> {
    let Some(bins) = column.histogram.as_ref().filter(|bins| !bins.is_empty()) else {
        return Ok(());
    };
    page.put(format_args!(
        "<details>\n<summary>Histogram: bins of about the same number of values</summary>\n<table>\n\
         <thead><tr><th scope=\"col\">above</th><th scope=\"col\">through</th><th scope=\"col\">count</th></tr></thead>\n<tbody>\n"
    ))?;
    for bin in bins {
        page.put(format_args!(
            "<tr><td>{}</td><td>{}</td><td class=\"number\">{}</td></tr>\n",
            Text(&value(&bin.low)?),
            Text(&value(&bin.high)?),
            count(bin.count),
        ))?;
    }
    page.put(format_args!("</tbody>\n</table>\n</details>\n"))
}
