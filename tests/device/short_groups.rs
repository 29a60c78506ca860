//! Groups of few rows, which warps sort: ranks of each group, against a sort of its keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Int32Array};
use datafusion::arrow::compute::{filter, is_not_null};
use datafusion::arrow::datatypes::Int32Type;
use datafusion::common::Result;
use datafusion_quantiles::kernel::cuda::{DeviceColumn, GroupRanks, Report, SpreadGroups};
use datafusion_quantiles::key::{KeyBits, KeySpec};
use quantiles_testing::{patterns, pseudo_random};

use crate::matrix::with_cents;
use crate::selection::selection;
use crate::support::{device, tests};

tests! {
    plain ranks_of_short_groups,
    plain one_long_group_among_short_ones,
}

const ROWS: usize = 150_001;

/// The least rank, one in the middle, and the greatest.
struct Three;

impl GroupRanks for Three {
    fn each(&self) -> usize {
        3
    }

    fn of(&self, n: u64) -> Vec<u64> {
        vec![1, n.div_ceil(2), n]
    }

    fn reserve(&self, _groups: usize) -> Result<()> {
        Ok(())
    }
}

/// About 300 rows in each group, in any order; and groups of 1 to 547 rows, in any order.
fn groups_of(len: usize) -> [ArrayRef; 2] {
    let even = pseudo_random(len, 7).map(|word| (word % (len as u64 / 300)) as i32 - 70);
    // Group g has the rows from g (g + 1) / 2 on.
    let growing = (0..len).map(|row| (row * 7919 + 13) % len);
    let growing = growing.map(|row| ((((8 * row + 1) as f64).sqrt() - 1.0) / 2.0) as i32);
    [
        Arc::new(Int32Array::from_iter_values(even)),
        Arc::new(Int32Array::from_iter_values(growing)),
    ]
}

/// The keys at the ranks of each group that has a value, by a sort of each.
fn expected(group: &ArrayRef, column: &ArrayRef) -> Vec<KeyBits> {
    let valid = is_not_null(column).unwrap();
    let (group, column) = (filter(group, &valid).unwrap(), filter(column, &valid).unwrap());
    let keys = KeySpec::try_new(column.data_type())
        .unwrap()
        .keys(&column)
        .unwrap();
    let mut groups: BTreeMap<i32, Vec<KeyBits>> = BTreeMap::new();
    for (group, key) in group.as_primitive::<Int32Type>().values().iter().zip(keys) {
        groups.entry(*group).or_default().push(key);
    }
    let keys = groups.into_values().flat_map(|mut keys| {
        keys.sort_unstable();
        let ranks = Three.of(keys.len() as u64);
        ranks.into_iter().map(move |rank| keys[rank as usize - 1])
    });
    keys.collect()
}

/// The keys at the ranks of each group, and the kernels that ran.
fn found(group: &ArrayRef, column: &ArrayRef) -> (Vec<KeyBits>, Report) {
    let device = device();
    let upload = |array: &ArrayRef| {
        DeviceColumn::upload(&device, array.data_type(), std::slice::from_ref(array)).unwrap()
    };
    let (group, column) = (upload(group), upload(column));
    let mut report = Report::default();
    let groups = SpreadGroups::try_new(&[vec![&group]], None, true, &mut report).unwrap();
    let mut among = selection(&column, None);
    among.timed = true;
    let (segments, keys) = groups.select(&[among], &mut report, &Three).unwrap();
    assert_eq!(keys.len(), 3 * segments.codes.len());
    (
        (0..keys.len()).map(|index| keys.get(index).unwrap()).collect(),
        report,
    )
}

fn times_of(report: &Report, kernel: &str) -> usize {
    let names = report.kernel_times.iter().map(|(name, _)| *name);
    names.filter(|name| name.starts_with(kernel)).count()
}

fn ranks_of_short_groups() {
    let mut sorted = 0;
    for (pattern, nulls) in patterns::ALL
        .iter()
        .flat_map(|pattern| [(*pattern, false), (*pattern, true)])
    {
        for (name, column) in with_cents(pattern, ROWS, 3, nulls) {
            for (which, group) in groups_of(ROWS).iter().enumerate() {
                let (keys, report) = found(group, &column);
                assert!(
                    keys == expected(group, &column),
                    "{pattern:?}, groups {which}, {name}, nulls: {nulls}, {:?}",
                    report.kernel_times
                );
                sorted += times_of(&report, "sg_sort");
            }
        }
    }
    assert!(sorted > 100, "{sorted} sorts by warps");
}

/// The warps find a group that is too long, and all records are sorted.
fn one_long_group_among_short_ones() {
    for longest in [1023, 1024, 1025, 40_000] {
        let [group, _] = groups_of(ROWS);
        let group = group.as_primitive::<Int32Type>().values().iter().enumerate();
        let group = group.map(|(row, group)| {
            if row % 3 == 0 && row / 3 < longest {
                -100
            } else {
                *group
            }
        });
        let group: ArrayRef = Arc::new(Int32Array::from_iter_values(group));
        let values = pseudo_random(ROWS, 4).map(|word| word as i32);
        let column: ArrayRef = Arc::new(Int32Array::from_iter_values(values));
        let (keys, report) = found(&group, &column);
        assert!(keys == expected(&group, &column), "{longest}");
        let all = times_of(&report, "so_scatter");
        assert_eq!(
            all > 4,
            longest > 1024,
            "{longest} rows: {:?}",
            report.kernel_times
        );
    }
}
