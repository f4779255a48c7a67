use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::release::{LICENCES, text};
use crate::{cargo, program};

/// The package of the program.
const PACKAGE: &str = "storage-queues-cli";

const README: &str = "\
# queues

The program `queues` looks into queues in memory, in a SQLite file, in PostgreSQL and in Azure Queue Storage, and mends
what is wrong with their messages: `queues --help`. The server of Azure's protocol is part of the program:
`queues serve --help`.

The program is licensed under MIT (LICENSE-MIT) or Apache-2.0 (LICENSE-APACHE), at your option. THIRD-PARTY.txt has the
licences of the libraries in the program.
";

/// Builds the command line for this platform, and packs the program with the licences into an archive with a sum.
pub(crate) fn make() -> Result<(), String> {
    let host = cargo::host()?;
    let mut build = cargo::command();
    build.args(["build", "--release", "--locked", "--package", PACKAGE]);
    // Nobody debugs what the archive has, and the information is several times as large as the program.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "false");
    program::run(&mut build, "build the command line")?;
    let name = format!("queues-{}-{host}", env!("CARGO_PKG_VERSION"));
    let archives = cargo::target().join("release-archives");
    let notices = notices(&host)?;
    fill(&archives.join(&name), &notices)
        .map_err(|error| format!("failed to gather the files of an archive: {error}"))?;
    let archive = format!("{name}.tar.gz");
    let mut tar = Command::new("tar");
    tar.args(["-czf", &archive, &name]).current_dir(&archives);
    program::run(&mut tar, "pack the archive")?;
    let summed = sum(&archives, &archive);
    summed.map_err(|error| format!("failed to write the sum of {archive}: {error}"))?;
    println!("{}", archives.join(archive).display());
    Ok(())
}

/// Copies into a folder what the archive has.
fn fill(folder: &Path, notices: &str) -> io::Result<()> {
    if folder.exists() {
        fs::remove_dir_all(folder)?;
    }
    fs::create_dir_all(folder)?;
    let program = format!("queues{}", std::env::consts::EXE_SUFFIX);
    let built = cargo::target().join("release").join(&program);
    fs::copy(built, folder.join(program))?;
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    for licence in LICENCES {
        fs::copy(root.join(licence), folder.join(licence))?;
    }
    fs::write(folder.join("README.md"), README)?;
    fs::write(folder.join("THIRD-PARTY.txt"), notices)
}

/// Writes the sum of an archive beside it, as `sha256sum --check` reads it.
fn sum(folder: &Path, archive: &str) -> io::Result<()> {
    let sum = Sha256::digest(fs::read(folder.join(archive))?);
    let digits: String = sum.iter().map(|byte| format!("{byte:02x}")).collect();
    let line = format!("{digits}  {archive}\n");
    fs::write(folder.join(format!("{archive}.sha256")), line)
}

/// The licences of the libraries that the program contains: each text once, after the libraries that have it.
fn notices(host: &str) -> Result<String, String> {
    let mut tree = cargo::command();
    tree.args(["tree", "--locked", "--package", PACKAGE, "--target", host]);
    tree.args(["--edges", "normal", "--prefix", "none", "--format", "{p}"]);
    let tree = cargo::output(&mut tree)?;
    // `name v1.2.3`, and for some of them more.
    let contained: BTreeSet<_> = tree.lines().map(|line| words(line, 2)).collect();
    let mut metadata = cargo::command();
    metadata.args(["metadata", "--format-version=1", "--locked"]);
    let metadata = serde_json::from_str::<Value>(&cargo::output(&mut metadata)?);
    let metadata = metadata.map_err(|error| error.to_string())?;
    let mut texts: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let packages = metadata["packages"].as_array().into_iter().flatten();
    for package in packages.filter(|package| !package["source"].is_null()) {
        let name = format!("{} v{}", text(package, "name"), text(package, "version"));
        if contained.contains(&name) {
            let folder = Path::new(text(package, "manifest_path")).with_file_name("");
            let found = licences(&folder).map_err(|error| format!("{name}: {error}"))?;
            let licence = format!("{name} ({})", text(package, "license"));
            for text in found {
                texts.entry(text).or_default().insert(licence.clone());
            }
        }
    }
    let rule = "=".repeat(80);
    let notices = texts.iter().map(|(text, libraries)| {
        let libraries: Vec<_> = libraries.iter().map(String::as_str).collect();
        format!(
            "{}\n\n{}\n\n{rule}\n\n",
            libraries.join("\n"),
            text.trim_end()
        )
    });
    Ok(notices.collect())
}

/// The first words of a line.
fn words(line: &str, count: usize) -> String {
    let words: Vec<_> = line.split(' ').take(count).collect();
    words.join(" ")
}

/// The texts of the licences and notices in the folder of a library; one that says where to find it if there is none.
fn licences(folder: &Path) -> io::Result<Vec<String>> {
    let mut texts = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().to_uppercase();
        let is_licence = ["LICENSE", "LICENCE", "COPYING", "NOTICE", "COPYRIGHT"]
            .iter()
            .any(|start| name.starts_with(start));
        if is_licence && entry.file_type()?.is_file() {
            texts.push(String::from_utf8_lossy(&fs::read(entry.path())?).into_owned());
        }
    }
    if texts.is_empty() {
        texts.push("The package of the library has no text of its licence.".to_owned());
    }
    Ok(texts)
}
