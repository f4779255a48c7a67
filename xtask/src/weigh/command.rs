//! `cargo xtask weigh`: reads the project, and compares it with `docs/weight.md`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use super::compare::Differences;
use super::page::Page;
use super::project::{PAGE, imports_in_circles, weigh};

/// Prints what the project weighs, and fails if that is more than `docs/weight.md` says.
pub(crate) fn run(then: Then) -> ExitCode {
    match try_run(then) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What to do instead of the comparison.
#[derive(Debug, Clone, Copy, clap::Args)]
#[group(multiple = false)]
pub(crate) struct Then {
    /// Writes `docs/weight.md`.
    #[arg(long)]
    write: bool,
    /// Prints the imports that the listed circles consist of.
    #[arg(long)]
    circles: bool,
}

fn try_run(then: Then) -> Result<ExitCode, String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut texts = BTreeMap::new();
    read(root, "", &mut texts).map_err(|error| format!("failed to read the project: {error}"))?;
    if then.circles {
        let lines = imports_in_circles(&texts)?;
        lines.iter().for_each(|line| println!("{line}"));
        return Ok(ExitCode::SUCCESS);
    }
    let now = weigh(&texts)?;
    let page = now.to_string();
    if then.write {
        let written = fs::write(root.join(PAGE), page);
        written.map_err(|error| format!("failed to write {PAGE}: {error}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = page.lines().skip_while(|line| !line.starts_with('|'));
    table.for_each(|line| println!("{line}"));
    let committed = Page::parse(texts.get(PAGE).map_or("", String::as_str));
    let differences = Differences::between(&committed, &now);
    eprint!("{differences}");
    Ok(if differences.heavier.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Reads the sources, pages and manifests of a folder, by their paths from the root.
fn read(root: &Path, folder: &str, texts: &mut BTreeMap<String, String>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !name.starts_with('.')) else {
            continue;
        };
        let path = match folder {
            "" => name.to_owned(),
            folder => format!("{folder}/{name}"),
        };
        if entry.file_type()?.is_dir() {
            // What `.gitignore` names.
            if !matches!(name, "node_modules" | "target" | "venv" | "wip") {
                read(root, &path, texts)?;
            }
        } else if [".rs", ".md", ".toml"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            texts.insert(path, fs::read_to_string(entry.path())?);
        }
    }
    Ok(())
}
