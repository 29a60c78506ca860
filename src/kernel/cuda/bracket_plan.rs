//! How wide the brackets of the ranks of groups are, and how many rows are sampled for them, by what the sorts of both cost.

/// Most brackets of a group: `MOST_BRACKETS` of `kernels/group_brackets.cu`.
pub(super) const MOST_BRACKETS: usize = 8;
/// Rows of a stripe, of which one is sampled.
const STEPS: [u64; 6] = [4, 8, 16, 32, 64, 128];
/// Standard deviations of a rank in the sample that a bracket reaches beyond it: one rank in two million is outside.
const SIGMAS: f64 = 5.0;
/// Sampled rows that a bracket reaches beyond these, for groups that are small, or smaller than the average.
const OFFSET: f64 = 3.0;
/// Most rows that are sorted, in the sample and inside brackets, as a share of all rows.
const MOST_SORTED: f64 = 0.6;

/// How the brackets of groups are made.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct BracketPlan {
    /// Rows of a stripe, of which one is sampled.
    pub(super) step: u64,
    /// For each bracket, the shares of a group's rows below its first and below its last rank, ascending.
    pub(super) shares: Vec<[f64; 2]>,
    /// Standard deviations, and sampled rows beyond these, that a bracket reaches beyond its ranks.
    pub(super) sigmas: f64,
    pub(super) offset: f64,
    /// Whether the rows of a bracket of one key are kept. Otherwise they are counted only.
    pub(super) keeps_equal: bool,
}

impl BracketPlan {
    /// Brackets of `ranks`, which count from 1 and ascend, for groups of `n` rows on average. `None` if that is slower than a sort of
    /// all rows.
    pub(super) fn of_ranks(ranks: &[u64], n: u64) -> Option<Self> {
        let share = |rank: u64| (rank.saturating_sub(1)) as f64 / n as f64;
        let mut shares: Vec<[f64; 2]> = Vec::new();
        let mut last = None;
        for rank in ranks {
            // A method that interpolates needs two ranks side by side.
            match shares.last_mut() {
                Some(bracket) if last.is_some_and(|last| rank - last <= 1) => bracket[1] = share(*rank),
                _ => shares.push([share(*rank); 2]),
            }
            last = Some(*rank);
        }
        if !(1..=MOST_BRACKETS).contains(&shares.len()) {
            return None;
        }
        let plans = STEPS.map(|step| Self {
            step,
            shares: shares.clone(),
            sigmas: SIGMAS,
            offset: OFFSET,
            keeps_equal: false,
        });
        cheapest(plans, n)
    }

    /// Brackets of the `k` best keys of groups of `n` rows on average. `None` if that is slower than a sort of all rows.
    pub(super) fn of_best(k: u64, is_least: bool, n: u64) -> Option<Self> {
        let plans = STEPS.map(|step| {
            // Of the k best rows of a group so many are sampled, with near certainty at most.
            let sampled = k as f64 / step as f64;
            Self {
                step,
                shares: vec![[if is_least { 0.0 } else { 1.0 }; 2]],
                sigmas: 0.0,
                offset: (sampled + SIGMAS * sampled.sqrt() + OFFSET + 1.0).ceil(),
                keeps_equal: true,
            }
        });
        cheapest(plans, n)
    }

    /// Rows inside the brackets of a group of `n` rows, as a share of these, where keys differ.
    pub(super) fn inside(&self, n: u64) -> f64 {
        let sample = n as f64 / self.step as f64;
        let beyond = |share: f64| self.sigmas * (sample * share * (1.0 - share)).sqrt() + self.offset;
        let each = self.shares.iter().map(|[low, high]| {
            let (from, to) = (low * sample - beyond(*low), high * sample + beyond(*high));
            (to.min(sample) - from.max(0.0)) / sample
        });
        each.sum::<f64>().min(1.0)
    }

    /// Rows that are sorted, as a share of all rows.
    fn sorted(&self, n: u64) -> f64 {
        1.0 / self.step as f64 + self.inside(n)
    }
}

/// The plan that sorts the fewest rows in groups of `n`, if they are few.
fn cheapest<const N: usize>(plans: [BracketPlan; N], n: u64) -> Option<BracketPlan> {
    let best = plans
        .into_iter()
        .min_by(|one, other| one.sorted(n).total_cmp(&other.sorted(n)));
    best.filter(|plan| plan.sorted(n) <= MOST_SORTED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranks_have_one_bracket() {
        let plan = BracketPlan::of_ranks(&[500, 501, 900], 1000 * 1000).unwrap();
        assert_eq!(plan.shares, [[0.000_499, 0.000_5], [0.000_899; 2]]);
        assert_eq!(BracketPlan::of_ranks(&[], 1 << 20), None);
        let many: Vec<u64> = (1..10).map(|rank| rank * 1000).collect();
        assert_eq!(BracketPlan::of_ranks(&many, 1 << 20), None);
    }

    #[test]
    fn larger_groups_are_sampled_more_sparsely_and_small_ones_not() {
        let ranks = |n: u64| [n / 2, n * 9 / 10, n * 99 / 100];
        let step = |n: u64| BracketPlan::of_ranks(&ranks(n), n).map(|plan| plan.step);
        assert_eq!(step(268), None);
        let [small, middle, large] = [26_843, 268_435, 26_843_545].map(|n| step(n).unwrap());
        assert!(small < middle && middle < large, "{small} {middle} {large}");
        for n in [26_843, 268_435, 26_843_545] {
            let plan = BracketPlan::of_ranks(&ranks(n), n).unwrap();
            assert!(plan.sorted(n) < 0.35, "{n}: {plan:?}");
        }
        assert_eq!(BracketPlan::of_best(1000, false, 1000), None);
        let best = BracketPlan::of_best(10, true, 268_435).unwrap();
        assert_eq!(
            (best.shares.as_slice(), best.sigmas),
            ([[0.0; 2]].as_slice(), 0.0)
        );
        assert!(best.sorted(268_435) < 0.05, "{best:?}");
    }
}
