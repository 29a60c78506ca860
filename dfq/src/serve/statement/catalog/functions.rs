//! Functions of PostgreSQL that statements about its catalog call, and DataFusion does not have.

use std::collections::HashMap;
use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{ScalarValue, exec_err};
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    create_udf,
};
use datafusion::prelude::SessionContext;

use datafusion_postgres::arrow_pg::datatypes::PG_OID_ALIAS_KEY;

use super::{format_type, texts};
use crate::serve::policy::Writes;

/// What the metadata of a column says that is a list of numbers of objects. Those that are no lists are marked by the library.
pub(in crate::serve) const OBJECTS: &str = "oid[]";

/// The version of PostgreSQL whose protocol and catalog these are.
pub(in crate::serve) const VERSION: &str = "16.6";

/// Functions about things that there are none of here, such as comments and indexes, or that are not kept: NULL.
pub(super) const NULLS: [&str; 16] = [
    "col_description",
    "obj_description",
    "pg_get_constraintdef",
    "pg_get_expr",
    "pg_get_function_arguments",
    "pg_get_function_identity_arguments",
    "pg_get_function_result",
    "pg_get_functiondef",
    "pg_get_indexdef",
    "pg_get_partkeydef",
    "pg_get_ruledef",
    "pg_get_serial_sequence",
    "pg_get_statisticsobjdef",
    "pg_get_triggerdef",
    "pg_tablespace_location",
    "shobj_description",
];

/// Sizes, which are not known.
const SIZES: [&str; 5] = [
    "pg_database_size",
    "pg_indexes_size",
    "pg_relation_size",
    "pg_table_size",
    "pg_total_relation_size",
];

/// Whether something is found without its schema's name: all is taken for that.
const VISIBLE: [&str; 13] = [
    "pg_collation_is_visible",
    "pg_conversion_is_visible",
    "pg_function_is_visible",
    "pg_opclass_is_visible",
    "pg_operator_is_visible",
    "pg_opfamily_is_visible",
    "pg_statistics_obj_is_visible",
    "pg_table_is_visible",
    "pg_ts_config_is_visible",
    "pg_ts_dict_is_visible",
    "pg_ts_parser_is_visible",
    "pg_ts_template_is_visible",
    "pg_type_is_visible",
];

/// Whether somebody may do something.
const PRIVILEGES: [&str; 8] = [
    "has_any_column_privilege",
    "has_column_privilege",
    "has_database_privilege",
    "has_function_privilege",
    "has_schema_privilege",
    "has_sequence_privilege",
    "has_table_privilege",
    "pg_has_role",
];

/// Privileges that everybody has, whether clients may write or not.
const OF_READERS: [&str; 6] = ["select", "usage", "connect", "execute", "member", "set"];

/// Adds the functions to a session.
pub(super) fn register(ctx: &SessionContext, writes: Writes) {
    let reads = writes == Writes::Refused;
    ctx.register_udf(format_type::function());
    let one = Signature::any(1, Volatility::Immutable);
    ctx.register_udf(ScalarUDF::new_from_impl(AsObjects(one)));
    for name in NULLS {
        ctx.register_udf(Fixed::function(name, ScalarValue::Utf8(None)));
    }
    for name in SIZES {
        ctx.register_udf(Fixed::function(name, ScalarValue::Int64(None)));
    }
    for name in VISIBLE {
        ctx.register_udf(Fixed::function(name, ScalarValue::from(true)));
    }
    for name in PRIVILEGES {
        let signature = Signature::variadic_any(Volatility::Stable);
        ctx.register_udf(ScalarUDF::new_from_impl(HasPrivilege {
            name,
            signature,
            reads,
        }));
    }
    let version = format!(
        "PostgreSQL {VERSION} (dfq {}, DataFusion {})",
        env!("CARGO_PKG_VERSION"),
        ctx.state().version()
    );
    ctx.register_udf(create_udf(
        "version",
        Vec::new(),
        DataType::Utf8,
        Volatility::Stable,
        Arc::new(move |_| Ok(ColumnarValue::Scalar(ScalarValue::from(version.as_str())))),
    ));
    texts::register(ctx);
}

/// The function that says of a list of whole numbers that they are numbers of objects.
pub(super) const AS_OBJECTS: &str = "dfq_numbers_of_objects";

/// See [`AS_OBJECTS`].
#[derive(Debug, PartialEq, Eq, Hash)]
struct AsObjects(Signature);

impl ScalarUDFImpl for AsObjects {
    fn name(&self) -> &str {
        AS_OBJECTS
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [list] => Ok(list.clone()),
            _ => exec_err!("{AS_OBJECTS} takes one list"),
        }
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<_> = args
            .arg_fields
            .iter()
            .map(|field| field.data_type().clone())
            .collect();
        let field = Field::new(AS_OBJECTS, self.return_type(&types)?, true);
        let mark = HashMap::from([(PG_OID_ALIAS_KEY.to_string(), OBJECTS.to_string())]);
        Ok(Arc::new(field.with_metadata(mark)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match <[ColumnarValue; 1]>::try_from(args.args) {
            Ok([list]) => Ok(list),
            Err(_) => exec_err!("{AS_OBJECTS} takes one list"),
        }
    }
}

/// A function with the same answer whatever its arguments are.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Fixed {
    name: &'static str,
    signature: Signature,
    answer: ScalarValue,
}

impl Fixed {
    fn function(name: &'static str, answer: ScalarValue) -> ScalarUDF {
        let signature = Signature::variadic_any(Volatility::Stable);
        ScalarUDF::new_from_impl(Self {
            name,
            signature,
            answer,
        })
    }
}

impl ScalarUDFImpl for Fixed {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(self.answer.data_type())
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        Ok(ColumnarValue::Scalar(self.answer.clone()))
    }
}

/// Whether clients have the privilege that the last argument names, such as `SELECT`.
#[derive(Debug, PartialEq, Eq, Hash)]
struct HasPrivilege {
    name: &'static str,
    signature: Signature,
    /// Clients may read, and nothing else.
    reads: bool,
}

impl ScalarUDFImpl for HasPrivilege {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(ColumnarValue::Scalar(privilege)) = args.args.last() else {
            return exec_err!("{} takes the name of a privilege as a constant", self.name);
        };
        let Some(Some(privilege)) = privilege.try_as_str() else {
            return Ok(ColumnarValue::Scalar(ScalarValue::Boolean(None)));
        };
        // One of several is enough: 'SELECT, INSERT'.
        let mut names = privilege.split(',').map(|name| name.trim().to_ascii_lowercase());
        let has = !self.reads || names.any(|name| OF_READERS.contains(&name.as_str()));
        Ok(ColumnarValue::Scalar(ScalarValue::from(has)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_version_is_postgres() {
        let ctx = SessionContext::new();
        register(&ctx, Writes::Refused);
        let answer = ctx
            .sql("SELECT version()")
            .await
            .unwrap()
            .to_string()
            .await
            .unwrap();
        assert!(answer.contains("PostgreSQL 16.6"), "{answer}");
    }

    #[tokio::test]
    async fn readers_have_the_privileges_of_readers() {
        let ctx = SessionContext::new();
        register(&ctx, Writes::Refused);
        for (privilege, expected) in [
            ("SELECT", "true"),
            ("insert", "false"),
            ("INSERT, SELECT", "true"),
        ] {
            let sql = format!("SELECT has_table_privilege('ann', 't', '{privilege}')");
            let answer = ctx.sql(&sql).await.unwrap().to_string().await.unwrap();
            assert!(answer.contains(&format!("| {expected}")), "{privilege}: {answer}");
        }
    }
}
