//! Answers of values that have no fixed-width key.

use std::sync::Arc;

use datafusion::arrow::array::{Array, ArrayRef, AsArray, Decimal256Array, new_null_array};
use datafusion::arrow::datatypes::{Decimal256Type, i256};
use datafusion::common::Result;

use super::{Found, Fraction, Pick, QuantileSpec};
use crate::key::ByteSpec;

impl Found<&[u8]> {
    /// Memory for what was found, and for arrays of it: copied once more where they are brought into rows.
    pub(crate) fn array_bytes(&self) -> usize {
        let ends = [&self.low, &self.high];
        let bytes = |values: &Vec<&[u8]>| {
            let all: usize = values.iter().map(|value| value.len()).sum();
            2 * all + values.len() * 3 * size_of::<&[u8]>()
        };
        ends.into_iter().map(bytes).sum::<usize>() + self.picks.len() * size_of::<Pick>()
    }
}

impl QuantileSpec {
    /// As [`Self::answers`], from the byte strings that `value_at` gives for ranks.
    ///
    /// # Errors
    /// Those of `value_at`, and of [`ByteSpec::to_array`].
    pub(crate) fn byte_string_answers<'a>(
        &self,
        spec: &ByteSpec,
        n: u64,
        value_at: &dyn Fn(u64) -> Result<&'a [u8]>,
    ) -> Result<ArrayRef> {
        if n == 0 {
            let one = self.method.result_type(spec.data_type())?;
            return Ok(new_null_array(&one, self.quantiles.len()));
        }
        let mut found = Found::default();
        found.add(&self.picks(n), value_at)?;
        self.byte_strings(spec, &found)
    }

    /// The answers from the byte strings that were found, of type [`Method::result_type`](super::Method::result_type).
    ///
    /// # Errors
    /// Those of [`ByteSpec::to_array`].
    pub(crate) fn byte_strings(&self, spec: &ByteSpec, found: &Found<&[u8]>) -> Result<ArrayRef> {
        let low = spec.to_array(&found.low)?;
        if !self.method.interpolates() {
            return Ok(low);
        }
        let high = spec.to_array(&found.high)?;
        let ends = low.as_primitive::<Decimal256Type>().values().iter();
        let ends = ends.zip(high.as_primitive::<Decimal256Type>().values());
        let between = ends
            .zip(&found.picks)
            .map(|((low, high), pick)| lerp_rounded(*low, *high, pick.weight));
        let between = Decimal256Array::from_iter_values(between);
        Ok(Arc::new(between.with_data_type(low.data_type().clone())))
    }
}

/// `low + weight (high - low)`, exact, then rounded to an integer, half away from zero.
fn lerp_rounded(low: i256, high: i256, weight: Fraction) -> i256 {
    // The difference can need 257 bits, so halves are taken: high - low = 2 half + rest with |rest| <= 2. Then
    //   (high - low) num / den = 2 (half / den) num + (2 (half % den) + rest) num / den,
    // where the last product stays below 2^255 as num < den <= 10^38 < 2^127. All else may wrap, for the sum lies
    // between low and high.
    let two = i256::from_i128(2);
    let [num, den] = [weight.num, weight.den].map(|part| i256::from_i128(part as i128));
    let half = (high / two).wrapping_sub(low / two);
    let rest = (high % two).wrapping_sub(low % two);
    let part = ((half % den) * two + rest) * num;
    let (mut floor, mut above) = (part / den, part % den);
    if above.is_negative() {
        (floor, above) = (floor - i256::ONE, above + den);
    }
    let whole = low
        .wrapping_add((half / den).wrapping_mul(num).wrapping_mul(two))
        .wrapping_add(floor);
    // The value is whole + above / den, with 0 <= above < den; a half below zero stays where it is.
    let doubled = above * two;
    if doubled > den || (doubled == den && !whole.is_negative()) {
        whole.wrapping_add(i256::ONE)
    } else {
        whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantile::{Method, Quantile};

    fn int(value: i128) -> i256 {
        i256::from_i128(value)
    }

    fn fraction(num: u128, den: u128) -> Fraction {
        Fraction { num, den }
    }

    #[test]
    fn decimals_agree_with_those_of_128_bits() {
        let numbers = [
            0,
            1,
            -1,
            2,
            3,
            -7,
            100,
            i128::MAX / 3,
            i128::MIN / 3,
            12_345_678_901_234_567_890,
        ];
        let weights = [
            (0, 1),
            (1, 2),
            (1, 3),
            (2, 3),
            (1, 10),
            (999, 1000),
            (10_u128.pow(38) - 1, 10_u128.pow(38)),
        ];
        for low in numbers {
            for high in numbers {
                for (num, den) in weights {
                    let weight = fraction(num, den);
                    let expected = crate::quantile::between::lerp_rounded(low, high, weight);
                    assert_eq!(
                        lerp_rounded(int(low), int(high), weight),
                        int(expected),
                        "{low} {high} {weight:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn halves_go_away_from_zero() {
        for (low, high, expected) in [
            (0, 1, 1),
            (-1, 0, -1),
            (-1, 2, 1),
            (-2, 1, -1),
            (-3, -4, -4),
            (4, 3, 4),
        ] {
            assert_eq!(
                lerp_rounded(int(low), int(high), Fraction::HALF),
                int(expected),
                "{low} {high}"
            );
        }
    }

    #[test]
    fn nothing_overflows() {
        let (least, greatest) = (i256::MIN, i256::MAX);
        assert_eq!(lerp_rounded(least, greatest, Fraction::HALF), int(-1));
        assert_eq!(lerp_rounded(greatest, least, Fraction::HALF), int(-1));
        assert_eq!(
            lerp_rounded(greatest, greatest - int(1), Fraction::HALF),
            greatest
        );
        let nearly = fraction(10_u128.pow(38) - 1, 10_u128.pow(38));
        // The difference is 2^256 - 1; one part in 10^38 of it lies below the top.
        let below = i256::from_string("1157920892373161954235709850086879078533").unwrap();
        assert_eq!(lerp_rounded(least, greatest, nearly), greatest - below);
        assert_eq!(lerp_rounded(greatest, least, nearly), least + below);
        assert_eq!(lerp_rounded(least, greatest, fraction(0, 1)), least);
    }

    #[test]
    fn answers_come_one_after_the_other() {
        let quantile_spec = QuantileSpec {
            quantiles: [1.0, 0.0].map(|q| Quantile::try_from_f64(q).unwrap()).into(),
            method: Method::Disc,
            descending: false,
        };
        let groups: [&[&[u8]]; 2] = [&[b"a", b"b", b"c"], &[b"z"]];
        let mut found = Found::default();
        for group in groups {
            let picks = quantile_spec.picks(group.len() as u64);
            found.add(&picks, &|rank| Ok(group[rank as usize - 1])).unwrap();
        }
        let spec = match crate::key::Order::try_new(&datafusion::arrow::datatypes::DataType::Binary).unwrap()
        {
            crate::key::Order::Bytes(spec) => spec,
            crate::key::Order::Keys(_) => unreachable!("binary values have no keys"),
        };
        let answers = quantile_spec.byte_strings(&spec, &found).unwrap();
        let answers: Vec<_> = answers.as_binary::<i32>().iter().flatten().collect();
        assert_eq!(answers, [b"c", b"a", b"z", b"z"]);
    }
}
