//! The query of a request: decoded, and judged as far as a real server judges it.

use std::collections::BTreeMap;

use crate::refusal::Refusal;

/// Longest name of a manager of fields.
const MANAGER_BYTES_MAX: usize = 128;

pub(crate) type Query = BTreeMap<String, String>;

/// Decodes it.
pub(crate) fn parse(text: &str) -> Query {
    let pairs = text.split('&').filter(|pair| !pair.is_empty());
    pairs
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decoded(name), decoded(&value.replace('+', " ")))
        })
        .collect()
}

/// Takes escapes off.
pub(crate) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let hex = after.get(..2).filter(|_| byte == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        match hex.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(found) => {
                bytes.push(found);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A limit below zero is none.
pub(crate) fn limit(query: &Query) -> Result<usize, Refusal> {
    let Some(text) = query.get("limit").filter(|text| !text.is_empty()) else { return Ok(0) };
    let wrong = |_| Refusal::bad_request(format!("strconv.ParseInt: parsing \"{text}\": invalid syntax"));
    text.parse::<i64>().map(|limit| usize::try_from(limit).unwrap_or(0)).map_err(wrong)
}

/// What a real server finds wrong with the options of a write.
pub(crate) fn judge_options(query: &Query, media_type: &str) -> Result<(), Refusal> {
    let said = |name: &str| query.get(name).map_or("", String::as_str);
    let wrong = |why: String| Err(Refusal::new(422, "Invalid", format!("options.meta.k8s.io \"\" is invalid: {why}")));
    if !matches!(said("dryRun"), "" | "All") {
        return wrong(format!("dryRun: Unsupported value: [{:?}]: supported values: \"All\"", said("dryRun")));
    }
    if said("fieldManager").len() > MANAGER_BYTES_MAX {
        return wrong(format!("fieldManager: Too long: must have at most {MANAGER_BYTES_MAX} bytes"));
    }
    if query.contains_key("force") && media_type.ends_with("patch+json") {
        return wrong("force: Forbidden: may not be specified for non-apply patch".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let query = parse("labelSelector=app%3Da%2Ctier+in+%28x%29&watch=1");
        assert_eq!(query["labelSelector"], "app=a,tier in (x)");
        assert_eq!(query["watch"], "1");
    }

    #[test]
    fn options_that_a_real_server_refuses_are_refused() {
        assert!(judge_options(&parse("dryRun=All&fieldManager=m"), "application/json").is_ok());
        for wrong in ["dryRun=Some", "force=true", &format!("fieldManager={}", "m".repeat(129))] {
            assert_eq!(judge_options(&parse(wrong), "application/merge-patch+json").unwrap_err().code, 422, "{wrong}");
        }
        assert_eq!(limit(&parse("limit=-1")).ok(), Some(0));
        assert!(limit(&parse("limit=x")).is_err());
    }
}
