//! CRD YAML.
