//! Plans the best rows of groups, from SQL to [`GroupedTopKExec`](crate::exec::GroupedTopKExec).
//!
//! ```sql
//! SELECT city, topk_by(id, fare, 10) FROM trips GROUP BY city;
//! SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY city ORDER BY fare DESC) AS n FROM trips) WHERE n <= 10;
//! SELECT DISTINCT ON (city) * FROM trips ORDER BY city, fare DESC;
//! ```
//! ```text
//! Filter: n <= 10                                     TopK: row_number() AS n <= 10, groupBy=[[city]],
//!   WindowAggr: [[row_number() PARTITION BY [city]  ->      orderBy=[[fare DESC NULLS FIRST]]
//!       ORDER BY [fare DESC NULLS FIRST] ..]]           TableScan: trips
//!     TableScan: trips
//! ```

mod bind;
mod node;
mod physical;
mod rewrite;

pub(super) use bind::bind_rows;
pub(super) use node::{TopKNode, TopKOutput};
pub(super) use physical::{has_one_form, sort_column, topk_exec};
pub(super) use rewrite::rewrite_topk;
