//! DataFusion's `percentile_cont` without its alias `quantile_cont`.
//!
//! A session keeps functions in a map from names and aliases, which it fills in any order when its state is rebuilt.
//! With the alias, chance would decide whose function `quantile_cont` is.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};
use datafusion::common::Result;
use datafusion::functions_aggregate::percentile_cont::PercentileCont;
use datafusion::logical_expr::function::{AccumulatorArgs, AggregateFunctionSimplification, StateFieldsArgs};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, GroupsAccumulator, Signature,
};

/// DataFusion's function, without its alias.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct Unaliased(PercentileCont);

/// DataFusion's `percentile_cont` without an alias, if `function` is `percentile_cont` with it.
pub(crate) fn unaliased(function: &AggregateUDF) -> Option<Arc<AggregateUDF>> {
    let is_original = function.inner().is::<PercentileCont>();
    is_original.then(|| Arc::new(AggregateUDF::from(Unaliased::default())))
}

/// Whether `function` is DataFusion's `percentile_cont`, with or without the alias.
pub(crate) fn is_percentile_cont(function: &AggregateUDF) -> bool {
    function.inner().is::<PercentileCont>() || function.inner().is::<Unaliased>()
}

impl AggregateUDFImpl for Unaliased {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn signature(&self) -> &Signature {
        self.0.signature()
    }

    fn return_type(&self, arg_types: &[DataType]) -> Result<DataType> {
        self.0.return_type(arg_types)
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        self.0.state_fields(args)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        self.0.accumulator(args)
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        self.0.groups_accumulator_supported(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        self.0.create_groups_accumulator(args)
    }

    fn simplify(&self) -> Option<AggregateFunctionSimplification> {
        self.0.simplify()
    }

    fn supports_within_group_clause(&self) -> bool {
        self.0.supports_within_group_clause()
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.0.documentation()
    }
}
