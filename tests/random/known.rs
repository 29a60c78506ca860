//! Defects of DataFusion that statements meet and that are not this crate's: each with its reason, and as narrow a
//! condition as there is. The report counts them.

use crate::config::Config;
use crate::statement::Statement;
use crate::table::Table;

/// The reason why a failure is known, if it is.
pub(crate) fn known(
    _why: &str,
    _statement: &Statement,
    _table: &Table,
    _config: &Config,
) -> Option<&'static str> {
    None
}
