//! Integers and bytes in order of hash partition, in memory or in a spill file.

use std::cell::RefCell;
use std::ops::Range;
use std::sync::Arc;

use datafusion::common::{Result, internal_err};

use super::group_key::HASH_PARTITIONS;
use crate::memory::{FreePages, Pages, SpillFile};

/// Columns side by side are written to the file once they have this many bytes.
pub(super) const WRITE_BYTES: usize = 256 << 10;

/// Two columns side by side are read at once if they have fewer bytes than this.
const TOGETHER_BYTES: usize = 64 << 10;

/// The index of the first row of each hash partition, and the number of all rows.
#[derive(Debug, Clone)]
pub(super) struct PartitionStarts(Arc<[u32]>);

impl PartitionStarts {
    /// The starts for the number of rows in each hash partition.
    pub(super) fn from_counts(counts: &[u32]) -> Self {
        let mut sum = 0;
        let ends = counts.iter().map(|count| {
            sum += count;
            sum
        });
        Self(std::iter::once(0).chain(ends).collect())
    }

    /// The index of the first row of each hash partition, and the number of all rows.
    pub(super) fn offsets(&self) -> &[u32] {
        &self.0
    }

    /// Number of rows of each hash partition.
    pub(super) fn lengths(&self) -> impl Iterator<Item = usize> + Clone {
        self.0.windows(2).map(|ends| (ends[1] - ends[0]) as usize)
    }

    /// The indices of the rows of a hash partition.
    pub(super) fn range(&self, partition: usize) -> Range<usize> {
        self.0[partition] as usize..self.0[partition + 1] as usize
    }

    /// Rows of all hash partitions.
    pub(super) fn rows(&self) -> usize {
        self.0.last().map_or(0, |end| *end as usize)
    }
}

/// Plain integers in order of hash partition.
pub(crate) struct Partitioned {
    pub(super) starts: PartitionStarts,
    storage: Storage,
}

/// The storage of integers or bytes.
pub(super) enum Storage {
    Memory(Pages<u8>),
    /// In the spill file of the scan.
    Disk(Place),
}

/// The place of a column in a spill file, where the columns of each hash partition lie side by side.
///
/// ```text
/// hash partition 0                 | hash partition 1
/// group keys | column 0 | column 1 | group keys | column 0 | ..
/// ```
#[derive(Debug, Clone, Copy)]
pub(super) struct Place {
    /// The offset of the first hash partition in the file.
    offset: u64,
    /// Bytes of a row in all columns.
    row: usize,
    /// Bytes of a row in the columns before this one.
    before: usize,
}

impl Place {
    /// The offset of a value of `size` bytes, of the hash partition that has the values in the range `partition`.
    fn offset(self, partition: &Range<usize>, value: usize, size: usize) -> u64 {
        let inside = partition.len() * self.before + (value - partition.start) * size;
        self.offset + (partition.start * self.row + inside) as u64
    }
}

impl Storage {
    /// Appends the values of type `T` in a range of indices, which lies in the range `partition` of the indices of a hash partition. `file` is
    /// the file that they were spilled to, if they were.
    pub(super) fn append<T: bytemuck::Pod>(
        &self,
        partition: &Range<usize>,
        Range { start, end }: Range<usize>,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        let size = size_of::<T>();
        match (self, file) {
            _ if start == end => {}
            (Storage::Memory(pages), _) => {
                out.extend_from_slice(bytemuck::cast_slice(&pages.words()[start * size..end * size]));
            }
            (Storage::Disk(place), Some(file)) => {
                let from = out.len();
                out.resize(from + (end - start), T::zeroed());
                let bytes = bytemuck::cast_slice_mut(&mut out[from..]);
                file.read_at(place.offset(partition, start, size), bytes)?;
            }
            (Storage::Disk(_), None) => return internal_err!("spilled rows without their file"),
        }
        Ok(())
    }

    /// Moves the first bytes, which are all that was written, to the end of `file`: as many as the hash partitions have, one after the other.
    pub(super) fn spill(
        &mut self,
        partitions: impl Iterator<Item = usize> + Clone,
        file: &mut SpillFile,
    ) -> Result<()> {
        if let Storage::Memory(pages) = self {
            let bytes: usize = partitions.clone().sum();
            let offset = file.append_pieces(&pages.words()[..bytes], partitions)?;
            let (row, before) = (1, 0);
            *self = Storage::Disk(Place { offset, row, before });
        }
        Ok(())
    }
}

/// Writes the columns of `runs` to the end of `file`, and returns them as they lie there: the first columns of all runs are one, and so on. `sizes`
/// has the bytes of a value of each column. Those of each hash partition lie side by side. All columns of a run have the same number of values
/// in each hash partition. The first two columns are one piece of the file, since they are read together.
pub(super) fn spill_together(
    runs: &[Vec<&Partitioned>],
    sizes: &[usize],
    file: &mut SpillFile,
) -> Result<Vec<Partitioned>> {
    let row: usize = sizes.iter().sum();
    let mut buffer = WriteBuffer::new(file);
    let offset = buffer.file.len();
    let mut counts = Vec::with_capacity(HASH_PARTITIONS);
    for partition in 0..HASH_PARTITIONS {
        let rows: usize = runs
            .iter()
            .filter_map(|run| run.first())
            .map(|column| column.partition_len(partition))
            .sum();
        buffer.begin(rows * row)?;
        for (column, size) in sizes.iter().enumerate() {
            for run in runs {
                buffer.add(run[column].bytes_in_memory(partition, *size)?)?;
            }
            // The first two are one piece.
            if column > 0 || sizes.len() == 1 {
                buffer.end_piece();
            }
        }
        counts.push(rows as u32);
    }
    buffer.write()?;
    let starts = PartitionStarts::from_counts(&counts);
    let mut before = 0;
    let column = |size: &usize| {
        let storage = Storage::Disk(Place { offset, row, before });
        before += size;
        let starts = starts.clone();
        Partitioned { starts, storage }
    };
    Ok(sizes.iter().map(column).collect())
}

/// Gathers short pieces of a file, so that they are written together.
struct WriteBuffer<'a> {
    file: &'a mut SpillFile,
    bytes: Vec<u8>,
    /// Lengths of the pieces of `bytes`.
    pieces: Vec<usize>,
    /// Bytes of all these pieces.
    ended: usize,
    /// Whether what is added is written directly.
    is_long: bool,
}

impl<'a> WriteBuffer<'a> {
    fn new(file: &'a mut SpillFile) -> Self {
        Self {
            file,
            bytes: Vec::with_capacity(2 * WRITE_BYTES),
            pieces: Vec::new(),
            ended: 0,
            is_long: false,
        }
    }

    /// Makes ready for pieces of `bytes` bytes in all, which are written directly if they are many.
    fn begin(&mut self, bytes: usize) -> Result<()> {
        self.is_long = bytes >= WRITE_BYTES;
        if self.is_long || self.bytes.len() >= WRITE_BYTES {
            self.write()?;
        }
        Ok(())
    }

    /// Adds bytes of a piece.
    fn add(&mut self, bytes: &[u8]) -> Result<()> {
        if self.is_long {
            self.file.append(bytes)?;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
        Ok(())
    }

    fn end_piece(&mut self) {
        self.pieces.push(self.bytes.len() - self.ended);
        self.ended = self.bytes.len();
    }

    /// Writes what was gathered.
    fn write(&mut self) -> Result<()> {
        self.file.append_pieces(&self.bytes, self.pieces.drain(..))?;
        self.bytes.clear();
        self.ended = 0;
        Ok(())
    }
}

thread_local! {
    /// The buffer for columns that are read together, of [`TOGETHER_BYTES`].
    static TOGETHER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Appends the values that two columns of the same rows have in a hash partition. Where they lie side by side in `file`, they are read at once.
pub(super) fn append_together<A: bytemuck::Pod, B: bytemuck::Pod>(
    (a, b): (&Partitioned, &Partitioned),
    partition: usize,
    file: Option<&SpillFile>,
    (to_a, to_b): (&mut Vec<A>, &mut Vec<B>),
) -> Result<()> {
    let rows = a.starts.range(partition);
    let length = rows.len() * (size_of::<A>() + size_of::<B>());
    if let (Storage::Disk(at), Storage::Disk(next), Some(file)) = (&a.storage, &b.storage, file)
        && at.offset == next.offset
        && at.before + size_of::<A>() == next.before
        && (1..TOGETHER_BYTES).contains(&length)
    {
        return TOGETHER.with_borrow_mut(|bytes| {
            bytes.resize(TOGETHER_BYTES, 0);
            let bytes = &mut bytes[..length];
            file.read_at(at.offset(&rows, rows.start, size_of::<A>()), bytes)?;
            let (of_a, of_b) = bytes.split_at(rows.len() * size_of::<A>());
            append_bytes(of_a, to_a);
            append_bytes(of_b, to_b);
            Ok(())
        });
    }
    a.append_partition(partition, file, to_a)?;
    b.append_partition(partition, file, to_b)
}

/// Appends values that lie in `bytes`.
fn append_bytes<T: bytemuck::Pod>(bytes: &[u8], out: &mut Vec<T>) {
    let values = bytes.chunks_exact(size_of::<T>());
    out.extend(values.map(bytemuck::pod_read_unaligned::<T>));
}

impl Partitioned {
    /// Values of type `T`, one for each row, which `fill` writes.
    ///
    /// # Errors
    /// When the system gives no memory.
    pub(super) fn filled<T: bytemuck::Pod>(
        starts: &PartitionStarts,
        free: Option<&Arc<FreePages>>,
        fill: impl FnOnce(&mut [T]),
    ) -> Result<Self> {
        let bytes = starts.rows() * size_of::<T>();
        let mut pages = Pages::new(bytes, free)?;
        fill(bytemuck::cast_slice_mut(&mut pages.words_mut()[..bytes]));
        Ok(Self {
            starts: starts.clone(),
            storage: Storage::Memory(pages),
        })
    }

    /// Moves the values, of `size` bytes each, to the end of `file`.
    ///
    /// # Errors
    /// Errors of writing the file.
    pub(super) fn spill(&mut self, size: usize, file: &mut SpillFile) -> Result<()> {
        let on_disk = spill_together(&[vec![self]], &[size], file)?;
        for column in on_disk {
            *self = column;
        }
        Ok(())
    }

    /// The bytes of the values of a hash partition, `size` bytes each.
    ///
    /// # Errors
    /// An internal error if they are spilled.
    fn bytes_in_memory(&self, partition: usize, size: usize) -> Result<&[u8]> {
        let Storage::Memory(pages) = &self.storage else {
            return internal_err!("rows that are spilled already");
        };
        let rows = self.starts.range(partition);
        Ok(&pages.words()[rows.start * size..rows.end * size])
    }

    /// Appends the values of a hash partition. `T` is the type that was written. `file` is the file that they were
    /// spilled to, if they were.
    pub(crate) fn append_partition<T: bytemuck::Pod>(
        &self,
        partition: usize,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        let rows = self.starts.range(partition);
        self.storage.append(&rows, rows.clone(), file, out)
    }

    /// Replaces `out` by the values in a range of a hash partition. `range` counts from the first row of the hash
    /// partition.
    pub(crate) fn read<T: bytemuck::Pod>(
        &self,
        partition: usize,
        range: Range<usize>,
        file: Option<&SpillFile>,
        out: &mut Vec<T>,
    ) -> Result<()> {
        out.clear();
        let rows = self.starts.range(partition);
        let range = rows.start + range.start..rows.start + range.end;
        self.storage.append(&rows, range, file, out)
    }

    /// Number of values in a hash partition.
    pub(crate) fn partition_len(&self, partition: usize) -> usize {
        self.starts.range(partition).len()
    }
}

#[cfg(test)]
mod tests {
    use datafusion::execution::runtime_env::RuntimeEnv;

    use super::*;
    use crate::memory::Spiller;

    fn columns(starts: &PartitionStarts) -> (Partitioned, Partitioned, Partitioned) {
        fn column<T: bytemuck::Pod>(starts: &PartitionStarts, value: impl Fn(u64) -> T) -> Partitioned {
            let fill = |out: &mut [T]| {
                for (row, out) in out.iter_mut().enumerate() {
                    *out = value(row as u64 * 7919);
                }
            };
            Partitioned::filled(starts, None, fill).unwrap()
        }
        (
            column(starts, |row| row as u32),
            column(starts, |row| row << 20),
            column(starts, |row| u128::from(row) << 70),
        )
    }

    /// Columns that lie side by side give back what they were filled with: whole hash partitions, ranges, and two columns at once.
    #[test]
    fn columns_side_by_side_come_back() {
        let lengths: Vec<u32> = (0..HASH_PARTITIONS as u32)
            .map(|partition| match partition % 5 {
                0 => 0,
                1 => 1,
                2 => partition,
                _ if partition == 503 => 3 * WRITE_BYTES as u32,
                _ => 300,
            })
            .collect();
        let starts = PartitionStarts::from_counts(&lengths);
        let (a, b, c) = columns(&starts);
        let mut file = Spiller::new(&RuntimeEnv::default()).create("test").unwrap();
        file.append(b"something before").unwrap();
        let on_disk = spill_together(&[vec![&a, &b, &c]], &[4, 8, 16], &mut file).unwrap();
        let [on_disk_a, on_disk_b, on_disk_c] = &on_disk[..] else {
            panic!("{} columns", on_disk.len());
        };
        assert_eq!(file.len(), 16 + 28 * starts.rows() as u64);
        let file = Some(&file);
        for (partition, rows) in lengths.iter().map(|rows| *rows as usize).enumerate() {
            let (mut group_keys, mut keys) = ([vec![9_u32], Vec::new()], [vec![9_u64], Vec::new()]);
            let to = (&mut group_keys[0], &mut keys[0]);
            append_together((on_disk_a, on_disk_b), partition, file, to).unwrap();
            a.append_partition(partition, None, &mut group_keys[1]).unwrap();
            b.append_partition(partition, None, &mut keys[1]).unwrap();
            assert_eq!(group_keys[0][1..], group_keys[1]);
            assert_eq!(keys[0][1..], keys[1]);
            let (mut read, mut kept) = (Vec::<u128>::new(), Vec::new());
            for range in [0..rows, rows / 3..rows / 2] {
                on_disk_c.read(partition, range.clone(), file, &mut read).unwrap();
                c.read(partition, range, None, &mut kept).unwrap();
                assert_eq!(read, kept);
            }
        }
        let error = on_disk_a
            .append_partition(1, None, &mut Vec::<u32>::new())
            .unwrap_err();
        assert!(error.to_string().contains("without their file"), "{error}");
        let mut other = Spiller::new(&RuntimeEnv::default()).create("test").unwrap();
        assert!(spill_together(&[vec![on_disk_a]], &[4], &mut other).is_err());
    }

    /// The rows of several runs become those of one: in each hash partition those of the first run come first.
    #[test]
    fn columns_of_several_runs_become_one() {
        let lengths = |run: u32| -> Vec<u32> {
            let length = |partition: u32| match (partition + run) % 7 {
                0 => 0,
                1 if partition == 400 => WRITE_BYTES as u32 / 8,
                odd => 40 * odd,
            };
            (0..HASH_PARTITIONS as u32).map(length).collect()
        };
        let starts: Vec<PartitionStarts> = (0..3)
            .map(|run| PartitionStarts::from_counts(&lengths(run)))
            .collect();
        let runs: Vec<_> = starts.iter().map(columns).collect();
        let mut file = Spiller::new(&RuntimeEnv::default()).create("test").unwrap();
        let borrowed: Vec<Vec<&Partitioned>> = runs.iter().map(|(a, b, _)| vec![a, b]).collect();
        let on_disk = spill_together(&borrowed, &[4, 8], &mut file).unwrap();
        let rows: usize = starts.iter().map(PartitionStarts::rows).sum();
        assert_eq!(file.len(), 12 * rows as u64);
        for partition in 0..HASH_PARTITIONS {
            let (mut read, mut kept) = ((Vec::new(), Vec::new()), (Vec::<u32>::new(), Vec::<u64>::new()));
            let to = (&mut read.0, &mut read.1);
            append_together((&on_disk[0], &on_disk[1]), partition, Some(&file), to).unwrap();
            for (a, b, _) in &runs {
                a.append_partition(partition, None, &mut kept.0).unwrap();
                b.append_partition(partition, None, &mut kept.1).unwrap();
            }
            assert_eq!(read, kept, "hash partition {partition}");
        }
    }
}
