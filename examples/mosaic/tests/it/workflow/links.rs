//! Symbolic links in a folder of blobs.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use mosaic::storage::blob::{BlobName, Container};
use mosaic::storage::store::{Store, StoreError};
use tempfile::TempDir;

const CONTENTS: &str = "not a blob";

fn assert_refused<T: std::fmt::Debug>(what: &str, link: &Path, result: Result<T, StoreError>) {
    let error = result.expect_err(what);
    let is_told = matches!(&error, StoreError::Link(found) if found == link);
    assert!(is_told, "{what}: {error:?}");
}

/// A container, a folder in it or a file that is a link to something outside. Nothing is read or changed there.
#[tokio::test]
async fn links_out_of_the_folder_are_refused() {
    let name = BlobName::new(Container::Status, &["one", "plan.json"]);
    for link in ["status", "status/one", "status/one/plan.json"] {
        let (data, outside) = (
            TempDir::new().expect("a folder"),
            TempDir::new().expect("a folder"),
        );
        // What the link leads to looks like the blob.
        let rest = "status/one/plan.json"
            .strip_prefix(link)
            .expect("a part of it");
        let target = outside.path().join("target");
        let file = match rest.strip_prefix('/') {
            Some(rest) => target.join(rest),
            None => target.clone(),
        };
        fs::create_dir_all(file.parent().expect("a folder")).expect("made");
        fs::write(&file, CONTENTS).expect("written");
        let place = data.path().join(link);
        fs::create_dir_all(place.parent().expect("a folder")).expect("made");
        symlink(&target, &place).expect("linked");

        let store = Store::folder(data.path()).expect("it opens");
        assert_refused("read", &place, store.read(&name, 1 << 20).await);
        assert_refused("find", &place, store.find(&name, 1 << 20).await);
        assert_refused("exists", &place, store.exists(&name).await);
        assert_refused("create", &place, store.create(&name, "new").await);
        assert_refused("remove", &place, store.remove(&name).await);
        assert_refused("list", &place, store.list("status/one/").await);
        let removed = store.remove_where("", |_| true).await;
        assert_refused("remove all", &place, removed);
        assert_eq!(fs::read_to_string(&file).expect("it is there"), CONTENTS);
    }
}

/// The folder itself may be on another disk.
#[tokio::test]
async fn the_folder_itself_may_be_a_link() {
    let (data, outside) = (
        TempDir::new().expect("a folder"),
        TempDir::new().expect("a folder"),
    );
    let blobs = data.path().join("blobs");
    symlink(outside.path(), &blobs).expect("linked");
    let store = Store::folder(&blobs).expect("it opens");
    let name = BlobName::new(Container::Status, &["one", "plan.json"]);
    store.create(&name, "new").await.expect("written");
    assert_eq!(store.read(&name, 9).await.expect("read"), "new");
    assert!(outside.path().join("status/one/plan.json").exists());
}
