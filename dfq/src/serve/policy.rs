//! What a client's statement may do, told by its plan.

use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::logical_expr::{LogicalPlan, Statement};
use pgwire::error::PgWireError;

use super::failure::{code, error};

/// Options that belong to the process, or that could end it: how its memory and its disk are used, and how deep a statement nests.
const OF_THE_PROCESS: [&str; 2] = [
    "quantiles.cuda_memory_limit",
    "datafusion.sql_parser.recursion_limit",
];

/// Options of DataFusion's runtime, which all connections share.
const OF_THE_RUNTIME: &str = "datafusion.runtime.";

/// Most that an option may be set to: memory is taken in proportion to it before anything is reserved.
const MOST: [(&str, u64); 2] = [
    ("datafusion.execution.batch_size", 1 << 16),
    ("datafusion.execution.target_partitions", 1 << 10),
];

/// Whether clients may write: files, tables of the catalog, pinned columns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writes {
    Refused,
    Allowed,
}

/// Checks that a client may run this plan.
///
/// # Errors
/// A plan that writes where that is refused, and an option that clients may not set.
pub(super) fn check(plan: &LogicalPlan, writes: Writes) -> Result<(), PgWireError> {
    let mut found = Ok(());
    let visited = plan.apply_with_subqueries(|node| {
        found = check_node(node, writes);
        Ok(match found {
            Ok(()) => TreeNodeRecursion::Continue,
            Err(_) => TreeNodeRecursion::Stop,
        })
    });
    found.and(
        visited
            .map(drop)
            .map_err(|failure| error(code::INTERNAL, failure.strip_backtrace())),
    )
}

fn check_node(node: &LogicalPlan, writes: Writes) -> Result<(), PgWireError> {
    match node {
        LogicalPlan::Ddl(ddl) => check_write(ddl.name(), writes),
        LogicalPlan::Dml(dml) => check_write(dml.op.name(), writes),
        LogicalPlan::Copy(_) => check_write("COPY", writes),
        LogicalPlan::Statement(Statement::SetVariable(set)) => check_option(&set.variable, Some(&set.value)),
        LogicalPlan::Statement(Statement::ResetVariable(reset)) => check_option(&reset.variable, None),
        _ => Ok(()),
    }
}

/// Checks that a client may write.
///
/// # Errors
/// Where that is refused; `what` is the statement.
pub(super) fn check_write(what: &str, writes: Writes) -> Result<(), PgWireError> {
    match writes {
        Writes::Allowed => Ok(()),
        Writes::Refused => Err(error(
            code::READ_ONLY,
            format!("cannot execute {what}: this server is read-only (it was started without --allow-write)"),
        )),
    }
}

fn check_option(name: &str, value: Option<&str>) -> Result<(), PgWireError> {
    if name.starts_with(OF_THE_RUNTIME) || OF_THE_PROCESS.contains(&name) {
        return Err(error(
            code::NOT_PERMITTED,
            format!("'{name}' is an option of the server's process: clients cannot set it"),
        ));
    }
    let most = MOST.iter().find(|(option, _)| *option == name);
    if let (Some((_, most)), Some(value)) = (most, value)
        && value.parse::<u64>().is_ok_and(|value| value > *most)
    {
        return Err(error(
            code::INVALID_PARAMETER,
            format!("{name} = {value} is more than the {most} that clients can set"),
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::{SessionConfig, SessionContext};

    use super::*;

    async fn checked(text: &str, writes: Writes) -> Result<(), String> {
        let ctx = SessionContext::new_with_config(SessionConfig::new().with_information_schema(true));
        for table in ["CREATE TABLE t(x INT)", "CREATE VIEW v AS SELECT * FROM t"] {
            ctx.sql(table).await.unwrap();
        }
        let plan = ctx.state().create_logical_plan(text).await.unwrap();
        check(&plan, writes).map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn what_writes_is_refused() {
        for text in [
            "CREATE TABLE u AS SELECT 1",
            "CREATE EXTERNAL TABLE u STORED AS PARQUET LOCATION '/tmp/u'",
            "CREATE VIEW u AS SELECT 1",
            "CREATE SCHEMA s",
            "CREATE DATABASE d",
            "CREATE FUNCTION f(INT) RETURNS INT RETURN $1",
            "DROP TABLE t",
            "DROP VIEW v",
            "DROP SCHEMA public",
            "INSERT INTO t VALUES (1)",
            "DELETE FROM t",
            "UPDATE t SET x = 1",
            "TRUNCATE t",
            "COPY (SELECT 1) TO '/tmp/u.csv'",
            "COPY t TO '/tmp/u.csv'",
            "EXPLAIN ANALYZE INSERT INTO t VALUES (1)",
            "EXPLAIN COPY t TO '/tmp/u.csv'",
            "PREPARE p AS INSERT INTO t VALUES (1)",
        ] {
            let error = checked(text, Writes::Refused).await.unwrap_err();
            assert!(error.contains("read-only"), "{text}: {error}");
            assert_eq!(checked(text, Writes::Allowed).await, Ok(()), "{text}");
        }
    }

    #[tokio::test]
    async fn what_reads_is_not() {
        for text in [
            "SELECT * FROM t WHERE x IN (SELECT x FROM v)",
            "EXPLAIN ANALYZE SELECT 1",
            "PREPARE p(INT) AS SELECT $1",
            "SET datafusion.execution.batch_size = 100",
            "RESET datafusion.execution.batch_size",
            "SHOW ALL",
            "DESCRIBE t",
        ] {
            assert_eq!(checked(text, Writes::Refused).await, Ok(()), "{text}");
        }
    }

    #[tokio::test]
    async fn options_of_the_process_are_not_set_by_clients() {
        for text in [
            "SET datafusion.runtime.memory_limit = '1T'",
            "RESET datafusion.runtime.memory_limit",
            "SET datafusion.runtime.temp_directory = '/etc'",
            "SET datafusion.sql_parser.recursion_limit = 100000",
            "SET datafusion.execution.batch_size = 1000000000000",
            "SET datafusion.execution.target_partitions = 100000",
        ] {
            let error = checked(text, Writes::Allowed).await.unwrap_err();
            assert!(error.contains("client"), "{text}: {error}");
        }
    }
}
