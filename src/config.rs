//! The options `quantiles.*` of a session.
//!
//! They are written by hand and not with `extensions_options!`: that macro lists keys without their prefix, and a
//! cluster, which sends a session's options by key, would lose them.

use std::any::Any;
use std::fmt::{self, Display};
use std::str::FromStr;

use datafusion::common::config::{ConfigEntry, ConfigExtension, ConfigOptions, ExtensionOptions};
use datafusion::common::{DataFusionError, Result, config_err, plan_err};

/// One option: its name, its default value and its meaning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OptionInfo {
    /// Full name, as in `SET <name> = '...'`.
    pub name: &'static str,
    /// The value in a new session.
    pub default: &'static str,
    /// The meaning of the option, in a sentence or two.
    pub doc: &'static str,
}

/// Every option, in the order of `information_schema.df_settings`.
pub const OPTIONS: &[OptionInfo] = &[
    OptionInfo {
        name: "quantiles.cuda_memory_limit",
        default: "none",
        doc: "Most memory of a device that pinned tables and queries over them hold, such as 64GB; none: what there is.",
    },
    OptionInfo {
        name: "quantiles.device",
        default: "auto",
        doc: "Where quantiles are selected: auto (pinned columns on their device, others on the CPU), cpu, cuda (the first device), cuda:N, \
              cuda:all (other columns are sent there as they are read). All give the same answer.",
    },
    OptionInfo {
        name: "quantiles.read_again",
        default: "auto",
        doc: "Whether quantiles without GROUP BY are selected while their input is read, keeping none of it, at the price of a sample \
              before and sometimes a second read: auto (large Parquet files and tables in memory), never, always (of any size). All \
              give the same answer.",
    },
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
        doc: "Whether ORDER BY with LIMIT runs as SortLimitExec, and topk_by with GROUP BY, and ROW_NUMBER or RANK up to a constant, as \
              GroupedTopKExec; and whether distances of vectors are read from their columns. The answer is the same.",
    },
    OptionInfo {
        name: "quantiles.trust_float_statistics",
        default: "false",
        doc: "Whether scans use what the statistics of files say of floating-point columns, as DataFusion does by itself. They leave \
              NaN out: with NaNs in the data, rows can be lost and values be wrong.",
    },
];

/// The options of this crate in a session's configuration.
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
    /// `quantiles.cuda_memory_limit`: the greatest number of bytes of a device's memory that this crate holds; `None`: no limit.
    pub cuda_memory_limit: Option<u64>,
    /// `quantiles.device`: where quantiles, and best rows of pinned columns, are selected. `auto` uses a device only for columns that are
    /// pinned there: others arrive at the speed of decoding or of the host's memory, with which the CPU keeps up.
    pub device: DeviceChoice,
    /// `quantiles.read_again`: whether inputs that can be read again are, so that nothing of them is kept.
    pub read_again: ReadAgain,
    /// `quantiles.replace_builtins`: whether DataFusion's `median` and `percentile_cont` run through this crate, with
    /// the answers and types of DataFusion's functions.
    pub replace_builtins: bool,
    /// `quantiles.strategy`: how [`QuantilesExec`](crate::exec::QuantilesExec) selects.
    pub strategy: StrategyName,
    /// `quantiles.topk`: whether [`SortLimitExec`](crate::exec::SortLimitExec) finds the first rows of an order, and
    /// the best rows of groups are found by [`GroupedTopKExec`](crate::exec::GroupedTopKExec).
    pub topk: bool,
    /// `quantiles.trust_float_statistics`: whether scans use the statistics of floating-point columns, which leave
    /// NaN out, to skip rows and to answer from. The answer is the same only for data without NaN.
    pub trust_float_statistics: bool,
}

impl Default for QuantilesOptions {
    fn default() -> Self {
        Self {
            cuda_memory_limit: None,
            device: DeviceChoice::default(),
            read_again: ReadAgain::default(),
            replace_builtins: false,
            strategy: StrategyName::default(),
            topk: true,
            trust_float_statistics: false,
        }
    }
}

/// The strategies that `SET quantiles.strategy` accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StrategyName {
    /// The cheapest for the data at hand.
    #[default]
    Auto,
    /// SampleSelect.
    SampleSelect,
    /// Distributed bucket multiselect.
    DistributedBms,
    /// Distributed iterative bucket multiselect.
    Dibms,
    /// GK Select.
    GkSelect,
}

impl StrategyName {
    /// All strategies.
    pub const ALL: [StrategyName; 5] = [
        StrategyName::Auto,
        StrategyName::SampleSelect,
        StrategyName::DistributedBms,
        StrategyName::Dibms,
        StrategyName::GkSelect,
    ];

    /// Whether the strategy is, or may become, SampleSelect, all rounds of which a device runs in one call.
    pub(crate) fn is_sample_select(self) -> bool {
        matches!(self, StrategyName::Auto | StrategyName::SampleSelect)
    }
}

impl Display for StrategyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StrategyName::Auto => "auto",
            StrategyName::SampleSelect => "sample_select",
            StrategyName::DistributedBms => "distributed_bms",
            StrategyName::Dibms => "dibms",
            StrategyName::GkSelect => "gk_select",
        })
    }
}

impl FromStr for StrategyName {
    type Err = DataFusionError;

    fn from_str(name: &str) -> Result<Self> {
        let known = StrategyName::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(name));
        match known {
            Some(known) => Ok(known),
            None => {
                let allowed = StrategyName::ALL.map(|known| known.to_string()).join(", ");
                plan_err!("unknown strategy '{name}': allowed are {allowed}")
            }
        }
    }
}

/// Whether an input is read again where that saves keeping it. Only plain scans of Parquet files and of tables in memory can be, with
/// filters and projections over them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ReadAgain {
    /// Where the input is large, and reading it again is expected to be rare, or to cost less than to keep it.
    #[default]
    Auto,
    /// The input is read once, and kept.
    Never,
    /// Every input that can be read again.
    Always,
}

impl ReadAgain {
    const ALL: [ReadAgain; 3] = [ReadAgain::Auto, ReadAgain::Never, ReadAgain::Always];
}

impl Display for ReadAgain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ReadAgain::Auto => "auto",
            ReadAgain::Never => "never",
            ReadAgain::Always => "always",
        })
    }
}

impl FromStr for ReadAgain {
    type Err = DataFusionError;

    fn from_str(value: &str) -> Result<Self> {
        let known = Self::ALL
            .into_iter()
            .find(|known| known.to_string().eq_ignore_ascii_case(value));
        known.map_or_else(
            || config_err!("option 'quantiles.read_again' is auto, never or always, got '{value}'"),
            Ok,
        )
    }
}

/// The processor that selects quantiles and best rows of columns that are pinned in a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// The device on which columns are pinned, and the CPU where the device fails.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The device with this number; `None`: the device on which columns are pinned, or else the first. A failure of the device is an error.
    Cuda(Option<usize>),
    /// All devices, over which tables are spread. A failure of one is an error.
    CudaAll,
}

impl Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(None) => f.write_str("cuda"),
            DeviceChoice::Cuda(Some(ordinal)) => write!(f, "cuda:{ordinal}"),
            DeviceChoice::CudaAll => f.write_str("cuda:all"),
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = DataFusionError;

    fn from_str(value: &str) -> Result<Self> {
        let name = value.to_ascii_lowercase();
        let ordinal = name.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        Ok(match (name.as_str(), ordinal) {
            ("auto", _) => DeviceChoice::Auto,
            ("cpu", _) => DeviceChoice::Cpu,
            ("cuda", _) => DeviceChoice::Cuda(None),
            ("cuda:all", _) => DeviceChoice::CudaAll,
            (_, Some(ordinal)) => DeviceChoice::Cuda(Some(ordinal)),
            _ => {
                return config_err!(
                    "option 'quantiles.device' is auto, cpu, cuda, cuda:N (devices count from 0) or cuda:all, got '{value}'"
                );
            }
        })
    }
}

impl QuantilesOptions {
    /// The options in `config`; the defaults if the extension is not registered there.
    pub fn of(config: &ConfigOptions) -> Self {
        config.extensions.get::<Self>().cloned().unwrap_or_default()
    }

    /// Whether the extension is registered in `config`.
    pub(crate) fn are_in(config: &ConfigOptions) -> bool {
        config.extensions.get::<Self>().is_some()
    }

    /// Current value of the option with this full name; `None` if there is no such option.
    fn value(&self, name: &str) -> Option<String> {
        match name {
            "quantiles.cuda_memory_limit" => {
                let limit = self.cuda_memory_limit;
                Some(limit.map_or_else(|| NO_LIMIT.to_owned(), |bytes| bytes.to_string()))
            }
            "quantiles.device" => Some(self.device.to_string()),
            "quantiles.read_again" => Some(self.read_again.to_string()),
            "quantiles.replace_builtins" => Some(self.replace_builtins.to_string()),
            "quantiles.strategy" => Some(self.strategy.to_string()),
            "quantiles.topk" => Some(self.topk.to_string()),
            "quantiles.trust_float_statistics" => Some(self.trust_float_statistics.to_string()),
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
            "cuda_memory_limit" => self.cuda_memory_limit = limit(value)?,
            "device" => self.device = value.parse()?,
            "read_again" => self.read_again = value.parse()?,
            "replace_builtins" => self.replace_builtins = boolean(Self::PREFIX, key, value)?,
            "strategy" => self.strategy = value.parse()?,
            "topk" => self.topk = boolean(Self::PREFIX, key, value)?,
            "trust_float_statistics" => self.trust_float_statistics = boolean(Self::PREFIX, key, value)?,
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

/// Parses the value of an option that is true or false.
fn boolean(prefix: &str, key: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => config_err!("option '{prefix}.{key}' is true or false, got '{value}'"),
    }
}

/// The word for no limit.
const NO_LIMIT: &str = "none";

/// Parses a number of bytes, which may have a unit: units are powers of 1024.
fn limit(value: &str) -> Result<Option<u64>> {
    let name = value.trim().to_ascii_lowercase();
    if name == NO_LIMIT {
        return Ok(None);
    }
    let digits = name.find(|c: char| !c.is_ascii_digit()).unwrap_or(name.len());
    let (number, unit) = name.split_at(digits);
    let shift = match unit.trim() {
        "" | "b" => Some(0),
        "k" | "kb" | "kib" => Some(10),
        "m" | "mb" | "mib" => Some(20),
        "g" | "gb" | "gib" => Some(30),
        "t" | "tb" | "tib" => Some(40),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(shift);
    match bytes.and_then(|(number, shift)| number.checked_mul(1 << shift)) {
        Some(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => config_err!(
            "option 'quantiles.cuda_memory_limit' is none or a size such as 64GB, 512m or 1000000 (powers of 1024), got \
             '{value}'"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits() {
        for (text, bytes) in [
            ("none", None),
            ("NONE", None),
            ("1", Some(1)),
            ("64GB", Some(64 << 30)),
            ("512 m", Some(512 << 20)),
            ("3TiB", Some(3 << 40)),
        ] {
            assert_eq!(limit(text).unwrap(), bytes, "{text}");
        }
        for text in ["", "0", "-1", "1.5g", "5 parsecs", "99999999999999t", "all"] {
            let error = limit(text).unwrap_err().to_string();
            assert!(error.contains(&format!("got '{text}'")), "{error}");
        }
    }

    #[test]
    fn devices() {
        for name in ["auto", "cpu", "cuda", "cuda:0", "cuda:3", "cuda:all"] {
            assert_eq!(name.parse::<DeviceChoice>().unwrap().to_string(), name);
        }
        assert_eq!(
            "CUDA:1".parse::<DeviceChoice>().unwrap(),
            DeviceChoice::Cuda(Some(1))
        );
        for name in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda1"] {
            let error = name.parse::<DeviceChoice>().unwrap_err().to_string();
            assert!(error.contains(&format!("got '{name}'")), "{error}");
        }
    }
}
