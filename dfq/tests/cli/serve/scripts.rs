//! The statements that document this crate have the answers over the wire that they have in a session: `sql/*.slt`.

use std::collections::BTreeMap;

use async_trait::async_trait;
use quantiles_testing::scripts::{scripts, write_tables};
use sqllogictest::{AsyncDB, DBOutput, DefaultColumnType, Normalizer, Record, Runner, parse_file};
use tokio_postgres::types::{Kind, Type};
use tokio_postgres::{Client, SimpleQueryMessage};

use super::server::{Server, Told};

/// A client that runs scripts.
struct Engine(Client);

#[async_trait]
impl AsyncDB for Engine {
    type Error = Told;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Told> {
        let statement = self.0.prepare(sql).await.map_err(Told::from)?;
        let types: Vec<_> = statement
            .columns()
            .iter()
            .map(|column| column.type_().clone())
            .collect();
        let messages = self.0.simple_query(sql).await.map_err(Told::from)?;
        let mut rows = Vec::new();
        for message in messages {
            if let SimpleQueryMessage::Row(row) = message {
                let cell = |(cell, of): (usize, &Type)| {
                    row.get(cell).map_or("NULL".to_string(), |text| shown(text, of))
                };
                rows.push(types.iter().enumerate().map(cell).collect());
            }
        }
        Ok(match types.len() {
            0 => DBOutput::StatementComplete(0),
            columns => DBOutput::Rows {
                types: vec![DefaultColumnType::Any; columns],
                rows,
            },
        })
    }

    async fn shutdown(&mut self) {}
}

/// A value as a session shows it, from its text on the wire.
fn shown(text: &str, of: &Type) -> String {
    match (of.kind(), of) {
        (Kind::Array(element), _) => {
            let elements = parts(text, '{', '}');
            let elements = elements
                .into_iter()
                .map(|part| part.map_or("NULL".to_string(), |part| shown(&part, element)));
            format!("[{}]", elements.collect::<Vec<_>>().join(", "))
        }
        (_, &Type::RECORD_ARRAY) => {
            let elements = parts(text, '{', '}').into_iter();
            let elements =
                elements.map(|part| part.map_or("NULL".to_string(), |part| shown(&part, &Type::RECORD)));
            format!("[{}]", elements.collect::<Vec<_>>().join(", "))
        }
        (_, &Type::RECORD) => {
            let fields = parts(text, '(', ')')
                .into_iter()
                .map(|part| part.unwrap_or_default());
            format!("{{{}}}", fields.collect::<Vec<_>>().join(", "))
        }
        (_, &Type::FLOAT4) => format!("{:?}", text.parse::<f32>().unwrap()),
        (_, &Type::FLOAT8) => format!("{:?}", text.parse::<f64>().unwrap()),
        (_, &Type::BOOL) => (text == "t").to_string(),
        (_, &Type::TIMESTAMP | &Type::TIMESTAMPTZ) => text.replacen(' ', "T", 1),
        (_, &Type::BYTEA) => text.trim_start_matches("\\x").to_string(),
        _ => text.to_string(),
    }
}

/// The parts of a list `{a,"b c",NULL}` or a record `(a,"b c",)`; `None` for NULL.
fn parts(text: &str, open: char, close: char) -> Vec<Option<String>> {
    let inner = text
        .strip_prefix(open)
        .and_then(|text| text.strip_suffix(close))
        .unwrap();
    if inner.is_empty() {
        return Vec::new();
    }
    let (mut parts, mut part, mut quoted, mut was_quoted) = (Vec::new(), String::new(), false, false);
    let mut end = |part: &mut String, was_quoted: &mut bool| {
        let is_null = !*was_quoted && (part == "NULL" || open == '(' && part.is_empty());
        parts.push((!is_null).then(|| part.clone()));
        part.clear();
        *was_quoted = false;
    };
    let mut characters = inner.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => part.extend(characters.next()),
            '"' => (quoted, was_quoted) = (!quoted, true),
            ',' if !quoted => end(&mut part, &mut was_quoted),
            other => part.push(other),
        }
    }
    end(&mut part, &mut was_quoted);
    parts
}

/// Compares rows. Records have no names of their fields and no types on the wire: of a script's the names are left out, and numbers in
/// them may be written with a zero after the point or without.
fn is_same(normalizer: Normalizer, found: &[Vec<String>], expected: &[String]) -> bool {
    let found: Vec<_> = found.iter().map(|row| normalizer(&row.join(" "))).collect();
    let expected: Vec<_> = expected.iter().map(normalizer).collect();
    let is_record = |text: &String| text.contains('{');
    found == expected
        || found.iter().chain(&expected).any(is_record)
            && found
                .iter()
                .map(|row| plain(row))
                .eq(expected.iter().map(|row| plain(row)))
}

/// A row without names of fields, and without zeros after points.
fn plain(row: &str) -> String {
    let words = row
        .replace("Infinity", "inf")
        .replace('T', " ")
        .replace(['{', '}', '[', ']', ','], " ");
    let words = words.split_whitespace().filter(|word| !word.ends_with(':'));
    words
        .map(|word| word.strip_suffix(".0").unwrap_or(word))
        .collect::<Vec<_>>()
        .join(" ")
}

/// What fails here and not in a session of its own, and why.
const LEFT_OUT: [(&str, &str); 4] = [
    ("PT180S", "PostgreSQL writes 00:03:00"),
    ("0 years 11 mons", "PostgreSQL writes 11 mons"),
    (
        "SHOW quantiles.cuda_memory_limit",
        "clients do not set the options of the process",
    ),
    (
        "is an option of the server's process",
        "clients do not set the options of the process",
    ),
];

#[tokio::test(flavor = "multi_thread")]
async fn scripts_have_the_same_answers_over_the_wire() {
    let (mut run, mut left_out, mut failed) = (0, BTreeMap::new(), Vec::new());
    for script in scripts() {
        let name = script.file_name().unwrap().to_string_lossy().into_owned();
        let folder = crate::support::folder();
        write_tables(folder.path());
        std::fs::write(
            folder.path().join("setup.sql"),
            "SET quantiles.replace_builtins = false;",
        )
        .unwrap();
        let server = Server::in_folder(folder, &["--allow-write", "numbers/", "trips/"]);
        let mut runner = Runner::new(|| async { Ok(Engine(server.connect().await)) });
        runner.with_validator(is_same);
        for record in parse_file::<DefaultColumnType>(&script).unwrap() {
            let is_statement = matches!(record, Record::Statement { .. } | Record::Query { .. });
            let Err(error) = runner.run_async(record).await else {
                run += usize::from(is_statement);
                continue;
            };
            let error = error.to_string();
            match LEFT_OUT.iter().find(|(text, _)| error.contains(text)) {
                Some((text, reason)) => {
                    *left_out.entry(*text).or_insert(0) += 1;
                    println!("left out, for {reason}: {error}");
                }
                None => failed.push(format!("{name}: {error}")),
            }
        }
    }
    println!("{run} statements; left out: {left_out:?}");
    assert_eq!(
        left_out.len(),
        LEFT_OUT.len(),
        "each of the reasons is one: {left_out:?}"
    );
    assert!(failed.is_empty() && run >= 200, "{run}: {}", failed.join("\n"));
}
