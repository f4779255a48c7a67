//! The four messages, each on a queue of its own.
//!
//! ```text
//!  client ──ImageRequest──► controller ──SliceRequest──► processor
//!    ▲                          ▲  │                         │
//!    │ status records           └──┼──────SliceResponse──────┘
//!  broker ◄──ImageResponse─────────┘
//! ```
//!
//! The key fields say what the same work is, within one request. A request has one picture and one
//! answer, so the picture's name alone tells its requests and its answers; a slice is told by its
//! place.

use queue_runtime::{Message, RequestId};
use serde::{Deserialize, Serialize};

use crate::blob::BlobName;
use crate::picture::Fingerprint;

/// Asks for a mosaic. From the client to the job controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(
    kind = "mosaic.image-request",
    queue = "imagerequest",
    visibility_timeout = "1m",
    poison_threshold = 5
)]
pub struct ImageRequest {
    /// The source picture.
    #[message(key)]
    pub image: BlobName,
    /// What people call the picture.
    pub image_name: String,
    /// The fingerprint of the tile library.
    pub library: Fingerprint,
    /// Pixels along each side of a tile, 1 to 64.
    pub tile_size: u8,
    /// Tiles side by side, 1 to 2,000.
    pub across: u32,
    /// Into how many slices the work is cut, 1 to [`MAX_SLICES`].
    pub slices: u32,
    /// How far tiles take on the picture's colours, 0 to 1.
    pub tint: f32,
}

/// Asks for one slice to be rendered. From the job controller to an image processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(
    kind = "mosaic.slice-request",
    queue = "slicerequest",
    visibility_timeout = "1m",
    poison_threshold = 5
)]
pub struct SliceRequest {
    /// The slice's place among the slices, from 0.
    #[message(key)]
    pub slice_sequence: u32,
    /// The slice of the source picture.
    pub slice: BlobName,
    /// The fingerprint of the tile library.
    pub library: Fingerprint,
    /// Pixels along each side of a tile, 1 to 64.
    pub tile_size: u8,
    /// How far tiles take on the picture's colours, 0 to 1.
    pub tint: f32,
}

/// Tells how a slice went. From an image processor to the job controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(
    kind = "mosaic.slice-response",
    queue = "sliceresponse",
    visibility_timeout = "1m",
    poison_threshold = 5
)]
pub struct SliceResponse {
    /// The slice's place among the slices, from 0.
    #[message(key)]
    pub slice_sequence: u32,
    /// What became of it.
    pub outcome: SliceOutcome,
    /// How many attempts it took.
    pub attempts: u32,
}

/// What became of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SliceOutcome {
    /// It was rendered.
    Rendered {
        /// The slice of the mosaic.
        blob: BlobName,
    },
    /// It never will be.
    Failed {
        /// The error and its causes.
        reason: String,
    },
}

/// Answers an [`ImageRequest`]. From the job controller to the job broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(
    kind = "mosaic.image-response",
    queue = "imageresponse",
    visibility_timeout = "30s",
    poison_threshold = 10
)]
pub struct ImageResponse {
    /// The source picture.
    #[message(key)]
    pub image: BlobName,
    /// What became of the request.
    pub outcome: ImageOutcome,
}

impl ImageResponse {
    /// The answer to a request that has a mosaic.
    #[must_use]
    pub fn done(request: &RequestId, figures: Figures) -> Self {
        let image = BlobName::mosaic(request);
        Self {
            image: BlobName::source(request),
            outcome: ImageOutcome::Done { image, figures },
        }
    }

    /// The answer to a request that will have none.
    #[must_use]
    pub fn failed(request: &RequestId, reason: String) -> Self {
        Self {
            image: BlobName::source(request),
            outcome: ImageOutcome::Failed { reason },
        }
    }
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageOutcome {
    /// The mosaic is there.
    Done {
        /// The mosaic.
        image: BlobName,
        /// What it took.
        figures: Figures,
    },
    /// There will be none.
    Failed {
        /// The error and its causes.
        reason: String,
    },
}

/// What a mosaic took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The mosaic's width in pixels.
    pub width: u32,
    /// The mosaic's height in pixels.
    pub height: u32,
    /// How many tiles it is made of.
    pub tiles: u32,
    /// How many slices it was made in.
    pub slices: u32,
    /// Attempts at slices beyond the first of each.
    pub retries: u32,
}

/// The most slices that the work is cut into.
pub const MAX_SLICES: u32 = 1_000;
