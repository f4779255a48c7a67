//! Jobs, as a page sees them.

use std::time::Duration;

use axum::http::StatusCode;
use mosaic::storage::blob::BlobName;
use mosaic::workflow::embedded::Embedded;
use mosaic::workflow::roles::Settings;
use pictures::Picture;
use queue_runtime::RequestId;
use serde_json::Value;

use crate::web::site::{SMALL, Site, bytes, text};

fn settings() -> Settings {
    Settings {
        pace: Duration::from_millis(20),
        ..Settings::default()
    }
}

async fn submitted(site: &Site, query: &str, body: Vec<u8>) -> String {
    let accepted = site.upload(query, body).await;
    assert_eq!(accepted.status(), StatusCode::CREATED);
    let accepted: Value = serde_json::from_str(&text(accepted).await).expect("JSON");
    accepted["id"].as_str().expect("an id").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_picture_becomes_a_mosaic_that_can_be_looked_at_and_saved() {
    let site = Site::open().await;
    let mut roles =
        Embedded::start(&site.service, &site.store, 2, &settings()).expect("they start");
    let picture = Picture::scene(96, 64).to_png();
    let id = submitted(&site, &format!("name=scene.png&{SMALL}"), picture).await;
    let part = site.follow(&id, |job| job["done"].as_u64() > Some(0)).await;
    assert_eq!(part["slices"], 4);
    let job = site.follow(&id, |job| job["state"] == "done").await;
    assert_eq!(job["name"], "scene.png");
    let finished = job["finished"].as_array().expect("a list");
    assert_eq!(finished.len(), 4);
    for slice in finished {
        assert!(slice["millis"].as_u64() >= Some(20), "{slice}");
        assert_eq!(slice["by"], site.service.client_id().as_str());
    }

    let request = RequestId::new(id.clone()).expect("an id");
    let saved = site.get(&format!("/jobs/{id}/mosaic")).await;
    let disposition = saved.headers()["content-disposition"]
        .to_str()
        .expect("text");
    assert_eq!(
        disposition,
        format!("attachment; filename=\"mosaic-{id}.png\"")
    );
    let folder = format!("imageoutput/{request}/");
    let parts = site.store.list(&folder).await.expect("listed");
    let mosaic = BlobName::try_from(parts[0].name.clone()).expect("a name");
    let mosaic = site.store.read(&mosaic, 1 << 30).await;
    assert!(bytes(saved).await == mosaic.expect("there"));

    for path in ["source", "parts/0/3/0", "tiles/0"] {
        let shown = site.get(&format!("/jobs/{id}/{path}")).await;
        assert_eq!(shown.status(), StatusCode::OK, "{path}");
        let shown = bytes(shown).await;
        Picture::decode(path, &shown).expect("a picture");
    }
    let places = text(site.get(&format!("/jobs/{id}/places/0")).await).await;
    let places: Vec<u32> = serde_json::from_str(&places).expect("a list");
    assert_eq!(places.len(), 24 * 4);
    for path in [
        "parts/0/4/0",
        "parts/0/0/1",
        "parts/9/0/0",
        "places/4",
        "tiles/99999",
    ] {
        let missing = site.get(&format!("/jobs/{id}/{path}")).await;
        assert_eq!(missing.status(), StatusCode::NOT_FOUND, "{path}");
    }
    roles.shutdown(Duration::from_secs(60)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_fails_says_why() {
    let site = Site::open().await;
    let _roles = Embedded::start(&site.service, &site.store, 2, &settings()).expect("they start");
    let mut damaged = Picture::scene(96, 64).to_png();
    let middle = damaged.len() / 2;
    damaged.truncate(middle);
    let id = submitted(&site, &format!("name=half.png&{SMALL}"), damaged).await;
    let job = site.follow(&id, |job| job["state"] == "failed").await;
    let reason = job["reason"].as_str().expect("a reason");
    assert!(reason.contains("\"half.png\" cannot be used"), "{reason}");
    let mosaic = site.get(&format!("/jobs/{id}/mosaic")).await;
    assert_eq!(mosaic.status(), StatusCode::NOT_FOUND);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_followed_whose_roles_are_elsewhere() {
    let site = Site::open().await;
    let elsewhere = queue_runtime::QueueService::with_backend(site.service.backend().clone());
    let elsewhere = elsewhere.connect().await.expect("it connects");
    let _roles = Embedded::start(&elsewhere, &site.store, 2, &settings()).expect("they start");
    let id = submitted(&site, &format!("name=a&scene=mist&{SMALL}"), Vec::new()).await;
    let job = site.follow(&id, |job| job["state"] == "done").await;
    let by = job["finished"][0]["by"].as_str().expect("a client");
    assert_eq!(by, elsewhere.client_id().as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_being_taken_in_when_the_process_was_killed_goes_on_or_fails() {
    let site = Site::open().await;
    let whole = submitted(&site, &format!("name=a&scene=night&{SMALL}"), Vec::new()).await;
    let part = submitted(&site, &format!("name=b&scene=mist&{SMALL}"), Vec::new()).await;
    // As if neither had been submitted, and the picture of one not been uploaded.
    let queue = site.service.any_queue("imagerequest").expect("a name");
    queue.clear().await.expect("cleared");
    let lost = BlobName::source(&RequestId::new(part.clone()).expect("an id"));
    site.store.remove(&lost).await.expect("removed");

    site.pages.go_on().await.expect("gone on");
    let _roles = Embedded::start(&site.service, &site.store, 2, &settings()).expect("they start");
    site.follow(&whole, |job| job["state"] == "done").await;
    let job = site.follow(&part, |job| job["state"] == "failed").await;
    let reason = job["reason"].as_str().expect("a reason");
    assert!(reason.contains("not taken in completely"), "{reason}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_record_hides_only_its_own_job() {
    let site = Site::open().await;
    let _roles = Embedded::start(&site.service, &site.store, 2, &settings()).expect("they start");
    let damaged = BlobName::try_from("status/junk/request.json".to_owned()).expect("a name");
    site.store.create(&damaged, "{").await.expect("written");
    site.pages.go_on().await.expect("the page starts");
    let id = submitted(&site, &format!("name=a&scene=night&{SMALL}"), Vec::new()).await;
    site.follow(&id, |job| job["state"] == "done").await;
}
