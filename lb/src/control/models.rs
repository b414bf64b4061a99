//! What a server says it serves: `GET /v1/models`.

use serde::Deserialize;

/// One entry of the list.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub(crate) struct Listed {
    /// The name requests must give.
    pub id: String,
    /// The model an adapter is loaded over; `None` for a base model.
    #[serde(default)]
    pub parent: Option<String>,
    /// Longest prompt and answer together, in tokens.
    #[serde(default)]
    pub max_model_len: Option<u32>,
}

/// Reads the list, in the server's order.
pub(crate) fn list(body: &[u8]) -> Result<Vec<Listed>, String> {
    #[derive(Deserialize)]
    struct Models {
        data: Vec<Listed>,
    }
    let models: Models =
        serde_json::from_slice(body).map_err(|error| format!("/v1/models is not a list of models: {error}"))?;
    Ok(models.data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_vllm_is_read() {
        let body = br#"{"object":"list","data":[{"id":"tiny","object":"model","created":1796027192,"owned_by":"vllm",
            "root":"./model","parent":null,"max_model_len":16384,"permission":[{"id":"modelperm-8fb9"}]},
            {"id":"sql","object":"model","root":"/l/sql","parent":"tiny"}]}"#;
        let tiny = Listed { id: "tiny".into(), parent: None, max_model_len: Some(16_384) };
        let sql = Listed { id: "sql".into(), parent: Some("tiny".into()), max_model_len: None };
        assert_eq!(list(body), Ok(vec![tiny, sql]));
    }

    #[test]
    fn an_error_page_is_no_list() {
        assert!(list(br#"{"detail":"Not Found"}"#).is_err());
    }
}
