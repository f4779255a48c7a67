use super::*;
use crate::weigh::compare::Differences;

/// A workspace with a package `queue` in `queue/`, of these files.
fn texts(files: &[(&str, &str)]) -> BTreeMap<String, String> {
    let manifests = [
        ("Cargo.toml", "[workspace]\nmembers = ['queue', 'tools/*']"),
        ("queue/Cargo.toml", "[package]\nname = 'queue'"),
        ("tools/cli/Cargo.toml", "[package]\nname = 'queue-cli'"),
    ];
    let files = manifests.iter().chain(files);
    files
        .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
        .collect()
}

fn page(files: &[(&str, &str)]) -> Page {
    weigh(&texts(files)).expect("valid sources")
}

fn listed(page: &Page, title: &str) -> Vec<String> {
    let list = page.lists.iter().find(|list| list.title == title);
    let entries = &list.expect("a list of this title").entries;
    entries.iter().map(ToString::to_string).collect()
}

fn row<'a>(page: &'a Page, part: &str) -> &'a Row {
    let row = page.rows.iter().find(|row| row.part == part);
    row.unwrap_or_else(|| panic!("no row {part}"))
}

#[test]
fn comments_blank_lines_and_tests_are_no_code() {
    let source = "//! Docs.\n\n/** More\n\n docs. */\npub fn f() { // why\n    /* how\n */\n}\n\
                  #[doc = \"text\"]\n#[must_use]\nfn g() -> &'static str {\n    \"a // b\n\n    c\"\n}\n\
                  #[cfg(all(test, unix))]\nmod tests {\n    //! No.\n    #[test]\n    fn t() {}\n}\n\
                  #[cfg(not(test))]\nfn h() {}\n#[cfg(test)]\nmod more;\n";
    let files = [
        ("queue/src/lib.rs", source),
        ("queue/src/more.rs", "fn one() {}\n\nmod inner;\n"),
        ("queue/src/more/inner.rs", "fn two() {}\n"),
        ("queue/tests/it/main.rs", "mod a;\n"),
        ("queue/tests/it/a.rs", "#[test]\nfn f() {}\n"),
        ("tools/cli/src/main.rs", "fn main() {}\n"),
        ("README.md", "Three words here\n"),
        (
            "queue-runtime/src/docs/guide/readme.md",
            "Three words here\n",
        ),
        ("CHANGELOG.md", "Two words\n"),
    ];
    let page = page(&files);
    let library = row(&page, "`queue`");
    assert_eq!((library.weight, library.files), (2 + 5 + 2, Some(1)));
    assert_eq!(row(&page, "library").weight, library.weight);
    assert_eq!(row(&page, "unit tests").weight, 5 + 2 + 2 + 1);
    assert_eq!(row(&page, "other tests").weight, 3);
    assert_eq!(row(&page, "tools").weight, 1);
    assert_eq!(row(&page, "pages").weight, 3);
    assert_eq!(row(&page, "changelog").weight, 2);
}

#[test]
fn a_test_kit_is_not_the_library() {
    let files = [
        (
            "queue/src/lib.rs",
            "#[path = \"../conformance/mod.rs\"]\npub mod conformance;\npub mod testing;\n",
        ),
        (
            "queue/conformance/mod.rs",
            "mod suite;\npub use suite::*;\n",
        ),
        (
            "queue/conformance/suite.rs",
            "pub fn all() {}\npub trait Store {\n    fn one();\n}\n",
        ),
        (
            "queue/src/testing.rs",
            "#[doc(hidden)]\npub fn hidden() {}\n",
        ),
    ];
    let page = page(&files);
    assert_eq!(row(&page, "library").weight, 3);
    let kit = row(&page, "test kit: `queue::conformance`");
    let expected = (6, Some(2), Some(1 + 1 + 2));
    assert_eq!((kit.weight, kit.files, kit.names), expected);
    let kit = row(&page, "test kit: `queue::testing`");
    assert_eq!((kit.weight, kit.files, kit.names), (2, Some(1), Some(1)));
}

#[test]
fn public_names_are_those_that_a_path_leads_to() {
    let files = [
        (
            "queue/src/lib.rs",
            "mod inner;\npub mod open;\npub use inner::{Passed, once};\npub use other::Foreign;\n",
        ),
        (
            "queue/src/inner.rs",
            "pub struct Passed;\nimpl Passed {\n    pub fn one() {}\n    fn two() {}\n}\npub fn once() {}\n\
             pub struct Unreached;\nimpl Unreached {\n    pub fn three() {}\n}\n",
        ),
        (
            "queue/src/open.rs",
            "pub const A: u8 = 1;\npub(crate) const B: u8 = 1;\nconst C: u8 = 1;\n",
        ),
    ];
    assert_eq!(row(&page(&files), "`queue`").names, Some(1 + 2 + 1 + 1 + 1));
}

#[test]
fn a_type_declared_twice_is_listed() {
    let files = [
        ("queue/src/lib.rs", "mod a;\nmod b;\nmod c;\nenum Plan {}\n"),
        (
            "queue/src/a.rs",
            "pub(crate) struct Plan;\nstruct Step;\npub struct Once;\n",
        ),
        (
            "queue/src/b.rs",
            "pub(super) type Plan = u8;\npub struct Step;\nfn f() { struct Once; }\n",
        ),
        (
            "queue/src/c.rs",
            "#[cfg(test)]\nmod tests {\n    pub struct Once;\n}\n",
        ),
    ];
    assert_eq!(
        listed(&page(&files), "Types declared twice"),
        ["`queue` `Plan`: `queue/src/a.rs`, `queue/src/b.rs`"]
    );
}

/// Four files in a circle, of which `b` imports from `c` through a `mod.rs`.
const CIRCLE: [(&str, &str); 6] = [
    ("queue/src/lib.rs", "mod a;\nmod room;\npub use room::B;\n"),
    ("queue/src/a.rs", "use crate::B;\npub struct A(B);\n"),
    (
        "queue/src/room/mod.rs",
        "mod b;\nmod c;\nmod d;\npub use {b::B, c::C};\n",
    ),
    ("queue/src/room/b.rs", "use super::C;\npub struct B(C);\n"),
    (
        "queue/src/room/c.rs",
        "use super::d;\npub struct C(d::D);\n",
    ),
    (
        "queue/src/room/d.rs",
        "pub struct D;\nfn f() { assert!(matches!(1, crate::a::A::ONE)); }\n",
    ),
];

#[test]
fn a_circle_of_four_files_is_listed_also_through_a_re_export() {
    let mut files = CIRCLE;
    assert_eq!(
        listed(&page(&files), "Circles"),
        [
            "`queue`: `queue/src/a.rs`, `queue/src/room/b.rs`, `queue/src/room/c.rs`, `queue/src/room/d.rs`"
        ]
    );
    files[5].1 =
        "//! [`crate::a::A`]\npub struct D;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n";
    assert!(listed(&page(&files), "Circles").is_empty());
    // The first three.
    files[5].1 = "pub struct D;\n";
    files[4].1 = "pub struct C(crate::a::A);\n";
    assert!(listed(&page(&files), "Circles").is_empty());
}

#[test]
fn arrows_that_point_up_are_listed_but_for_methods_on_handles() {
    let files = [
        (
            "queue/src/lib.rs",
            "mod service;\nmod extensions;\nmod kernel;\npub use service::QueueService;\n",
        ),
        (
            "queue/src/service.rs",
            "use crate::kernel::Low;\npub struct QueueService(Low);\npub struct Queue;\n",
        ),
        (
            "queue/src/extensions/mod.rs",
            "pub mod redrive;\nmod look;\n",
        ),
        (
            "queue/src/extensions/redrive.rs",
            "use crate::QueueService;\nimpl QueueService { fn redrive() {} }\npub fn once() {}\n",
        ),
        (
            "queue/src/extensions/look.rs",
            "use crate::service::{Queue, QueueService};\nimpl Queue {}\n",
        ),
        (
            "queue/src/kernel/mod.rs",
            "pub use crate::extensions::redrive::once;\nmod run;\npub struct Low;\n",
        ),
        ("queue/src/kernel/run.rs", "fn f() { super::once(); }\n"),
    ];
    let page = page(&files);
    assert_eq!(
        listed(&page, "Arrows that point up"),
        [
            "`queue/src/extensions/look.rs`: `service`",
            "`queue/src/kernel/mod.rs`: `extensions::redrive`",
            "`queue/src/kernel/run.rs`: `extensions::redrive`",
        ]
    );
    assert_eq!(row(&page, "extensions' methods on handles").weight, 2);
    assert_eq!(
        row(&page, "[arrows that point up](#arrows-that-point-up)").weight,
        3
    );
    assert_eq!(row(&page, "`queue`: kernel").weight, 4);
}

#[test]
fn names_at_the_root_are_counted_with_modules() {
    let root = "pub mod service;\nmod extensions;\nmod kernel;\npub use service::{Handle as Queue, QueueService};\n\
                #[cfg(unix)]\npub use service::QueueService;\npub(crate) use kernel::Low;\n#[doc(hidden)]\npub mod internal;\n\
                pub fn batch() {}\nfn own() {}\n";
    let files = [
        ("queue/src/lib.rs", root),
        (
            "queue/src/service.rs",
            "pub struct QueueService;\npub struct Handle;\n",
        ),
        ("queue/src/extensions.rs", "pub struct Once;\n"),
        ("queue/src/kernel.rs", "pub struct Low;\n"),
        ("queue/src/internal.rs", "pub fn hidden() {}\n"),
    ];
    // `Queue`, `QueueService`, `batch`, `service`.
    assert_eq!(row(&page(&files), "names at the root").weight, 4);
}

#[test]
fn imports_of_tests_long_files_and_wrong_tables_are_listed() {
    let long = "//\n".repeat(501);
    let files = [
        (
            "queue/src/lib.rs",
            "//! | module | contents |\n//! |---|---|\n//! | `long`, `gone/` | |\nmod long;\n",
        ),
        ("queue/src/long.rs", long.as_str()),
        (
            "queue/tests/it/main.rs",
            "mod accept;\nmod poison;\nmod support;\n",
        ),
        ("queue/tests/it/support.rs", "pub fn count() {}\n"),
        (
            "queue/tests/it/accept.rs",
            "use crate::support::count;\n#[test]\nfn one() {}\npub fn order() {}\n",
        ),
        (
            "queue/tests/it/poison.rs",
            "#[tokio::test]\nasync fn two() { crate::accept::order() }\n",
        ),
    ];
    let page = page(&files);
    assert_eq!(
        listed(&page, "Imports of tests"),
        ["`queue/tests/it/poison.rs`: `queue/tests/it/accept.rs`"]
    );
    assert_eq!(listed(&page, "Long files"), ["`queue/src/long.rs`"]);
    assert_eq!(
        listed(&page, "Rows without module"),
        ["`queue/src/lib.rs`: `gone`"]
    );
}

#[test]
fn a_heavier_row_is_noticed_and_the_written_seconds_stay() {
    let mut files = texts(&CIRCLE);
    let mut committed = weigh(&files).expect("valid");
    committed.rows.push(Row {
        part: SECONDS.to_owned(),
        weight: 2146,
        unit: "seconds".to_owned(),
        ..Row::default()
    });
    files.insert(PAGE.to_owned(), committed.to_string());
    let now = weigh(&files).expect("valid");
    assert_eq!(row(&now, SECONDS).weight, 2146);
    assert_eq!(
        Differences::between(&committed, &now),
        Differences::default()
    );
    let added = "pub struct D;\npub fn f() -> crate::a::A {\n}\n";
    files.insert("queue/src/room/d.rs".to_owned(), added.to_owned());
    let now = weigh(&files).expect("valid");
    let found = Differences::between(&committed, &now);
    assert_eq!(
        found.heavier,
        [
            "library: 15 lines before, now 16",
            "`queue`: 15 lines before, now 16",
        ]
    );
    assert_eq!(found.lighter, [""; 0]);
    assert!(found.to_string().contains("cargo xtask weigh --write"));
}
