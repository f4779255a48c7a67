//! Taking pictures in.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::{Body, to_bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use pictures::{Layout, Library, Picture, PictureError, Size, TileSize};
use queue_runtime::{Failure, QueueService, RequestId};
use serde::{Deserialize, Serialize};
use tokio::sync::{OnceCell, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::{Problem, SCENE, Shared, scene_named};
use crate::storage::libraries::MAX_PICTURE;
use crate::storage::store::Store;
use crate::workflow::client::{ClientError, Job};
use crate::workflow::intake::Intake;

/// The greatest number of pictures that are taken in at a time.
const MAX_UPLOADS: usize = 4;
/// The beginning of the ids of the page's requests.
const PREFIX: &str = "page-";
/// The longest time in which a picture must arrive.
const LONGEST_UPLOAD: Duration = Duration::from_secs(300);
/// The greatest length of a name, in characters.
const MAX_NAME: usize = 120;
/// The shortest side of a picture, in pixels.
const MIN_SIDE: u32 = 16;

/// A tile library to choose, read when it is first used.
pub struct Tiles {
    /// The library's name.
    name: String,
    read: Arc<dyn Fn() -> Result<Read, Failure> + Send + Sync>,
    library: OnceCell<Arc<Library>>,
}

/// A library, and the names of tiles that are left out, with the reasons.
type Read = (Library, Vec<(String, PictureError)>);

#[derive(Debug)]
pub(super) struct Uploads {
    intake: Intake,
    tiles: Arc<[Tiles]>,
    places: Arc<Semaphore>,
}

/// What a form asks for.
#[derive(Debug, Deserialize)]
pub(super) struct Asked {
    /// The name of the picture in the body, or that of a scene if there is none.
    name: String,
    scene: Option<String>,
    tiles: usize,
    across: u32,
    tile_size: u8,
    slices: u32,
    tint: f32,
}

#[derive(Debug, Serialize)]
pub(super) struct Accepted {
    id: String,
}

impl Tiles {
    /// A library of this name, which `read` reads, and may block.
    pub fn new(
        name: impl Into<String>,
        read: impl Fn() -> Result<Read, Failure> + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.into(),
            read: Arc::new(read),
            library: OnceCell::new(),
        }
    }

    async fn library(&self) -> Result<Arc<Library>, Failure> {
        let read = || async {
            let read = Arc::clone(&self.read);
            let (library, skipped) = spawn_blocking(move || read()).await??;
            for (tile, error) in skipped {
                let error = Failure::reject(error).chain();
                tracing::warn!(library = self.name, tile, error, "skipped a tile");
            }
            Ok(Arc::new(library))
        };
        self.library.get_or_try_init(read).await.map(Arc::clone)
    }
}

impl fmt::Debug for Tiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tiles").finish_non_exhaustive()
    }
}

impl Uploads {
    pub(super) fn new(service: &QueueService, store: &Store, tiles: Vec<Tiles>) -> Self {
        Self {
            intake: Intake::new(service.clone(), store.clone()),
            tiles: tiles.into(),
            places: Arc::new(Semaphore::new(MAX_UPLOADS)),
        }
    }

    /// Goes on with what an earlier process had begun to take in.
    pub(super) async fn go_on(&self) -> Result<(), ClientError> {
        self.intake.go_on(PREFIX).await
    }

    /// Refuses further pictures, and waits until those that are taken in now are submitted.
    pub(super) async fn end(&self) {
        let _all = self.places.acquire_many(MAX_UPLOADS as u32).await;
        self.places.close();
    }

    /// The libraries as the options of a form.
    pub(super) fn options(&self) -> String {
        let option = |(at, tiles): (usize, &Tiles)| {
            let name = tiles.name.replace('&', "&amp;").replace('<', "&lt;");
            format!(r#"<option value="{at}">{name}</option>"#)
        };
        self.tiles.iter().enumerate().map(option).collect()
    }
}

/// Takes in a picture, the body, or a scene.
pub(super) async fn submit(
    State(front): Shared,
    asked: Result<Query<Asked>, axum::extract::rejection::QueryRejection>,
    body: Body,
) -> Result<(StatusCode, Json<Accepted>), Problem> {
    let Query(asked) = asked.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let place = Arc::clone(&front.uploads.places).try_acquire_owned();
    let place = place.map_err(|_| Problem::busy("too many pictures are taken in now"))?;
    let tiles = front.uploads.tiles.get(asked.tiles);
    let tiles =
        tiles.ok_or_else(|| Problem::invalid("there are no such tiles; reload the page"))?;
    let layout = asked.layout()?;
    let (image_name, image) = match &asked.scene {
        Some(name) => {
            let scene = scene_named(name);
            let scene = scene.ok_or_else(|| Problem::invalid("there is no such scene"))?;
            let drawn = spawn_blocking(move || scene.draw(SCENE.0, SCENE.1).to_png()).await?;
            (format!("the lake: {name}"), drawn)
        }
        None => (checked(&asked.name)?, read(body).await?),
    };
    let (width, height) = Picture::check(&image_name, &image)?;
    if width.min(height) < MIN_SIDE {
        return Err(Problem::invalid(format!(
            "the picture is {width}×{height} pixels; at least {MIN_SIDE} a side are needed"
        )));
    }
    layout.plan((width, height))?;
    let library = tiles.library().await;
    let library = library.map_err(|failure| Problem::invalid(failure.chain()))?;
    let job = Job {
        image_name,
        image,
        library,
        tile_size: asked.tile_size,
        across: asked.across,
        slices: asked.slices,
        tint: asked.tint,
    };
    // To its end, also if the browser goes away: otherwise, a request on record would wait in vain.
    let intake = front.uploads.intake.clone();
    let taking = tokio::spawn(async move {
        let _place = place;
        let request = RequestId::new(format!("{PREFIX}{}", RequestId::random()));
        let request = request.expect("it is short");
        intake.take_in(job, &request).await.map(|()| request)
    });
    let request = taking.await?.map_err(|error: ClientError| {
        let failure = Failure::retry(error);
        Problem::Failed(failure)
    })?;
    let id = request.to_string();
    Ok((StatusCode::CREATED, Json(Accepted { id })))
}

impl Asked {
    fn layout(&self) -> Result<Layout, Problem> {
        if !(0.0..=1.0).contains(&self.tint) {
            let tint = self.tint;
            return Err(Problem::invalid(format!(
                "the tint is {tint}; 0 to 1 are allowed"
            )));
        }
        Ok(Layout {
            across: self.across,
            tile_size: TileSize::try_from(self.tile_size)?,
            slices: self.slices,
        })
    }
}

/// The name of a file, as a browser tells it.
fn checked(name: &str) -> Result<String, Problem> {
    let is_allowed = |c: char| !c.is_control() && !"<>/\\".contains(c);
    let length = name.chars().count();
    if !(1..=MAX_NAME).contains(&length) {
        return Err(Problem::invalid(format!(
            "the name has {length} characters; 1 to {MAX_NAME} are allowed"
        )));
    }
    match name.chars().find(|c| !is_allowed(*c)) {
        Some(found) => Err(Problem::invalid(format!(
            "the name has the character {found:?}; control characters, slashes, < and > are not allowed"
        ))),
        None => Ok(name.to_owned()),
    }
}

/// Reads a body of at most [`MAX_PICTURE`] bytes.
async fn read(body: Body) -> Result<Vec<u8>, Problem> {
    let bytes = timeout(LONGEST_UPLOAD, to_bytes(body, MAX_PICTURE as usize)).await;
    let bytes = bytes.map_err(|_| Problem::invalid("the picture did not arrive in time"))?;
    bytes.map(Into::into).map_err(|error| {
        let max = Size(MAX_PICTURE);
        let text =
            format!("the picture has more than the {max} allowed, or did not arrive ({error})");
        Problem::Refused(StatusCode::PAYLOAD_TOO_LARGE, text)
    })
}
