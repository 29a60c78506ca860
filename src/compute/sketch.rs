//! Greenwald-Khanna sketches as values of a program.

use datafusion::arrow::array::{Array, ArrayRef};
use datafusion::arrow::compute::cast;
use datafusion::arrow::datatypes::DataType;
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};

use crate::functions::gk::Stored;
use crate::functions::ordered_type;
use crate::key::KeySpec;
use crate::quantile::{Quantile, Quantiles};
use crate::sketch::{AnySketch, Epsilon, Variant};

/// Bounds of the number of values at or below one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankBounds {
    /// The least number of values that may be at or below it.
    pub rank_min: u64,
    /// The greatest number of values that may be at or below it.
    pub rank_max: u64,
    /// Number of all values.
    pub n: u64,
}

/// A summary of values from which any quantile is known within a bound that is proved.
///
/// It is what `gk_sketch` of SQL makes, in the same stored form. The rank of [`Self::quantiles`]' answer is within `n / accuracy` of
/// the one asked for, whatever the values, their order and the merges. Memory: about `accuracy` values.
///
/// ```
/// # use datafusion::arrow::array::{AsArray, Float64Array};
/// # use datafusion::arrow::datatypes::Float64Type;
/// # use datafusion_quantiles::compute::GkSketch;
/// let (mut monday, mut tuesday) = (GkSketch::try_new(1000.0)?, GkSketch::try_new(1000.0)?);
/// monday.update(&Float64Array::from(vec![1.0, 2.0]))?;
/// tuesday.update(&Float64Array::from(vec![3.0]))?;
/// monday.merge(&mut tuesday)?;
/// let median = monday.quantiles(&[0.5])?;
/// assert_eq!(median.as_primitive::<Float64Type>().values(), &[2.0]);
/// # Ok::<(), datafusion::error::DataFusionError>(())
/// ```
#[derive(Debug)]
pub struct GkSketch {
    eps: Epsilon,
    /// How the values are ordered. Without values, any type may follow.
    spec: KeySpec,
    sketch: AnySketch,
}

impl GkSketch {
    /// A sketch without values. `accuracy`: an error fraction in (0, 1), or its reciprocal from 1 on; SQL's default is 10000.
    ///
    /// # Errors
    /// A planning error that names another accuracy.
    pub fn try_new(accuracy: f64) -> Result<Self> {
        Self::empty(Epsilon::try_new(accuracy)?, KeySpec::try_new(&DataType::Float64)?)
    }

    /// A sketch of the same accuracy and type of values, without values.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn another(&self) -> Result<Self> {
        Self::empty(self.eps, self.spec.clone())
    }

    fn empty(eps: Epsilon, spec: KeySpec) -> Result<Self> {
        Ok(Self {
            sketch: AnySketch::new(spec.width(), eps, Variant::Modified),
            eps,
            spec,
        })
    }

    /// Number of values.
    pub fn n(&self) -> u64 {
        self.sketch.n()
    }

    /// The error fraction: an answer's rank is off by at most this part of all values.
    pub fn error_fraction(&self) -> f64 {
        let (numerator, denominator) = self.eps.fraction();
        numerator as f64 / denominator as f64
    }

    /// Type of the values; `None` while there are none.
    pub fn data_type(&self) -> Option<&DataType> {
        (self.n() > 0).then(|| self.spec.data_type())
    }

    /// Adds the values of an array that are not NULL.
    ///
    /// # Errors
    /// A planning error for a type without keys of fixed width; an execution error for another type than that of the values before.
    pub fn update(&mut self, values: &dyn Array) -> Result<()> {
        let data_type = ordered_type(values.data_type());
        if !KeySpec::supports(&data_type) {
            return plan_err!(
                "a sketch takes values of fixed width: numbers, decimals of up to 128 bits, Booleans, dates, times, got {data_type}"
            );
        }
        self.take_type(KeySpec::try_new(&data_type)?)?;
        match data_type == *values.data_type() {
            true => self.sketch.extend(&self.spec, values),
            false => self.sketch.extend(&self.spec, cast(values, &data_type)?.as_ref()),
        }
    }

    /// Gives the sketch the type of the values that come, if it has none yet.
    fn take_type(&mut self, spec: KeySpec) -> Result<()> {
        if self.spec == spec {
            return Ok(());
        }
        if self.n() > 0 {
            return exec_err!(
                "a sketch of values of type {} takes none of type {}",
                self.spec.data_type(),
                spec.data_type()
            );
        }
        *self = Self::empty(self.eps, spec)?;
        Ok(())
    }

    /// Adds the values of another sketch, which keeps them. The error fraction becomes the larger one of both.
    ///
    /// # Errors
    /// An execution error for sketches of two types of values.
    pub fn merge(&mut self, other: &mut GkSketch) -> Result<()> {
        if other.n() > 0 {
            self.take_type(other.spec.clone())?;
            self.sketch.merge(other.stored()?.summary)?;
        }
        self.eps = self.eps.max(other.eps);
        Ok(())
    }

    /// The summary of all values.
    fn stored(&mut self) -> Result<Stored> {
        let next = self.another()?;
        let sketch = std::mem::replace(self, next).sketch;
        let summary = sketch.partial()?;
        // A summary that is merged into a new sketch keeps the bound.
        self.sketch.merge(summary.clone())?;
        Ok(Stored {
            summary,
            spec: self.spec.clone(),
        })
    }

    /// Values near these quantiles (numbers in [0, 1]), in the type of the values; NULLs if there are none.
    ///
    /// # Errors
    /// A planning error that names a quantile outside [0, 1].
    pub fn quantiles(&mut self, quantiles: &[f64]) -> Result<ArrayRef> {
        let list = quantiles.iter().map(|&quantile| Quantile::try_from_f64(quantile));
        let quantiles = Quantiles {
            list: list.collect::<Result<_>>()?,
            is_list: true,
        };
        let data_type = self.spec.data_type().clone();
        if self.n() == 0 {
            return Ok(datafusion::arrow::array::new_null_array(
                &data_type,
                quantiles.list.len(),
            ));
        }
        self.stored()?.quantiles(&quantiles, &data_type)
    }

    /// Bounds of the number of values at or below `value`.
    ///
    /// # Errors
    /// An execution error for a value that cannot be compared with the sketch's values.
    pub fn rank(&mut self, value: &ScalarValue) -> Result<RankBounds> {
        let [rank_min, rank_max, n] = match self.n() {
            0 => [0; 3],
            _ => self.stored()?.rank(value)?,
        };
        Ok(RankBounds {
            rank_min,
            rank_max,
            n,
        })
    }

    /// The stored form, which `gk_merge`, `gk_quantile` and `gk_rank` of SQL read, as [`Self::from_bytes`] does.
    ///
    /// # Errors
    /// Internal errors only.
    pub fn to_bytes(&mut self) -> Result<Vec<u8>> {
        Ok(self.stored()?.write())
    }

    /// The sketch that was stored.
    ///
    /// # Errors
    /// An execution error for damaged bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let Stored { summary, spec } = Stored::read(bytes)?;
        let mut sketch = Self::empty(summary.epsilon(), spec)?;
        sketch.sketch.merge(summary)?;
        Ok(sketch)
    }
}
