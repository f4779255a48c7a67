//! How the program treats its user: what it refuses, what it leaves behind, and what it says.

use std::error::Error as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use pictures::Picture;
use tempfile::TempDir;

use crate::processes::support::{output, pictures, program};

/// The text on standard output and standard error.
struct Said {
    success: bool,
    out: String,
    error: String,
}

fn said(command: &mut Command) -> Said {
    // As a user runs it.
    let output = output(command.env_remove("RUST_LOG"));
    Said {
        success: output.status.success(),
        out: String::from_utf8(output.stdout).expect("text"),
        error: String::from_utf8(output.stderr).expect("text"),
    }
}

fn succeeds(command: &mut Command) -> Said {
    let said = said(command);
    assert!(said.success, "{}", said.error);
    said
}

fn fails(command: &mut Command) -> String {
    let said = said(command);
    assert!(!said.success, "{}", said.out);
    said.error
}

/// A black picture as a PNG.
fn black(width: u32, height: u32) -> Vec<u8> {
    Picture::from_fn(width, height, |_, _| [0; 3]).to_png()
}

/// A command about requests, which takes no `--timeout`.
fn about(command: &str, data: &Path, more: &[&str]) -> String {
    let mut program = program(&[command]);
    let output = program.arg("--data").arg(data).args(more).output();
    let output = output.expect("the program runs");
    let error = String::from_utf8(output.stderr).expect("text");
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout).expect("text")
}

/// Pictures, and folders for data and outputs.
struct Desk {
    pictures: TempDir,
    folder: TempDir,
}

impl Desk {
    fn new() -> Self {
        let folder = TempDir::new().expect("a folder");
        let pictures = pictures();
        Self { pictures, folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A run of a few tiles with the data in a folder of the desk.
    fn run(&self, out: &str, more: &[&str]) -> Command {
        let mut run = self.small(out, more);
        run.arg("--data").arg(self.path("data"));
        run
    }

    /// A run of a few tiles with the data in a temporary folder, which is in a folder of the desk.
    fn small(&self, out: &str, more: &[&str]) -> Command {
        let [image, library] = ["scene.png", "tiles"].map(|name| self.pictures.path().join(name));
        let temporary = self.path("tmp");
        fs::create_dir_all(&temporary).expect("made");
        let mut run = program(&["run"]);
        for (option, value) in [
            ("--tile-size", "4"),
            ("--across", "12"),
            ("--image", text(&image)),
            ("--library", text(&library)),
        ] {
            if !more.contains(&option) {
                run.args([option, value]);
            }
        }
        run.arg("--out").arg(self.path(out)).args(more);
        run.env("TMPDIR", temporary);
        run
    }

    /// The files in the data folder's containers, without status records and libraries.
    fn blobs(&self) -> Vec<PathBuf> {
        let containers = ["imageinput", "slicerequest", "sliceresponse", "imageoutput"];
        let mut found = Vec::new();
        for container in containers {
            files(&self.path("data").join("blobs").join(container), &mut found);
        }
        found
    }
}

fn files(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            files(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("text")
}

#[test]
fn a_request_cannot_get_other_options() {
    let desk = Desk::new();
    let small = |more: &[&str]| {
        let mut run = desk.run("out.png", more);
        run.args(["--request-id", "one"]);
        run
    };
    succeeds(&mut small(&["--keep"]));
    succeeds(&mut small(&["--keep"]));
    let tiles = desk.pictures.path().join("tiles");
    let others = desk.path("tiles");
    fs::create_dir(&others).expect("made");
    fs::copy(tiles.join("1.png"), others.join("1.png")).expect("copied");
    let other = desk.path("other.png");
    fs::write(&other, black(9, 9)).expect("written");
    for (more, what) in [
        (["--library", text(&others)], "tile library"),
        (["--across", "13"], "number of tiles across"),
        (["--slices", "2"], "number of slices"),
        (["--tint", "0.1"], "tint"),
        (["--image", text(&other)], "picture"),
    ] {
        let error = fails(&mut small(&more));
        let expected = format!(
            "error: failed to make the mosaic: the request id `one` is already used with another {what}\n"
        );
        assert_eq!(error, expected);
    }
}

#[test]
fn an_output_that_cannot_be_written_is_refused_before_the_work() {
    let desk = Desk::new();
    fs::create_dir(desk.path("folder.png")).expect("made");
    for (out, expected) in [
        ("missing/out.png", "No such file or directory"),
        ("folder.png", "is a directory"),
        ("out.gif", "must end in .png, .jpg or .jpeg"),
        ("out", "must end in .png, .jpg or .jpeg"),
    ] {
        let error = fails(&mut desk.run(out, &[]));
        assert!(error.contains(expected), "{error}");
        assert!(!desk.path("data").exists(), "{out}: the work was begun");
    }
}

#[cfg(unix)]
#[test]
fn a_picture_without_end_is_refused() {
    let desk = Desk::new();
    let error = fails(&mut desk.small("out.png", &["--image", "/dev/zero"]));
    let expected = "error: failed to make the mosaic: read `/dev/zero`: it has more than the 64 MiB \
                    allowed\n";
    assert_eq!(error, expected);
}

#[test]
fn a_file_that_is_not_a_picture_is_refused_before_any_work() {
    let desk = Desk::new();
    let notes = desk.path("notes.txt");
    fs::write(&notes, "milk, bread").expect("written");
    let error = fails(&mut desk.run("out.png", &["--image", text(&notes)]));
    let expected = "error: failed to make the mosaic: the source picture \"notes.txt\" cannot be used: the file is \
                    neither PNG nor JPEG\n";
    assert_eq!(error, expected);
    assert!(!desk.path("data").exists(), "the work was begun");
}

#[test]
fn a_jpeg_is_written_by_its_extension() {
    let desk = Desk::new();
    succeeds(&mut desk.small("out.JPG", &[]));
    let bytes = fs::read(desk.path("out.JPG")).expect("a file");
    assert_eq!(bytes[..2], [0xff, 0xd8]);
    let saved = Picture::decode("out.JPG", &bytes).expect("a JPEG");
    assert_eq!(saved.dimensions(), (48, 32));
}

#[test]
fn a_mosaic_that_cannot_be_saved_is_kept() {
    let desk = Desk::new();
    let wide = desk.path("wide.png");
    fs::write(&wide, black(2000, 1)).expect("written");
    // Wider than a JPEG can be.
    let more = [
        "--image",
        text(&wide),
        "--across",
        "2000",
        "--tile-size",
        "33",
    ];
    let error = fails(&mut desk.small("out.jpg", &more));
    let expected = "the mosaic cannot be a JPEG: the picture is 66000×33 pixels, ";
    assert!(error.contains(expected), "{error}");
    // The same command with the options that it names, and another file.
    let (_, options) = error.split_once("with `--data ").expect("a folder");
    let mut options = options.split('`');
    let data = options.next().expect("a folder");
    let id = options.nth(1).expect("an option");
    let id = id.strip_prefix("--request-id ").expect("an id");
    let mut again = desk.small("out.png", &more);
    succeeds(again.args(["--data", data, "--request-id", id]));
    let kept = fs::read(desk.path("out.png")).expect("the mosaic");
    let kept = Picture::check("kept", &kept).expect_err("too wide for a source");
    let cause = kept.source().expect("a cause").to_string();
    assert!(cause.contains("66000×33 pixels"), "{cause}");
}

#[test]
fn a_damaged_tile_is_skipped_with_a_warning() {
    let desk = Desk::new();
    let tiles = desk.pictures.path().join("tiles");
    fs::write(tiles.join("9.png"), "junk").expect("written");
    // Once when the library is loaded, and once when its cache is used.
    for out in ["one.png", "two.png"] {
        let said = succeeds(&mut desk.run(out, &[]));
        let expected = "warning: skipped the tile `9.png`: the file is neither PNG nor JPEG\n";
        assert_eq!(said.error, expected);
    }
    let read = |name| fs::read(desk.path(name)).expect("a mosaic");
    assert!(read("one.png") == read("two.png"));
}

#[test]
fn a_library_is_read_with_its_subfolders_and_an_empty_one_is_named() {
    let desk = Desk::new();
    let (tiles, deep) = (desk.pictures.path().join("tiles"), desk.path("deep"));
    fs::create_dir_all(deep.join("a/b")).expect("made");
    fs::create_dir_all(deep.join(".hidden")).expect("made");
    fs::write(deep.join("notes.txt"), "no picture").expect("written");
    let error = fails(&mut desk.small("out.png", &["--library", text(&deep)]));
    let expected = format!(
        "error: failed to make the mosaic: read the tile library `{}`: it has no pictures; files that end in .png, \
         .jpg or .jpeg were looked for, in subfolders too\n",
        deep.display()
    );
    assert_eq!(error, expected);

    for place in ["1.png", "a/1.PNG", "a/b/3.png", ".hidden/4.png"] {
        let number = place.chars().rev().nth(4).expect("a digit");
        fs::copy(tiles.join(format!("{number}.png")), deep.join(place)).expect("copied");
    }
    let said = succeeds(&mut desk.small("out.png", &["--library", text(&deep)]));
    assert!(said.out.contains(" tiles from 3 pictures"), "{}", said.out);
}

#[test]
fn blobs_of_finished_requests_are_removed() {
    let desk = Desk::new();
    succeeds(&mut desk.run("out.png", &["--request-id", "gone"]));
    assert_eq!(desk.blobs(), Vec::<PathBuf>::new());
    let error = fails(&mut desk.run("out.png", &["--request-id", "gone"]));
    assert!(
        error.contains("use another request id to make it again"),
        "{error}"
    );

    succeeds(&mut desk.run("out.png", &["--keep"]));
    // The picture, the mosaic, and 8 slices before and after.
    assert_eq!(desk.blobs().len(), 18);
    let cleaned = about("clean", &desk.path("data"), &[]);
    assert!(cleaned.starts_with("removed "), "{cleaned}");
    assert_eq!(
        about("status", &desk.path("data"), &[]),
        "there are no requests\n"
    );
    let mut left = Vec::new();
    files(&desk.path("data").join("blobs"), &mut left);
    assert_eq!(left, [desk.path("data/blobs/identity")]);
}

#[test]
fn requests_are_listed_with_their_progress_and_client() {
    let desk = Desk::new();
    succeeds(&mut desk.run("out.png", &["--request-id", "fine", "--client-id", "ann"]));
    let junk = desk.path("junk.png");
    let mut half = black(64, 64);
    half.truncate(half.len() / 2);
    fs::write(&junk, half).expect("written");
    let more = ["--request-id", "bad", "--image", text(&junk)];
    fails(&mut desk.run("bad.png", &more));

    let listed = about("status", &desk.path("data"), &[]);
    let line = |id: &str| {
        let line = listed.lines().find(|line| line.starts_with(id));
        line.unwrap_or_else(|| panic!("{listed}")).to_owned()
    };
    assert!(
        line("fine  ").ends_with("Z  ann  done: 8 of 8 slices, 8 attempts, 0 failures"),
        "{listed}"
    );
    assert!(
        line("bad  ").ends_with("  failed: no slices, 0 attempts, 0 failures"),
        "{listed}"
    );
    assert!(
        listed.contains("\n  the source picture \"junk.png\" cannot be used"),
        "{listed}"
    );
    let one = about("status", &desk.path("data"), &["fine"]);
    assert!(
        one.contains("scene.png: 12 tiles across, tile size 4, 16 slices"),
        "{one}"
    );
    assert!(!one.contains("bad"), "{one}");
}

#[cfg(unix)]
mod signals {
    use std::process::{Child, Stdio};
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::processes::support::{self, GUARD};

    /// Starts a run that takes a second for each slice, and stops it once there are slices in its folder.
    fn stopped(mut run: Command, signal: &str, folder: &Path) -> String {
        run.args(["--pace", "1s", "--processors", "1"]);
        run.env_remove("RUST_LOG")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut run: Child = run.spawn().expect("the program runs");
        let start = Instant::now();
        while !has_slices(folder) {
            let ended = run.try_wait().expect("it is a child of ours");
            let is_late = start.elapsed() > GUARD;
            if is_late || ended.is_some() {
                run.kill().expect("it is a child of ours");
                panic!("it did not begin: {:?}", run.wait_with_output());
            }
            // Nothing announces what the run has stored.
            thread::sleep(Duration::from_millis(20));
        }
        support::signal(&run, signal);
        let ended = run.wait_with_output().expect("it is a child of ours");
        assert_eq!(ended.status.code(), Some(1), "{ended:?}");
        String::from_utf8(ended.stderr).expect("text")
    }

    fn has_slices(folder: &Path) -> bool {
        let mut found = Vec::new();
        files(folder, &mut found);
        let is_slice = |path: &PathBuf| text(path).contains("/slicerequest/");
        found.iter().any(is_slice)
    }

    #[test]
    fn a_stopped_run_leaves_nothing_behind() {
        let desk = Desk::new();
        let temporary = desk.path("tmp");
        let more = ["--across", "96", "--slices", "64"];
        let error = stopped(desk.small("out.png", &more), "-INT", &temporary);
        let expected = "error: failed to make the mosaic: it was stopped by a signal; with `--data FOLDER` and \
                        `--request-id ID`, the same command goes on after a stop\n";
        assert_eq!(error, expected);
        assert_eq!(fs::read_dir(&temporary).expect("a folder").count(), 0);
        let out = fs::read_dir(desk.folder.path()).expect("a folder");
        assert_eq!(out.count(), 1, "only the temporary folder is there");
    }

    #[test]
    fn a_stopped_run_goes_on_with_the_same_result() {
        let desk = Desk::new();
        succeeds(&mut desk.small("whole.png", &["--across", "96"]));
        let data = desk.path("data");
        let run = || {
            let mut run = desk.run("out.png", &["--across", "96"]);
            run.args(["--request-id", "mine"]);
            run
        };
        let error = stopped(run(), "-TERM", &data);
        assert!(
            error.contains("to go on, repeat the command with `--request-id mine`"),
            "{error}"
        );
        assert!(!desk.path("out.png").exists());
        succeeds(&mut run());
        let read = |name| fs::read(desk.path(name)).expect("a mosaic");
        assert!(read("out.png") == read("whole.png"));
    }
}
