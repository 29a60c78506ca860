//! Where the values of a column lie, for a picture: how many fall into each of some intervals of the same width.

use datafusion::error::Result;
use datafusion::scalar::ScalarValue;
use datafusion_quantiles::profile::{BINS, ColumnProfile, Distinct, position};

/// Intervals of a picture.
pub(super) const CELLS: usize = 40;

/// What a picture shows.
#[derive(Debug, PartialEq)]
pub(super) struct Chart {
    /// The part of all values in each interval.
    pub(super) parts: Vec<f64>,
    /// The value where the first interval starts.
    pub(super) low: ScalarValue,
    /// The value where the last interval ends.
    pub(super) high: ScalarValue,
    /// Whether values that lie beyond the fences are left out.
    pub(super) is_cut: bool,
}

/// The picture of a column; `None` of one without a histogram, or whose values are all the same.
///
/// Values beyond the fences are left out, so that the others can be told apart. Within a bin of the histogram, which holds a twentieth of the
/// values, they are drawn as if they were spread evenly.
pub(super) fn chart(column: &ColumnProfile) -> Result<Option<Chart>> {
    let Some(bins) = column.histogram.as_ref().filter(|bins| !bins.is_empty()) else {
        return Ok(None);
    };
    let Some((least, greatest)) = &column.range else {
        return Ok(None);
    };
    let (mut low, mut high) = (least.clone(), greatest.clone());
    if let Some(fences) = &column.fences {
        match (position(&fences.low)?, position(least)?) {
            (Some(fence), Some(value)) if fence > value => low = fences.low.clone(),
            _ => {}
        }
        match (position(&fences.high)?, position(greatest)?) {
            (Some(fence), Some(value)) if fence < value => high = fences.high.clone(),
            _ => {}
        }
    }
    let (Some(start), Some(end)) = (position(&low)?, position(&high)?) else {
        return Ok(None);
    };
    if start >= end || !(end - start).is_finite() {
        return Ok(None);
    }
    let mut parts = vec![0.0; CELLS];
    // Where each bin ends at the only value that it holds, the values stand apart.
    let stand_apart = matches!(column.distinct, Some(Distinct::Exact(number)) if number <= BINS);
    let cell = |place: f64| ((place - start) / (end - start) * CELLS as f64).clamp(0.0, CELLS as f64);
    for bin in bins {
        let (Some(from), Some(to)) = (position(&bin.low)?, position(&bin.high)?) else {
            continue;
        };
        let part = bin.count as f64 / column.values.max(1) as f64;
        if stand_apart || from >= to {
            if (start..=end).contains(&to) {
                add(&mut parts, cell(to).min(CELLS as f64 - 1.0) as usize, part);
            }
            continue;
        }
        let (first, last) = (cell(from), cell(to));
        let density = part / ((to - from) / (end - start) * CELLS as f64);
        for place in first as usize..CELLS.min(last.ceil() as usize) {
            let width = last.min(place as f64 + 1.0) - first.max(place as f64);
            add(&mut parts, place, density * width.max(0.0));
        }
    }
    let is_cut = low != *least || high != *greatest;
    Ok(Some(Chart {
        parts,
        low,
        high,
        is_cut,
    }))
}

fn add(parts: &mut [f64], place: usize, part: f64) {
    if let Some(sum) = parts.get_mut(place) {
        *sum += part;
    }
}

/// The chart as a line of blocks of eight heights.
pub(super) fn blocks(chart: &Chart) -> String {
    const HEIGHTS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let most = chart.parts.iter().copied().fold(0.0, f64::max);
    let height = |part: f64| {
        if part <= 0.0 {
            0
        } else {
            ((part / most * 8.0).round() as usize).clamp(1, 8)
        }
    };
    chart
        .parts
        .iter()
        .filter_map(|part| HEIGHTS.get(height(*part)))
        .collect()
}

/// A bar of a part of so many characters, in eighths of a character. A part above 0 is always seen.
pub(crate) fn bar(part: f64, characters: usize) -> String {
    const EIGHTHS: [char; 8] = ['▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
    if part.is_nan() || part <= 0.0 {
        return String::new();
    }
    let eighths = ((part.min(1.0) * characters as f64 * 8.0).round() as usize).max(1);
    let mut bar = "█".repeat(eighths / 8);
    bar.extend((eighths % 8).checked_sub(1).and_then(|last| EIGHTHS.get(last)));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_have_the_length_of_their_part() {
        for (part, expected) in [
            (0.0, ""),
            (-1.0, ""),
            (f64::NAN, ""),
            (1e-9, "▏"),
            (0.25, "█"),
            (0.3125, "█▎"),
            (1.0, "████"),
            (7.0, "████"),
        ] {
            assert_eq!(bar(part, 4), expected, "{part}");
        }
    }
}
