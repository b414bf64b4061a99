//! What a rule may change in the parameters of a request: a short list of sampling parameters, all of them numbers.
//!
//! Nothing else of a body is ever changed: what a person asks a model is theirs.

/// A parameter that a rule may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Parameter {
    /// `temperature`
    Temperature,
    /// `top_p`
    TopP,
    /// `top_k`
    TopK,
    /// `min_p`
    MinP,
    /// `presence_penalty`
    PresencePenalty,
    /// `frequency_penalty`
    FrequencyPenalty,
    /// `repetition_penalty`
    RepetitionPenalty,
    /// `max_tokens`, `max_completion_tokens` and `max_output_tokens`, whichever a request writes.
    MaxTokens,
    /// `seed`
    Seed,
}

impl Parameter {
    /// Every parameter, in the order of the documentation.
    pub const ALL: [Parameter; 9] = [
        Parameter::Temperature,
        Parameter::TopP,
        Parameter::TopK,
        Parameter::MinP,
        Parameter::PresencePenalty,
        Parameter::FrequencyPenalty,
        Parameter::RepetitionPenalty,
        Parameter::MaxTokens,
        Parameter::Seed,
    ];

    /// The name in a policy.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Parameter::Temperature => "temperature",
            Parameter::TopP => "topP",
            Parameter::TopK => "topK",
            Parameter::MinP => "minP",
            Parameter::PresencePenalty => "presencePenalty",
            Parameter::FrequencyPenalty => "frequencyPenalty",
            Parameter::RepetitionPenalty => "repetitionPenalty",
            Parameter::MaxTokens => "maxTokens",
            Parameter::Seed => "seed",
        }
    }

    /// The members of a request body that mean it; where none is there, the first is the one to add.
    #[must_use]
    pub fn members(self) -> &'static [&'static str] {
        match self {
            Parameter::Temperature => &["temperature"],
            Parameter::TopP => &["top_p"],
            Parameter::TopK => &["top_k"],
            Parameter::MinP => &["min_p"],
            Parameter::PresencePenalty => &["presence_penalty"],
            Parameter::FrequencyPenalty => &["frequency_penalty"],
            Parameter::RepetitionPenalty => &["repetition_penalty"],
            Parameter::MaxTokens => &["max_tokens", "max_completion_tokens", "max_output_tokens"],
            Parameter::Seed => &["seed"],
        }
    }
}

/// What a rule does with one parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rewrite {
    /// Which one.
    pub parameter: Parameter,
    /// The value whatever the client wrote.
    pub set: Option<f64>,
    /// The value where the client wrote none.
    pub default: Option<f64>,
    /// A lower value is raised to this.
    pub at_least: Option<f64>,
    /// A higher value is lowered to this.
    pub at_most: Option<f64>,
}

impl Rewrite {
    /// The value to send in place of `written`, what the client wrote (`None`: nothing); `None` when that stays as it is.
    #[must_use]
    pub fn value(&self, written: Option<f64>) -> Option<f64> {
        let value = self.set.or(written).or(self.default)?;
        let value = self.at_least.map_or(value, |least| value.max(least));
        let value = self.at_most.map_or(value, |most| value.min(most));
        (written != Some(value)).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rewrite() -> Rewrite {
        Rewrite { parameter: Parameter::Temperature, set: None, default: None, at_least: None, at_most: None }
    }

    #[test]
    fn bounds_move_only_values_outside_and_add_none() {
        let bounded = Rewrite { at_least: Some(0.2), at_most: Some(1.0), ..rewrite() };
        assert_eq!(bounded.value(Some(1.7)), Some(1.0));
        assert_eq!(bounded.value(Some(0.0)), Some(0.2));
        assert_eq!(bounded.value(Some(0.7)), None);
        assert_eq!(bounded.value(None), None);
    }

    #[test]
    fn a_default_is_for_requests_without_and_a_set_value_for_all() {
        let default = Rewrite { default: Some(0.7), at_most: Some(0.5), ..rewrite() };
        assert_eq!(default.value(None), Some(0.5), "within its own bounds");
        assert_eq!(default.value(Some(0.1)), None);
        let set = Rewrite { set: Some(0.0), ..rewrite() };
        assert_eq!((set.value(None), set.value(Some(0.9)), set.value(Some(0.0))), (Some(0.0), Some(0.0), None));
    }
}
