//! The table of bars: what was measured, what was wanted, and whether it held.

use std::fmt;

use anyhow::Result;
use serde_json::{Value, json};

/// What a bar wants of a number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Bound {
    /// At most this much.
    AtMost(f64),
    /// At least this much.
    AtLeast(f64),
}

impl Bound {
    fn holds(self, measured: f64) -> bool {
        match self {
            Self::AtMost(bound) => measured <= bound,
            Self::AtLeast(bound) => measured >= bound,
        }
    }

    fn value(self) -> f64 {
        match self {
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Self::AtMost(_) => "<=",
            Self::AtLeast(_) => ">=",
        }
    }
}

/// One bar and its measurement.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// What is measured, for people.
    pub(crate) bar: &'static str,
    /// The median.
    pub(crate) measured: f64,
    /// What is wanted.
    pub(crate) bound: Bound,
    /// The unit of both; `x` for a ratio to the baseline.
    pub(crate) unit: &'static str,
    /// The numbers behind it.
    pub(crate) note: String,
}

impl Row {
    fn passed(&self) -> bool {
        self.bound.holds(self.measured)
    }

    fn verdict(&self) -> &'static str {
        if self.passed() { "PASS" } else { "MISS" }
    }
}

/// All rows, and what could not be measured.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<(&'static str, Row)>,
    errors: Vec<(&'static str, String)>,
}

impl Table {
    /// Takes what a bench found, or why it found nothing.
    pub(crate) fn add(&mut self, bench: &'static str, result: Result<Vec<Row>>) {
        match result {
            Ok(rows) => self.rows.extend(rows.into_iter().map(|row| (bench, row))),
            Err(error) => self.errors.push((bench, format!("{error:#}"))),
        }
    }

    /// Whether some bench could not be run.
    pub(crate) fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The table for machines.
    pub(crate) fn to_json(&self) -> Value {
        let row = |(bench, row): &(&str, Row)| {
            json!({
                "bench": bench, "bar": row.bar, "measured": row.measured, "sign": row.bound.sign(),
                "bound": row.bound.value(), "unit": row.unit, "passed": row.passed(), "note": row.note,
            })
        };
        let error = |(bench, error): &(&str, String)| json!({"bench": bench, "error": error});
        json!({
            "rows": self.rows.iter().map(row).collect::<Vec<_>>(),
            "errors": self.errors.iter().map(error).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<12} {:<44} {:>12} {:>15}  {:<5} behind it", "bench", "bar", "measured", "bound", "")?;
        for (bench, row) in &self.rows {
            let measured = format!("{:.3} {}", row.measured, row.unit);
            let bound = format!("{} {} {}", row.bound.sign(), row.bound.value(), row.unit);
            writeln!(
                f,
                "{bench:<12} {:<44} {measured:>12} {bound:>15}  {:<5} {}",
                row.bar,
                row.verdict(),
                row.note
            )?;
        }
        for (bench, error) in &self.errors {
            writeln!(f, "{bench:<12} not measured: {error}")?;
        }
        let passed = self.rows.iter().filter(|(_, row)| row.passed()).count();
        let missed = self.rows.len() - passed;
        write!(f, "{passed} bars hold, {missed} missed, {} benches not measured", self.errors.len())
    }
}

/// The middle one of the samples; NaN, which no bound accepts, when there are none.
pub(crate) fn median(samples: &[f64]) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match (sorted.get(middle), sorted.len() % 2) {
        (None, _) => f64::NAN,
        (Some(upper), 0) => f64::midpoint(*upper, sorted[middle - 1]),
        (Some(exact), _) => *exact,
    }
}

/// Samples of what is measured and of its baseline, taken in turns.
#[derive(Debug, Default)]
pub(crate) struct Pair {
    pub(crate) baseline: Vec<f64>,
    pub(crate) ours: Vec<f64>,
}

impl Pair {
    /// Median over median.
    pub(crate) fn ratio(&self) -> f64 {
        median(&self.ours) / median(&self.baseline)
    }

    /// Both medians, for the note of a row.
    pub(crate) fn note(&self, unit: &str) -> String {
        let (ours, baseline) = (median(&self.ours), median(&self.baseline));
        format!("{ours:.4} against {baseline:.4} {unit}, {} rounds", self.ours.len())
    }
}

/// Runs both in turns, `rounds` times; who goes first changes every time, so that neither always meets the warmer
/// machine.
pub(crate) fn interleave(
    rounds: usize,
    mut baseline: impl FnMut() -> Result<f64>,
    mut ours: impl FnMut() -> Result<f64>,
) -> Result<Pair> {
    let mut pair = Pair::default();
    for round in 0..rounds {
        if round % 2 == 0 {
            pair.baseline.push(baseline()?);
            pair.ours.push(ours()?);
        } else {
            pair.ours.push(ours()?);
            pair.baseline.push(baseline()?);
        }
    }
    Ok(pair)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_and_nothing_has_none() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(&[]).is_nan());
    }

    #[test]
    fn a_bound_holds_at_its_own_value_and_never_for_no_number() {
        assert!(Bound::AtMost(2.0).holds(2.0) && !Bound::AtMost(2.0).holds(2.1));
        assert!(Bound::AtLeast(2.0).holds(2.0) && !Bound::AtLeast(2.0).holds(1.9));
        assert!(!Bound::AtMost(2.0).holds(f64::NAN) && !Bound::AtLeast(2.0).holds(f64::NAN));
    }

    #[test]
    fn a_pair_is_run_in_turns_and_each_goes_first_in_half_of_them() {
        let order = std::cell::RefCell::new(String::new());
        let run = |name: char| {
            order.borrow_mut().push(name);
            Ok(if name == 'b' { 2.0 } else { 3.0 })
        };
        let pair = interleave(3, || run('b'), || run('o')).expect("both run");
        assert_eq!(order.into_inner(), "boobbo");
        assert_eq!(pair.ratio(), 1.5);
    }

    #[test]
    fn a_missed_bar_and_a_failed_bench_are_rows_like_others() {
        let mut table = Table::default();
        let row = |measured| Row {
            bar: "time",
            measured,
            bound: Bound::AtMost(1.0),
            unit: "x",
            note: "why".to_owned(),
        };
        table.add("fast", Ok(vec![row(0.5), row(1.5)]));
        assert!(!table.has_errors());
        table.add("none", Err(anyhow::anyhow!("no host")));
        assert!(table.has_errors());
        let text = table.to_string();
        assert!(
            text.contains("PASS") && text.contains("MISS") && text.contains("not measured: no host"),
            "{text}"
        );
        assert!(text.ends_with("1 bars hold, 1 missed, 1 benches not measured"), "{text}");
        assert_eq!(table.to_json()["rows"][1]["passed"], false);
    }
}
