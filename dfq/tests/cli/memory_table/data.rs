//! Tables whose rows follow from their numbers, by type of their column.

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

/// Rows of a dictionary column that have the same value.
const SAME: u64 = 200;

/// A type of the column `x`, whose order is that of the column `o` beside it.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    Fixed,
    Utf8,
    Utf8View,
    Binary,
    BinaryView,
    Dictionary,
    List,
    Struct,
    /// Strings of 5000 bytes.
    Wide,
}

impl Kind {
    pub(super) const ALL: [Kind; 9] = [
        Kind::Fixed,
        Kind::Utf8,
        Kind::Utf8View,
        Kind::Binary,
        Kind::BinaryView,
        Kind::Dictionary,
        Kind::List,
        Kind::Struct,
        Kind::Wide,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Fixed => "Int64",
            Kind::Utf8 => "Utf8",
            Kind::Utf8View => "Utf8View",
            Kind::Binary => "Binary",
            Kind::BinaryView => "BinaryView",
            Kind::Dictionary => "Dictionary",
            Kind::List => "List",
            Kind::Struct => "Struct",
            Kind::Wide => "wide Utf8View",
        }
    }

    /// Bytes of one value.
    fn bytes(self) -> u64 {
        match self {
            Kind::Fixed => 8,
            Kind::Wide => 5000,
            _ => 240,
        }
    }

    /// Whether the scan is to give views for strings and binary values, as it does by default.
    fn has_views(self) -> bool {
        !matches!(self, Kind::Utf8 | Kind::Binary | Kind::Dictionary)
    }

    /// The number that the value of row `o` tells.
    pub(super) fn told(self, o: u64) -> u64 {
        match self {
            Kind::Dictionary => o / SAME,
            _ => o,
        }
    }

    /// The expression of the value of row `o`.
    fn value(self) -> String {
        let text = |number: &str, bytes| {
            let number = format!("lpad(CAST({number} AS VARCHAR), 12, '0')");
            format!("{number} || repeat('x', {}) || {number}", bytes - 24)
        };
        let cast = |number, data_type| {
            let text = text(number, self.bytes());
            format!("arrow_cast({text}, '{data_type}')")
        };
        match self {
            Kind::Fixed => "3 * o + 1".to_owned(),
            Kind::Utf8 => cast("o", "Utf8"),
            Kind::Utf8View | Kind::Wide => cast("o", "Utf8View"),
            Kind::Binary => cast("o", "Binary"),
            Kind::BinaryView => cast("o", "BinaryView"),
            Kind::Dictionary => cast(&format!("o / {SAME}"), "Dictionary(Int32, Utf8)"),
            Kind::List => "array_repeat(o, 30)".to_owned(),
            Kind::Struct => format!("named_struct('a', o, 's', {})", text("o", self.bytes() - 8)),
        }
    }

    /// The expression of the number that a value tells; NULL if it is none of the column's values.
    pub(super) fn number(self, x: &str) -> String {
        let text = |text: &str, bytes| {
            format!(
                "CASE WHEN length({text}) = {bytes} AND left({text}, 12) = right({text}, 12) \
                 THEN CAST(left({text}, 12) AS BIGINT) END"
            )
        };
        let cast = |data_type| text(&format!("arrow_cast({x}, '{data_type}')"), self.bytes());
        let number = match self {
            Kind::Fixed => format!("CASE WHEN {x} % 3 = 1 THEN {x} / 3 END"),
            Kind::Utf8 | Kind::Utf8View | Kind::Wide => text(x, self.bytes()),
            Kind::Binary | Kind::Dictionary => cast("Utf8"),
            Kind::BinaryView => cast("Utf8View"),
            Kind::List => {
                format!("CASE WHEN array_length({x}) = 30 AND {x}[1] = {x}[30] THEN {x}[1] END")
            }
            Kind::Struct => {
                let inner = text(&format!("{x}['s']"), self.bytes() - 8);
                format!("CASE WHEN {x}['a'] = {inner} THEN {x}['a'] END")
            }
        };
        format!("({number})")
    }
}

/// Parquet with a row for each number `o` from 1 to `rows`, which is odd, in no order.
pub(super) struct Table {
    pub(super) kind: Kind,
    pub(super) rows: u64,
    path: PathBuf,
    _folder: TempDir,
}

impl Table {
    /// A table of about so many bytes.
    pub(super) fn write(kind: Kind, bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let is_prime = |n: &u64| (2..).take_while(|d| d * d <= *n).all(|d| !n.is_multiple_of(d));
        let prime = (bytes / (kind.bytes() + 8)..).find(is_prime).unwrap();
        let value = kind.value();
        let group = format!(
            "SET datafusion.execution.parquet.max_row_group_size = {}",
            (10 << 20) / kind.bytes().max(240)
        );
        // A prime's multiples of anything smaller take every value below it once.
        let sql = format!(
            "COPY (SELECT o, {value} AS x FROM (SELECT (value * 7919) % {prime} AS o FROM generate_series(1, {last})) \
             WHERE o < {last}) TO '{}'",
            path.display(),
            last = prime - 1,
        );
        let output = Command::new(env!("CARGO_BIN_EXE_dfq"))
            .args(["sql", "-q", "-c", &group, "-c", &sql])
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        Self {
            kind,
            rows: prime - 2,
            path,
            _folder: folder,
        }
    }

    /// Bytes of all rows.
    pub(super) fn bytes(&self) -> u64 {
        self.rows * (self.kind.bytes() + 8)
    }

    /// Statements that make the table `t`.
    pub(super) fn create(&self) -> [String; 2] {
        [
            format!(
                "SET datafusion.execution.parquet.schema_force_view_types = {}",
                self.kind.has_views()
            ),
            format!(
                "CREATE EXTERNAL TABLE t STORED AS PARQUET LOCATION '{}'",
                self.path.display()
            ),
        ]
    }
}
