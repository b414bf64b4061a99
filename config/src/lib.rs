//! What the documents mean: from YAML to one immutable [`Snapshot`], with every finding at its line
//! and column. This is the only place where configuration is validated.
//!
//! Reading order: [`mod@load`] (bytes to nodes with positions), [`check`] (nodes against the schema of
//! their kind), [`lower`](mod@lower) (documents to a snapshot), [`snapshot`] (what is in force), [`source`] (where
//! documents come from), [`trial`] (what would come of a request), [`policy_test`], [`difference`] (what two sets do
//! differently), [`server_file`] (the process's own file), [`limits`] (every bound, once).
#![forbid(unsafe_code)]

pub mod check;
pub mod difference;
pub mod limits;
pub mod load;
pub mod lower;
pub mod node;
pub mod policy_test;
pub mod secret;
pub mod server_file;
pub mod snapshot;
pub mod source;
pub mod trial;
pub mod url;

pub use load::SourceFile;
pub use lower::{Loaded, load};
pub use secret::{Auth, Credential, Lookup, Secret, SecretSource};
pub use server_file::ServerFile;
pub use snapshot::Snapshot;
