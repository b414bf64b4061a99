//! `kinfctl schema`: the JSON Schema of what can be written, for editors and for checks elsewhere.

use std::process::ExitCode;

use clap::Args;

use super::print_out;

/// Print the JSON Schema of the documents, for editors.
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// That of the server's own file instead
    #[arg(long)]
    server: bool,
}

impl Schema {
    /// Prints it.
    pub(super) fn run(&self) -> ExitCode {
        let schema = if self.server { crds::schema::server() } else { crds::schema::editor() };
        print_out(&format!("{schema:#}\n"))
    }
}
