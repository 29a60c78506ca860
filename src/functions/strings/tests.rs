//! Tests of accumulators over byte strings.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use super::*;
use crate::functions::accumulator::QuantilesAccumulator;
use crate::functions::groups::CollectingGroups;
use crate::quantile::{AnswerSpec, Method, Quantile};

type OneGroup = QuantilesAccumulator<ByteStrings>;
type StringGroups = CollectingGroups<ByteStrings>;

fn column(quantile: f64, is_distinct: bool) -> TypedAnswerSpec<ByteSpec> {
    let quantile_spec = QuantileSpec {
        quantiles: vec![Quantile::try_from_f64(quantile).unwrap()],
        method: Method::Disc,
        descending: false,
    };
    match AnswerSpec::try_new(&DataType::Utf8, quantile_spec, false, is_distinct).unwrap() {
        AnswerSpec::Bytes(column) => column,
        AnswerSpec::Keys(_) => unreachable!("strings have no keys"),
    }
}

fn texts(list: &[Option<&str>]) -> Vec<ArrayRef> {
    vec![Arc::new(StringArray::from(list.to_vec()))]
}

fn emitted(groups: &mut StringGroups, emit_to: EmitTo) -> Vec<Option<String>> {
    let rows = groups.evaluate(emit_to).unwrap();
    let rows = rows.as_string::<i32>().iter();
    rows.map(|text| text.map(str::to_owned)).collect()
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|text| Some((*text).to_owned())).collect()
}

#[test]
fn first_groups_leave_and_the_others_move_down() {
    let mut groups = StringGroups::new(column(1.0, false));
    let batch = texts(&[Some("five"), Some("a"), None, Some("seven"), Some("two")]);
    groups.update_batch(&batch, &[2, 0, 1, 0, 3], None, 4).unwrap();
    assert_eq!(
        emitted(&mut groups, EmitTo::First(2)),
        [some(&["seven"]), vec![None]].concat()
    );
    // Group 2 has become group 0.
    let batch = texts(&[Some("nine"), Some("b")]);
    groups.update_batch(&batch, &[0, 2], None, 3).unwrap();
    assert_eq!(emitted(&mut groups, EmitTo::All), some(&["nine", "two", "b"]));
    assert!(emitted(&mut groups, EmitTo::All).is_empty());
}

#[test]
fn states_carry_values_filters_and_nulls() {
    let batch = texts(&[Some("d"), None, Some("f"), Some("h")]);
    let passed = BooleanArray::from(vec![Some(true), Some(true), Some(false), None]);
    let mut partial = StringGroups::new(column(1.0, false));
    partial
        .update_batch(&batch, &[0, 0, 1, 1], Some(&passed), 2)
        .unwrap();
    let mut merged = StringGroups::new(column(1.0, false));
    let rows = merged.convert_to_state(&batch, Some(&passed)).unwrap();
    merged
        .merge_batch(&partial.state(EmitTo::All).unwrap(), &[1, 0], 2)
        .unwrap();
    merged.merge_batch(&rows, &[0, 0, 0, 0], 2).unwrap();
    assert_eq!(emitted(&mut merged, EmitTo::All), some(&["d", "d"]));

    let mut one = OneGroup::new(column(0.5, true));
    one.update_batch(&batch).unwrap();
    one.update_batch(&batch).unwrap();
    let state = one.state().unwrap().remove(0).to_array().unwrap();
    let mut other = OneGroup::new(column(0.5, true));
    assert_eq!(other.evaluate().unwrap(), ScalarValue::Utf8(None));
    other.merge_batch(&[state]).unwrap();
    assert_eq!(other.evaluate().unwrap(), ScalarValue::from("f"));
}

#[test]
fn sizes_are_those_of_the_buffers() {
    let mut groups = StringGroups::new(column(1.0, false));
    let empty = groups.size();
    let batch = texts(&[Some("twelve bytes"); 1000]);
    groups.update_batch(&batch, &[0; 1000], None, 1).unwrap();
    assert!(
        (20_000..80_000).contains(&(groups.size() - empty)),
        "{}",
        groups.size()
    );
    emitted(&mut groups, EmitTo::All);
    assert_eq!(groups.size(), empty);
}

#[test]
fn a_moving_frame_is_a_sorted_one() {
    let all: Vec<String> = (0..20_000_u64)
        .map(|i| format!("{}", i * 7919 % 10_007 / 3))
        .collect();
    let array = StringArray::from_iter_values(&all);
    for (frame, is_distinct) in [(1, false), (50, false), (50, true)] {
        let mut sliding = OneGroup::new(column(0.5, is_distinct));
        let mut most = 0;
        for last in 0..all.len() {
            sliding.update_batch(&[Arc::new(array.slice(last, 1))]).unwrap();
            if last >= frame {
                sliding
                    .retract_batch(&[Arc::new(array.slice(last - frame, 1))])
                    .unwrap();
            }
            most = most.max(sliding.size());
            if last % 97 == 0 {
                let mut inside = all[(last + 1).saturating_sub(frame)..=last].to_vec();
                inside.sort_unstable();
                if is_distinct {
                    inside.dedup();
                }
                let median = inside[inside.len().div_ceil(2) - 1].as_str();
                assert_eq!(sliding.evaluate().unwrap(), ScalarValue::from(median));
            }
        }
        assert!(most < 100_000, "what has left is dropped, held {most}");
    }
    // Copies of few values cost no memory, and an answer between values is that of a sort.
    let mut growing = OneGroup::new(column(0.5, false));
    for (seen, value) in (0..20_000_u64).map(|i| i * 7919 % 5).enumerate() {
        let value = StringArray::from_iter_values([format!("one of five values {value}")]);
        growing.update_batch(&[Arc::new(value)]).unwrap();
        if seen % 999 == 998 || seen < 3 {
            let mut inside: Vec<u64> = (0..=seen as u64).map(|i| i * 7919 % 5).collect();
            inside.sort_unstable();
            let median = format!("one of five values {}", inside[inside.len().div_ceil(2) - 1]);
            assert_eq!(growing.evaluate().unwrap(), ScalarValue::from(median.as_str()));
        }
    }
    assert!(growing.size() < 200_000, "{}", growing.size());
    let state = growing.state().unwrap().remove(0).to_array().unwrap();
    assert_eq!(state.as_list::<i64>().values().len(), 20_000);
    let mut other = OneGroup::new(column(1.0, false));
    other.merge_batch(&[state]).unwrap();
    assert_eq!(
        other.evaluate().unwrap(),
        ScalarValue::from("one of five values 4")
    );
    let mut sliding = OneGroup::new(column(0.5, false));
    sliding
        .update_batch(&texts(&[Some("c"), None, Some("a"), Some("b")]))
        .unwrap();
    assert_eq!(sliding.evaluate().unwrap(), ScalarValue::from("b"));
    sliding
        .retract_batch(&texts(&[None, Some("a"), Some("b"), Some("c")]))
        .unwrap();
    assert_eq!(sliding.evaluate().unwrap(), ScalarValue::Utf8(None));
    assert!(sliding.retract_batch(&texts(&[Some("a")])).is_err());
}
