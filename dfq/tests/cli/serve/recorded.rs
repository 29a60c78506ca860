//! Statements that dashboards and drivers send, with their answers: `recorded/*.slt`.

use std::path::Path;

use async_trait::async_trait;
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Runner};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::server::{Server, Told, told};

/// A client that asks as those do that use simple queries, and as those that prepare.
struct Both(Client);

#[async_trait]
impl AsyncDB for Both {
    type Error = Told;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Told> {
        let messages = self.0.simple_query(sql).await.map_err(Told::from)?;
        let mut columns = None;
        let mut rows = Vec::new();
        for message in messages {
            match message {
                SimpleQueryMessage::RowDescription(described) => columns = Some(described.len()),
                SimpleQueryMessage::Row(row) => {
                    let cell = |cell: usize| match row.get(cell) {
                        None => "NULL",
                        Some("") => "(empty)",
                        Some(text) => text,
                    };
                    rows.push((0..row.len()).map(cell).map(str::to_string).collect::<Vec<_>>());
                }
                _ => {}
            }
        }
        let statement = self.0.prepare(sql).await.map_err(Told::from)?;
        assert_eq!(statement.columns().len(), columns.unwrap_or(0), "{sql}");
        let again = self.0.query(&statement, &[]).await.map_err(Told::from)?;
        assert_eq!(again.len(), rows.len(), "{sql}");
        Ok(match columns {
            None => DBOutput::StatementComplete(0),
            Some(columns) => DBOutput::Rows {
                types: vec![DefaultColumnType::Any; columns],
                rows,
            },
        })
    }

    async fn shutdown(&mut self) {}
}

async fn run(name: &str) {
    let server = Server::start(&[]);
    let file = format!(
        "{}/tests/cli/serve/recorded/{name}.slt",
        env!("CARGO_MANIFEST_DIR")
    );
    let mut runner = Runner::new(|| async { Ok(Both(server.connect().await)) });
    let done = runner.run_file_async(Path::new(&file)).await;
    done.unwrap_or_else(|error| panic!("{error}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn sqlalchemy() {
    run("sqlalchemy").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jdbc() {
    run("jdbc").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn metabase() {
    run("metabase").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn grafana() {
    run("grafana").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn superset() {
    run("superset").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn asyncpg_learns_of_lists() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let row = client
        .query_one(
            "SELECT current_setting('jit'), set_config('jit', 'off', false)",
            &[],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("off", "off"));
    let statement = client.prepare(include_str!("recorded/asyncpg.sql")).await;
    let statement = statement.unwrap_or_else(|error| panic!("{}", told(&error)));
    assert_eq!(statement.params(), [Type::OID_ARRAY]);
    let of = |name: &str| {
        let column = statement.columns().iter().find(|column| column.name() == name);
        column.unwrap_or_else(|| panic!("no {name}")).type_().clone()
    };
    // It can only read these without asking again.
    assert_eq!((of("attrtypoids"), of("kind")), (Type::OID_ARRAY, Type::CHAR));
    for (list, element, name) in [
        (Type::FLOAT8_ARRAY, Type::FLOAT8, "double precision"),
        (Type::INT8_ARRAY, Type::INT8, "bigint"),
        (Type::NUMERIC_ARRAY, Type::NUMERIC, "numeric"),
        (Type::RECORD_ARRAY, Type::RECORD, "record"),
    ] {
        let rows = client.query(&statement, &[&vec![list.oid()]]).await.unwrap();
        let found: Vec<_> = rows
            .iter()
            .map(|row| {
                let (number, element) = (row.get::<_, u32>("oid"), row.get::<_, u32>("elemtype"));
                (
                    number,
                    element,
                    row.get::<_, Option<String>>("elemtype_name"),
                    row.get::<_, Option<i8>>("elemdelim"),
                )
            })
            .collect();
        let list_row = (
            list.oid(),
            element.oid(),
            Some(name.to_string()),
            Some(b',' as i8),
        );
        assert!(found.contains(&list_row), "{list}: {found:?}");
        assert_eq!(
            found.first().map(|first| first.0),
            Some(element.oid()),
            "the element comes first: {found:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_searched_by_values() {
    let server = Server::start(&[]);
    let client = server.connect().await;
    let rows = client
        .query("SELECT x FROM t WHERE x = ANY($1) ORDER BY x", &[&vec![3_i64, 4]])
        .await
        .unwrap();
    assert_eq!(
        rows.iter().map(|row| row.get::<_, i64>(0)).collect::<Vec<_>>(),
        [3, 4]
    );
}
