//! What a program can never do.
