//! The configuration file: what `dfq sql` does where no option says otherwise.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;
use datafusion::common::{plan_datafusion_err, plan_err};
use datafusion::error::{DataFusionError, Result};
use datafusion::prelude::SessionContext;
use toml_edit::{Document, Item, TableLike, Value};

use super::output::Format;
use crate::args::{parse_bytes, parse_partitions, parse_rows_shown, parse_seconds};

/// What the command line says of the configuration file.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct ConfigArgs {
    /// File of defaults for these options [default: dfq/config.toml in the user's configuration folder, if it exists]
    #[arg(long, value_name = "FILE", conflicts_with = "no_config")]
    config: Option<PathBuf>,

    /// Read no configuration file
    #[arg(long)]
    no_config: bool,
}

/// Defaults of options, from a file; `None` where it does not tell.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Config {
    path: PathBuf,
    pub(super) format: Option<Format>,
    pub(super) maxrows: Option<usize>,
    pub(super) timing: Option<bool>,
    pub(super) progress: Option<bool>,
    pub(super) timeout: Option<Duration>,
    pub(super) memory_limit: Option<usize>,
    pub(super) partitions: Option<NonZeroUsize>,
    pub(super) spill_dir: Option<PathBuf>,
    /// Options of the session, with their values.
    set: Vec<(String, String)>,
}

/// The keys of a file, and what their values are.
const KEYS: [(&str, &str); 9] = [
    ("format", "the name of a format"),
    ("maxrows", "a number of rows such as 40, or \"inf\""),
    ("memory-limit", "a size such as \"512MB\""),
    ("partitions", "a whole number of at least 1"),
    ("progress", "true or false"),
    (
        "set",
        "a table of options of the session, such as quantiles.topk = false",
    ),
    ("spill-dir", "the path of a folder"),
    ("timeout", "a number of seconds above 0"),
    ("timing", "true or false"),
];

impl ConfigArgs {
    /// Reads the file that is meant; the default where there is none.
    ///
    /// # Errors
    /// A file that is named and cannot be read; one with mistakes.
    pub(super) fn read(&self) -> Result<Config> {
        let default = || dirs::config_dir().map(|folder| folder.join("dfq").join("config.toml"));
        let (path, must_be_there) = match (&self.config, self.no_config) {
            (_, true) => return Ok(Config::default()),
            (Some(path), _) => (path.clone(), true),
            (None, _) => match default() {
                Some(path) => (path, false),
                None => return Ok(Config::default()),
            },
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Config::parse(path, &text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_be_there => {
                Ok(Config::default())
            }
            Err(error) => Err(DataFusionError::IoError(error)
                .context(format!("cannot read the configuration file '{}'", path.display()))),
        }
    }
}

impl Config {
    /// # Errors
    /// Text that is no TOML, a key that there is not, and a value that is not allowed.
    fn parse(path: PathBuf, text: &str) -> Result<Self> {
        let of_file =
            |message: String| plan_datafusion_err!("configuration file '{}': {message}", path.display());
        let parsed =
            Document::parse(text).map_err(|error| of_file(error.to_string().trim_end().to_owned()))?;
        let mut config = Self::default();
        for (key, item) in parsed.as_table().iter() {
            config.take(key, item).map_err(of_file)?;
        }
        config.path = path;
        Ok(config)
    }

    /// Takes one key with its value.
    ///
    /// # Errors
    /// A message that names the key and what is allowed.
    fn take(&mut self, key: &str, item: &Item) -> Result<(), String> {
        let Some((_, allowed)) = KEYS.iter().find(|(known, _)| *known == key) else {
            let known: Vec<_> = KEYS.iter().map(|(known, _)| *known).collect();
            return Err(format!("no key '{key}'; there are: {}", known.join(", ")));
        };
        if key == "set" {
            let table = item
                .as_table_like()
                .ok_or_else(|| format!("'set' is {allowed}"))?;
            return flatten("", table, &mut self.set);
        }
        let text = item.as_value().and_then(text);
        let wrong = |why: &str| {
            let given = text
                .as_deref()
                .map_or_else(|| item.type_name().to_owned(), |text| format!("'{text}'"));
            format!("'{key}' is {allowed}, not {given}{why}")
        };
        let given = text.as_deref().ok_or_else(|| wrong(""))?;
        let on_or_off = || item.as_bool().ok_or_else(|| wrong(""));
        match key {
            "format" => {
                let names = Format::value_variants()
                    .iter()
                    .filter_map(Format::to_possible_value);
                let names: Vec<_> = names.map(|value| value.get_name().to_owned()).collect();
                let format = Format::from_str(given, true);
                self.format = Some(format.map_err(|_| wrong(&format!("; there are: {}", names.join(", "))))?);
            }
            "maxrows" => self.maxrows = Some(parse_rows_shown(given).map_err(|_| wrong(""))?),
            "timing" => self.timing = Some(on_or_off()?),
            "progress" => self.progress = Some(on_or_off()?),
            "timeout" => self.timeout = Some(parse_seconds(given).map_err(|_| wrong(""))?),
            "memory-limit" => self.memory_limit = Some(parse_bytes(given).map_err(|_| wrong(""))?),
            "partitions" => self.partitions = Some(parse_partitions(given).map_err(|_| wrong(""))?),
            _ => self.spill_dir = Some(item.as_str().ok_or_else(|| wrong(""))?.into()),
        }
        Ok(())
    }

    /// Sets the options of a session. One that an environment variable sets is left as it is.
    ///
    /// # Errors
    /// An option that there is not, or a value that it cannot have.
    pub(super) async fn set(&self, ctx: &SessionContext) -> Result<()> {
        for (key, value) in &self.set {
            if std::env::var_os(key.to_uppercase().replace('.', "_")).is_some() {
                continue;
            }
            let failed = |error: DataFusionError| {
                let error = error.strip_backtrace();
                plan_datafusion_err!(
                    "configuration file '{}': 'set.{key}' cannot be '{value}': {error}",
                    self.path.display()
                )
            };
            // The options of the runtime are not listed.
            let is_known = key.starts_with("datafusion.runtime.")
                || ctx
                    .copied_config()
                    .options()
                    .entries()
                    .iter()
                    .any(|entry| entry.key == *key);
            if !is_known {
                return plan_err!(
                    "configuration file '{}': no option '{key}' to set; SHOW ALL lists them",
                    self.path.display()
                );
            }
            let sql = format!("SET {key} = '{}'", value.replace('\'', "''"));
            ctx.sql(&sql)
                .await
                .map_err(failed)?
                .collect()
                .await
                .map_err(failed)?;
        }
        Ok(())
    }
}

/// The text of a simple value.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.value().clone()),
        Value::Integer(number) => Some(number.value().to_string()),
        Value::Float(number) => Some(number.value().to_string()),
        Value::Boolean(is_on) => Some(is_on.value().to_string()),
        _ => None,
    }
}

/// The names and values in a table, and in the tables within it, whose names are joined by dots.
///
/// # Errors
/// A message about a value that is no simple one.
fn flatten(before: &str, table: &dyn TableLike, found: &mut Vec<(String, String)>) -> Result<(), String> {
    for (key, item) in table.iter() {
        let name = match before {
            "" => key.to_owned(),
            before => format!("{before}.{key}"),
        };
        match (item.as_table_like(), item.as_value().and_then(text)) {
            (Some(table), _) => flatten(&name, table, found)?,
            (None, Some(value)) => found.push((name, value)),
            (None, None) => {
                let kind = item.type_name();
                return Err(format!(
                    "'set.{name}' is a text, a number, true or false, not {kind}"
                ));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Config> {
        Config::parse("c.toml".into(), text)
    }

    #[test]
    fn every_key_is_read() {
        let text = "format = 'csv'\nmaxrows = 'inf'\ntiming = false\nprogress = true\ntimeout = 1.5\nmemory-limit = '1g'\n\
                    partitions = 3\nspill-dir = '/x'\n[set]\nquantiles.topk = false\n'datafusion.execution.batch_size' = 100\n\
                    [set.datafusion.format]\nnull = \"it's\"\n";
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let config = Config {
            path: "c.toml".into(),
            format: Some(Format::Csv),
            maxrows: Some(usize::MAX),
            timing: Some(false),
            progress: Some(true),
            timeout: Some(Duration::from_millis(1500)),
            memory_limit: Some(1 << 30),
            partitions: NonZeroUsize::new(3),
            spill_dir: Some("/x".into()),
            set: vec![
                pair("quantiles.topk", "false"),
                pair("datafusion.execution.batch_size", "100"),
                pair("datafusion.format.null", "it's"),
            ],
        };
        assert_eq!(parse(text).unwrap(), config);
    }

    #[test]
    fn mistakes_name_the_key_and_what_is_allowed() {
        for (text, said) in [
            ("fromat = 'csv'", "no key 'fromat'; there are: format, maxrows"),
            (
                "format = 'xml'",
                "'format' is the name of a format, not 'xml'; there are: table, csv",
            ),
            ("format = 3", "not '3'; there are: table"),
            (
                "maxrows = -1",
                "'maxrows' is a number of rows such as 40, or \"inf\", not '-1'",
            ),
            ("timing = 'on'", "'timing' is true or false, not 'on'"),
            ("progress = 1", "'progress' is true or false, not '1'"),
            ("timeout = 0", "'timeout' is a number of seconds above 0, not '0'"),
            (
                "memory-limit = 'much'",
                "'memory-limit' is a size such as \"512MB\", not 'much'",
            ),
            (
                "partitions = 0",
                "'partitions' is a whole number of at least 1, not '0'",
            ),
            ("partitions = [1]", "not array"),
            ("spill-dir = 4", "'spill-dir' is the path of a folder, not '4'"),
            ("set = 1", "'set' is a table of options"),
            (
                "[set]\na.b = [1]",
                "'set.a.b' is a text, a number, true or false, not array",
            ),
            ("[format]\na = 1", "'format' is the name of a format, not table"),
            ("format = ", "line 1"),
        ] {
            let message = parse(text).unwrap_err().strip_backtrace();
            assert!(message.contains("configuration file 'c.toml'"), "{message}");
            assert!(message.contains(said), "{text}: {message}");
        }
    }

    #[tokio::test]
    async fn options_of_the_session_are_set_or_named() {
        let ctx = SessionContext::new();
        datafusion_quantiles::register_all(&ctx).unwrap();
        let set = |text: &'static str| {
            let ctx = ctx.clone();
            async move { parse(text).unwrap().set(&ctx).await }
        };
        set("[set]\nquantiles.strategy = 'dibms'\ndatafusion.format.null = \"it's\"\ndatafusion.runtime.memory_limit = '1G'")
            .await
            .unwrap();
        let config = ctx.copied_config();
        assert_eq!(config.options().format.null, "it's");
        let entries = config.options().entries();
        let strategy = entries.iter().find(|entry| entry.key == "quantiles.strategy");
        assert_eq!(strategy.unwrap().value.as_deref(), Some("dibms"));
        for (text, said) in [
            (
                "[set]\nquantiles.topq = 1",
                "no option 'quantiles.topq' to set; SHOW ALL lists them",
            ),
            (
                "[set]\nquantiles.strategy = 'fast'",
                "'set.quantiles.strategy' cannot be 'fast': ",
            ),
            (
                "[set]\ndatafusion.runtime.x = 1",
                "'set.datafusion.runtime.x' cannot be '1': ",
            ),
        ] {
            let message = set(text).await.unwrap_err().strip_backtrace();
            assert!(message.contains(said), "{text}: {message}");
        }
    }
}
