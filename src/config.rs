//! The session's `quantiles.*` options.
//!
//! Written by hand, not with `extensions_options!`: that macro lists keys without their prefix, so that a cluster
//! which ships a session's options by key loses them.

use std::any::Any;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{Result, config_err};

use crate::select::StrategyName;

/// One option: what `SET` takes, what a session starts with, and what it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionInfo {
    /// Full name, as in `SET <name> = '...'`.
    pub name: &'static str,
    /// Value of a new session.
    pub default: &'static str,
    /// One sentence on its meaning.
    pub doc: &'static str,
}

/// Every option there is, in the order of `information_schema.df_settings`.
pub const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "quantiles.replace_builtins",
        default: "false",
        doc: "Whether DataFusion's median and percentile_cont run through this crate, with their own answers.",
    },
    OptionInfo {
        name: "quantiles.strategy",
        default: "auto",
        doc: "How QuantilesExec selects: auto, sample_select, distributed_bms, dibms or gk_select. All give the same answer.",
    },
    OptionInfo {
        name: "quantiles.topk",
        default: "true",
        doc: "Whether topk_by with GROUP BY, and ROW_NUMBER or RANK up to a constant, run as GroupedTopKExec. The answer is the same.",
    },
];

/// Options of this crate in a session's configuration.
///
/// ```
/// # use datafusion::prelude::SessionContext;
/// # use datafusion_quantiles::config::QuantilesOptions;
/// let ctx = SessionContext::new();
/// datafusion_quantiles::register_all(&ctx)?;
/// assert_eq!(QuantilesOptions::of(ctx.state().config_options()).strategy.to_string(), "auto");
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantilesOptions {
    /// `quantiles.replace_builtins`: whether DataFusion's `median` and `percentile_cont` run through this crate, with
    /// their own answers and types.
    pub replace_builtins: bool,
    /// `quantiles.strategy`: how [`QuantilesExec`](crate::exec::QuantilesExec) selects.
    pub strategy: StrategyName,
    /// `quantiles.topk`: whether the best rows of groups are found by [`GroupedTopKExec`](crate::exec::GroupedTopKExec).
    pub topk: bool,
}

impl Default for QuantilesOptions {
    fn default() -> Self {
        Self {
            replace_builtins: false,
            strategy: StrategyName::default(),
            topk: true,
        }
    }
}

impl QuantilesOptions {
    /// The options in `config`; the defaults if the extension is not registered there.
    pub fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Current value of the option with this full name; `None` if there is no such option.
    fn value(&self, name: &str) -> Option<String> {
        match name {
            "quantiles.replace_builtins" => Some(self.replace_builtins.to_string()),
            "quantiles.strategy" => Some(self.strategy.to_string()),
            "quantiles.topk" => Some(self.topk.to_string()),
            _ => None,
        }
    }
}

impl ConfigExtension for QuantilesOptions {
    const PREFIX: &'static str = "quantiles";
}

impl ExtensionOptions for QuantilesOptions {
    fn as_any(&self) -> &dyn Any {
        self
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }

    fn cloned(&self) -> Box<dyn ExtensionOptions> {
        Box::new(self.clone())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<()> {
        match key {
            "replace_builtins" => self.replace_builtins = boolean(Self::PREFIX, key, value)?,
            "strategy" => self.strategy = value.parse()?,
            "topk" => self.topk = boolean(Self::PREFIX, key, value)?,
            _ => {
                let names: Vec<_> = OPTIONS.iter().map(|option| option.name).collect();
                return config_err!(
                    "there is no option '{}.{key}': allowed are {}",
                    Self::PREFIX,
                    names.join(", ")
                );
            }
        }
        Ok(())
    }

    fn entries(&self) -> Vec<ConfigEntry> {
        let entry = |option: &OptionInfo| ConfigEntry {
            key: option.name.to_owned(),
            value: self.value(option.name),
            description: option.doc,
        };
        OPTIONS.iter().map(entry).collect()
    }
}

fn boolean(prefix: &str, key: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => config_err!("option '{prefix}.{key}' is true or false, got '{value}'"),
    }
}
