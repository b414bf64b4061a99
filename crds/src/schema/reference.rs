//! Field reference.
