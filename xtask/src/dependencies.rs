//! `cargo xtask dependencies`: the rules of `deny.toml`, without `cargo-deny`, which takes minutes to build.

use std::collections::BTreeSet;
use std::process::ExitCode;

use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::cargo;

/// Where all dependencies come from that are not in this repository.
const CRATES_IO: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// What `deny.toml` says, as far as it is checked here.
const RULES: &str = include_str!("../../deny.toml");

/// Checks the licence, the origin and the version of each dependency, and names those that are refused.
pub(crate) fn run() -> ExitCode {
    let checked = read_metadata().and_then(|metadata| refused(&metadata, &allowed(RULES)?));
    match checked {
        Ok(refused) if refused.is_empty() => ExitCode::SUCCESS,
        Ok(refused) => {
            refused.iter().for_each(|line| eprintln!("{line}"));
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("failed to check the dependencies: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read_metadata() -> Result<Value, String> {
    let mut metadata = cargo::command();
    metadata.args([
        "metadata",
        "--format-version=1",
        "--all-features",
        "--locked",
    ]);
    let printed = cargo::output(&mut metadata)?;
    serde_json::from_str(&printed).map_err(|error| error.to_string())
}

/// Returns the licences that `deny.toml` allows.
fn allowed(rules: &str) -> Result<BTreeSet<String>, String> {
    let rules: toml::Table = rules.parse().map_err(|error| format!("{error}"))?;
    let allow = rules.get("licenses").and_then(|rules| rules.get("allow"));
    let allow = allow.and_then(toml::Value::as_array);
    let allow = allow.ok_or("`deny.toml` has no `licenses.allow`")?.iter();
    let names = allow.map(|name| name.as_str().map(str::to_owned));
    let names: Option<_> = names.collect();
    names.ok_or_else(|| "`licenses.allow` of `deny.toml` is not a list of names".to_owned())
}

/// Returns a line for each dependency that is refused, with the reason.
fn refused(metadata: &Value, allowed: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let packages = metadata["packages"].as_array();
    let packages = packages.filter(|packages| !packages.is_empty());
    let packages = packages.ok_or("cargo has named no packages")?;
    let mut refused = Vec::new();
    for package in packages {
        let name = format!("{} {}", text(package, "name"), text(package, "version"));
        match package["source"].as_str() {
            None => refused.extend(wildcards(package).map(|on| {
                format!("{name}: the version of its dependency {on} is `*`; name the oldest one that fits")
            })),
            Some(CRATES_IO) => {
                let refusal = check_licence(package["license"].as_str(), allowed).err();
                refused.extend(refusal.map(|why| format!("{name}: {why}")));
            }
            Some(other) => refused.push(format!("{name}: it comes from {other}; allowed is crates.io")),
        }
    }
    Ok(refused)
}

fn text<'a>(package: &'a Value, member: &str) -> &'a str {
    package[member].as_str().unwrap_or_default()
}

/// Returns the dependencies of a package that are allowed in any version, and are not packages of this repository.
fn wildcards(package: &Value) -> impl Iterator<Item = &str> {
    let all = package["dependencies"].as_array().into_iter().flatten();
    let any = all.filter(|on| on["req"] == "*" && on["path"].is_null());
    any.map(|on| text(on, "name"))
}

/// Checks that a program may be linked with a dependency that has this licence.
fn check_licence(licence: Option<&str>, allowed: &BTreeSet<String>) -> Result<(), String> {
    let licence = licence.ok_or("it names no licence")?;
    // As crates of the time before SPDX expressions write it: `MIT/Apache-2.0`.
    let parsed = Expression::parse_mode(licence, ParseMode::LAX);
    let parsed = parsed
        .map_err(|error| format!("its licence `{licence}` cannot be read: {}", error.reason))?;
    let is_allowed = parsed.evaluate(|needed| {
        let id = needed.license.id();
        id.is_some_and(|id| needed.addition.is_none() && allowed.contains(id.name))
    });
    if is_allowed {
        return Ok(());
    }
    Err(format!(
        "its licence `{licence}` is not allowed by `deny.toml`"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn crate_of(licence: Option<&str>, source: Option<&str>) -> Value {
        json!({ "packages": [{
            "name": "one", "version": "1.0.0", "license": licence, "source": source,
            "dependencies": [
                { "name": "any", "req": "*", "path": null },
                { "name": "ours", "req": "*", "path": "/here" },
                { "name": "some", "req": "^1.2", "path": null },
            ],
        }]})
    }

    #[test]
    fn a_dependency_is_refused_by_its_licence_or_origin() {
        let allowed = allowed(RULES).expect("readable");
        let refused =
            |licence, source| refused(&crate_of(licence, source), &allowed).expect("checked");
        for fits in [
            "MIT",
            "MIT OR GPL-3.0-only",
            "MIT/Apache-2.0",
            "Apache-2.0 AND ISC",
        ] {
            assert!(refused(Some(fits), Some(CRATES_IO)).is_empty(), "{fits}");
        }
        for (licence, why) in [
            (
                Some("GPL-3.0-only"),
                "its licence `GPL-3.0-only` is not allowed",
            ),
            (Some("MIT AND GPL-3.0-only"), "is not allowed"),
            (Some("our own"), "its licence `our own` cannot be read"),
            (None, "it names no licence"),
        ] {
            let lines = refused(licence, Some(CRATES_IO));
            assert!(lines.len() == 1 && lines[0].contains(why), "{lines:?}");
        }
        let elsewhere = refused(Some("MIT"), Some("git+https://example.com/one"));
        assert!(
            elsewhere[0].contains("it comes from git+https://example.com/one"),
            "{elsewhere:?}"
        );
    }

    #[test]
    fn only_packages_of_this_repository_are_asked_for_wildcards() {
        let allowed = allowed(RULES).expect("readable");
        let lines = refused(&crate_of(None, None), &allowed).expect("checked");
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("its dependency any is `*`"), "{lines:?}");
    }

    #[test]
    fn no_packages_are_no_answer() {
        refused(&json!({ "packages": [] }), &BTreeSet::new()).expect_err("nothing was checked");
    }
}
