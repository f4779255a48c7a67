//! Input that is not what a command reads: it is named as what it is.

use std::fs;

use crate::support::{Ran, Storage};

const BOM: &[u8] = b"\xef\xbb\xbf";

fn utf16(text: &str) -> Vec<u8> {
    let units = "\u{feff}".encode_utf16().chain(text.encode_utf16());
    units.flat_map(u16::to_le_bytes).collect()
}

/// The bytes of a text in other forms, and how they are named.
fn others(text: &str) -> Vec<(Vec<u8>, &'static str)> {
    vec![
        (utf16(text), "UTF-16"),
        (utf16(text)[2..].to_vec(), "UTF-16"),
        ([b"\x1f\x8b\x08\x00", text.as_bytes()].concat(), "gzip"),
        ([b"\x28\xb5\x2f\xfd", text.as_bytes()].concat(), "zstd"),
        ([b"\xfd7zXZ\x00", text.as_bytes()].concat(), "xz"),
        ([b"PK\x03\x04", text.as_bytes()].concat(), "ZIP"),
        (b"SQLite format 3\0 and more".to_vec(), "SQLite database"),
        (b"\x7fELF\x02\x01\x01\0\0\0".to_vec(), "binary"),
        (
            "{\"name\": \"Gr\u{fc}n\"}"
                .chars()
                .map(|c| c as u8)
                .collect(),
            "UTF-8",
        ),
    ]
}

#[tokio::test]
async fn a_file_that_no_export_has_written_is_named_and_nothing_is_claimed() {
    let (storage, other) = (Storage::new(), Storage::new());
    storage.submit(0..3).await;
    let copied = storage.out(&["export", "orders"]);
    let first = copied.lines().next().expect("a line");
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let array = format!("[\n{}\n]", copied.trim_end().replace('\n', ",\n"));
    let pretty = first.replacen('{', "{\n  ", 1);
    let mut cases = others(&copied);
    cases.extend([
        (array.replace('\n', "").into_bytes(), "JSON array"),
        (array.into_bytes(), "JSON array"),
        (pretty.into_bytes(), "several lines"),
        (b"a letter, without an end".to_vec(), "no JSON"),
        (b"a letter\nof two lines\n".to_vec(), "no JSON"),
        (b"{\"number\": 7}".to_vec(), "another program"),
        (b"{\"number\": 7}\n".to_vec(), "another program"),
        (b"{\"number\": 7".to_vec(), "line 1"),
        (b"7".to_vec(), "another program"),
        (b"".to_vec(), "no message"),
        (BOM.to_vec(), "no message"),
        (b"\n \r\n".to_vec(), "no message"),
        (first.as_bytes()[..60].to_vec(), "within its first line"),
    ]);
    for (bytes, name) in cases {
        fs::write(&path, &bytes).expect("written");
        let mut piped = other.command(&["import", "-"]);
        other.run(&["import", file]).failed(1, name);
        for ran in [
            other.run(&["import", file]),
            Ran::of(piped.write_stdin(bytes.clone())),
            other.run(&["import", file, "--from-line", "9"]),
        ] {
            let shown = String::from_utf8_lossy(&bytes);
            assert!(ran.code == 1, "{shown:?}: {ran:?}");
            let is_skipped = ran.error.contains("has only");
            assert!(ran.error.contains(name) || is_skipped, "{shown:?}: {ran:?}");
            for claim in ["on the queue", "torn", "imported"] {
                assert!(!ran.error.contains(claim), "{shown:?}: {ran:?}");
            }
            assert!(ran.out.is_empty(), "{shown:?}: {ran:?}");
        }
    }
    // After lines that are imported, as the end of the file.
    for (end, name) in [
        (&b"a letter"[..], "no JSON"),
        (b"{\"number\": 7", "no JSON"),
        (b"{\"number\": 7}", "another program"),
        (b"\0\0\0\0\0\0", "binary"),
        (b"[", "JSON array"),
    ] {
        let third = Storage::new();
        fs::write(&path, [copied.as_bytes(), end].concat()).expect("written");
        let ran = third.run(&["import", file]);
        ran.failed(6, name);
        assert!(
            ran.error.contains("line 4") && !ran.error.contains("torn"),
            "{ran:?}"
        );
        assert_eq!(third.messages("orders"), 3);
    }
    // The last line of its own ends too early.
    let torn = format!("{copied}{}", &first[..first.len() / 2]);
    fs::write(&path, torn).expect("written");
    let ran = Storage::new().run(&["--json", "import", file]);
    assert!(ran.code == 0 && ran.error.contains("torn"), "{ran:?}");
    assert!(ran.out.contains("\"torn_line\":4"), "{ran:?}");
}

#[tokio::test]
async fn a_byte_order_mark_is_read() {
    let (storage, other) = (Storage::new(), Storage::new());
    storage.submit(0..3).await;
    let copied = storage.out(&["export", "orders"]);
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    // As an editor writes it, and twice in one file.
    let marked = [BOM, copied.replace('\n', "\r\n").as_bytes()]
        .concat()
        .repeat(2);
    fs::write(&path, marked).expect("written");
    assert_eq!(other.json(&["import", file])[0]["imported"], 6);

    let submit = ["submit", "lines", "--kind", "shop.order"];
    let lines = [BOM, b"{\"number\": 1}\r\n{\"number\": 2}\r\n"].concat();
    fs::write(&path, lines).expect("written");
    let all = [&submit[..], &["--file", file]].concat();
    assert_eq!(storage.json(&all)[0]["submitted"], 2);
    let one = [&submit[..], &["--id", "7"]].concat();
    let mut piped = storage.command(&one);
    let payload = [BOM, b"{\"number\": 3}\r\n"].concat();
    let ran = Ran::of(piped.write_stdin(payload));
    assert_eq!(ran.code, 0, "{ran:?}");
    let mut piped = storage.command(&["edit", "lines", "7", "-", "--yes"]);
    let payload = [BOM, b"{\"number\": 4}"].concat();
    let ran = Ran::of(piped.write_stdin(payload));
    assert_eq!(ran.code, 0, "{ran:?}");
    let shown = &storage.json(&["find", "lines", "7"])[0];
    assert_eq!(shown["body"]["event"]["payload"]["number"], 4);
}

#[tokio::test]
async fn a_payload_in_another_form_is_named() {
    let storage = Storage::new();
    let submit = ["submit", "orders", "--kind", "shop.order"];
    storage.out(&[&submit[..], &["--id", "7", "{}"]].concat());
    let path = storage.path("orders.jsonl");
    let file = path.to_str().expect("text");
    let mut cases = others("{\"number\": 1}\n");
    cases.push((b"".to_vec(), "empty"));
    for (bytes, name) in cases {
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        let mut piped = storage.command(&submit);
        let mut edit = storage.command(&["edit", "orders", "7", "-", "--yes"]);
        for ran in [
            Ran::of(piped.write_stdin(bytes.clone())),
            Ran::of(edit.write_stdin(bytes.clone())),
        ] {
            assert!(
                ran.code == 1 && ran.error.contains(name),
                "{shown:?}: {ran:?}"
            );
        }
        fs::write(&path, &bytes).expect("written");
        if !bytes.is_empty() {
            let ran = storage.run(&[&submit[..], &["--file", file]].concat());
            assert!(matches!(ran.code, 1 | 6), "{shown:?}: {ran:?}");
            assert!(ran.error.contains(name), "{shown:?}: {ran:?}");
        }
    }
    assert_eq!(storage.messages("orders"), 1);
    // Without an envelope, a body may be any bytes.
    let mut bare = storage.command(&["submit", "orders", "--bare"]);
    assert_eq!(
        Ran::of(bare.write_stdin(b"\x1f\x8b\x08\x00".to_vec())).code,
        0
    );
}
