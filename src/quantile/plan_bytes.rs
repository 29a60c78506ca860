//! Quantiles and quantile specifications as bytes of a plan that is sent.

use datafusion::common::Result;

use super::number::MAX_EXACT_SCALE;
use super::{Method, Quantile, QuantileSpec, Quantiles};
use crate::wire::{Reader, put};

/// Every method. Its number in a message is that of its variant.
fn methods() -> impl Iterator<Item = Method> {
    let others = [
        Method::Median,
        Method::PercentileCont,
        Method::SparkPercentile,
        Method::ClickHouse,
        Method::ClickHouseLow,
    ];
    Method::ALL.into_iter().chain(others)
}

impl Method {
    pub(crate) fn put(self, out: &mut Vec<u8>) {
        out.push(self as u8);
    }

    /// # Errors
    /// An execution error for a number that no method has.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Self> {
        let number = input.byte("method")?;
        match methods().find(|method| *method as u8 == number) {
            Some(method) => Ok(method),
            None => input.damaged(format!("method {number}")),
        }
    }
}

impl Quantile {
    fn put(self, out: &mut Vec<u8>) {
        put(out, self.digits);
        put(out, self.scale);
    }

    fn read(input: &mut Reader<'_>) -> Result<Self> {
        let (digits, scale) = (input.number("quantile")?, input.number("quantile")?);
        let found = Self { digits, scale };
        // Floats have scales of up to 324 + 17.
        let is_proper = match scale {
            0 => digits <= 1,
            1..=MAX_EXACT_SCALE => digits > 0 && digits <= 10_u128.pow(scale) && digits % 10 != 0,
            _ => digits > 0 && scale < 400 && digits % 10 != 0,
        };
        if is_proper {
            Ok(found)
        } else {
            input.damaged(format!("quantile {digits}e-{scale}"))
        }
    }
}

impl Quantiles {
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        put(out, self.list.len() as u64);
        self.list.iter().for_each(|quantile| quantile.put(out));
        out.push(u8::from(self.is_list));
    }

    /// # Errors
    /// An execution error for bytes that are no quantiles, or for several quantiles without a list.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<Self> {
        let found = Self::read_any(input)?;
        if found.is_list || found.list.len() == 1 {
            Ok(found)
        } else {
            input.damaged(format!("{} quantiles in place of one", found.list.len()))
        }
    }

    /// Reads the quantiles of functions that may have none.
    ///
    /// # Errors
    /// An execution error for bytes that are no quantiles.
    pub(crate) fn read_any(input: &mut Reader<'_>) -> Result<Self> {
        Ok(Self {
            list: input.list("quantiles", Quantile::read)?,
            is_list: input.flag("list of quantiles")?,
        })
    }
}

impl QuantileSpec {
    pub(crate) fn put(&self, is_list: bool, out: &mut Vec<u8>) {
        self.method.put(out);
        out.push(u8::from(self.descending));
        let list = self.quantiles.clone();
        Quantiles { list, is_list }.put(out);
    }

    /// Reads a quantile specification, and whether the answer is a list.
    ///
    /// # Errors
    /// An execution error for other bytes.
    pub(crate) fn read(input: &mut Reader<'_>) -> Result<(Self, bool)> {
        let (method, descending) = (Method::read(input)?, input.flag("direction")?);
        let Quantiles { list, is_list } = Quantiles::read(input)?;
        let quantile_spec = Self {
            quantiles: list,
            method,
            descending,
        };
        Ok((quantile_spec, is_list))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(quantile_spec: &QuantileSpec, is_list: bool) -> Vec<u8> {
        let mut out = Vec::new();
        quantile_spec.put(is_list, &mut out);
        let mut reader = Reader::new("call", &out);
        let found = QuantileSpec::read(&mut reader).unwrap();
        reader.end().unwrap();
        assert_eq!((&found.0, found.1), (quantile_spec, is_list));
        for end in 0..out.len() {
            assert!(
                QuantileSpec::read(&mut Reader::new("call", &out[..end])).is_err(),
                "{end}"
            );
        }
        out
    }

    #[test]
    fn calls_come_back() {
        let quantiles = [
            0.0,
            1.0,
            0.5,
            0.07,
            1e-300,
            f64::MIN_POSITIVE,
            0.123_456_789_012_345_67,
        ];
        let quantiles = quantiles.map(|q| Quantile::try_from_f64(q).unwrap()).to_vec();
        for method in methods() {
            let quantile_spec = QuantileSpec {
                quantiles: quantiles.clone(),
                method,
                descending: method == Method::Disc,
            };
            round_trip(&quantile_spec, true);
        }
        let quantile_spec = QuantileSpec {
            quantiles: Vec::new(),
            method: Method::Disc,
            descending: false,
        };
        assert_eq!(round_trip(&quantile_spec, true), [0, 0, 0, 1]);
    }

    #[test]
    fn what_is_no_quantile_is_an_error() {
        for bytes in [
            [18, 0, 0, 1].as_slice(),
            &[0, 2, 0, 1],
            &[0, 0, 1, 2, 0, 1],
            &[0, 0, 1, 10, 2, 1],
        ] {
            assert!(
                QuantileSpec::read(&mut Reader::new("call", bytes)).is_err(),
                "{bytes:?}"
            );
        }
    }
}
