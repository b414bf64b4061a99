//! What a run has found, as a table and as JSON.

use std::fmt;

use serde::{Serialize, Serializer, ser::SerializeStruct};

/// What was found of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It holds; with a remark, mostly a measured value.
    Pass(String),
    /// It does not, for this reason.
    Fail(String),
    /// This proxy cannot be judged by it, for this reason.
    NotApplicable(String),
}

impl Verdict {
    /// `pass`, `FAIL` or `n/a`.
    pub fn word(&self) -> &'static str {
        match self {
            Self::Pass(_) => "pass",
            Self::Fail(_) => "FAIL",
            Self::NotApplicable(_) => "n/a",
        }
    }

    /// Remark or reason.
    pub fn detail(&self) -> &str {
        match self {
            Self::Pass(detail) | Self::Fail(detail) | Self::NotApplicable(detail) => detail,
        }
    }
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Numbers of the faults.
    pub numbers: &'static [u8],
    /// Name of the scenario.
    pub name: &'static str,
    /// What must hold.
    pub rule: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// How long it took, with the start of the proxy.
    pub took_ms: u64,
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut row = serializer.serialize_struct("Row", 6)?;
        row.serialize_field("faults", self.numbers)?;
        row.serialize_field("name", self.name)?;
        row.serialize_field("rule", self.rule)?;
        row.serialize_field("verdict", &self.verdict.word().to_ascii_lowercase())?;
        row.serialize_field("detail", self.verdict.detail())?;
        row.serialize_field("took_ms", &self.took_ms)?;
        row.end()
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.numbers.iter().map(|number| format!("[{number}]")).collect();
        let (numbers, word, detail) = (numbers.concat(), self.verdict.word(), self.verdict.detail());
        let detail = if detail.is_empty() { self.rule } else { detail };
        write!(f, "{word:<4} {numbers:<12} {:<20} {:>6} ms  {detail}", self.name, self.took_ms)
    }
}

/// All lines.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// In the order they ran.
    pub rows: Vec<Row>,
}

impl Report {
    /// How many rows passed, failed, and were not applicable.
    pub fn counts(&self) -> (usize, usize, usize) {
        self.rows.iter().fold((0, 0, 0), |(pass, fail, other), row| match row.verdict {
            Verdict::Pass(_) => (pass + 1, fail, other),
            Verdict::Fail(_) => (pass, fail + 1, other),
            Verdict::NotApplicable(_) => (pass, fail, other + 1),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (pass, fail, other) = self.counts();
        write!(f, "{pass} passed, {fail} failed, {other} not applicable")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_show_their_reason_and_passes_without_remark_their_rule() {
        let row = |verdict| Row { numbers: &[1, 2], name: "leave", rule: "it stops", verdict, took_ms: 7 };
        let failed = row(Verdict::Fail("it goes on".to_owned()));
        assert_eq!(failed.to_string(), "FAIL [1][2]       leave                     7 ms  it goes on");
        assert!(row(Verdict::Pass(String::new())).to_string().ends_with("it stops"));
        let json = serde_json::to_value(&failed).unwrap();
        assert_eq!((json["verdict"].as_str(), json["faults"][1].as_u64()), (Some("fail"), Some(2)));
        let report = Report { rows: vec![failed, row(Verdict::NotApplicable("why".to_owned()))] };
        assert_eq!(report.counts(), (0, 1, 1));
    }
}
