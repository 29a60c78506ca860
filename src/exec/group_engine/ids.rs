//! Numbers of groups: each distinct row of the group columns gets one.

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

/// Seed of the hashes that choose hash partitions. All scans use the same.
const SEED: u64 = 0x1337;

/// The columns that rows are grouped by.
#[derive(Debug)]
pub(in crate::exec) struct GroupColumns {
    schema: SchemaRef,
    /// How group columns become packed group keys; `None` if those would not fit in 128 bits.
    packing: Option<Packing>,
}

impl GroupColumns {
    /// Group columns with these fields.
    pub(in crate::exec) fn new(fields: Vec<FieldRef>) -> Self {
        Self {
            packing: Packing::try_new(&fields),
            schema: Arc::new(Schema::new(fields)),
        }
    }

    /// Whether group columns are packed into group keys.
    pub(in crate::exec) fn is_packed(&self) -> bool {
        self.packing.is_some()
    }

    /// Width of group keys: 32 bits where they are not packed.
    pub(in crate::exec) fn width(&self) -> Width {
        let packing = self.packing.as_ref();
        packing.map_or(Width::W32, |packing| packing.width())
    }

    /// An empty numbering, made for many rows of each group.
    pub(in crate::exec) fn ids<W: GroupKey>(&self) -> Result<GroupIds<W>> {
        self.ids_in(GroupTable::for_rows())
    }

    /// An empty numbering for the groups of one hash partition.
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

/// An empty table of DataFusion's for values of the group columns.
fn group_values(schema: &SchemaRef) -> Result<Box<dyn GroupValues>> {
    new_group_values(Arc::clone(schema), &GroupOrdering::None)
}

/// Numbers of groups, counted from 0 in the order of their first rows.
pub(in crate::exec) enum GroupIds<W> {
    /// Groups are told apart by group keys, into which the group columns are packed.
    Packed {
        packing: Packing,
        table: GroupTable<W>,
        /// Number of the group without a key, which is NULL.
        null: Option<u32>,
    },
    /// Groups are told apart by DataFusion's own tables, which take columns of any type. The key of a group is its number.
    Interned {
        values: Box<dyn GroupValues>,
        schema: SchemaRef,
        /// The hash partition of each group that [`Self::number`] has numbered.
        parts: Vec<u16>,
        /// Buffer for the hashes of a batch.
        hashes: Vec<u64>,
        /// Group columns that [`Self::values`] has taken from the table, which is empty from then on.
        taken: Option<Vec<ArrayRef>>,
    },
}

impl<W: GroupKey> GroupIds<W> {
    /// Whether groups are told apart by packed keys.
    pub(in crate::exec) fn is_packed(&self) -> bool {
        matches!(self, GroupIds::Packed { .. })
    }

    /// Number of groups that have a number.
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

    /// Sets `ids` to the number of each row's group. New groups get the next numbers.
    ///
    /// # Errors
    /// DataFusion's; an internal error after [`Self::values`] has been called.
    pub(in crate::exec) fn number(&mut self, columns: &[ArrayRef], ids: &mut Vec<usize>) -> Result<()> {
        match self {
            GroupIds::Packed { packing, table, null } => {
                let (keys, nulls) = packing.keys::<W>(columns)?;
                ids.clear();
                let Some(nulls) = nulls else {
                    ids.extend(keys.iter().map(|key| table.id(*key) as usize));
                    return Ok(());
                };
                for (row, key) in keys.iter().enumerate() {
                    let id = if nulls.is_null(row) {
                        *null.get_or_insert_with(|| table.without_key())
                    } else {
                        table.id(*key)
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
                    // New numbers come in any order: DataFusion numbers a group whose hash another group has after the others.
                    for (id, hash) in ids.iter().zip(&*hashes).filter(|(id, _)| **id >= known) {
                        parts[*id] = hash_partition_of(hash.hash_key());
                    }
                }
            }
        }
        Ok(())
    }

    /// Appends to `ids` the number of each row's group, for rows of one hash partition. Groups are told apart by `keys`, or by
    /// `columns` where keys are not packed.
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
                    let id = *null.get_or_insert_with(|| table.without_key());
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

    /// The group key and the hash partition of each row. Where keys are not packed, the key is the number in `ids`, as
    /// [`Self::number`] gave it; without `ids`, it is 0.
    ///
    /// # Errors
    /// An internal error for columns of other types; errors of hashing.
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

    /// Appends to `into` the hash partition of each row's group. The group need not have a number.
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

    /// The key of each group, by number.
    pub(in crate::exec) fn keys(&self) -> Vec<W> {
        match self {
            GroupIds::Packed { table, .. } => table.group_keys().to_vec(),
            GroupIds::Interned { .. } => (0..self.len()).map(|id| W::from_bits(id as u128)).collect(),
        }
    }

    /// The hash partition of each group, by number.
    pub(in crate::exec) fn group_partitions(&self) -> Vec<u16> {
        match self {
            GroupIds::Packed { table, null, .. } => {
                let keys = table.group_keys().iter();
                let mut parts: Vec<u16> = keys.map(|key| hash_partition_of(key.hash_key())).collect();
                if let Some(null) = null {
                    parts[*null as usize] = NULL_PARTITION;
                }
                parts
            }
            GroupIds::Interned { parts, .. } => parts.clone(),
        }
    }

    /// Forgets all groups, and keeps the memory of packed keys for further ones.
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

    /// The group columns, with one value for each group, by number. Where keys are not packed, no more groups can be numbered after
    /// that.
    ///
    /// # Errors
    /// DataFusion's.
    pub(in crate::exec) fn values(&mut self) -> Result<Vec<ArrayRef>> {
        match self {
            GroupIds::Packed { packing, table, null } => {
                packing.columns(table.group_keys(), null.map(|null| null as usize))
            }
            GroupIds::Interned {
                taken: Some(taken), ..
            } => Ok(taken.clone()),
            // DataFusion's table for rows panics if it is to give values before its first row.
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

    /// The group columns, with one value for each group, and the numbers of groups by key, which several threads may read.
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

/// Numbers of the groups of one hash partition by packed key. No group is added any more.
pub(in crate::exec) struct FrozenIds<W> {
    table: GroupTable<W>,
    /// Number of the only group, if that has no key.
    null: Option<u32>,
}

impl<W: GroupKey> FrozenIds<W> {
    /// Number of the group with this key; `None` if there is no such group.
    pub(in crate::exec) fn find(&self, key: W) -> Option<u32> {
        self.null.or_else(|| self.table.find(key))
    }
}
