//! `kinfctl schema`: the JSON Schema of what can be written, for editors and for checks elsewhere, and the CRDs.

use std::process::ExitCode;

use clap::Args;

use super::print_out;

/// Print the JSON Schema of the documents, for editors.
#[derive(Debug, Args)]
pub(super) struct Schema {
    /// That of the server's own file instead
    #[arg(long)]
    server: bool,
    /// The CustomResourceDefinitions instead, as YAML for `kubectl apply -f -`
    #[arg(long, conflicts_with = "server")]
    crds: bool,
}

impl Schema {
    /// Prints it.
    pub(super) fn run(&self) -> ExitCode {
        if self.crds {
            let definitions = crds::Kind::CUSTOM_RESOURCES.into_iter().filter_map(crds::schema::crd::yaml);
            return print_out(&definitions.collect::<Vec<String>>().join("---\n"));
        }
        let schema = if self.server { crds::schema::server() } else { crds::schema::editor() };
        print_out(&format!("{schema:#}\n"))
    }
}
