//! Tests of values in memory and in files.

use datafusion::arrow::array::StringArray;
use datafusion::arrow::datatypes::DataType;
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryConsumer, MemoryPool};
use datafusion::execution::runtime_env::RuntimeEnv;

use super::*;
use crate::key::Order;
use crate::memory::Spiller;

fn spec() -> ByteSpec {
    match Order::try_new(&DataType::Utf8).unwrap() {
        Order::Bytes(spec) => spec,
        Order::Keys(_) => unreachable!("strings have no keys"),
    }
}

fn values_of(texts: &[&str]) -> ByteStrings {
    let mut values = ByteStrings::default();
    for text in texts {
        values.push(text.as_bytes()).unwrap();
    }
    values
}

#[test]
fn values_come_back_in_order() {
    let texts: Vec<String> = (0..5000_usize)
        .map(|i| "x".repeat(i % 40) + &i.to_string())
        .collect();
    let mut values = ByteStrings::default();
    let array = StringArray::from_iter_values(&texts);
    let (head, tail) = (array.slice(0, 3), array.slice(3, 4997));
    assert_eq!(values.append(&spec(), &head, None).unwrap(), 3);
    assert_eq!(values.append(&spec(), &tail, None).unwrap(), 4997);
    assert!(values.pieces().len() > 1);
    let back: Vec<&[u8]> = values.places().map(|at| values.value(at)).collect();
    let chunks = values
        .pieces()
        .flat_map(|piece| values.placed(piece).map(|(_, value)| value));
    assert_eq!(back, chunks.collect::<Vec<_>>());
    assert_eq!(back, texts.iter().map(String::as_bytes).collect::<Vec<_>>());
    let used: usize = texts.iter().map(|text| text.len() + 4).sum();
    assert!(
        (used..4 * used).contains(&values.held_bytes()),
        "{used} {}",
        values.held_bytes()
    );
}

#[test]
fn nulls_and_masked_rows_are_left_out() {
    let array = StringArray::from(vec![Some("a"), None, Some("b"), Some("c"), Some("d")]);
    let mask = BooleanArray::from(vec![Some(true), Some(true), Some(false), None, Some(true)]);
    let mut values = ByteStrings::default();
    assert_eq!(values.append(&spec(), &array, Some(&mask)).unwrap(), 2);
    let back: Vec<&[u8]> = values.places().map(|at| values.value(at)).collect();
    assert_eq!(back, [b"a", b"d"]);
}

#[test]
fn bounds_are_those_of_all_values() {
    let texts = ["prefix-one", "prefix-", "prefix-two", "prefer", "prefix-one"];
    let mut values = ByteStrings::merged(vec![
        values_of(&texts[..2]),
        ByteStrings::default(),
        values_of(&texts[2..3]),
        values_of(&texts[3..]),
    ]);
    let bounds = values.bounds().unwrap();
    assert_eq!((bounds.prefix.len(), bounds.longest), (4, 10));
    let places: Vec<At> = values.places().collect();
    let bounds = values.bounds_of(&places[..3], 3).unwrap();
    assert_eq!((bounds.prefix.len(), bounds.longest), (7, 10));
    assert!(ByteStrings::default().bounds().is_none() && values.bounds_of(&[], 0).is_none());
    values = values_of(&["same", "same"]);
    assert_eq!(values.bounds().unwrap().prefix.len(), 4);
}

#[test]
fn ranks_and_distinct_values_are_those_of_a_sort() {
    let texts: Vec<String> = (0..2000_usize)
        .map(|i| match i % 5 {
            0 => format!("common prefix {}", i * 7919 % 613),
            1 => "common prefix of all sorts of texts".to_owned() + &"\0".repeat(i % 11),
            2 => "common prefix ".to_owned() + &"z".repeat(i % 17),
            3 => "common prefix".to_owned(),
            _ => format!("common prefix that goes on and on {i}"),
        })
        .collect();
    let mut sorted: Vec<&str> = texts.iter().map(String::as_str).collect();
    let values = values_of(&sorted);
    sorted.sort_unstable();
    let places: Vec<At> = values.places().collect();
    for ranks in [&[1][..], &[2000], &[1, 2, 3, 400, 401, 1000, 1999, 2000], &[]] {
        let mut found = places.clone();
        values.select(&mut found, 6, ranks);
        let value = |rank: &u64| values.value(found[*rank as usize - 1]);
        let found: Vec<&[u8]> = ranks.iter().map(value).collect();
        let expected: Vec<&[u8]> = ranks
            .iter()
            .map(|rank| sorted[*rank as usize - 1].as_bytes())
            .collect();
        assert_eq!(found, expected);
    }
    sorted.dedup();
    let mut places = places;
    let distinct = values.sort_distinct(&mut places).iter();
    let distinct: Vec<&[u8]> = distinct.map(|at| values.value(*at)).collect();
    assert_eq!(
        distinct,
        sorted.iter().map(|text| text.as_bytes()).collect::<Vec<_>>()
    );
}

#[test]
fn what_memory_refuses_is_read_from_disk() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
    let runtime = RuntimeEnv::default();
    let disk = &runtime.disk_manager;
    let spilling = || Spilling::new(Spiller::new(&runtime), Arc::clone(&pool), Some(1 << 20));
    let consumer = MemoryConsumer::new("values").register(&pool);
    let open = || ByteStrings::spilling(consumer.new_empty(), Some(spilling())).unwrap();
    for length in [0, 1, 40, 3000, 300_000] {
        let text = |i: usize| "x".repeat(i * 7919 % (length + 1)) + &(i % 10).to_string();
        let texts: Vec<String> = (0..(4 << 20) / (length / 2 + 8)).map(text).collect();
        let mut parts = vec![open(), open()];
        let (first, second) = texts.split_at(texts.len() / 2);
        for (part, texts) in parts.iter_mut().zip([first, second]) {
            for (i, text) in texts.iter().enumerate() {
                part.push(text.as_bytes()).unwrap();
                if i == texts.len() / 2 {
                    // Others want memory: further values are written from the small spare chunk.
                    part.spill(usize::MAX, &Stop::default()).unwrap();
                    assert!(part.held_bytes() < (100 << 10) + length, "{}", part.held_bytes());
                }
            }
        }
        assert_eq!(
            pool.reserved(),
            parts.iter().map(ByteStrings::held_bytes).sum::<usize>()
        );
        let values = ByteStrings::merged(parts);
        assert!(values.is_spilled() && values.largest_block() <= values.reading_bytes());
        let mut scratch = Chunk::default();
        let mut back: Vec<Vec<u8>> = Vec::new();
        for piece in values.pieces() {
            let chunk = values.piece(piece, &mut scratch).unwrap();
            assert_eq!(chunk.len(), values.piece_len(piece));
            back.extend(chunk.values().map(<[u8]>::to_vec));
        }
        let mut expected: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
        back.sort_unstable();
        expected.sort_unstable();
        assert!(back == expected, "length {length}");
        drop(values);
        assert_eq!((pool.reserved(), disk.used_disk_space()), (0, 0));
    }
}

#[test]
fn a_value_that_fits_nowhere_says_so() {
    let pool: Arc<dyn MemoryPool> = Arc::new(GreedyMemoryPool::new(1 << 20));
    let spiller = Spiller::new(&RuntimeEnv::default());
    let spilling = Spilling::new(spiller, Arc::clone(&pool), Some(1 << 20));
    let consumer = MemoryConsumer::new("values").register(&pool);
    let mut values = ByteStrings::spilling(consumer, Some(spilling)).unwrap();
    let error = values.push(&[1; 2_000_000]).unwrap_err().to_string();
    assert!(
        error.contains("the memory limit is too small")
            && error.contains("2000064 bytes wanted for one value"),
        "{error}"
    );
}
