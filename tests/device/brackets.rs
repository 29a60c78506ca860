//! Large groups by a sample of their rows: the same ranks, and the same best rows, as by a sort of all rows.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, Int32Array};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::Result;
use datafusion_quantiles::kernel::cuda::{
    Device, DeviceColumn, GroupRanks, Predicate, Report, RowMask, SpreadGroups, TopMethod,
};
use datafusion_quantiles::key::KeyBits;
use quantiles_testing::patterns::{self, Pattern};
use quantiles_testing::pseudo_random;

use crate::matrix::with_cents;
use crate::selection::{best, selection};
use crate::support::{device, tests};

tests! {
    plain ranks_of_large_groups,
    plain ranks_of_large_groups_in_little_shared_memory,
    plain best_rows_of_large_groups,
    plain equal_keys_above_a_floor_are_sorted,
}

const ROWS: usize = 2_500_007;

/// Groups of about equal size in any order, groups of very unequal sizes, and groups whose rows lie together.
fn groups_of(len: usize) -> [ArrayRef; 3] {
    let even = pseudo_random(len, 7).map(|word| (word % 11) as i32 - 5);
    // Half of the rows in the first group, a quarter in the second, and so on.
    let halves = pseudo_random(len, 8).map(|word| (word >> 20).trailing_zeros() as i32);
    let sorted = (0..len).map(|row| (row / 200_000) as i32);
    [
        Arc::new(Int32Array::from_iter_values(even)),
        Arc::new(Int32Array::from_iter_values(halves)),
        Arc::new(Int32Array::from_iter_values(sorted)),
    ]
}

fn upload(device: &Arc<Device>, array: &ArrayRef) -> DeviceColumn {
    DeviceColumn::upload(device, array.data_type(), std::slice::from_ref(array)).unwrap()
}

/// The least, the middle, two late and the greatest rank of a group.
fn wanted(n: u64) -> Vec<u64> {
    let mut ranks = vec![1, n.div_ceil(2), (n * 9).div_ceil(10), (n * 9 / 10 + 2).min(n), n];
    ranks.sort_unstable();
    ranks
}

/// The ranks of [`wanted`]. `sorts`: with so many others that there are no brackets.
struct Wanted {
    sorts: bool,
}

impl GroupRanks for Wanted {
    fn each(&self) -> usize {
        if self.sorts { 25 } else { 5 }
    }

    fn of(&self, n: u64) -> Vec<u64> {
        let mut ranks = wanted(n);
        if self.sorts {
            ranks.extend((1..=20).map(|rank| (rank * n).div_ceil(20)));
            ranks.sort_unstable();
        }
        ranks
    }

    fn reserve(&self, _groups: usize) -> Result<()> {
        Ok(())
    }
}

/// Codes and first places of groups, and the keys at their ranks.
type Ranks = (Vec<u64>, Vec<u64>, Vec<KeyBits>);

/// The ranks of all groups, and the kernels that ran. `sorts`: by a sort of all rows.
fn ranks_of(
    group: &DeviceColumn,
    column: &DeviceColumn,
    mask: Option<&(RowMask, u64)>,
    sorts: bool,
) -> (Ranks, Report) {
    let mut report = Report::default();
    let groups = SpreadGroups::try_new(&[vec![group]], None, true, &mut report).unwrap();
    let mut among = selection(column, mask);
    among.timed = true;
    let ranks = Wanted { sorts };
    let (segments, keys) = groups.select(&[among], &mut report, &ranks).unwrap();
    let each = ranks.each();
    let keys_of = |group: usize| {
        let n = segments.length(group);
        let all = ranks.of(n);
        let places = wanted(n)
            .into_iter()
            .map(move |rank| all.binary_search(&rank).unwrap());
        places.map(move |place| group * each + place)
    };
    let places = (0..segments.codes.len()).flat_map(keys_of);
    let keys = places.map(|place| keys.get(place).unwrap()).collect();
    ((segments.codes, segments.starts, keys), report)
}

/// The rows with a value in `other`, and how many of them have one in `column`.
fn filtered(other: &DeviceColumn, column: &DeviceColumn) -> (RowMask, u64) {
    let mut report = Report::default();
    let mask = RowMask::evaluate(&Predicate::is_not_null(0), &[other], None, &mut report).unwrap();
    let kept = mask.count(column, None, &mut report).unwrap();
    (mask, kept)
}

fn ran(report: &Report, kernel: &str) -> bool {
    let mut names = report.kernel_times.iter().map(|(name, _)| *name);
    names.any(|name| name.starts_with(kernel))
}

fn ranks_on(device: &Arc<Device>, patterns: &[Pattern], kernel: &str) {
    for (pattern, nulls) in patterns
        .iter()
        .flat_map(|pattern| [(*pattern, false), (*pattern, true)])
    {
        let all = with_cents(pattern, ROWS, 3, nulls);
        let other = upload(device, &all.iter().find(|(name, _)| *name == "u8").unwrap().1);
        for (which, group) in groups_of(ROWS).iter().enumerate() {
            let group = upload(device, group);
            for name in ["f32", "i64", "i8", "f64", "cents"] {
                let Some((_, array)) = all.iter().find(|(other, _)| *other == name) else {
                    panic!("no column {name}")
                };
                let column = upload(device, array);
                let mask = nulls.then(|| filtered(&other, &column));
                let mask = mask.as_ref();
                let what = format!("{pattern:?}, groups {which}, {name}, nulls: {nulls}");
                let (sorted, by_sort) = ranks_of(&group, &column, mask, true);
                let (found, report) = ranks_of(&group, &column, mask, false);
                assert!(!ran(&by_sort, "gb_"), "{what}");
                assert!(sorted == found, "{what}");
                assert!(ran(&report, kernel), "{what}: {:?}", report.kernel_times);
                assert_eq!(report.second_reads, 0, "{what}");
            }
        }
    }
}

fn ranks_of_large_groups() {
    ranks_on(&device(), &patterns::ALL, "gb_records_shared");
}

/// On devices whose blocks have little shared memory, brackets and counters lie in device memory.
fn ranks_of_large_groups_in_little_shared_memory() {
    let device = Arc::new(Device::open(0, Some(1200)).unwrap());
    ranks_on(&device, &[Pattern::Random, Pattern::Zipf], "gb_records");
}

fn best_rows_of_large_groups() {
    let device = device();
    for pattern in [
        Pattern::Random,
        Pattern::FewDistinct,
        Pattern::Sorted,
        Pattern::Reversed,
        Pattern::Zipf,
    ] {
        for nulls in [false, true] {
            let all = with_cents(pattern, ROWS, 3, nulls);
            let column =
                |name: &str| upload(&device, &all.iter().find(|(other, _)| *other == name).unwrap().1);
            for group in &groups_of(ROWS)[..2] {
                let group = upload(&device, group);
                for (key, value) in [("f32", "id"), ("f64", "i64"), ("i16", "u16")] {
                    let (name, key, value) = (key, column(key), column(value));
                    for (k, least) in [(1, false), (10, true), (100, false), (1000, true)] {
                        let what = format!("{pattern:?}, {name}, nulls: {nulls}, k = {k}, least: {least}");
                        let (sorted, _) = best(&group, &key, &value, k, least, TopMethod::Sort);
                        let (found, report) = best(&group, &key, &value, k, least, TopMethod::Floors);
                        assert_eq!(sorted.codes, found.codes, "{what}");
                        assert_eq!(sorted.offsets, found.offsets, "{what}");
                        assert!(sorted.values.to_data() == found.values.to_data(), "{what}");
                        assert!(ran(&report, "gb_rows"), "{what}");
                        if pattern == Pattern::Random && name != "i16" {
                            assert_eq!(report.second_reads, 0, "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// If all keys are equal, all rows reach the floor, which is no answer.
fn equal_keys_above_a_floor_are_sorted() {
    let device = device();
    let rows = 3 << 20;
    let [groups, ..] = groups_of(rows);
    let equal: ArrayRef = Arc::new(Int32Array::from(vec![7; rows]));
    let (groups, equal) = (upload(&device, &groups), upload(&device, &equal));
    let numbers: ArrayRef = Arc::new(Int32Array::from_iter_values((0..rows as i32).rev()));
    let numbers = upload(&device, &numbers);
    let (sorted, _) = best(&groups, &equal, &numbers, 10, false, TopMethod::Sort);
    let (found, report) = best(&groups, &equal, &numbers, 10, false, TopMethod::Floors);
    assert_eq!((sorted.codes, sorted.offsets), (found.codes, found.offsets));
    assert!(sorted.values.to_data() == found.values.to_data());
    assert_eq!(report.second_reads, 1);
    assert_eq!(found.values.data_type(), &DataType::Int32);
}
