//! `cargo xtask weigh`: reads the project, and compares it with the page.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

use super::compare::Differences;
use super::page::Page;
use super::project::{PAGE, weigh};

/// Prints what the project weighs, and fails if that is more than the page says. With `write`, writes the page instead.
pub(crate) fn run(write: bool) -> ExitCode {
    match try_run(write) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn try_run(write: bool) -> Result<ExitCode, String> {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let mut texts = BTreeMap::new();
    read(root, "", &mut texts).map_err(|error| format!("failed to read the project: {error}"))?;
    let now = weigh(&texts)?;
    let committed = texts.get(PAGE).map_or("", String::as_str);
    let page = now.to_string();
    if write {
        let written = fs::write(root.join(PAGE), page);
        written.map_err(|error| format!("failed to write {PAGE}: {error}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let table = page.lines().skip_while(|line| !line.starts_with('|'));
    table.for_each(|line| println!("{line}"));
    let differences = Differences::between(&Page::parse(committed), &now);
    eprint!("{differences}");
    Ok(match differences.heavier.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
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
            if !matches!(name, "target" | "node_modules") {
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
