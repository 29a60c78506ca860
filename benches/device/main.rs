//! Measurements on a device: `cargo bench --bench device -- NAME...` runs those whose names contain one of the words, and
//! without a name it lists them all.
//!
//! | variable | meaning |
//! | --- | --- |
//! | `QUANTILES_DATA` | data of `columns::`: names separated by semicolons |
//! | `QUANTILES_KERNELS` | if it is set, the time of each kernel is shown |
//! | `QUANTILES_LOG` | binary logarithm of the number of values in `papers::strategies_and_devices` and `several::` |
//! | `QUANTILES_ROW` | the first row of `papers::dibms_table_4` |

mod columns;
mod methods;
mod papers;
#[path = "../../tests/device/selection.rs"]
mod selection;
mod several;
mod statements;
mod tables;
mod timing;
mod vectors;

/// A measurement and its name.
type Measurement = (&'static str, fn());

/// Runs a measurement on threads of its own.
fn block_on(measurement: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.unwrap().block_on(measurement);
}

const MEASUREMENTS: [Measurement; 17] = [
    ("columns::quantiles", columns::quantiles),
    ("columns::greatest", columns::greatest),
    ("papers::counting_buckets", papers::counting_buckets),
    ("papers::dibms_table_4", papers::dibms_table_4),
    ("papers::sample_select_sweep", papers::sample_select_sweep),
    ("papers::few_distinct_values", papers::few_distinct_values),
    ("papers::strategies_and_devices", || {
        block_on(papers::strategies_and_devices());
    }),
    ("several::one_device_and_several", several::one_device_and_several),
    ("statements::quantiles_of_pinned_columns", || {
        block_on(statements::quantiles_of_pinned_columns());
    }),
    ("statements::streamed_columns", || {
        block_on(statements::streamed_columns());
    }),
    ("statements::groups_of_pinned_columns", || {
        block_on(statements::groups_of_pinned_columns());
    }),
    ("statements::rows_of_pinned_columns", || {
        block_on(statements::rows_of_pinned_columns());
    }),
    ("vectors::nearest_rows", vectors::nearest_rows),
    ("vectors::by_distance_in_sql", || {
        block_on(vectors::by_distance_in_sql());
    }),
    (
        "methods::ways_to_best_rows_of_groups",
        methods::ways_to_best_rows_of_groups,
    ),
    ("statements::best_rows_of_groups", || {
        block_on(statements::best_rows_of_groups());
    }),
    ("methods::rows_of_matrices", methods::rows_of_matrices),
];

fn main() {
    // Cargo adds the argument `--bench`.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|word| word != "--bench")
        .collect();
    for (name, measure) in MEASUREMENTS {
        if words.is_empty() {
            println!("{name}");
        } else if words.iter().any(|word| name.contains(word.as_str())) {
            println!("\n## {name}\n");
            measure();
        }
    }
}
