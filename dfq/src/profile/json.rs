//! A profile as JSON, as `docs/guide/profile.schema.json` describes it.

use datafusion::error::{DataFusionError, Result};
use datafusion::scalar::ScalarValue;
use datafusion_quantiles::profile::{ColumnProfile, Distinct, PERCENTAGES, text as text_of};
use serde_json::{Map, Value, json};

use super::Profile;

/// The profile as JSON text, with a line break at the end.
pub(super) fn text(profile: &Profile) -> Result<String> {
    let text = serde_json::to_string_pretty(&document(profile)?);
    text.map(|text| text + "\n")
        .map_err(|error| DataFusionError::External(error.into()))
}

/// The profile as a JSON value.
pub(super) fn document(profile: &Profile) -> Result<Value> {
    let groups = profile.groups.iter().map(|group| {
        let columns = group
            .profile
            .columns
            .iter()
            .map(column)
            .collect::<Result<Vec<_>>>()?;
        let values = profile.by.iter().zip(&group.group);
        let values = values.map(|(name, found)| Ok((name.clone(), value(found)?)));
        let values = values.collect::<Result<Map<_, _>>>()?;
        Ok(json!({ "group": values, "rows": group.profile.rows, "columns": columns }))
    });
    let mut groups = groups.collect::<Result<Vec<_>>>()?;
    if profile.by.is_empty()
        && let Some(Value::Object(mut all)) = groups.pop()
    {
        let mut part = |name| all.remove(name);
        let (rows, columns) = (part("rows"), part("columns"));
        return Ok(json!({ "version": 1, "source": profile.source, "rows": rows, "columns": columns }));
    }
    Ok(json!({ "version": 1, "source": profile.source, "by": profile.by, "groups": groups }))
}

fn column(column: &ColumnProfile) -> Result<Value> {
    let mut object = Map::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("name", json!(column.name));
    put("type", json!(column.data_type.to_string()));
    put("values", json!(column.values));
    put("nulls", json!(column.nulls));
    if let Some(nans) = column.nans {
        put("nans", json!(nans));
    }
    if let Some(distinct) = column.distinct {
        let is_exact = matches!(distinct, Distinct::Exact(_));
        put(
            "distinct",
            json!({ "count": distinct.number(), "exact": is_exact }),
        );
    }
    if let Some((least, greatest)) = &column.range {
        put("min", value(least)?);
        put("max", value(greatest)?);
    }
    if let Some(mean) = column.mean {
        put("mean", float(mean));
    }
    if let Some(deviation) = column.deviation {
        put("deviation", float(deviation));
    }
    let mut percentiles = Map::new();
    for percentage in PERCENTAGES {
        if let Some(found) = column.percentile(percentage) {
            percentiles.insert(percentage.to_string(), value(found)?);
        }
    }
    if !percentiles.is_empty() {
        put("percentiles", Value::Object(percentiles));
    }
    if let Some(fences) = &column.fences {
        let (below, above) = fences.beyond.unzip();
        put(
            "fences",
            json!({ "low": value(&fences.low)?, "high": value(&fences.high)?, "below": below, "above": above }),
        );
    }
    if let Some(lengths) = column.lengths {
        put(
            "lengths",
            json!({ "shortest": lengths.shortest, "mean": lengths.mean, "longest": lengths.longest }),
        );
    }
    if column.distinct.is_some() {
        let top = column
            .top
            .iter()
            .map(|(found, count)| Ok(json!({ "value": value(found)?, "count": count })));
        put("top", Value::Array(top.collect::<Result<_>>()?));
    }
    if let Some(bins) = &column.histogram {
        let bins = bins
            .iter()
            .map(|bin| Ok(json!({ "low": value(&bin.low)?, "high": value(&bin.high)?, "count": bin.count })));
        put("histogram", Value::Array(bins.collect::<Result<_>>()?));
    }
    Ok(Value::Object(object))
}

/// A number, which JSON has no infinite ones of, and no NaN: those are text.
fn float(number: f64) -> Value {
    match number.is_finite() {
        true => json!(number),
        false => json!(number.to_string()),
    }
}

/// A value: integers, floating point and booleans as JSON has them, all others as text.
pub(super) fn value(value: &ScalarValue) -> Result<Value> {
    Ok(match value {
        ScalarValue::Int8(Some(number)) => json!(number),
        ScalarValue::Int16(Some(number)) => json!(number),
        ScalarValue::Int32(Some(number)) => json!(number),
        ScalarValue::Int64(Some(number)) => json!(number),
        ScalarValue::UInt8(Some(number)) => json!(number),
        ScalarValue::UInt16(Some(number)) => json!(number),
        ScalarValue::UInt32(Some(number)) => json!(number),
        ScalarValue::UInt64(Some(number)) => json!(number),
        ScalarValue::Float16(Some(number)) => float(number.to_f64()),
        ScalarValue::Float32(Some(number)) => float(f64::from(*number)),
        ScalarValue::Float64(Some(number)) => float(*number),
        ScalarValue::Boolean(Some(is_true)) => json!(is_true),
        other => text_of(other)?.map_or(Value::Null, Value::String),
    })
}
