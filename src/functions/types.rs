//! The types in which the functions take their values and give their answers.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, FieldRef};

/// The type in which values are ordered. A dictionary is ordered as its values, also inside lists and structs, and NULLs without a type as
/// Float64.
pub(crate) fn ordered_type(data_type: &DataType) -> DataType {
    match data_type {
        DataType::Null => DataType::Float64,
        other => without_dictionaries(other),
    }
}

/// The type with the values' types in place of dictionaries.
fn without_dictionaries(data_type: &DataType) -> DataType {
    use DataType::*;
    let field = |field: &FieldRef| {
        let plain = without_dictionaries(field.data_type());
        if plain == *field.data_type() {
            Arc::clone(field)
        } else {
            Arc::new(field.as_ref().clone().with_data_type(plain))
        }
    };
    match data_type {
        Dictionary(_, values) => without_dictionaries(values),
        List(item) => List(field(item)),
        LargeList(item) => LargeList(field(item)),
        FixedSizeList(item, size) => FixedSizeList(field(item), *size),
        Struct(fields) => Struct(fields.iter().map(field).collect()),
        other => other.clone(),
    }
}

/// Whether a type is one of lists, as that of several quantiles is.
pub(super) fn is_list(data_type: &DataType) -> bool {
    use DataType::{FixedSizeList, LargeList, List};
    matches!(data_type, List(_) | LargeList(_) | FixedSizeList(..))
}

/// The type of an answer: of one value of type `one`, or of a list of those.
pub(super) fn answer_type(one: DataType, is_list: bool) -> DataType {
    if is_list {
        DataType::new_list(one, true)
    } else {
        one
    }
}
