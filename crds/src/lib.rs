//! The wire types: what a person writes in a file or applies to a Kubernetes API server.
//!
//! One file per kind. Types say the shape; what the shape cannot say (references, uniqueness, what a
//! duration may be used for) is the business of the `config` crate. The JSON Schema, the CRD YAML and
//! the field reference are printed from these types ([`schema`]), so they cannot drift apart.
//!
//! Unknown fields are refused. Optional parts are `Option` or an empty list; defaults that are
//! constants stand here, once, and show in the schema.
#![forbid(unsafe_code)]

pub mod classifier;
pub mod document;
pub mod policy;
pub mod policy_test;
pub mod pool;
pub mod provider;
pub mod schema;
pub mod secret;
pub mod server;
pub mod status;
pub mod tenant;
pub mod value;
pub mod worker_set;

pub use document::{Document, Kind, Metadata, Resource};

/// API group and version of every kind.
pub const API_VERSION: &str = "kinference.buoyant.io/v1alpha1";

/// API group of every kind.
pub const GROUP: &str = "kinference.buoyant.io";

/// API version of every kind.
pub const VERSION: &str = "v1alpha1";
