//! Brackets: intervals of keys, alone and in disjoint lists.

use datafusion::common::{Result, internal_err};

use crate::key::{KeyBits, Width};

/// Consecutive keys, given by the first and the last of them (`first <= last`). As an open interval it is `(first - 1,
/// last + 1)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bracket {
    /// Smallest key inside.
    pub first: KeyBits,
    /// Largest key inside.
    pub last: KeyBits,
}

impl Bracket {
    /// Whether the bracket has a key in common with any of `brackets`, which ascend.
    pub(crate) fn touches_any(&self, brackets: &[Bracket]) -> bool {
        let next = brackets.partition_point(|bracket| bracket.last < self.first);
        brackets
            .get(next)
            .is_some_and(|bracket| bracket.first <= self.last)
    }

    /// Whether `key` lies inside.
    pub fn contains(&self, key: KeyBits) -> bool {
        self.first <= key && key <= self.last
    }

    /// The keys that lie in both brackets, if there are any.
    pub fn intersect(&self, other: &Bracket) -> Option<Bracket> {
        let both = Bracket {
            first: self.first.max(other.first),
            last: self.last.min(other.last),
        };
        (both.first <= both.last).then_some(both)
    }
}

/// Disjoint brackets in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Brackets(Vec<Bracket>);

impl Brackets {
    /// A list of brackets that are disjoint and ascending.
    ///
    /// # Errors
    /// An internal error if they are not.
    pub fn try_new(brackets: Vec<Bracket>) -> Result<Self> {
        let ordered = brackets.windows(2).all(|pair| pair[0].last < pair[1].first);
        if !ordered || brackets.iter().any(|bracket| bracket.first > bracket.last) {
            return internal_err!("brackets are not disjoint and ascending: {brackets:?}");
        }
        Ok(Self(brackets))
    }

    /// One bracket around all keys of this width.
    pub fn all(width: Width) -> Self {
        Self(vec![Bracket {
            first: 0,
            last: width.max_key(),
        }])
    }

    /// The brackets, ascending.
    pub fn as_slice(&self) -> &[Bracket] {
        &self.0
    }

    /// Whether every key of this width lies inside.
    pub fn is_all(&self, width: Width) -> bool {
        *self == Self::all(width)
    }

    /// Whether each bracket of `other` lies inside one of these.
    pub fn cover(&self, other: &Brackets) -> bool {
        other.0.iter().all(|inner| {
            let at = self.0.partition_point(|outer| outer.last < inner.first);
            self.0
                .get(at)
                .is_some_and(|outer| outer.first <= inner.first && inner.last <= outer.last)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_refuse_overlap_and_know_what_they_cover() {
        let bracket = |first, last| Bracket { first, last };
        let outer = Brackets::try_new(vec![bracket(1, 5), bracket(10, 20)]).unwrap();
        let cover = |inner: Vec<Bracket>| outer.cover(&Brackets::try_new(inner).unwrap());
        assert!(cover(vec![bracket(2, 5), bracket(10, 10), bracket(12, 20)]));
        assert!(!cover(vec![bracket(0, 5)]));
        assert!(!cover(vec![bracket(5, 10)]));
        assert!(!cover(vec![bracket(21, 22)]));
        assert!(Brackets::try_new(vec![bracket(1, 5), bracket(5, 6)]).is_err());
        assert!(Brackets::try_new(vec![bracket(2, 1)]).is_err());
        assert!(
            Brackets::all(Width::W32).is_all(Width::W32) && !Brackets::all(Width::W32).is_all(Width::W64)
        );
    }
}
