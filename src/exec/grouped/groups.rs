//! Numbers and words for the groups of one scan.

use std::sync::Arc;

use datafusion::arrow::array::{ArrayRef, RecordBatch};
use datafusion::arrow::datatypes::SchemaRef;
use datafusion::common::hash_utils::{RandomState, create_hashes};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::EmitTo;
use datafusion::physical_plan::aggregates::group_values::{GroupValues, new_group_values};
use datafusion::physical_plan::aggregates::order::GroupOrdering;

use super::packing::Packing;
use crate::kernel::cpu::columns::row_bytes;
use crate::kernel::cpu::groups::words::{GroupTable, NULL_PART, Word, part_of};

/// The seed of hashes that choose parts: the same in all scans.
pub(in crate::exec) const SEED: u64 = 0x1337;

/// How the groups of a scan are told apart.
pub(in crate::exec) enum Grouping<W> {
    /// By words that the group columns are packed into.
    Packed {
        packing: Packing,
        table: GroupTable<W>,
        /// Number of the group without a word.
        null: Option<u32>,
    },
    /// By DataFusion's own tables, for columns of any type: a word is the number of the group in this scan.
    Interned {
        values: Box<dyn GroupValues>,
        schema: SchemaRef,
        parts: Vec<u16>,
        hashes: Vec<u64>,
        /// What [`Self::values`] has taken from the table, which is empty from then on.
        taken: Option<Vec<ArrayRef>>,
    },
}

impl<W: Word> Grouping<W> {
    /// For group columns that are packed, or of this schema.
    pub(in crate::exec) fn try_new(packing: Option<&Packing>, schema: SchemaRef) -> Result<Self> {
        Ok(match packing {
            Some(packing) => Grouping::Packed {
                packing: packing.clone(),
                table: GroupTable::for_rows(),
                null: None,
            },
            None => Grouping::Interned {
                values: group_values(Arc::clone(&schema))?,
                schema,
                parts: Vec::new(),
                hashes: Vec::new(),
                taken: None,
            },
        })
    }

    /// Whether rows have numbers even when groups are many.
    pub(super) fn numbers_every_row(&self) -> bool {
        matches!(self, Grouping::Interned { .. })
    }

    /// Groups that have a number.
    pub(in crate::exec) fn len(&self) -> usize {
        match self {
            Grouping::Packed { table, .. } => table.len(),
            Grouping::Interned { parts, .. } => parts.len(),
        }
    }

    /// Bytes held.
    pub(in crate::exec) fn bytes(&self) -> usize {
        match self {
            Grouping::Packed { table, .. } => table.bytes(),
            Grouping::Interned {
                values,
                parts,
                hashes,
                taken,
                ..
            } => {
                let taken = taken.iter().flatten().map(row_bytes).sum::<usize>();
                let places = parts.capacity() * size_of::<u16>() + hashes.capacity() * size_of::<u64>();
                values.size() + taken + places
            }
        }
    }

    /// The number of each row's group.
    pub(in crate::exec) fn number(&mut self, columns: &[ArrayRef], ids: &mut Vec<usize>) -> Result<()> {
        match self {
            Grouping::Packed { packing, table, null } => {
                let (words, nulls) = packing.words::<W>(columns)?;
                ids.clear();
                let Some(nulls) = nulls else {
                    ids.extend(words.iter().map(|word| table.id(*word) as usize));
                    return Ok(());
                };
                for (row, word) in words.iter().enumerate() {
                    let id = match nulls.is_null(row) {
                        true => *null.get_or_insert_with(|| table.without_word()),
                        false => table.id(*word),
                    };
                    ids.push(id as usize);
                }
            }
            Grouping::Interned {
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
                        parts[*id] = part_of(hash.hash_word());
                    }
                }
            }
        }
        Ok(())
    }

    /// The word and the part of each row's group; `ids` as [`Self::number`] gave them, where it numbers every row.
    pub(super) fn words(
        &self,
        columns: &[ArrayRef],
        ids: &[usize],
        words: &mut Vec<W>,
        into: &mut Vec<u16>,
    ) -> Result<()> {
        match self {
            Grouping::Packed { packing, .. } => {
                *words = packing.place(columns, into)?;
            }
            Grouping::Interned { parts, .. } => {
                words.extend(ids.iter().map(|id| W::from_bits(*id as u128)));
                into.extend(ids.iter().map(|id| parts[*id]));
            }
        }
        Ok(())
    }

    /// The word of each numbered group.
    pub(super) fn group_words(&self) -> Vec<W> {
        match self {
            Grouping::Packed { table, .. } => table.words().to_vec(),
            Grouping::Interned { parts, .. } => (0..parts.len()).map(|id| W::from_bits(id as u128)).collect(),
        }
    }

    /// The part of each numbered group.
    pub(in crate::exec) fn group_parts(&self) -> Vec<u16> {
        match self {
            Grouping::Packed { table, null, .. } => {
                let words = table.words().iter();
                let mut parts: Vec<u16> = words.map(|word| part_of(word.hash_word())).collect();
                if let Some(null) = null {
                    parts[*null as usize] = NULL_PART;
                }
                parts
            }
            Grouping::Interned { parts, .. } => parts.clone(),
        }
    }

    /// Appends the part of each row's group, which needs no number.
    pub(in crate::exec) fn parts_of(&self, columns: &[ArrayRef], into: &mut Vec<u16>) -> Result<()> {
        match self {
            Grouping::Packed { packing, .. } => packing.place::<W>(columns, into).map(drop),
            Grouping::Interned { .. } => {
                let mut hashes = vec![0; columns.first().map_or(0, |column| column.len())];
                create_hashes(columns, &RandomState::with_seed(SEED), &mut hashes)?;
                into.extend(hashes.iter().map(|hash| part_of(hash.hash_word())));
                Ok(())
            }
        }
    }

    /// Drops the numbers.
    pub(super) fn forget(&mut self) {
        if let Grouping::Packed { table, null, .. } = self {
            (*table, *null) = (GroupTable::new(), None);
        }
    }

    /// The values of the numbered groups, which keep their numbers. No more are numbered then.
    pub(in crate::exec) fn values(&mut self) -> Result<Vec<ArrayRef>> {
        match self {
            Grouping::Packed { packing, table, null } => {
                packing.columns(table.words(), null.map(|null| null as usize))
            }
            // Tables that have seen no row have nothing to give: DataFusion's for rows panics.
            Grouping::Interned { schema, parts, .. } if parts.is_empty() => {
                Ok(RecordBatch::new_empty(Arc::clone(schema)).columns().to_vec())
            }
            Grouping::Interned {
                taken: Some(taken), ..
            } => Ok(taken.clone()),
            Grouping::Interned {
                values,
                schema,
                taken,
                ..
            } => {
                let columns = values.emit(EmitTo::All)?;
                *values = group_values(Arc::clone(schema))?;
                Ok(taken.insert(columns).clone())
            }
        }
    }
}

/// An empty table of DataFusion's for the group columns.
pub(in crate::exec) fn group_values(schema: SchemaRef) -> Result<Box<dyn GroupValues>> {
    new_group_values(schema, &GroupOrdering::None)
}
