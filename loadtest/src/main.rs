//! WIP
fn main(){}
