//! Reader of one hash partition, which ranks the rows of each group.

use datafusion::arrow::array::ArrayRef;
use datafusion::arrow::buffer::Buffer;
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::ColumnarValue;

use super::super::group_engine::GroupIds;
use super::any_sieve::{AnySieve, BestRows};
use super::plan::TopKPlan;
use crate::kernel::cpu::groups::group_key::GroupKey;
use crate::kernel::cpu::groups::runs::Run;
use crate::key::{Width, with_key};
use crate::memory::SpillFile;

/// Numbers the groups of one hash partition and finds their best rows. It uses its memory again for the next hash partition.
pub(super) struct PartitionReader<W> {
    pub(super) groups: GroupIds<W>,
    pub(super) sieve: AnySieve,
    group_keys: Vec<W>,
    ids: Vec<u32>,
}

impl<W: GroupKey> PartitionReader<W> {
    pub(super) fn try_new(plan: &TopKPlan) -> Result<Self> {
        Ok(Self {
            groups: plan.groups.partition_ids()?,
            sieve: AnySieve::new(plan)?,
            group_keys: Vec::new(),
            ids: Vec::new(),
        })
    }

    /// Forgets the groups of the last hash partition.
    pub(super) fn begin(&mut self) -> Result<()> {
        self.groups.clear()
    }

    /// The best rows of all groups.
    pub(super) fn take(&mut self, plan: &TopKPlan) -> Result<BestRows> {
        let groups = self.groups.len();
        // Tells the sieve of groups without rows.
        self.sieve
            .push(groups, &[], &Buffer::from(&[0_u8; 0]), &plan.no_rows())?;
        self.sieve.take(groups, plan)
    }

    /// Numbers the groups of those rows of a run that are in a hash partition. The run has no keys.
    pub(super) fn number(
        &mut self,
        plan: &TopKPlan,
        part: usize,
        run: &Run,
        file: Option<&SpillFile>,
    ) -> Result<()> {
        self.group_keys.clear();
        run.group_keys
            .append_partition(part, file, &mut self.group_keys)?;
        if !self.group_keys.is_empty() {
            self.number_read(plan, part, run, file)?;
        }
        Ok(())
    }

    /// Numbers the groups of those rows of a run that are in a hash partition, whose group keys have been read. Returns the carried columns
    /// of these rows.
    fn number_read(
        &mut self,
        plan: &TopKPlan,
        part: usize,
        run: &Run,
        file: Option<&SpillFile>,
    ) -> Result<Vec<ArrayRef>> {
        self.ids.clear();
        let carried = run.partition_carried(part, file)?;
        let column = |value| match value {
            ColumnarValue::Array(column) => Ok(column),
            ColumnarValue::Scalar(value) => internal_err!("rows carry the one value {value}"),
        };
        let carried: Vec<ArrayRef> = carried.into_iter().map(column).collect::<Result<_>>()?;
        let columns = &carried[..plan.carried_groups()];
        self.groups
            .number_in(part, &self.group_keys, columns, &mut self.ids)?;
        Ok(carried)
    }

    /// Adds those rows of a run that are in a hash partition.
    pub(super) fn push(
        &mut self,
        plan: &TopKPlan,
        part: usize,
        run: &Run,
        file: Option<&SpillFile>,
    ) -> Result<()> {
        let rows = run.partition_range(part).len();
        if rows == 0 {
            return Ok(());
        }
        self.group_keys.clear();
        let keys: Buffer = with_key!(plan.keys.width(), K => {
            let mut keys = Vec::<K>::with_capacity(rows);
            run.append_rows(part, file, &mut self.group_keys, &mut keys)?;
            keys.into()
        });
        let carried = self.number_read(plan, part, run, file)?;
        self.sieve.push(self.groups.len(), &self.ids, &keys, &carried)
    }
}
