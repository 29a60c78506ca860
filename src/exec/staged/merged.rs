//! The replies of all partitions to a round of quantiles without groups, merged as they arrive.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use datafusion::arrow::array::BooleanArray;
use datafusion::arrow::compute::{filter_record_batch, not};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::arrow::record_batch::RecordBatch;
use datafusion::common::{Result, exec_datafusion_err, exec_err};
use datafusion::execution::memory_pool::MemoryReservation;

use super::columns::StagedColumns;
use super::fingerprint::{ColumnFingerprint, READ_DIFFERENTLY};
use super::rows::{Body, List, ShardReply, bodies, body_bytes, check_schema, is_keys, read_rows, schema};
use crate::kernel::round::Reply;
use crate::key::{KeyVec, Width};
use crate::select::countable;

/// The merged replies of all partitions that have arrived so far.
#[derive(Debug)]
pub(super) struct Merged {
    pub(super) columns: Arc<StagedColumns>,
    /// Schema of the rows between stages.
    schema: SchemaRef,
    /// The replies by the number of the key column.
    replies: BTreeMap<usize, ColumnReplies>,
    /// Bytes of the state that the replies belong to; `None` in the first round.
    state: Option<Vec<u8>>,
}

/// The merged replies for one key column.
#[derive(Debug, Default)]
struct ColumnReplies {
    /// The merged reply without its keys; `None` until a partition has replied.
    reply: Option<ShardReply>,
    /// The keys that have arrived, by the number of their list.
    keys: BTreeMap<usize, KeyVec>,
    /// Whether some partition had no memory for its lists.
    refused: bool,
}

impl Merged {
    /// No replies yet.
    pub(super) fn new(columns: &Arc<StagedColumns>) -> Self {
        Self {
            columns: Arc::clone(columns),
            schema: schema(&[]),
            replies: BTreeMap::new(),
            state: None,
        }
    }

    /// Adds the replies, states and keys of a batch of rows.
    ///
    /// # Errors
    /// An execution error for rows that are damaged, or of two plans.
    pub(super) fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        let (columns, schema) = (Arc::clone(&self.columns), Arc::clone(&self.schema));
        for body in read_rows(batch, &schema, &columns.specs)? {
            match body? {
                Body::State(state) => self.add_state(state)?,
                Body::Reply(reply) => self.replies.entry(reply.column).or_default().add_reply(*reply)?,
                Body::Keys(_, lists) => {
                    for List { column, number, keys } in lists {
                        self.replies.entry(column).or_default().add_keys(number, keys)?;
                    }
                }
                _ => return exec_err!("a damaged row between stages: it speaks of groups"),
            }
        }
        Ok(())
    }

    /// Adds the replies and states of a batch, and returns its rows of keys, which do not add up.
    ///
    /// # Errors
    /// Those of [`Self::add`].
    pub(super) fn add_replies(&mut self, batch: &RecordBatch) -> Result<Option<RecordBatch>> {
        let are_keys = bodies(batch, &self.schema)?.map(|body| Ok(Some(is_keys(body?))));
        let are_keys = are_keys.collect::<Result<BooleanArray>>()?;
        if are_keys.true_count() == 0 {
            return self.add(batch).map(|()| None);
        }
        self.add(&filter_record_batch(batch, &not(&are_keys)?)?)?;
        Ok(Some(filter_record_batch(batch, &are_keys)?))
    }

    /// Reserves memory for all that is held, and for one more batch.
    ///
    /// # Errors
    /// `ResourcesExhausted` that says how much was wanted; an internal error for rows of another plan.
    pub(super) fn reserve(&self, batch: &RecordBatch, memory: &MemoryReservation) -> Result<()> {
        check_schema(batch, &self.schema)?;
        let held = self.bytes();
        // Keys in memory take more bytes than in a message, except random ones.
        let wanted = held + 2 * body_bytes(batch);
        memory.try_resize(wanted.max(memory.size())).map_err(|error| {
            error.context(format!(
                "the memory limit is too small for the replies of all partitions: {wanted} bytes wanted, {held} held"
            ))
        })
    }

    /// Bytes of memory held, about.
    fn bytes(&self) -> usize {
        let replies = self.replies.values().map(ColumnReplies::bytes).sum::<usize>();
        replies + self.state.as_ref().map_or(0, Vec::capacity)
    }

    fn add_state(&mut self, bytes: &[u8]) -> Result<()> {
        if self.state.get_or_insert_with(|| bytes.to_vec()) == bytes {
            Ok(())
        } else {
            exec_err!("{READ_DIFFERENTLY}: replies to two different states reached a stage")
        }
    }

    /// Bytes of the state that the replies belong to; `None` in the first round.
    pub(super) fn state(&self) -> Option<&[u8]> {
        self.state.as_deref()
    }

    /// The merged reply of each key column that has one, without keys.
    ///
    /// # Errors
    /// An execution error if keys are among the rows.
    pub(super) fn shard_replies(self) -> Result<Vec<ShardReply>> {
        let without_keys = |own: ColumnReplies| match (own.reply, own.keys.is_empty()) {
            (Some(reply), true) if own.refused => Ok(ShardReply {
                lengths: Vec::new(),
                ..reply
            }),
            (Some(reply), true) => Ok(reply),
            _ => exec_err!("{READ_DIFFERENTLY}: keys came without a reply"),
        };
        self.replies.into_values().map(without_keys).collect()
    }

    /// The fingerprint of what all shards of a key column read, and their merged reply.
    ///
    /// # Errors
    /// An execution error if there is no reply, or if keys of it are missing.
    pub(super) fn take(&mut self, column: usize) -> Result<(ColumnFingerprint, Reply)> {
        let own = self.replies.remove(&column);
        let own = own.ok_or_else(|| {
            exec_datafusion_err!("{READ_DIFFERENTLY}: no partition answered for column {column}")
        })?;
        own.finish(self.columns.specs[column].width())
    }
}

fn other_width<T>(came: Width, wanted: Width) -> Result<T> {
    exec_err!(
        "a damaged reply: keys of {} bytes for a column of keys of {} bytes",
        came.bytes(),
        wanted.bytes()
    )
}

impl ColumnReplies {
    /// Bytes of memory held, about.
    fn bytes(&self) -> usize {
        let lists = self.keys.values();
        let keys: usize = lists
            .map(|keys| size_of::<KeyVec>() + keys.len() * keys.width().bytes())
            .sum();
        let numbers = |own: &ShardReply| own.reply.values() as usize + own.lengths.len();
        keys + self.reply.as_ref().map_or(0, numbers) * size_of::<u64>()
    }

    fn add_reply(&mut self, more: ShardReply) -> Result<()> {
        let Some(own) = &mut self.reply else {
            self.reply = Some(more);
            return Ok(());
        };
        own.fingerprint.add(more.fingerprint);
        own.reply.merge(more.reply)?;
        if own.lengths.len() == more.lengths.len() {
            let lengths = own.lengths.iter_mut().zip(more.lengths);
            lengths.for_each(|(own, more)| *own = own.saturating_add(more));
        } else {
            // A partition without memory for its keys announces no lists.
            self.refused = true;
        }
        Ok(())
    }

    fn add_keys(&mut self, list: usize, keys: KeyVec) -> Result<()> {
        match self.keys.entry(list) {
            Entry::Occupied(own) => own.into_mut().append(keys),
            Entry::Vacant(none) => {
                none.insert(keys);
                Ok(())
            }
        }
    }

    /// The fingerprint and the merged reply with its keys, which have this width.
    fn finish(mut self, width: Width) -> Result<(ColumnFingerprint, Reply)> {
        let Some(mut own) = self.reply.take() else {
            return exec_err!("{READ_DIFFERENTLY}: keys came without a reply");
        };
        let lists = if self.refused {
            Vec::new()
        } else {
            self.lists(&own.lengths, width)?
        };
        match &mut own.reply {
            Reply::Counts { kept, .. } | Reply::Extracted(kept) => *kept = lists,
            _ if !lists.is_empty() => return exec_err!("{READ_DIFFERENTLY}: keys that were not asked for"),
            Reply::Sample { keys, .. } if keys.width() != width => return other_width(keys.width(), width),
            Reply::Sketch(Some(summary)) if summary.width() != width => {
                return other_width(summary.width(), width);
            }
            _ => {}
        }
        countable(own.fingerprint.n)?;
        Ok((own.fingerprint, own.reply))
    }

    /// The keys of each list, in order.
    ///
    /// # Errors
    /// An execution error unless exactly the announced keys have arrived.
    fn lists(&mut self, lengths: &[u64], width: Width) -> Result<Vec<KeyVec>> {
        let list = |(list, sent): (usize, &u64)| {
            let keys = self.keys.remove(&list).unwrap_or_else(|| KeyVec::new(width));
            if keys.len() as u64 == *sent && keys.width() == width {
                Ok(keys)
            } else {
                exec_err!(
                    "{READ_DIFFERENTLY}: of list {list} came {} keys of {} bytes, sent were {sent} of {} bytes",
                    keys.len(),
                    keys.width().bytes(),
                    width.bytes()
                )
            }
        };
        let lists = (0..).zip(lengths).map(list).collect::<Result<_>>()?;
        match self.keys.first_key_value() {
            Some((list, _)) => exec_err!("{READ_DIFFERENTLY}: keys of list {list}, which no partition sent"),
            None => Ok(lists),
        }
    }
}

#[cfg(test)]
mod tests {
    use datafusion::arrow::array::{ArrayRef, AsArray, BinaryArray};
    use datafusion::arrow::datatypes::{DataType, Schema};
    use datafusion::physical_plan::empty::EmptyExec;

    use super::super::columns::StagedCall;
    use super::super::cost::rounds;
    use super::super::rows::{KEYS_A_ROW, Rows};
    use super::super::workload::Workload;
    use super::*;
    use crate::config::StrategyName;
    use crate::quantile::QuantileSpec;
    use crate::quantile::{Method, Quantile};
    use crate::wire::{VERSION, put};

    /// A median of one column of 64-bit keys.
    fn columns() -> Arc<StagedColumns> {
        let call = StagedCall {
            column: 0,
            quantile_spec: QuantileSpec {
                quantiles: vec![Quantile::try_from_f64(0.5).unwrap()],
                method: Method::Disc,
                descending: false,
            },
            is_list: false,
            bounds: false,
        };
        let input = EmptyExec::new(Arc::new(Schema::empty()));
        let rounds = rounds(StrategyName::GkSelect, &Workload::of(&input, 1).unwrap()).unwrap();
        Arc::new(StagedColumns::try_new(vec![DataType::Int64], vec![call], rounds).unwrap())
    }

    /// The merged reply for key column 0.
    fn merged(batches: &[RecordBatch]) -> Result<(ColumnFingerprint, Reply)> {
        let mut merged = Merged::new(&columns());
        batches.iter().try_for_each(|batch| merged.add(batch))?;
        merged.take(0)
    }

    fn written(write: impl FnOnce(&mut Rows)) -> RecordBatch {
        let mut rows = Rows::default();
        write(&mut rows);
        rows.finish(&schema(&[]), &[]).unwrap().batches.remove(0)
    }

    fn keys(column: usize, number: usize, keys: KeyVec) -> RecordBatch {
        let list = List { column, number, keys };
        written(|rows| rows.keys(None, None, &[], std::iter::once(list)))
    }

    fn reply(lists: Vec<KeyVec>) -> RecordBatch {
        let read = ColumnFingerprint { n: 2, check: 7 };
        written(|rows| rows.reply(0, read, Reply::Extracted(lists)))
    }

    fn w64(keys: &[u64]) -> KeyVec {
        KeyVec::W64(keys.to_vec())
    }

    #[test]
    fn lists_come_back_whole_or_not_at_all() {
        let long: Vec<u64> = (0..KEYS_A_ROW as u64).collect();
        let lists = vec![w64(&long), w64(&[]), w64(&[4, 5])];
        let whole = reply(lists.clone());
        let (read, found) = merged(std::slice::from_ref(&whole)).unwrap();
        assert_eq!(
            (read, found),
            (ColumnFingerprint { n: 2, check: 7 }, Reply::Extracted(lists))
        );
        // The rows of the reply and of its two lists with keys.
        assert_eq!(whole.num_rows(), 3);
        for (rows, lost) in [
            (whole.slice(0, 2), "of list 2"),
            (whole.slice(1, 2), "without a reply"),
        ] {
            let error = merged(&[rows]).unwrap_err().strip_backtrace();
            assert!(
                error.contains(READ_DIFFERENTLY) && error.contains(lost),
                "{error}"
            );
        }
        let twice = merged(&[whole.clone(), whole.slice(2, 1)]).unwrap_err();
        assert!(twice.to_string().contains("came 4 keys"), "{twice}");
    }

    #[test]
    fn rows_of_another_version_are_refused() {
        let row = reply(Vec::new());
        let mut columns = row.columns().to_vec();
        let body = columns[1].as_binary::<i32>().value(0);
        let other: Vec<u8> = [&[VERSION + 1], &body[1..]].concat();
        columns[1] = Arc::new(BinaryArray::from_vec(vec![&other])) as ArrayRef;
        let error = merged(&[RecordBatch::try_new(schema(&[]), columns).unwrap()]).unwrap_err();
        assert!(error.to_string().contains("run the same version"), "{error}");
    }

    #[test]
    fn numbers_of_lists_are_not_taken_on_trust() {
        for (number, why) in [(usize::MAX, "list 18446744073709551615"), (1, "list 1")] {
            let error = merged(&[reply(vec![w64(&[4])]), keys(0, number, w64(&[1]))]).unwrap_err();
            assert!(error.to_string().contains(why), "{error}");
        }
        let narrow = merged(&[
            reply(vec![w64(&[4])]).slice(0, 1),
            keys(0, 0, KeyVec::W32(vec![4])),
        ]);
        assert!(narrow.unwrap_err().to_string().contains("1 keys of 4 bytes"));
        let other = merged(&[reply(vec![w64(&[4])]), keys(1, 0, w64(&[4]))]).unwrap_err();
        assert!(other.to_string().contains("key column 1 of 1"), "{other}");
        // More lists than there are bytes, and more values than there are numbers.
        let row = reply(Vec::new());
        let mut body = row.column(1).as_binary::<i32>().value(0).to_vec();
        assert_eq!(body.pop(), Some(0));
        put(&mut body, u64::MAX);
        let bodies: ArrayRef = Arc::new(BinaryArray::from_vec(vec![&body]));
        let many = RecordBatch::try_new(schema(&[]), vec![Arc::clone(row.column(0)), bodies]);
        let many = merged(&[many.unwrap()]).unwrap_err();
        assert!(many.to_string().contains("damaged"), "{many}");
        let read = |n| ColumnFingerprint { n, check: 0 };
        let of = |n| written(|rows| rows.reply(0, read(n), Reply::Extracted(Vec::new())));
        for replies in [vec![of(u64::MAX)], vec![of(1 << 62), of(1 << 62)]] {
            let error = merged(&replies).unwrap_err();
            assert!(error.to_string().contains("at most 2^63 - 1"), "{error}");
        }
    }
}
