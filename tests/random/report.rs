//! How many of each clause were drawn, and how statements ended.

use std::collections::BTreeMap;

use crate::config::Config;
use crate::run::Outcome;
use crate::table::Table;

/// Clauses, by a piece of SQL that only they have.
const CLAUSES: &[&str] = &[
    "exact_quantiles(",
    "percentile_disc(",
    "quantile_disc(",
    "quantile_exact(",
    "quantile_exact_low(",
    "quantile_exact_high(",
    "quantile_exact_weighted(",
    "quantile_exact_inclusive(",
    "quantile_exact_exclusive(",
    "quantile_cont(",
    "percentile(",
    ", h)",
    ", h + ",
    "CAST(h AS DECIMAL",
    "median(",
    "percentile_cont(",
    "'disc'",
    "'inverted_cdf'",
    "'lower'",
    "'higher'",
    "'nearest'",
    "'linear'",
    "'cont'",
    "'midpoint'",
    "'averaged_inverted_cdf'",
    "'closest_observation'",
    "'interpolated_inverted_cdf'",
    "'hazen'",
    "'weibull'",
    "'median_unbiased'",
    "'normal_unbiased'",
    "approx_percentile_gk(",
    "percentile_approx(",
    "approx_percentile_gk_bounds(",
    "approx_percentile_sample(",
    "approx_percentile_sample_bounds(",
    "gk_sketch(",
    "gk_merge(",
    "gk_quantile(",
    "gk_rank(",
    "array_distance(",
    "cosine_distance(",
    "inner_product(",
    "nearest(",
    "_desc(",
    "topk_by(",
    "max_by(",
    "min_by(",
    "arg_max(",
    "arg_min(",
    "exact_rank(",
    "exact_cdf(",
    "rank(",
    "dense_rank(",
    "percent_rank(",
    "cume_dist(",
    "iqr(",
    "mode(",
    "top_values(",
    "approx_top_k(",
    "mad(",
    "trimmed_mean(",
    "winsorized_mean(",
    "count_distinct_exact(",
    "histogram(",
    "'equi-width'",
    "'asc'",
    "'desc'",
    "row_number()",
    "rank()",
    "first_value(",
    "CROSS JOIN",
    "DISTINCT ON",
    "QUALIFY",
    "SUMMARIZE",
    "LIMIT",
    "OFFSET",
    "NULLS FIRST",
    "NULLS LAST",
    "WITHIN GROUP",
    " FILTER ",
    "(DISTINCT ",
    "OVER (",
    "PARTITION BY",
    "ROWS BETWEEN",
    "RANGE BETWEEN",
    "GROUPS BETWEEN",
    "GROUP BY",
    "ROLLUP",
    "HAVING",
    "WHERE",
    "UNION ALL",
    " JOIN ",
    "LEFT JOIN",
    "CREATE OR REPLACE VIEW",
    "PREPARE",
    "CASE",
    "count(*)",
    "count(",
    "sum(",
    " min(",
    " max(",
    "([",
    ", [",
    "IS NULL",
    " IN (",
    "NOT (",
    "BETWEEN",
    "NULL",
    "SELECT exact_quantiles(k",
];

#[derive(Default)]
pub(crate) struct Report {
    counts: BTreeMap<String, u64>,
}

impl Report {
    fn add(&mut self, what: String) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn table(&mut self, table: &Table) {
        self.add("tables".into());
        self.add(format!("table: {:?}", table.storage));
        let rows = match table.rows.len() {
            0 => "0",
            1..=9 => "1 to 9",
            10..=999 => "10 to 999",
            1000..=9999 => "1000 to 9999",
            _ => "10000 and more",
        };
        self.add(format!("table: rows: {rows}"));
        for column in &table.columns {
            self.add(format!("column: {}", column.data_type));
        }
    }

    pub(crate) fn statement(&mut self, sql: &[String], config: &Config, outcome: &Outcome) {
        self.add("statements".into());
        for clause in CLAUSES {
            if sql.iter().any(|sql| sql.contains(clause)) {
                self.add(format!("clause: {clause}"));
            }
        }
        self.add(format!("strategy: {}", config.strategy));
        self.add(format!("read again: {}", config.read_again));
        self.add(format!("partitions: {}", config.partitions));
        self.add(format!("batch size: {}", config.batch_size));
        self.add(format!(
            "memory: {}",
            config.memory.map_or("no limit".into(), |bytes| bytes.to_string())
        ));
        let switches = [
            ("replace_builtins", config.replace_builtins),
            ("topk = false", !config.topk),
            ("staged", config.staged),
            ("device", config.device.is_some()),
            ("pinned", config.pinned),
            ("cluster", config.cluster.is_some()),
        ];
        for (name, _) in switches.iter().filter(|(_, on)| *on) {
            self.add(format!("setting: {name}"));
        }
        self.add(match outcome {
            Outcome::Right => "outcome: right".into(),
            Outcome::NoMemory => "outcome: out of a limited memory".into(),
            Outcome::Known(reason) => format!("outcome: known: {reason}"),
            Outcome::Wrong(_) => "outcome: WRONG".into(),
        });
    }

    pub(crate) fn text(&self) -> String {
        self.counts
            .iter()
            .map(|(what, count)| format!("{count:>9}  {what}\n"))
            .collect()
    }
}
