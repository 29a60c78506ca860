//! The ranks of Hyndman and Fan (1996, "Sample quantiles in statistical packages"), as they define them: counted from 1.

/// The position of a quantile `num / den` among `n > 0` values: the ranks from 1 that it lies between, and the part of the way from the
/// first to the second as a fraction. `None` for methods that count gaps between values.
pub fn position(method: &str, (num, den): (u64, u64), n: u64) -> Option<(u64, u64, (u64, u64))> {
    // The rank, as a fraction.
    let (rank, one) = match method {
        "interpolated_inverted_cdf" | "averaged_inverted_cdf" | "closest_observation" => (num * n, den),
        "hazen" => (2 * num * n + den, 2 * den),
        "weibull" => (num * (n + 1), den),
        "median_unbiased" => (num * (3 * n + 1) + den, 3 * den),
        "normal_unbiased" => (num * (8 * n + 2) + 3 * den, 8 * den),
        _ => return None,
    };
    let rank = rank.clamp(one, n * one);
    let (floor, rest) = (rank / one, rank % one);
    let above = (floor + 1).min(n);
    Some(match (method, rest) {
        ("averaged_inverted_cdf", 0) if num > 0 && num * n >= den => (floor, above, (1, 2)),
        ("averaged_inverted_cdf", 0) => (floor, floor, (0, 1)),
        ("averaged_inverted_cdf", _) => (above, above, (0, 1)),
        ("closest_observation", _) => {
            let up = 2 * rest > one || 2 * rest == one && floor % 2 == 1;
            let nearest = if up { above } else { floor };
            (nearest, nearest, (0, 1))
        }
        (_, 0) => (floor, floor, (0, 1)),
        _ => (floor, above, (rest, one)),
    })
}
