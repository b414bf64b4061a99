//! A set of documents as commands read it, and files beside it.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use config::limits::FILE_BYTES_MAX;
use config::{Loaded, Lookup, SourceFile};
use policy::{Code, Diagnostic};

use super::lint::human;
use super::usage;

/// A set without errors.
pub(super) struct Set {
    pub(super) loaded: Loaded,
    pub(super) files: Vec<SourceFile>,
}

impl Set {
    /// Reads and checks a set; shows what is wrong with it.
    pub(super) fn load(paths: &[PathBuf]) -> Result<Self, ExitCode> {
        Self::load_part(paths, "")
    }

    /// The same; `elsewhere` says what to do where the documents name some that are not among them.
    pub(super) fn load_part(paths: &[PathBuf], elsewhere: &str) -> Result<Self, ExitCode> {
        let refused = |findings: &[Diagnostic], files: &[SourceFile]| {
            eprint!("{}", human(findings, files));
            let named_elsewhere = findings.iter().any(|f| f.code == Code::UnknownReference);
            let advice = if named_elsewhere { elsewhere } else { "" };
            usage(format!("the documents have errors; see the findings above{advice}"))
        };
        let files = config::source::read_set(paths).map_err(|findings| refused(&findings, &[]))?;
        let loaded = config::load(&files, &Lookup::Skip).map_err(|findings| refused(&findings, &files))?;
        Ok(Self { loaded, files })
    }

    /// Shows what is wrong with something that was given beside the set.
    #[expect(clippy::unused_self, reason = "only where there is a set to look at")]
    pub(super) fn refuse(&self, findings: &[Diagnostic], files: &[SourceFile]) -> ExitCode {
        eprint!("{}", human(findings, files));
        usage("what is given beside the documents has errors; see the findings above")
    }
}

/// Reads a file within the bound of one; `-` is stdin.
pub(super) fn read_file(path: &Path) -> Result<SourceFile, ExitCode> {
    let name = path.display().to_string();
    let bytes = if name == "-" {
        read_bounded(&mut io::stdin())
    } else {
        File::open(path).and_then(|mut f| read_bounded(&mut f))
    };
    match bytes {
        Ok(bytes) if bytes.len() > FILE_BYTES_MAX => Err(usage(format!("{name}: more than {FILE_BYTES_MAX} bytes"))),
        Ok(bytes) => Ok(SourceFile { name: name.into(), bytes }),
        Err(error) => Err(usage(format!("{name} cannot be read: {error}"))),
    }
}

/// Longest line of a file of lines.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// What is done with a line of a number, from 1.
type OnLine<'a> = dyn FnMut(u64, &[u8]) -> Result<(), ExitCode> + 'a;

/// Calls `each` with the lines of a file; `-` is stdin. The file may be larger than memory.
pub(super) fn each_line(path: &Path, each: &mut OnLine<'_>) -> Result<(), ExitCode> {
    let cannot_read = |error: io::Error| usage(format!("{} cannot be read: {error}", path.display()));
    let mut reader: BufReader<Box<dyn Read>> = BufReader::new(match path.as_os_str() == "-" {
        true => Box::new(io::stdin()),
        false => Box::new(File::open(path).map_err(cannot_read)?),
    });
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line).map_err(cannot_read)? == 0 {
            break;
        }
        each(number, &line)?;
    }
    Ok(())
}

/// One byte more than allowed at most, so that it is seen to be too much.
pub(super) fn read_bounded(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.take(FILE_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}
