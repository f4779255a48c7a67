//! What the page refuses. Logins, hosts and origins as such are tested with the package `web-guard`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::body::Body;
use axum::http::StatusCode;
use futures_util::{StreamExt as _, stream};
use pictures::Picture;
use queue_runtime::meter::TransactionKind;

use crate::web::site::{SMALL, Site};

fn named(name: &str) -> String {
    format!("name={name}&{SMALL}")
}

/// A PNG that says it has this many pixels a side.
fn claiming(side: u32) -> Vec<u8> {
    let mut png = Picture::from_fn(1, 1, |_, _| [0; 3]).to_png();
    png[16..20].copy_from_slice(&side.to_be_bytes());
    png[20..24].copy_from_slice(&side.to_be_bytes());
    let sum = crc32fast::hash(&png[12..29]);
    png[29..33].copy_from_slice(&sum.to_be_bytes());
    png
}

#[tokio::test]
async fn a_picture_that_cannot_be_used() {
    let site = Site::open().await;
    let refused = async |body: Vec<u8>, part: &str| {
        site.refused(&named("a.png"), body, (422, part)).await;
    };
    refused(claiming(1), "1×1 pixels; at least 16 a side are needed").await;
    refused(claiming(100_000), "100000×100000 pixels").await;
    refused(
        claiming(20_000),
        "at most 20000 a side and 512 MiB are allowed",
    )
    .await;
    refused(b"dear diary".to_vec(), "neither PNG nor JPEG").await;
    refused(Vec::new(), "the file is empty").await;
    let used = site.service.meter().total();
    assert_eq!(used.of(TransactionKind::Put), 0, "nothing was submitted");
}

#[tokio::test]
async fn a_picture_that_is_too_large() {
    let site = Site::open().await;
    let read = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&read);
    let mebibytes = stream::iter(0..300).map(move |_| {
        counted.fetch_add(1, Relaxed);
        Ok::<_, std::io::Error>(vec![0; 1 << 20])
    });
    site.refused(
        &named("a.png"),
        Body::from_stream(mebibytes),
        (413, "64 MiB"),
    )
    .await;
    assert!(
        read.load(Relaxed) <= 66,
        "of 300 MiB, {} were read",
        read.load(Relaxed)
    );
}

#[tokio::test]
async fn a_name_that_is_none() {
    let site = Site::open().await;
    for (name, part) in [
        (
            "%3Cimg%20src=x%20onerror=alert(1)%3E.png",
            "the character '<'",
        ),
        ("..%2Fa.png", "the character '/'"),
        ("a%0Ab.png", "the character '\\n'"),
        ("", "0 characters; 1 to 120 are allowed"),
        (&"a".repeat(121), "121 characters"),
    ] {
        site.refused(&named(name), "", (422, part)).await;
    }
}

#[tokio::test]
async fn settings_out_of_bounds() {
    let site = Site::open().await;
    for (setting, part) in [
        ("tiles=7", "no such tiles"),
        ("across=0", "tiles across is 0; 1 to 2000"),
        ("across=2001", "tiles across is 2001"),
        ("tile_size=0", "tile size is 0 pixels; 1 to 64"),
        ("slices=1001", "slices is 1001; 1 to 1000"),
        ("tint=1.5", "tint is 1.5; 0 to 1"),
        ("tint=NaN", "tint is NaN"),
        ("scene=moon", "no such scene"),
        ("across=many", "across"),
        ("across=2000&tile_size=64", "at most"),
    ] {
        let mut query = named("a") + "&scene=sunset";
        for setting in setting.split('&') {
            let (name, _) = setting.split_once('=').expect("a value");
            let others = query
                .split('&')
                .filter(|other| !other.starts_with(&format!("{name}=")));
            query = format!("{}&{setting}", others.collect::<Vec<_>>().join("&"));
        }
        site.refused(&query, "", (422, part)).await;
    }
}

#[tokio::test]
async fn a_request_from_elsewhere() {
    let site = Site::open().await;
    let path = format!("/jobs?{}&scene=sunset", named("a"));
    let sent = async |header: &'static str, value: &'static str| {
        let mut request = site.post(&path).body(Body::empty()).expect("a request");
        let value = axum::http::HeaderValue::from_static(value);
        request.headers_mut().insert(header, value);
        site.send(request).await.status().as_u16()
    };
    assert_eq!(sent("origin", "https://evil.example").await, 403);
    assert_eq!(sent("x-form-token", "guessed").await, 403);
    assert_eq!(sent("cookie", "none").await, 401);
    assert_eq!(sent("host", "rebound.example").await, 421);
    assert_eq!(sent("x-other", "fine").await, 201);
}

#[tokio::test]
async fn a_thousand_open_streams() {
    let site = Site::open().await;
    let mut open = Vec::new();
    let mut refused = 0;
    for _ in 0..1000 {
        let response = site.get("/events").await;
        match response.status() {
            StatusCode::OK => open.push(response),
            StatusCode::SERVICE_UNAVAILABLE => refused += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!((open.len(), refused), (64, 936));
    open.pop();
    assert_eq!(site.get("/events").await.status(), StatusCode::OK);
}
