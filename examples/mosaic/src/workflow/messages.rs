//! The four messages, each on a queue of its own, with [settings](super::queues) in the queue's metadata.
//!
//! ```text
//!  client ──ImageRequest──► controller ──SliceRequest──► processor
//!    ▲                          ▲  │                         │
//!    │ status records           └──┼──────SliceResponse──────┘
//!  broker ◄──ImageResponse─────────┘
//! ```
//!
//! The key fields identify the work within one request. A request has one picture and one response,
//! so the picture's name identifies both; a slice is identified by its sequence number.

use queue_runtime::{Message, RequestId};
use serde::{Deserialize, Serialize};

use crate::storage::blob::BlobName;
use pictures::{Fingerprint, Layout, PictureError, TileSize};

/// Requests a mosaic: sent by the client to the job controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "mosaic.image-request", queue = "imagerequest")]
pub struct ImageRequest {
    /// The source picture.
    #[message(key)]
    pub image: BlobName,
    /// The picture's display name.
    pub image_name: String,
    /// The fingerprint of the tile library.
    pub library: Fingerprint,
    /// Pixels along each side of a tile, 1 to 64.
    pub tile_size: u8,
    /// The number of tiles across, 1 to 2,000.
    pub across: u32,
    /// The number of slices that the work is divided into, 1 to [`Layout::MAX_SLICES`].
    pub slices: u32,
    /// How strongly tiles are tinted with the picture's colours, from 0 to 1.
    pub tint: f32,
}

impl ImageRequest {
    /// The layout of the mosaic.
    ///
    /// # Errors
    /// [`PictureError`] if the tile size is out of bounds.
    pub fn layout(&self) -> Result<Layout, PictureError> {
        Ok(Layout {
            across: self.across,
            tile_size: TileSize::try_from(self.tile_size)?,
            slices: self.slices,
        })
    }
}

/// Requests the rendering of a slice: sent by the job controller to an image processor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "mosaic.slice-request", queue = "slicerequest")]
pub struct SliceRequest {
    /// The slice's sequence number, from 0.
    #[message(key)]
    pub slice_sequence: u32,
    /// The blob of the slice.
    pub slice: BlobName,
    /// The fingerprint of the tile library.
    pub library: Fingerprint,
    /// Pixels along each side of a tile, 1 to 64.
    pub tile_size: u8,
    /// How strongly tiles are tinted with the picture's colours, from 0 to 1.
    pub tint: f32,
}

/// Reports the outcome of a slice: sent by an image processor to the job controller.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "mosaic.slice-response", queue = "sliceresponse")]
pub struct SliceResponse {
    /// The slice's sequence number, from 0.
    #[message(key)]
    pub slice_sequence: u32,
    /// The outcome.
    pub outcome: SliceOutcome,
    /// The number of attempts.
    pub attempts: usize,
}

/// The outcome of a slice.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SliceOutcome {
    /// The slice was rendered.
    Rendered {
        /// The blob of the rendered slice.
        blob: BlobName,
        /// The client id of the processor.
        #[serde(default)]
        by: String,
        /// The time that rendering took, in milliseconds.
        #[serde(default)]
        millis: u64,
    },
    /// The slice cannot be rendered.
    Failed {
        /// The error and its causes.
        reason: String,
    },
}

/// Responds to an [`ImageRequest`]: sent by the job controller to the job broker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Message)]
#[message(kind = "mosaic.image-response", queue = "imageresponse")]
pub struct ImageResponse {
    /// The source picture.
    #[message(key)]
    pub image: BlobName,
    /// The outcome of the request.
    pub outcome: ImageOutcome,
}

impl ImageResponse {
    /// The response to a request whose mosaic is complete.
    pub fn done(request: &RequestId, image: BlobName, figures: Figures) -> Self {
        Self {
            image: BlobName::source(request),
            outcome: ImageOutcome::Done { image, figures },
        }
    }

    /// The response to a request that failed.
    pub fn failed(request: &RequestId, reason: String) -> Self {
        Self {
            image: BlobName::source(request),
            outcome: ImageOutcome::Failed { reason },
        }
    }
}

/// The outcome of a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ImageOutcome {
    /// The mosaic is complete.
    Done {
        /// The name of the mosaic.
        image: BlobName,
        /// The mosaic's size, and the work that it took.
        figures: Figures,
    },
    /// The mosaic cannot be made.
    Failed {
        /// The error and its causes.
        reason: String,
    },
}

/// The size of a mosaic, and the work that it took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Figures {
    /// The mosaic's width in pixels.
    pub width: u32,
    /// The mosaic's height in pixels.
    pub height: u32,
    /// The size of the PNG in bytes.
    pub bytes: u64,
    /// The number of tiles.
    pub tiles: u32,
    /// The number of slices.
    pub slices: u32,
    /// Attempts at slices beyond the first at each.
    pub retries: usize,
}
