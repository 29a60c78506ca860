//! Values of each type without a key of fixed width.

use std::sync::Arc;

use datafusion::arrow::array::{
    Array, ArrayRef, AsArray, Decimal256Array, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
    Float64Array, Int32Array, ListArray, StringArray, StructArray, UInt32Array, make_comparator,
};
use datafusion::arrow::compute::{SortOptions, cast, take};
use datafusion::arrow::datatypes::{DataType, Field, Int32Type, i256};

/// How the words of a pattern become texts.
#[derive(Debug, Clone, Copy)]
pub enum Text {
    /// The digits of the word.
    Digits,
    /// Behind a common prefix of 20 bytes.
    Prefixed,
    /// Behind one of two long prefixes, different at the end.
    Clusters,
    /// Zero bytes and empty texts.
    Zeros,
    /// Equal but for their lengths.
    Lengths,
}

impl Text {
    fn of(self, word: i64) -> String {
        match self {
            Text::Digits => word.to_string(),
            Text::Prefixed => format!("twenty bytes of text{word:020}"),
            Text::Clusters => format!("{}{}{word}", word & 1, "x".repeat(700)),
            Text::Zeros => "\0".repeat(word.rem_euclid(30) as usize),
            Text::Lengths => "é".repeat(word.rem_euclid(50) as usize),
        }
    }
}

/// All ways to make texts.
pub const TEXTS: [Text; 5] = [
    Text::Digits,
    Text::Prefixed,
    Text::Clusters,
    Text::Zeros,
    Text::Lengths,
];

/// A type, or a shape of types.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Text.
    Utf8,
    /// Text with offsets of 64 bits.
    LargeUtf8,
    /// Text as views.
    Utf8View,
    /// Bytes.
    Binary,
    /// Bytes with offsets of 64 bits.
    LargeBinary,
    /// Bytes as views.
    BinaryView,
    /// 20 bytes each.
    FixedSizeBinary,
    /// Decimals of 70 digits.
    Decimal256,
    /// Lists of floats.
    List,
    /// Lists of texts.
    ListOfText,
    /// Lists of integers, with offsets of 64 bits.
    LargeList,
    /// Pairs of integers.
    FixedSizeList,
    /// An integer, a float and a text.
    Struct,
    /// Texts by their numbers.
    Dictionary,
    /// Lists of integers by their numbers.
    DictionaryOfLists,
    /// Lists of texts by their numbers.
    ListOfDictionary,
}

/// All kinds.
pub const KINDS: [Kind; 16] = [
    Kind::Utf8,
    Kind::LargeUtf8,
    Kind::Utf8View,
    Kind::Binary,
    Kind::LargeBinary,
    Kind::BinaryView,
    Kind::FixedSizeBinary,
    Kind::Decimal256,
    Kind::List,
    Kind::ListOfText,
    Kind::LargeList,
    Kind::FixedSizeList,
    Kind::Struct,
    Kind::Dictionary,
    Kind::DictionaryOfLists,
    Kind::ListOfDictionary,
];

/// `len` lists of `items` in a row, of 0 to 3 of them each; every eleventh is NULL.
fn lists(items: ArrayRef, words: &[i64]) -> ListArray {
    let mut builder = Vec::new();
    let mut ends = vec![0];
    let mut end = 0;
    for word in words {
        let length = word.rem_euclid(4);
        builder.extend((0..length).map(|i| ((end + i) % items.len() as i64) as u32));
        end += length;
        ends.push(end as i32);
    }
    let items = take(&items, &UInt32Array::from(builder), None).unwrap();
    let field = Arc::new(Field::new_list_field(items.data_type().clone(), true));
    let valid = (0..words.len()).map(|i| i % 11 != 3).collect::<Vec<_>>();
    ListArray::new(
        field,
        datafusion::arrow::buffer::OffsetBuffer::new(ends.into()),
        items,
        Some(valid.into()),
    )
}

/// Values of a kind; every eleventh is NULL.
pub fn values(kind: Kind, text: Text, words: &[i64]) -> ArrayRef {
    let kept = |i: usize| i % 11 != 3;
    let texts = StringArray::from_iter(
        words
            .iter()
            .enumerate()
            .map(|(i, w)| kept(i).then(|| text.of(*w))),
    );
    let texts: ArrayRef = Arc::new(texts);
    let dictionary = DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8));
    let numbers = || -> ArrayRef {
        Arc::new(Int32Array::from_iter(
            words
                .iter()
                .enumerate()
                .map(|(i, w)| (i % 7 != 2).then_some(*w as i32 >> 20)),
        ))
    };
    let floats = || -> ArrayRef {
        let special = [f64::NAN, -f64::NAN, 0.0, -0.0, f64::INFINITY];
        Arc::new(Float64Array::from_iter_values(words.iter().enumerate().map(
            |(i, w)| match i % 5 {
                0 => special[i / 5 % 5],
                _ => *w as f64,
            },
        )))
    };
    match kind {
        Kind::Utf8 => texts,
        Kind::LargeUtf8 => cast(&texts, &DataType::LargeUtf8).unwrap(),
        Kind::Utf8View => cast(&texts, &DataType::Utf8View).unwrap(),
        Kind::Binary => cast(&texts, &DataType::Binary).unwrap(),
        Kind::LargeBinary => cast(&texts, &DataType::LargeBinary).unwrap(),
        Kind::BinaryView => cast(&texts, &DataType::BinaryView).unwrap(),
        Kind::Dictionary => cast(&texts, &dictionary).unwrap(),
        Kind::FixedSizeBinary => {
            let rows = words.iter().enumerate();
            let rows = rows.map(|(i, w)| kept(i).then(|| [[7; 12].as_slice(), &w.to_be_bytes()].concat()));
            Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(rows, 20).unwrap())
        }
        Kind::Decimal256 => {
            let wide = |w: i64| i256::from_i128(i128::from(w)) * i256::from_i128(10_i128.pow(30));
            let rows = words.iter().enumerate().map(|(i, w)| kept(i).then(|| wide(*w)));
            Arc::new(
                Decimal256Array::from_iter(rows)
                    .with_precision_and_scale(70, 30)
                    .unwrap(),
            )
        }
        Kind::List => Arc::new(lists(floats(), words)),
        Kind::ListOfText => Arc::new(lists(texts, words)),
        Kind::LargeList => {
            let list = lists(numbers(), words);
            cast(&list, &DataType::new_large_list(DataType::Int32, true)).unwrap()
        }
        Kind::FixedSizeList => {
            let pairs = words.iter().enumerate().map(|(i, w)| {
                kept(i).then(|| vec![Some(*w as i32 >> 28), (i % 3 != 1).then_some(*w as i32)])
            });
            Arc::new(FixedSizeListArray::from_iter_primitive::<Int32Type, _, _>(
                pairs, 2,
            ))
        }
        Kind::Struct => {
            let fields = vec![
                Field::new("n", DataType::Int32, true),
                Field::new("f", DataType::Float64, true),
                Field::new("s", DataType::Utf8, true),
            ];
            let valid = (0..words.len()).map(kept).collect::<Vec<_>>();
            let columns = vec![numbers(), floats(), texts];
            Arc::new(StructArray::new(fields.into(), columns, Some(valid.into())))
        }
        Kind::DictionaryOfLists => {
            let distinct: ArrayRef = Arc::new(lists(numbers(), words));
            let keys = (0..words.len()).map(|i| kept(i).then_some((i * 7 % words.len()) as i32));
            Arc::new(DictionaryArray::<Int32Type>::new(keys.collect(), distinct))
        }
        Kind::ListOfDictionary => Arc::new(lists(cast(&texts, &dictionary).unwrap(), words)),
    }
}

/// The same values without dictionaries.
pub fn plain(kind: Kind, values: &ArrayRef) -> ArrayRef {
    match kind {
        Kind::Dictionary => cast(values, &DataType::Utf8).unwrap(),
        Kind::DictionaryOfLists => {
            let dictionary = values.as_dictionary::<Int32Type>();
            take(dictionary.values(), dictionary.keys(), None).unwrap()
        }
        Kind::ListOfDictionary => cast(values, &DataType::new_list(DataType::Utf8, true)).unwrap(),
        _ => Arc::clone(values),
    }
}

/// Indices of the values that are not NULL, by Arrow's comparison: not by our bytes, nor by the row format.
pub fn sorted(values: &ArrayRef, mut rows: Vec<u32>) -> Vec<u32> {
    let options = SortOptions {
        descending: false,
        nulls_first: false,
    };
    let compare = make_comparator(values, values, options).unwrap();
    rows.retain(|row| values.is_valid(*row as usize));
    rows.sort_by(|a, b| compare(*a as usize, *b as usize));
    rows
}
