//! Keeps names that the optimizer makes up apart from those that a plan has already.
//!
//! ```text
//! PREPARE p AS SELECT iqr(y, 'linear', h + 2) FROM t        first optimization: h + 2 is __common_expr_1
//! EXECUTE p                                                 second optimization: CAST(y AS BIGINT) is __common_expr_2, not 1 again
//! ```
//! DataFusion's rules number such names with a counter of the optimization, which starts at 1 each time. A plan that is optimized twice, as
//! those of prepared statements and of clusters are, could get two columns of one name, and the one be read in the place of the other.

use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TreeNodeRecursion};
use datafusion::logical_expr::LogicalPlan;
use datafusion::optimizer::{OptimizerConfig, OptimizerRule};

/// The name of the rule.
pub(super) const FRESH_NAMES: &str = "fresh_names";

/// Moves the counter of made-up names beyond every number that a name of the plan ends with. It changes no plan.
///
/// It stands first among a session's optimizer rules, where [`register_all`](crate::register_all) puts it.
#[derive(Debug, Default)]
pub(super) struct FreshNamesRule;

impl OptimizerRule for FreshNamesRule {
    fn name(&self) -> &str {
        FRESH_NAMES
    }

    fn rewrite(&self, plan: LogicalPlan, config: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        plan.apply_with_subqueries(|node| {
            for (relation, field) in node.schema().iter() {
                let relation = relation.map(|relation| relation.table());
                let names = relation.into_iter().chain([field.name().as_str()]);
                for number in names.filter_map(number_of) {
                    config.alias_generator().update_min_id(number);
                }
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(Transformed::no(plan))
    }
}

/// The number of a name that may be made up: that of `__common_expr_12` is 12. `None` for other names.
fn number_of(name: &str) -> Option<usize> {
    let (prefix, number) = name.rsplit_once('_')?;
    let number: u32 = number.parse().ok()?;
    prefix.starts_with("__").then_some(number as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn made_up_names_have_numbers() {
        assert_eq!(number_of("__common_expr_12"), Some(12));
        assert_eq!(number_of("__scalar_sq_1"), Some(1));
        for name in [
            "common_expr_1",
            "__common_expr_",
            "__common_expr_x",
            "a",
            "",
            "__x_99999999999",
        ] {
            assert_eq!(number_of(name), None, "{name}");
        }
    }
}
