//! Numbers for groups.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::{FieldRef, Schema, SchemaRef};
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::{Result, internal_err, resources_datafusion_err};
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::packing::Packing;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::group_key::{GroupKey, GroupTable, NULL_PARTITION, hash_partition_of};
use crate::key::Width;

/// The seed of hashes that choose hash partitions: the same in all scans.
const SEED: u64 = 0x1337;

/// Columns that rows are grouped by.
#[derive(Debug)]
pub(in crate::exec) struct GroupColumns {
    schema: SchemaRef,
    /// How they become group keys; `None` where those would not fit in 128 bits.
    packing: Option<Packing>,
}

impl GroupColumns {
    /// Columns like `fields`.
    pub(in crate::exec) fn new(fields: Vec<FieldRef>) -> Self {
        Self {
            packing: Packing::try_new(&fields),
            schema: Arc::new(Schema::new(fields)),
        }
    }

    pub(in crate::exec) fn is_packed(&self) -> bool {
        self.packing.is_some()
    }

    /// Width of group keys. Groups that DataFusion numbers have keys of 32 bits.
    pub(in crate::exec) fn width(&self) -> Width {
        let packing = self.packing.as_ref();
        packing.map_or(Width::W32, |packing| packing.width())
    }

    /// No group yet, and many rows of each.
    pub(in crate::exec) fn ids<W: GroupKey>(&self) -> Result<GroupIds<W>> {
        self.ids_in(GroupTable::for_rows())
    }

    /// No group of a hash partition yet.
    pub(in crate::exec) fn partition_ids<W: GroupKey>(&self) -> Result<GroupIds<W>> {
        self.ids_in(GroupTable::new())
    }

    fn ids_in<W: GroupKey>(&self, table: GroupTable<W>) -> Result<GroupIds<W>> {
        Ok(match &self.packing {
            Some(packing) => GroupIds::Packed {
                packing: packing.clone(),
                table,
                null: None,
            },
            None => GroupIds::Interned {
                values: group_values(&self.schema)?,
                schema: Arc::clone(&self.schema),
                parts: Vec::new(),
                hashes: Vec::new(),
                taken: None,
            },
        })
    }
}

/// An empty table of DataFusion's for the group columns.
fn group_values(schema: &SchemaRef) -> Result<Box<dyn GroupValues>> {
    new_group_values(Arc::clone(schema), &GroupOrdering::None)
}

/// Numbers of groups, from 0 in the order of their first rows.
pub(in crate::exec) enum GroupIds<W> {
    /// Told apart by keys that the group columns are packed into.
    Packed {
        packing: Packing,
        table: GroupTable<W>,
        /// Number of the group without a key.
        null: Option<u32>,
    },
    /// Told apart by DataFusion's own tables, for columns of any type. The key of a group is its number here.
    Interned {
        values: Box<dyn GroupValues>,
        schema: SchemaRef,
        /// The hash partition of each group that [`Self::number`] has numbered.
        parts: Vec<u16>,
        hashes: Vec<u64>,
        /// What [`Self::values`] has taken from the table, which is empty from then on.
        taken: Option<Vec<ArrayRef>>,
    },
}

impl<W: GroupKey> GroupIds<W> {
    /// Whether groups are told apart by packed keys.
    pub(in crate::exec) fn is_packed(&self) -> bool {
        matches!(self, GroupIds::Packed { .. })
    }

    /// Groups that have a number.
    pub(in crate::exec) fn len(&self) -> usize {
        match self {
            GroupIds::Packed { table, .. } => table.len(),
            GroupIds::Interned { values, taken, .. } => match taken {
                Some(taken) => taken.first().map_or(0, |column| column.len()),
                None => values.len(),
            },
        }
    }

    /// Bytes held.
    pub(in crate::exec) fn bytes(&self) -> usize {
        match self {
            GroupIds::Packed { table, .. } => table.bytes(),
            GroupIds::Interned {
                values,
                parts,
                hashes,
                taken,
                ..
            } => {
                let taken = taken.iter().flatten().map(row_bytes).sum::<usize>();
                let by_group = parts.capacity() * size_of::<u16>() + hashes.capacity() * size_of::<u64>();
                values.size() + taken + by_group
            }
        }
    }

    /// The number of each row's group.
    ///
    /// # Errors
    /// DataFusion's; an internal error once [`Self::values`] were taken.
    pub(in crate::exec) fn number(&mut self, columns: &[ArrayRef], ids: &mut Vec<usize>) -> Result<()> {
        match self {
            GroupIds::Packed { packing, table, null } => {
                let (words, nulls) = packing.words::<W>(columns)?;
                ids.clear();
                let Some(nulls) = nulls else {
                    ids.extend(words.iter().map(|word| table.id(*word) as usize));
                    return Ok(());
                };
                for (row, word) in words.iter().enumerate() {
                    let id = if nulls.is_null(row) {
                        *null.get_or_insert_with(|| table.without_word())
                    } else {
                        table.id(*word)
                    };
                    ids.push(id as usize);
                }
            }
            GroupIds::Interned {
                values,
                parts,
                hashes,
                taken,
                ..
            } => {
                if taken.is_some() {
                    return internal_err!("groups are numbered after their values were taken");
                }
                values.intern(columns, ids)?;
                let known = parts.len();
                if values.len() > known {
                    hashes.clear();
                    hashes.resize(ids.len(), 0);
                    create_hashes(columns, &RandomState::with_seed(SEED), hashes)?;
                    parts.resize(values.len(), 0);
                    // Numbers come in any order: a group whose hash is that of another waits until the others are numbered.
                    for (id, hash) in ids.iter().zip(&*hashes).filter(|(id, _)| **id >= known) {
                        parts[*id] = hash_partition_of(hash.hash_key());
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends the number of each row's group to `ids`, of rows of one hash partition: by their group keys, or by `columns`
    /// where those are not packed.
    ///
    /// # Errors
    /// DataFusion's.
    pub(in crate::exec) fn number_in(
        &mut self,
        part: usize,
        keys: &[W],
        columns: &[ArrayRef],
        ids: &mut Vec<u32>,
    ) -> Result<()> {
        match self {
            GroupIds::Packed { table, null, .. } if part == usize::from(NULL_PARTITION) => {
                if !keys.is_empty() {
                    let id = *null.get_or_insert_with(|| table.without_word());
                    ids.resize(ids.len() + keys.len(), id);
                }
            }
            GroupIds::Packed { table, .. } => ids.extend(keys.iter().map(|key| table.id(*key))),
            GroupIds::Interned { values, .. } => {
                let mut own = Vec::with_capacity(keys.len());
                values.intern(columns, &mut own)?;
                ids.extend(own.into_iter().map(|id| id as u32));
            }
        }
        Ok(())
    }

    /// The key and the hash partition of each row's group. Where keys are not packed, they are the numbers `ids`, as
    /// [`Self::number`] gave them, or without those all 0.
    ///
    /// # Errors
    /// An internal error for columns of other types; those of hashing.
    pub(in crate::exec) fn place(
        &self,
        columns: &[ArrayRef],
        ids: Option<&[usize]>,
    ) -> Result<(Vec<W>, Vec<u16>)> {
        let mut into = Vec::new();
        let keys = match (self, ids) {
            (GroupIds::Packed { packing, .. }, _) => packing.place(columns, &mut into)?,
            (GroupIds::Interned { parts, .. }, Some(ids)) => {
                into.extend(ids.iter().map(|id| parts[*id]));
                ids.iter().map(|id| W::from_bits(*id as u128)).collect()
            }
            (GroupIds::Interned { .. }, None) => {
                self.hash_partitions_of(columns, &mut into)?;
                vec![W::default(); into.len()]
            }
        };
        Ok((keys, into))
    }

    /// Appends the hash partition of each row's group, which needs no number.
    ///
    /// # Errors
    /// As for [`Self::place`].
    pub(in crate::exec) fn hash_partitions_of(
        &self,
        columns: &[ArrayRef],
        into: &mut Vec<u16>,
    ) -> Result<()> {
        match self {
            GroupIds::Packed { packing, .. } => packing.place::<W>(columns, into).map(drop),
            GroupIds::Interned { .. } => {
                let mut hashes = vec![0; columns.first().map_or(0, |column| column.len())];
                create_hashes(columns, &RandomState::with_seed(SEED), &mut hashes)
                    .map_err(|error| resources_datafusion_err!("cannot hash the groups: {error}"))?;
                into.extend(hashes.iter().map(|hash| hash_partition_of(hash.hash_key())));
                Ok(())
            }
        }
    }

    /// The key of each group.
    pub(in crate::exec) fn keys(&self) -> Vec<W> {
        match self {
            GroupIds::Packed { table, .. } => table.words().to_vec(),
            GroupIds::Interned { .. } => (0..self.len()).map(|id| W::from_bits(id as u128)).collect(),
        }
    }

    /// The hash partition of each group.
    pub(in crate::exec) fn group_partitions(&self) -> Vec<u16> {
        match self {
            GroupIds::Packed { table, null, .. } => {
                let words = table.words().iter();
                let mut parts: Vec<u16> = words.map(|word| hash_partition_of(word.hash_key())).collect();
                if let Some(null) = null {
                    parts[*null as usize] = NULL_PARTITION;
                }
                parts
            }
            GroupIds::Interned { parts, .. } => parts.clone(),
        }
    }

    /// Forgets all groups. Memory for packed keys is kept.
    ///
    /// # Errors
    /// DataFusion's.
    pub(in crate::exec) fn clear(&mut self) -> Result<()> {
        match self {
            GroupIds::Packed { table, null, .. } => {
                table.clear();
                *null = None;
            }
            GroupIds::Interned {
                values,
                schema,
                parts,
                taken,
                ..
            } => {
                parts.clear();
                if taken.take().is_none() {
                    *values = group_values(schema)?;
                }
            }
        }
        Ok(())
    }

    /// Forgets all groups and gives their memory back.
    ///
    /// # Errors
    /// As for [`Self::clear`].
    pub(in crate::exec) fn free(&mut self) -> Result<()> {
        match self {
            GroupIds::Packed { table, null, .. } => (*table, *null) = (GroupTable::new(), None),
            GroupIds::Interned { parts, hashes, .. } => {
                (*parts, *hashes) = (Vec::new(), Vec::new());
                self.clear()?;
            }
        }
        Ok(())
    }

    /// The columns of the numbered groups, which keep their numbers. No more are numbered then.
    ///
    /// # Errors
    /// DataFusion's.
    pub(in crate::exec) fn values(&mut self) -> Result<Vec<ArrayRef>> {
        match self {
            GroupIds::Packed { packing, table, null } => {
                packing.columns(table.words(), null.map(|null| null as usize))
            }
            GroupIds::Interned {
                taken: Some(taken), ..
            } => Ok(taken.clone()),
            // Tables that have seen no row have nothing to give: DataFusion's for rows panics.
            GroupIds::Interned { values, schema, .. } if values.is_empty() => {
                Ok(RecordBatch::new_empty(Arc::clone(schema)).columns().to_vec())
            }
            GroupIds::Interned {
                values,
                schema,
                taken,
                ..
            } => {
                let columns = values.emit(EmitTo::All)?;
                *values = group_values(schema)?;
                Ok(taken.insert(columns).clone())
            }
        }
    }

    /// The columns of the numbered groups, and their numbers by key for reading from several threads.
    ///
    /// # Errors
    /// As for [`Self::values`].
    pub(in crate::exec) fn freeze(mut self) -> Result<(Vec<ArrayRef>, FrozenIds<W>)> {
        let columns = self.values()?;
        let frozen = match self {
            GroupIds::Packed { table, null, .. } => FrozenIds { table, null },
            GroupIds::Interned { .. } => FrozenIds {
                table: GroupTable::new(),
                null: None,
            },
        };
        Ok((columns, frozen))
    }
}

/// Numbers of the groups of one hash partition by packed key, none of which are new any more.
pub(in crate::exec) struct FrozenIds<W> {
    table: GroupTable<W>,
    /// That of the only group, if it has no key.
    null: Option<u32>,
}

impl<W: GroupKey> FrozenIds<W> {
    /// The number of the group with this key.
    pub(in crate::exec) fn find(&self, key: W) -> Option<u32> {
        self.null.or_else(|| self.table.find(key))
    }
}
