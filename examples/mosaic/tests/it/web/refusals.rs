//! What the page refuses. Logins, hosts and origins as such are tested with the package `web-guard`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures_util::{StreamExt as _, stream};
use pictures::Picture;

use crate::web::site::{SMALL, Site, text};

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
    assert_eq!(
        site.service.meter().total().of(PUT),
        0,
        "nothing was submitted"
    );
}

const PUT: queue_runtime::meter::TransactionKind = queue_runtime::meter::TransactionKind::Put;

#[tokio::test]
async fn a_picture_that_is_too_large() {
    let site = Site::open().await;
    let announced = site.post(&format!("/jobs?{}", named("a.png")));
    let announced = announced.header("content-length", 300 << 20);
    let unread =
        stream::repeat_with(|| -> Result<Vec<u8>, std::io::Error> { panic!("it is read") });
    let announced = announced
        .body(Body::from_stream(unread))
        .expect("a request");
    let refused = site.send(announced).await;
    assert_eq!(refused.status(), StatusCode::PAYLOAD_TOO_LARGE);
    let said = text(refused).await;
    assert!(
        said.contains("the picture has 300 MiB; at most 64 MiB are allowed"),
        "{said}"
    );

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
    let host = site.origin.trim_start_matches("http://").to_owned();
    let with = |headers: &[(&str, &str)]| {
        let mut request = Request::builder().method("POST").uri(&path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.body(Body::empty()).expect("a request")
    };
    let (own, cookie, origin, token) = (
        ("host", host.as_str()),
        ("cookie", site.cookie.as_str()),
        ("origin", site.origin.as_str()),
        ("x-form-token", site.token.as_str()),
    );
    let rebound = ("host", "rebound.example");
    for (request, status) in [
        (
            with(&[own, cookie, ("origin", "https://evil.example"), token]),
            403,
        ),
        (with(&[own, cookie, token]), 403),
        (with(&[own, cookie, origin]), 403),
        (with(&[own, origin, token]), 401),
        (with(&[rebound, cookie, origin, token]), 421),
        (with(&[own, cookie, origin, token]), 201),
    ] {
        let shown = format!("{request:?}");
        assert_eq!(
            site.send(request).await.status().as_u16(),
            status,
            "{shown}"
        );
    }
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
