//! Output of tables, on standard output and as CSV, and of plots.

use std::fmt::Display;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use datafusion::common::{DataFusionError, Result};
use plotters::prelude::*;

/// A table that is printed as Markdown and written as CSV.
#[derive(Debug)]
pub(crate) struct Table {
    csv: BufWriter<File>,
}

impl Table {
    /// Begins a table; its file is `name.csv`.
    pub(crate) fn try_new(folder: &Path, name: &str, title: &str, columns: &[&str]) -> Result<Self> {
        println!(
            "\n## {title}\n\n| {} |\n|{}",
            columns.join(" | "),
            " --- |".repeat(columns.len())
        );
        let mut csv = BufWriter::new(File::create(folder.join(format!("{name}.csv")))?);
        writeln!(csv, "{}", columns.join(","))?;
        Ok(Self { csv })
    }

    pub(crate) fn row(&mut self, cells: &[&dyn Display]) -> Result<()> {
        let cells: Vec<String> = cells.iter().map(ToString::to_string).collect();
        println!("| {} |", cells.join(" | "));
        writeln!(self.csv, "{}", cells.join(","))?;
        Ok(self.csv.flush()?)
    }
}

/// A line of a plot.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// Adds a point to the line of this name.
pub(crate) fn add_point(lines: &mut Vec<Line>, name: &str, point: (f64, f64)) {
    if let Some(line) = lines.iter_mut().find(|line| line.name == name) {
        return line.points.push(point);
    }
    lines.push(Line {
        name: name.to_owned(),
        points: vec![point],
    });
}

/// Draws lines on two logarithmic axes, as `name.svg`.
pub(crate) fn plot(folder: &Path, name: &str, title: &str, [x, y]: [&str; 2], lines: &[Line]) -> Result<()> {
    draw(&folder.join(format!("{name}.svg")), title, [x, y], lines)
        .map_err(|error| DataFusionError::Execution(format!("cannot draw {name}: {error}")))
}

fn draw(
    path: &Path,
    title: &str,
    [x, y]: [&str; 2],
    lines: &[Line],
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let points = || lines.iter().flat_map(|line| &line.points).copied();
    let ends = |of: fn((f64, f64)) -> f64| {
        let (least, most) = points()
            .map(of)
            .fold((f64::INFINITY, 0.0_f64), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        least / 1.3..most * 1.5
    };
    let area = SVGBackend::new(path, (900, 560)).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(70)
        .build_cartesian_2d(
            ends(|point| point.0).log_scale(),
            ends(|point| point.1).log_scale(),
        )?;
    let label = |value: &f64| format!("{value:.0e}");
    chart
        .configure_mesh()
        .x_desc(x)
        .y_desc(y)
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .draw()?;
    for (index, line) in lines.iter().enumerate() {
        let color = Palette99::pick(index).to_rgba();
        chart
            .draw_series(LineSeries::new(line.points.iter().copied(), color.stroke_width(2)).point_size(3))?
            .label(&line.name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], color.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .draw()?;
    Ok(area.present()?)
}
