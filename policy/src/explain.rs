//! The decision as data.
