//! Tables of `information_schema` that DataFusion does not have, or has with other columns.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    Ident, ObjectName, Statement, TableAlias, TableFactor, VisitMut, VisitorMut,
};

use crate::serve::statement::catalog::tables::{INFORMATION, OF_INFORMATION};

/// Names such tables as they are named in `pg_catalog`.
pub(super) fn redirect(statement: &mut Statement) {
    let _ = statement.visit(&mut Redirect);
}

struct Redirect;

impl VisitorMut for Redirect {
    type Break = ();

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table {
            name,
            alias,
            args: None,
            ..
        } = factor
            && let Some(table) = of_information(name)
        {
            alias.get_or_insert_with(|| TableAlias {
                explicit: true,
                name: Ident::new(table),
                columns: Vec::new(),
                at: None,
            });
            let full = Ident::with_quote('"', format!("{INFORMATION}{table}"));
            *name = ObjectName::from(vec![Ident::new("pg_catalog"), full]);
        }
        ControlFlow::Continue(())
    }
}

fn of_information(name: &ObjectName) -> Option<&'static str> {
    let parts: Option<Vec<_>> = name.0.iter().map(|part| part.as_ident()).collect();
    let parts = parts?;
    let [.., schema, table] = parts.as_slice() else {
        return None;
    };
    if !schema.value.eq_ignore_ascii_case("information_schema") {
        return None;
    }
    OF_INFORMATION
        .into_iter()
        .find(|known| table.value.eq_ignore_ascii_case(known))
}
