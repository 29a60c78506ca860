//! The function `format_type(type, modifier)`: a type's name as SQL writes it.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, StringBuilder};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::{DataType, Int64Type};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
};
use pgwire::api::Type;
use postgres_types::Kind;

/// Types whose names in SQL are others than in `pg_type`.
const NAMES: [(Type, &str); 14] = [
    (Type::BIT, "bit"),
    (Type::BOOL, "boolean"),
    (Type::BPCHAR, "character"),
    (Type::CHAR, "\"char\""),
    (Type::FLOAT4, "real"),
    (Type::FLOAT8, "double precision"),
    (Type::INT2, "smallint"),
    (Type::INT4, "integer"),
    (Type::INT8, "bigint"),
    (Type::TIME, "time without time zone"),
    (Type::TIMETZ, "time with time zone"),
    (Type::TIMESTAMP, "timestamp without time zone"),
    (Type::TIMESTAMPTZ, "timestamp with time zone"),
    (Type::VARCHAR, "character varying"),
];

/// The name of a type in SQL, with what its modifier says unless that is negative.
pub(super) fn formatted(number: u32, modifier: i32) -> String {
    let Some(known) = Type::from_oid(number) else {
        return "???".to_string();
    };
    if let Kind::Array(element) = known.kind() {
        return format!("{}[]", formatted(element.oid(), modifier));
    }
    let name = NAMES.iter().find(|(named, _)| *named == known);
    let name = name.map_or_else(|| known.name(), |(_, name)| *name);
    match known {
        Type::NUMERIC if modifier >= 4 => {
            let (precision, scale) = (((modifier - 4) >> 16) & 0xffff, (modifier - 4) & 0x7ff);
            format!("numeric({precision},{scale})")
        }
        Type::VARCHAR | Type::BPCHAR if modifier >= 4 => format!("{name}({})", modifier - 4),
        Type::TIME | Type::TIMETZ | Type::TIMESTAMP | Type::TIMESTAMPTZ if modifier >= 0 => {
            match name.split_once(' ') {
                Some((start, rest)) => format!("{start}({modifier}) {rest}"),
                None => name.to_string(),
            }
        }
        _ => name.to_string(),
    }
}

/// The function.
pub(super) fn function() -> ScalarUDF {
    ScalarUDF::new_from_impl(FormatType(Signature::any(2, Volatility::Immutable)))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct FormatType(Signature);

impl ScalarUDFImpl for FormatType {
    fn name(&self) -> &str {
        "format_type"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let numbers = arrays.iter().map(|array| cast(array, &DataType::Int64));
        let numbers = numbers.collect::<Result<Vec<_>, _>>()?;
        let mut names = StringBuilder::new();
        if let [types, modifiers] = numbers.as_slice() {
            let modifiers = modifiers.as_primitive::<Int64Type>();
            for (number, modifier) in types.as_primitive::<Int64Type>().iter().zip(modifiers) {
                let modifier = modifier
                    .and_then(|modifier| i32::try_from(modifier).ok())
                    .unwrap_or(-1);
                names.append_option(number.map(|number| match u32::try_from(number) {
                    Ok(0) => "-".to_string(),
                    Ok(number) => formatted(number, modifier),
                    Err(_) => "???".to_string(),
                }));
            }
        }
        Ok(ColumnarValue::Array(Arc::new(names.finish())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_sql() {
        for (number, modifier, expected) in [
            (20, -1, "bigint"),
            (1022, -1, "double precision[]"),
            (1700, 786_438, "numeric(12,2)"),
            (1231, 786_438, "numeric(12,2)[]"),
            (1043, 24, "character varying(20)"),
            (1114, 3, "timestamp(3) without time zone"),
            (1114, -1, "timestamp without time zone"),
            (25, -1, "text"),
            (2249, -1, "record"),
            (99_999, -1, "???"),
        ] {
            assert_eq!(formatted(number, modifier), expected);
        }
    }
}
