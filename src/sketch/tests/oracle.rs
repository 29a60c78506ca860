//! Checks of a summary against the sorted values.

use crate::key::Key;
use crate::sketch::gk::Summary;

/// Checks the invariant and all answers of a summary of `sorted`.
pub(super) fn check<K: Key>(summary: &Summary<K>, sorted: &[K]) {
    let n = sorted.len() as u64;
    assert_eq!(summary.n(), n);
    assert_eq!(
        (summary.min(), summary.max()),
        (sorted.first().copied(), sorted.last().copied())
    );
    check_tuples(summary, sorted);
    let step = (n / 97).max(1);
    let near = |rank: u64| [rank, rank + step / 2];
    let ranks = (1..=n).step_by(step as usize).flat_map(near).chain([n]);
    for rank in ranks.filter(|rank| (1..=n).contains(rank)) {
        check_answer(summary, sorted, rank);
        check_bracket(summary, sorted, rank);
        check_rank(summary, sorted, sorted[rank as usize - 1]);
    }
    for hundredth in 0..=100 {
        check_quantile(summary, sorted, hundredth);
    }
    for key in [K::default(), K::MAX] {
        check_rank(summary, sorted, key);
    }
    assert_eq!(&Summary::read(&summary.write(b"tag"), b"tag").unwrap(), summary);
}

/// The number of values below a key, and at or below it.
fn ranks<K: Key>(sorted: &[K], key: K) -> (u64, u64) {
    let below = sorted.partition_point(|other| *other < key);
    (below as u64, sorted.partition_point(|other| *other <= key) as u64)
}

fn check_tuples<K: Key>(summary: &Summary<K>, sorted: &[K]) {
    let n = sorted.len() as u64;
    let most = summary.epsilon().budget(n).max(1);
    let (mut key_before, mut upto_before) = (None, 0);
    for tuple in &summary.tuples {
        let (below, upto) = ranks(sorted, tuple.key);
        assert!(below < upto, "{tuple:?} does not occur");
        assert!(
            tuple.below >= below && tuple.upto <= upto,
            "{tuple:?}: truly {below}, {upto}"
        );
        assert!(key_before < Some(tuple.key) && tuple.upto > upto_before && tuple.below < n);
        assert!(
            tuple.below + 1 - upto_before <= most,
            "{tuple:?} after {upto_before}: more than {most}"
        );
        (key_before, upto_before) = (Some(tuple.key), tuple.upto);
    }
    assert_eq!(
        (summary.tuples.first().map_or(0, |tuple| tuple.below), upto_before),
        (0, n)
    );
    assert!(summary.widest() <= most);
    let (numerator, denominator) = summary.epsilon().fraction();
    assert!(2 * u128::from(n) * u128::from(numerator) > u128::from(denominator) || summary.is_exact());
}

fn check_answer<K: Key>(summary: &Summary<K>, sorted: &[K], rank: u64) {
    let (numerator, denominator) = summary.epsilon().fraction();
    let error = (u128::from(summary.n()) * u128::from(numerator) / u128::from(denominator)) as u64;
    let answer = summary.value_at(rank).unwrap();
    let (below, upto) = ranks(sorted, answer.key);
    let (first, last) = ((below + 1).max(answer.rank_min), upto.min(answer.rank_max));
    assert!(first <= last, "{answer:?} has ranks {}..={upto}", below + 1);
    let farthest = rank.abs_diff(answer.rank_min).max(rank.abs_diff(answer.rank_max));
    assert!(
        answer.rank_min <= answer.rank_max && farthest <= error,
        "{answer:?} for {rank}: farther than {error}"
    );
    assert!(answer.rank_min >= 1 && answer.rank_max <= summary.n());
    if rank == 1 || rank == summary.n() {
        assert_eq!(answer.key, sorted[rank as usize - 1]);
    }
}

/// The contract of `approx_percentile_gk` for a quantile in hundredths.
fn check_quantile<K: Key>(summary: &Summary<K>, sorted: &[K], hundredth: u64) {
    let n = summary.n();
    let Some(answer) = summary.value_at((hundredth * n).div_ceil(100).max(1)) else {
        return assert_eq!(n, 0);
    };
    let (numerator, denominator) = summary.epsilon().fraction();
    let (below, upto) = ranks(sorted, answer.key);
    // All numbers are in units of one part in 100 * denominator.
    let (n, numerator, denominator) = (i128::from(n), i128::from(numerator), i128::from(denominator));
    let (quantile, error, unit) = (
        i128::from(hundredth) * denominator,
        100 * numerator,
        100 * denominator,
    );
    let least = ((quantile - error) * n).div_euclid(unit);
    let most = -(-(quantile + error) * n).div_euclid(unit);
    assert!(
        i128::from(upto) >= least && i128::from(below + 1) <= most.max(1),
        "{answer:?} for 0.{hundredth:02}: ranks {}..={upto}, allowed {least}..={most}",
        below + 1
    );
}

fn check_rank<K: Key>(summary: &Summary<K>, sorted: &[K], key: K) {
    let (least, most) = summary.rank(key);
    let (_, upto) = ranks(sorted, key);
    assert!(
        least <= upto && upto <= most,
        "{key:?}: {upto} is not in {least}..={most}"
    );
    assert!(most - least < summary.epsilon().budget(summary.n()).max(1));
}

fn check_bracket<K: Key>(summary: &Summary<K>, sorted: &[K], rank: u64) {
    let bracket = summary.bracket(rank).unwrap();
    let wanted = sorted[rank as usize - 1];
    assert!(
        bracket.lo <= wanted && wanted <= bracket.hi,
        "{bracket:?} for {wanted:?}"
    );
    let (_, upto_lo) = ranks(sorted, bracket.lo);
    let (below_hi, _) = ranks(sorted, bracket.hi);
    assert!(bracket.upto_lo.0 <= upto_lo && upto_lo <= bracket.upto_lo.1);
    assert!(below_hi.saturating_sub(upto_lo) <= bracket.between);
    let budget = summary.epsilon().budget(summary.n());
    assert!(
        bracket.between <= (2 * budget).saturating_sub(3),
        "{bracket:?}, {budget}"
    );
}
