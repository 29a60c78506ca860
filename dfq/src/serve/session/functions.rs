//! Functions that each connection has its own of: `current_setting`, `set_config`, `pg_backend_pid`, `session_user`.

use std::sync::Arc;

use datafusion::arrow::array::{Array, AsArray, StringArray};
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{ScalarValue, exec_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::logical_expr::{
    ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, TypeSignature, Volatility,
    create_udf,
};
use datafusion::prelude::SessionContext;
use parking_lot::RwLock;

use super::Identity;
use crate::serve::settings::{self, Change, Settings};
use crate::serve::statement::CURRENT_SETTING;

/// Adds the functions to a connection's session.
pub(super) fn register(ctx: &SessionContext, settings: &Arc<RwLock<Settings>>, identity: &Identity) {
    for name in [CURRENT_SETTING, SET_CONFIG] {
        ctx.register_udf(ScalarUDF::new_from_impl(Variable::new(name, settings)));
    }
    let constants = [
        ("pg_backend_pid", ScalarValue::from(identity.number)),
        ("session_user", ScalarValue::from(identity.user.as_str())),
    ];
    for (name, value) in constants {
        let data_type = value.data_type();
        let value = Arc::new(move |_: &[ColumnarValue]| Ok(ColumnarValue::Scalar(value.clone())));
        ctx.register_udf(create_udf(name, Vec::new(), data_type, Volatility::Stable, value));
    }
}

const SET_CONFIG: &str = "set_config";

/// `current_setting(name [, whether it may be missing])` and `set_config(name, value, is local)`, of PostgreSQL's variables.
#[derive(Debug)]
struct Variable {
    name: &'static str,
    signature: Signature,
    settings: Arc<RwLock<Settings>>,
}

impl PartialEq for Variable {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name && Arc::ptr_eq(&self.settings, &other.settings)
    }
}

impl Eq for Variable {}

impl std::hash::Hash for Variable {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

impl Variable {
    fn new(name: &'static str, settings: &Arc<RwLock<Settings>>) -> Self {
        let text = || DataType::Utf8;
        let signature = match name {
            SET_CONFIG => Signature::exact(vec![text(), text(), DataType::Boolean], Volatility::Volatile),
            _ => {
                let one = TypeSignature::Exact(vec![text()]);
                let two = TypeSignature::Exact(vec![text(), DataType::Boolean]);
                Signature::one_of(vec![one, two], Volatility::Stable)
            }
        };
        Self {
            name,
            signature,
            settings: Arc::clone(settings),
        }
    }

    fn current(&self, name: &str, may_be_missing: bool) -> Result<Option<String>> {
        match settings::known(name) {
            Some(name) => Ok(Some(self.settings.read().show(name))),
            None if may_be_missing => Ok(None),
            None => plan_err!("unrecognized configuration parameter \"{name}\""),
        }
    }

    fn set(&self, name: &str, value: &str, is_local: bool) -> Result<Option<String>> {
        if is_local {
            return exec_err!("set_config({name}): there are no values for one transaction");
        }
        let assigned = settings::assign(name, value);
        let assigned = assigned.map_err(|error| DataFusionError::Execution(error.to_string()))?;
        if assigned.change != Change::Nothing {
            return exec_err!("set_config cannot change {name}: SET can");
        }
        self.settings.write().assign(&assigned);
        Ok(Some(assigned.value))
    }
}

impl ScalarUDFImpl for Variable {
    fn name(&self) -> &str {
        self.name
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Utf8)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // One answer for a constant: what is set is set once.
        let is_constant = args
            .args
            .iter()
            .all(|value| matches!(value, ColumnarValue::Scalar(_)));
        let rows = if is_constant { 1 } else { args.number_rows };
        let columns = args.args.into_iter().map(|value| value.into_array(rows));
        let columns = columns.collect::<Result<Vec<_>>>()?;
        let flag = |place: usize, row: usize| {
            let column = columns.get(place).and_then(|column| column.as_boolean_opt());
            column.is_some_and(|column| column.is_valid(row) && column.value(row))
        };
        let text = |place: usize, row: usize| {
            let column = columns
                .get(place)
                .and_then(|column| column.as_string_opt::<i32>())?;
            column.is_valid(row).then(|| column.value(row))
        };
        let answer = |row: usize| match (self.name, text(0, row)) {
            (_, None) => Ok(None),
            (SET_CONFIG, Some(name)) => match text(1, row) {
                Some(value) => self.set(name, value, flag(2, row)),
                None => self.set(name, "default", flag(2, row)),
            },
            (_, Some(name)) => self.current(name, flag(1, row)),
        };
        let answers: Vec<Option<String>> = (0..rows).map(answer).collect::<Result<_>>()?;
        Ok(match is_constant {
            true => ColumnarValue::Scalar(ScalarValue::Utf8(answers.into_iter().next().flatten())),
            false => ColumnarValue::Array(Arc::new(StringArray::from(answers))),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::message_of;

    #[tokio::test]
    async fn variables_are_asked_for_and_set_by_functions() {
        let ctx = SessionContext::new();
        let identity = Identity {
            user: "ann".to_string(),
            number: 7,
        };
        register(&ctx, &Arc::default(), &identity);
        let ask = async |sql: &str| match ctx.sql(sql).await {
            Ok(answer) => answer.to_string().await.map_err(|error| message_of(&error, sql)),
            Err(error) => Err(message_of(&error, sql)),
        };
        for (sql, expected) in [
            ("SELECT current_setting('jit')", "off"),
            ("SELECT set_config('jit', 'on', false)", "on"),
            ("SELECT current_setting('JIT')", "on"),
            ("SELECT current_setting('nothing', true) IS NULL", "true"),
            (
                "SELECT max(current_setting(column1)) FROM (VALUES ('jit'), ('geqo'))",
                "on",
            ),
            ("SELECT pg_backend_pid()", "7"),
        ] {
            let answer = ask(sql).await.unwrap();
            assert!(answer.contains(&format!("| {expected} ")), "{sql}: {answer}");
        }
        for sql in [
            "SELECT current_setting('nothing')",
            "SELECT set_config('server_version', '9', false)",
            "SELECT set_config('jit', 'on', true)",
            "SELECT set_config('statement_timeout', '1', false)",
        ] {
            assert!(ask(sql).await.is_err(), "{sql}");
        }
    }
}
